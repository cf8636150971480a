# SPDX-License-Identifier: Apache-2.0
"""Column bounds of a file as a manifest keeps them: cut to a length, dense or for every column.

Agrees with: SimpleStatsConverter, SimpleColStatsCollector, TruncateSimpleColStatsCollector (2.0.0). Invariant: a
bound that was cut is still a bound: the low end is a prefix, the high end is rounded up or dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from shoal.errors import BadRequest
from shoal.format.data_writer import ColumnBounds
from shoal.format.datafile import Stats
from shoal.format.row import Value, decode, encode
from shoal.format.schema import KEY_PREFIX
from shoal.format.types import DataType, Field

# Keys and other columns that Paimon adds are cut at this length whatever metadata.stats-mode says.
KEY_MODE = "truncate(128)"
_SYSTEM = ("_SEQUENCE_NUMBER", "_VALUE_KIND", "_LEVEL", "rowkind", "_ROW_ID")
# What `mode_length` says of the modes without bounds.
COUNTS, NONE = -1, -2
_SLOT = DataType("INT")
_UNKNOWN = ColumnBounds(None, None, None)


def mode_length(mode: str) -> int | None:
    """Length of a `truncate(n)` mode, None for `full`; -1 for `counts`, -2 for `none`."""
    m = mode.strip().lower()
    if m == "full":
        return None
    if m == "counts":
        return COUNTS
    if m == "none":
        return NONE
    if m.startswith("truncate(") and m.endswith(")") and m[9:-1].strip().isdigit() and int(m[9:-1]) > 0:
        return int(m[9:-1])
    raise BadRequest(f"metadata.stats-mode '{mode}' is unknown", hint="use none, counts, full or truncate(16)")


def limits(
    names: Sequence[str],
    mode: str,
    own: Callable[[str], str | None],
    *,
    first: int = -1,
    keys: Container[str] = (),
    plain: bool = False,
) -> dict[str, int | None]:
    """How long the bounds of each column of a file may be (see `mode_length`).

    `own` is the mode of one column. Columns that Paimon adds, and `keys` (columns that stand for the key), have
    `KEY_MODE`; with `first` only so many of the others keep bounds. A `plain` format treats all columns alike.

    Agrees with: StatsCollectorFactories (2.0.0).
    """
    out: dict[str, int | None] = {}
    counted = 0
    for name in names:
        if (set_ := own(name)) is not None:
            out[name] = mode_length(set_)
        elif not plain and (_is_system(name) or name in keys):
            out[name] = mode_length(KEY_MODE)
            continue
        else:
            out[name] = NONE if 0 <= first <= counted else mode_length(mode)
        counted += 1
    return out


def _is_system(name: str) -> bool:
    return name.startswith(KEY_PREFIX) or name in _SYSTEM


def key_stats(
    fields: Sequence[Field], bounds: Mapping[str, ColumnBounds], limits: Mapping[str, int | None], prefix: str
) -> Stats:
    """Bounds of the key columns of a file; `prefix` is what their names carry in the file."""
    return _stats(fields, [_kept(f, prefix + f.name, bounds, limits) for f in fields])


def value_stats(
    fields: Sequence[Field], bounds: Mapping[str, ColumnBounds], limits: Mapping[str, int | None], dense: bool
) -> tuple[Stats, tuple[str, ...] | None]:
    """(stats, the columns they cover): None means every column of the schema."""
    every = [_kept(f, f.name, bounds, limits) for f in fields]
    chosen = [(f, b) for f, b in zip(fields, every) if not dense or b != _UNKNOWN]
    covered = None if len(chosen) == len(fields) else tuple(f.name for f, _ in chosen)
    return _stats([f for f, _ in chosen], [b for _, b in chosen]), covered


def _kept(f: Field, name: str, bounds: Mapping[str, ColumnBounds], limits: Mapping[str, int | None]) -> ColumnBounds:
    limit = limits[name]
    return _UNKNOWN if limit == NONE else _cut(f, bounds.get(name, _UNKNOWN), limit)


def _stats(fields: Sequence[Field], bounds: Sequence[ColumnBounds]) -> Stats:
    # a type that BinaryRow bounds never hold (nested) keeps its slot as a null of one byte
    types = [f.type if not f.type.is_nested else _SLOT for f in fields]
    return Stats.of(
        encode(types, [b.low for b in bounds]), encode(types, [b.high for b in bounds]), tuple(b.nulls for b in bounds)
    )


def _cut(f: Field, b: ColumnBounds, limit: int | None) -> ColumnBounds:
    if limit is None:
        return b
    if limit < 0:
        return ColumnBounds(None, None, b.nulls)
    if not f.type.is_bytes:
        return b
    if not isinstance(b.low, bytes) or not isinstance(b.high, bytes):
        return ColumnBounds(None, None, b.nulls)
    text = f.type.root in ("CHAR", "VARCHAR")
    low = _prefix(b.low, limit, text)
    high = b.high if _length(b.high, text) <= limit else _round_up(_prefix(b.high, limit, text), text)
    return ColumnBounds(None, None, b.nulls) if high is None else ColumnBounds(low, high, b.nulls)


def _length(v: bytes, text: bool) -> int:
    return len(v.decode("utf-8", "replace")) if text else len(v)


def _prefix(v: bytes, limit: int, text: bool) -> bytes:
    return v.decode("utf-8", "replace")[:limit].encode() if text else v[:limit]


def _round_up(v: bytes, text: bool) -> bytes | None:
    """The least value of this length above every value with prefix `v`; None when there is none."""
    if not text:
        for i in range(len(v) - 1, -1, -1):
            if v[i] != 0xFF:
                return v[:i] + bytes([v[i] + 1])
        return None
    chars = v.decode("utf-8", "replace")
    for i in range(len(chars) - 1, -1, -1):
        up = ord(chars[i]) + 1
        if 0xD800 <= up <= 0xDFFF:  # surrogates are not characters
            up = 0xE000
        if up <= 0x10FFFF:
            return (chars[:i] + chr(up)).encode()
    return None


def file_bounds(
    fields: Sequence[Field], stats: Stats, covered: Sequence[str] | None, path: str
) -> dict[str, ColumnBounds]:
    """The bounds a manifest entry holds, by the column names of the file's schema."""
    kept = list(fields) if covered is None else [f for name in covered for f in fields if f.name == name]
    types = [f.type if not f.type.is_nested else _SLOT for f in kept]
    lows: list[Value] = decode(types, stats.min_values, path)
    highs: list[Value] = decode(types, stats.max_values, path)
    nulls = stats.null_counts or (None,) * len(kept)
    return {f.name: ColumnBounds(a, b, n) for f, a, b, n in zip(kept, lows, highs, nulls)}
