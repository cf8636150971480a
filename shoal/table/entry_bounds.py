# SPDX-License-Identifier: Apache-2.0
"""Column bounds of many files at once, as Arrow columns that a filter can be held against.

Agrees with: SimpleStatsEvolution (2.0.0). Invariant: a bound is told by today's column names and only where today's
type is the one it was written with; null means not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.format.types import DataType, Field, to_arrow
from shoal.format.varint import nullable_longs
from shoal.table.row_text import typed_column
from shoal.table.row_tracking import STORED

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

_BYTES = DataType("VARBINARY")  # of text: a bound may have been cut inside a character
_Names = tuple[str, ...] | None
_SLOT = DataType("INT")  # a nested column has a slot too, which is always null


@dataclass(frozen=True)
class Bounds:
    """Least and greatest values and null counts by column; a column that is missing is not known in any file."""

    lows: dict[str, pa.Array] = field(default_factory=dict)
    highs: dict[str, pa.Array] = field(default_factory=dict)
    nulls: dict[str, pa.Array] = field(default_factory=dict)


def key_bounds(table: Table, entries: pa.Table, columns: Sequence[str]) -> Bounds:
    """Bounds of key columns; keys are never null. Postponed files have none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema, out = table.schema, Bounds()
    # the first and last row of a file bound a key of one column, and are never cut; else the statistics do
    types, single = schema.key_types, len(schema.key_types) == 1 and not table.clustered
    low, high = (
        entries.column(n).combine_chunks() for n in (("min_key", "max_key") if single else ("key_min", "key_max"))
    )
    postponed = pc.less(entries.column("bucket"), 0).combine_chunks()
    what = f"{table.name}: key bounds"
    for i, f in enumerate(schema.key_fields):
        if f.name in columns and not f.type.wide:
            for ends, rows in ((out.lows, low), (out.highs, high)):
                found = typed_column(types, rows, i, _read_as(f.type), what)
                ends[f.name] = pc.if_else(postponed, pa.scalar(None, found.type), found)
            out.nulls[f.name] = pa.array(np.zeros(entries.num_rows, np.int64))
    return out


def value_bounds(table: Table, entries: pa.Table, columns: Sequence[str]) -> Bounds:
    """Bounds of value columns."""
    import pyarrow as pa

    today = [f for f in table.schema.fields if f.name in columns and not f.type.is_nested]
    keys = zip(
        entries.column("schema_id").to_pylist(),
        map(_tuple, entries.column("write_cols").to_pylist()),
        map(_tuple, entries.column("value_stats_cols").to_pylist()),
    )
    groups: dict[tuple[int, _Names, _Names], list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    order = np.argsort(np.concatenate([np.array(rows) for rows in groups.values()]), kind="stable")
    parts = [_of_group(table, entries.take(pa.array(rows)), *key, today) for key, rows in groups.items()]
    out = Bounds()
    for f in today:
        for name in ("lows", "highs", "nulls"):
            chunks = [getattr(p, name)[f.name] for p in parts]
            getattr(out, name)[f.name] = pa.concat_arrays(chunks).take(pa.array(order))
    return out


def _of_group(
    table: Table, rows: pa.Table, schema_id: int, write_cols: _Names, covered: _Names, today: Sequence[Field]
) -> Bounds:
    """Files of one schema whose statistics are about the same columns."""
    import pyarrow as pa

    stored = table.file_schema(schema_id).fields
    # files that a compaction or an update of a row-tracking table wrote store ids, and have bounds of them
    written = list(stored) if write_cols is None else [f for f in (*stored, *STORED) if f.name in write_cols]
    kept = written if covered is None else [f for name in covered for f in written if f.name == name]
    types = [_SLOT if f.type.is_nested else f.type for f in kept]
    place = {f.id: i for i, f in enumerate(kept)}
    here = {f.id: f for f in written}
    encoded = rows.column("value_nulls").combine_chunks().dictionary_encode()
    distinct = [None if c is None else nullable_longs(c) for c in encoded.dictionary.to_pylist()]
    counts: list[Any] = [None if c is None else distinct[c] for c in encoded.indices.to_pylist()]
    ends = [rows.column(n).combine_chunks() for n in ("value_min", "value_max")]
    out, n = Bounds(), rows.num_rows
    what = f"{table.name}: column bounds"
    for f in today:
        kind = _read_as(f.type)
        i = place.get(f.id)
        if f.id not in here:  # added since: null in every row
            lows = highs = pa.nulls(n, to_arrow(kind))
            nulls = rows.column("row_count").combine_chunks()
        elif i is None or not here[f.id].type.same_as(f.type):
            lows = highs = pa.nulls(n, to_arrow(kind))
            nulls = pa.nulls(n, pa.int64())
        else:
            lows, highs = (typed_column(types, e, i, kind, what) for e in ends)
            nulls = pa.array([c[i] if c and i < len(c) else None for c in counts], pa.int64())
        out.lows[f.name], out.highs[f.name], out.nulls[f.name] = lows, highs, nulls
    return out


def _read_as(t: DataType) -> DataType:
    return _BYTES if t.is_bytes else t


def _tuple(names: list[str] | None) -> _Names:
    return None if names is None else tuple(names)
