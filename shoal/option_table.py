# SPDX-License-Identifier: Apache-2.0
"""The table of Paimon 2.0.0 options: what each is, and what shoal does when a table sets it.

The rows are data (`option_table.json`, made by `dev/make-option-table`), read on first use so that importing this
module stays cheap. Invariant: every option of the release is here exactly once, with a default that parses.

Agrees with: the ConfigOption constants of the release, CoreOptions and FileIndexOptions for patterned keys (2.0.0)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from shoal.errors import BadRequest, near
from shoal.option_values import Value, parse_value

_HOLE = r"<\w+>|#"

Handling = Literal["honoured", "read", "write", "upkeep", "note"]


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option. In a patterned key, '<name>' stands for any text: 'fields.<column>.stats-mode'."""

    key: str
    type: str  # bool int long double string memory duration enum map list
    scope: str  # table flink spark format index iceberg catalog rest jdbc hive filesystem, or two with a comma
    handling: Handling
    doc: str
    default: str | None = None
    values: tuple[str, ...] = ()  # allowed values; '<n>' stands for a number
    fine: tuple[str, ...] = ()  # values that need nothing from us although the option is not honoured
    old_keys: tuple[str, ...] = ()
    immutable: bool = False
    only: str = ""  # 'pk' when the option acts on tables with a primary key only
    range: str = ""

    @property
    def honoured(self) -> bool:
        return self.handling == "honoured"

    @property
    def patterned(self) -> bool:
        return "<" in self.key or "#" in self.key

    def parse(self, text: str, key: str | None = None) -> Value:
        """The typed value of `text`; BadRequest when Java would not take it."""
        return parse_value(self.type, text, key or self.key, self.values, self.range)

    def default_value(self) -> Value:
        """The typed default; an unset list or map is empty."""
        if self.default is not None:
            return self.parse(self.default)
        match self.type:
            case "list":
                return ()
            case "map":
                return {}
            case _:
                return None


class _Table(NamedTuple):
    options: Mapping[str, OptionSpec]
    old_keys: Mapping[str, OptionSpec]
    patterns: tuple[OptionSpec, ...]  # the most exact one first
    maps: tuple[OptionSpec, ...]
    mistaken: Mapping[str, str]


@cache
def _table() -> _Table:
    import json  # first use only: importing this module stays cheap

    with open(os.path.join(os.path.dirname(__file__), "option_table.json"), encoding="utf-8") as file:
        data = json.load(file)
    options = {row["key"]: _spec(row) for row in data["options"]}
    old: dict[str, OptionSpec] = {}
    for spec in options.values():
        for key in spec.old_keys:
            old.setdefault(key, spec)
    patterned = [spec for spec in options.values() if spec.patterned]
    # the pattern with the most literal text is the most exact one
    patterned.sort(key=lambda spec: -len(re.sub(_HOLE, "", spec.key)))
    return _Table(
        MappingProxyType(options),
        MappingProxyType(old),
        tuple(patterned),
        tuple(spec for spec in options.values() if spec.type == "map"),
        MappingProxyType(data["mistaken"]),
    )


def _spec(row: dict[str, Any]) -> OptionSpec:  # Any: a JSON object
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return OptionSpec(**fields)


def all_options() -> Mapping[str, OptionSpec]:
    """Every option by key, patterned ones under their pattern."""
    return _table().options


@lru_cache(4096)  # each open of a table asks for the same keys: those of its columns, one by one
def lookup(key: str) -> OptionSpec | None:
    """The option that a key sets, also by an older key, a map prefix or a pattern.

    >>> lookup("write.compaction-skip").key
    'write-only'
    >>> lookup("fields.price.aggregate-function").key
    'fields.<column>.aggregate-function'
    """
    table = _table()
    if spec := table.options.get(key) or table.old_keys.get(key):
        return spec
    if spec := next((spec for spec in table.maps if key.startswith(spec.key + ".")), None):
        return spec
    return next((spec for spec in table.patterns if _matches(spec.key, key)), None)


def _matches(pattern: str, key: str) -> bool:
    first, *rest = _literals(pattern)
    # the cheap test first: few patterns are ever compiled
    return key.startswith(first) and bool(re.fullmatch(".+".join(map(re.escape, [first, *rest])), key, re.DOTALL))


@cache
def _literals(pattern: str) -> list[str]:
    """What a pattern of the table says around its holes."""
    return re.split(_HOLE, pattern)


def known(key: str) -> OptionSpec:
    """Like `lookup`, but an unknown key is a BadRequest that names the nearest real one."""
    spec = lookup(key)
    if spec is None:
        raise BadRequest(f"no option '{key}'", hint=nearest(key))
    return spec


def known_mistake(key: str) -> str | None:
    """What was meant by a key that is often written and never was an option."""
    return _table().mistaken.get(key)


def nearest(key: str) -> str | None:
    """A hint for a key that does not exist: what was meant, or the nearest real keys."""
    table = _table()
    if hint := table.mistaken.get(key):
        return hint
    names = [name for name, spec in table.options.items() if not spec.patterned]
    middle = key.split(".")[1] if key.count(".") > 1 else ""
    # not those that end with any text: they would be near to everything
    shapes = [name for name in table.options if name.count("<") == 1 and not name.endswith(">")]
    names += [re.sub(_HOLE, middle, name, count=1) for name in shapes if middle]
    return near(key, names)
