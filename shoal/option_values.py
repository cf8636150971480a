# SPDX-License-Identifier: Apache-2.0
"""The text forms of option values: sizes, durations, numbers, maps, as Paimon writes them.

Invariant: a text is accepted here exactly when Java Paimon accepts it, and means the same number; everything else is
a BadRequest that names the key and the value.

Agrees with: MemorySize, TimeUtils, OptionsUtils, StructuredOptionsSplitter (2.0.0)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shoal.errors import BadRequest, near

Value = bool | int | float | str | tuple[str, ...] | Mapping[str, str] | None

_MEMORY = {
    unit: 1 << 10 * power
    for power, units in enumerate(("b bytes", "k kb kibibytes", "m mb mebibytes", "g gb gibibytes", "t tb tebibytes"))
    for unit in units.split()
}
_MS = 1_000_000
_NANOS = {
    unit: nanos
    for units, nanos in (
        ("ns nano nanos nanosecond nanoseconds", 1),
        ("µs micro micros microsecond microseconds", 1_000),
        ("ms milli millis millisecond milliseconds", _MS),
        ("s sec secs second seconds", 1_000 * _MS),
        ("m min minute minutes", 60_000 * _MS),
        ("h hour hours", 3_600_000 * _MS),
        ("d day days", 86_400_000 * _MS),
    )
    for unit in units.split()
}
# patterns stay texts, compiled (and cached by re) on first use: every command pays for the import of this module
_AMOUNT = r"(?s:([0-9]+)(.*))"
_INTEGER = r"[+-]?[0-9]+"
_NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?"
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_BLANK = "".join(map(chr, range(0x21)))  # what Java's trim() cuts


def parse_memory(text: str, key: str | None = None) -> int:
    """Bytes of a size as Paimon writes it; a number without a unit is bytes.

    >>> parse_memory("256 mb")
    268435456
    """
    amount, unit = _amount(text, key, "a size such as '128 mb'")
    if unit and unit not in _MEMORY:
        raise _bad(key, text, f"has an unknown unit '{unit}'", "units are b, kb, mb, gb and tb")
    size = amount * _MEMORY.get(unit, 1)
    if size > _LONG_MAX:
        raise _bad(key, text, "does not fit in 64 bits", None)
    return size


def parse_duration(text: str, key: str | None = None) -> int:
    """Milliseconds of a duration as Paimon writes it; a number without a unit is milliseconds.

    >>> parse_duration("1 h")
    3600000
    """
    amount, unit = _amount(text, key, "a duration such as '10 min'")
    if unit and unit not in _NANOS:
        raise _bad(key, text, f"has an unknown unit '{unit}'", "units are d, h, min, s, ms, µs and ns")
    millis = amount * _NANOS.get(unit, _MS) // _MS
    if millis > _LONG_MAX:
        raise _bad(key, text, "does not fit in 64 bits", None)
    return millis


def parse_value(kind: str, text: str, key: str, allowed: Sequence[str] = (), bounds: str = "") -> Value:
    """The typed value of an option text. `allowed` lists enum values, where '<n>' stands for a number."""
    if allowed:
        return _one_of(text, key, allowed)
    match kind:
        case "bool":
            if text.lower() not in ("true", "false"):
                raise _bad(key, text, "is not true or false", None)
            return text.lower() == "true"
        case "int" | "long":
            number = _integer(text, key, _INT_MAX if kind == "int" else _LONG_MAX)
            _check_bounds(number, text, key, bounds)
            return number
        case "double":
            if not re.fullmatch(_NUMBER, text.strip(_BLANK)):
                raise _bad(key, text, "is not a number", None)
            real = float(text.strip(_BLANK).rstrip("dDfF"))
            _check_bounds(real, text, key, bounds)
            return real
        case "memory":
            return parse_memory(text, key)
        case "duration":
            return parse_duration(text, key)
        case "map":
            return _map(text, key)
        case "list":
            return tuple(part.strip(_BLANK) for part in text.split(",")) if text else ()
        case _:
            return text


def shown(key: str, text: str) -> str:
    """The value in quotes for a message, or stars when the key looks like a secret."""
    secret = re.search(r"secret|password|token$|access-key|access\.key|credential", key, re.IGNORECASE)
    return "'******'" if secret else f"'{text}'"


def _amount(text: str, key: str | None, wanted: str) -> tuple[int, str]:
    match = re.fullmatch(_AMOUNT, text.strip(_BLANK))
    if match is None:
        raise _bad(key, text, f"is not {wanted}", None)
    amount = int(match[1])
    if amount > _LONG_MAX:
        raise _bad(key, text, "does not fit in 64 bits", None)
    unit = match[2].strip(_BLANK).lower()
    if unit.startswith((".", ",")):
        raise _bad(key, text, "is not a whole number with a unit", "take a smaller unit instead of a fraction")
    return amount, unit


def _integer(text: str, key: str, largest: int) -> int:
    if not re.fullmatch(_INTEGER, text):
        raise _bad(key, text, "is not a whole number", None)
    number = int(text)
    if not -largest - 1 <= number <= largest:
        raise _bad(key, text, f"does not fit in {largest.bit_length() + 1} bits", None)
    return number


def _check_bounds(number: float, text: str, key: str, bounds: str) -> None:
    low, _, high = bounds.partition("..")
    if (low and number < float(low)) or (high and number > float(high)):
        wanted = f"between {low} and {high}" if high else f"at least {low}"
        raise _bad(key, text, f"must be {wanted}", None)


def _one_of(text: str, key: str, allowed: Sequence[str]) -> str:
    for value in allowed:
        if value.lower() == text.lower():
            return value
        head, found, tail = value.partition("<n>")
        if found and re.fullmatch(re.escape(head) + "[0-9]+" + re.escape(tail), text, re.IGNORECASE):
            return text.lower()
    hint = near(text, [value.replace("<n>", "16") for value in allowed])
    raise _bad(key, text, "is not one of " + ", ".join(allowed), hint)


def _map(text: str, key: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in _split(text, ",", key):
        parts = _split(item, ":", key)
        if len(parts) != 2 or parts[0] in pairs:
            raise _bad(key, text, f"has an item '{item}' that is no new pair", "write it as 'a:b,c:d'")
        pairs[parts[0]] = parts[1]
    return pairs


def _split(text: str, separator: str, key: str) -> list[str]:
    """Parts between separators; a quoted part may hold the separator, and a doubled quote inside it is a quote."""
    part = re.compile(
        rf"""\s*(?:"((?:[^"]|"")*)"|'((?:[^']|'')*)'|([^{separator}"'\s][^{separator}]*|))\s*({separator}|$)"""
    )
    parts: list[str] = []
    at = 0
    while at < len(text):
        match = part.match(text, at)
        if match is None:
            raise _bad(key, text, "has a quote in the wrong place", None)
        double, single, plain, _ = match.groups()
        quoted = double.replace('""', '"') if double is not None else single and single.replace("''", "'")
        if plain or quoted is not None or parts or at:  # a separator in front adds no part
            parts.append(plain.strip(_BLANK) if plain is not None else quoted or "")
        at = match.end()
    return parts


def _bad(key: str | None, text: str, why: str, hint: str | None) -> BadRequest:
    """One sentence. A key that begins with '--' is an option of the command line."""
    value = shown(key or "", text)
    named = f"{key} {value}" if key and key.startswith("--") else f"'{key}' = {value}" if key else value
    return BadRequest(f"{named} {why}", hint=hint)
