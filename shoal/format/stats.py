# SPDX-License-Identifier: Apache-2.0
"""Column bounds of a file as a manifest keeps them: cut to a length, dense or for every column.

Agrees with: SimpleStatsConverter, SimpleColStatsCollector, TruncateSimpleColStatsCollector (2.0.0). Invariant: a
bound that was cut is still a bound: the low end is a prefix, the high end is rounded up or dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shoal.errors import BadRequest
from shoal.format.data import ColumnBounds
from shoal.format.datafile import Stats
from shoal.format.row import Value, decode, encode
from shoal.format.types import DataType, Field

# Keys and other columns that Paimon adds are cut at this length whatever metadata.stats-mode says.
KEY_MODE = "truncate(128)"
_SLOT = DataType("INT")
_UNKNOWN = ColumnBounds(None, None, None)


def mode_length(mode: str) -> int | None:
    """Length of a `truncate(n)` mode, None for `full`; -1 for `counts`, -2 for `none`."""
    m = mode.strip().lower()
    if m == "full":
        return None
    if m == "counts":
        return -1
    if m == "none":
        return -2
    if m.startswith("truncate(") and m.endswith(")") and m[9:-1].strip().isdigit() and int(m[9:-1]) > 0:
        return int(m[9:-1])
    raise BadRequest(f"metadata.stats-mode '{mode}' is unknown", hint="use none, counts, full or truncate(16)")


def key_stats(fields: Sequence[Field], bounds: Mapping[str, ColumnBounds], prefix: str) -> Stats:
    """Bounds of the key columns of a file; `prefix` is what their names carry in the file."""
    limit = mode_length(KEY_MODE)
    cut = [_cut(f, bounds.get(prefix + f.name, _UNKNOWN), limit) for f in fields]
    return _stats(fields, cut)


def value_stats(
    fields: Sequence[Field], bounds: Mapping[str, ColumnBounds], mode: Callable[[str], str], dense: bool
) -> tuple[Stats, tuple[str, ...] | None]:
    """(stats, the columns they cover): None means every column of the schema."""
    kept: list[Field] = []
    cut: list[ColumnBounds] = []
    for f in fields:
        limit = mode_length(mode(f.name))
        c = _UNKNOWN if limit == -2 else _cut(f, bounds.get(f.name, _UNKNOWN), limit)
        if dense and c == _UNKNOWN:
            continue
        kept.append(f)
        cut.append(c)
    covered = None if len(kept) == len(fields) else tuple(f.name for f in kept)
    return _stats(kept, cut), covered


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
    if not f.type.is_bytes or not isinstance(b.low, bytes) or not isinstance(b.high, bytes):
        return b
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
