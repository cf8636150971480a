# SPDX-License-Identifier: Apache-2.0
"""Keys and column bounds of many files as the text that `t$files` shows: `[1, a]`, `{a=1, b=null}`.

Agrees with: FilesTable.StatsLazyGetter, SimpleStatsEvolution (2.0.0). Invariant: bounds are told by the columns of the
table's schema; a file of an older schema gets each bound cast to today's type, and null where the cast fails (Java
gives up on the whole table then).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest
from shoal.format.evolve import Converter, converter
from shoal.format.schema import Schema
from shoal.format.types import DataType, Field, to_arrow, widened
from shoal.format.varint import nullable_longs
from shoal.table.row_text import list_text, map_text, text_columns, typed_column, value_text
from shoal.table.row_tracking import STORED

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

Rows = np.ndarray[Any, np.dtype[np.int64]]
Names = tuple[str, ...] | None

WHAT = "column bounds"


def key_texts(table: Table, live: pa.Table) -> list[pa.Array]:
    """Least and greatest key as `[1, a]`; null in append tables.

    Of files sorted by `clustering.columns` those instead; Java shows their bytes as if they were the key's.
    """
    import pyarrow as pa

    if not table.primary_key:
        return [pa.nulls(live.num_rows, pa.string())] * 2
    clustered = table.clustered_fields

    def keys(key: tuple[int, bool], rows: pa.Table) -> list[pa.Array]:
        schema = table.metadata.schema(key[0])
        types = schema.key_types
        if key[1]:
            by_id = {f.id: f.type for f in schema.fields}
            types = tuple(by_id[f.id] for f in clustered)
        bounds = (rows.column(n).combine_chunks() for n in ("min_key", "max_key"))
        return [list_text(text_columns(types, b, f"{table.name}: a key")) for b in bounds]

    sorted_by_others = [bool(clustered) and level > 0 for level in live.column("level").to_pylist()]
    return _grouped(live, list(zip(live.column("schema_id").to_pylist(), sorted_by_others)), keys, 2)


def stats_texts(table: Table, live: pa.Table) -> list[pa.Array]:
    """Null counts, lower and upper bounds as `{a=1, b=null}`, by the columns of the table's schema."""

    def stats(key: tuple[int, Names, Names], rows: pa.Table) -> list[pa.Array]:
        schema_id, written, covered = key
        return _of_group(rows, table.metadata.schema(schema_id), written, covered, today)

    # as the schema file has it: a table may read its timestamps in a wider type
    today = table.metadata.schema(table.schema.id).fields
    ids, written, covered = (live.column(n).to_pylist() for n in ("schema_id", "write_cols", "value_stats_cols"))
    keys = [
        (i, None if w is None else tuple(w), None if c is None else tuple(c)) for i, w, c in zip(ids, written, covered)
    ]
    return _grouped(live, keys, stats, 3)


def _of_group(rows: pa.Table, schema: Schema, written: Names, covered: Names, today: Sequence[Field]) -> list[pa.Array]:
    """Stats of files that agree in schema, in written columns and in columns that have statistics."""
    import pyarrow as pa

    # files that store row ids have bounds of them, too
    fields = [*schema.fields] if written is None else [f for f in (*schema.fields, *STORED) if f.name in written]
    kept = fields if covered is None else [f for c in covered for f in fields if f.name == c]
    slots = [f.type if not f.type.is_nested else DataType("INT") for f in kept]
    bounds = [rows.column(n).combine_chunks() for n in ("value_min", "value_max")]
    lows, highs = (text_columns(slots, b, WHAT) for b in bounds)
    counts = _null_counts(rows.column("value_nulls").combine_chunks(), len(kept))
    place = {f.id: i for i, f in enumerate(kept)}
    in_file = {f.id: f for f in fields}
    nothing = pa.nulls(rows.num_rows, pa.string())
    every = rows.column("row_count").combine_chunks().cast(pa.string())
    texts: list[list[pa.Array]] = [[], [], []]
    for f in today:
        i = place.get(f.id)
        # a column that the file does not have is null in all its rows
        texts[0].append(counts[i] if i is not None else nothing if f.id in in_file else every)
        for raw, plain, out in zip(bounds, (lows, highs), texts[1:]):
            if i is None or f.type.is_nested:
                out.append(nothing)
            else:
                same = _same(kept[i].type, f.type)
                out.append(plain[i] if same else _cast(slots, raw, i, kept[i].type, f))
    return [map_text([f.name for f in today], t) for t in texts]


def _same(old: DataType, new: DataType) -> bool:
    return old.with_nullable(True) == new.with_nullable(True)


def _cast(slots: Sequence[DataType], raw: pa.Array, i: int, old: DataType, new: Field) -> pa.Array:
    """Bounds of a column that has another type today: cast as a reader casts its values, null where that fails."""
    import pyarrow as pa

    if old.is_nested:
        return pa.nulls(len(raw), pa.string())
    source, target = widened(old), widened(new.type)  # bounds of any year, whatever the reader is opened with
    values = typed_column(slots, raw, i, source, WHAT)
    convert = converter(source, target, new.name)
    if convert is None:
        return value_text(target, values.cast(to_arrow(target)))
    try:
        return value_text(target, convert(values))
    except BadRequest:
        # a text bound may have been cut, so that it is no date or number any more; the others still are
        kind = to_arrow(target)
        parts = [_or_null(convert, values.slice(at, 1), kind) for at in range(len(values))]
        return value_text(target, pa.concat_arrays(parts))


def _or_null(convert: Converter, value: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    try:
        return convert(value)
    except BadRequest:
        return pa.nulls(1, kind)


def _null_counts(raw: pa.Array, columns: int) -> list[pa.Array]:
    """Null counts a column, as text. Files repeat them, so each distinct list is decoded once."""
    import pyarrow as pa

    encoded = raw.dictionary_encode()
    lists = [nullable_longs(r) for r in encoded.dictionary.to_pylist()]
    out = []
    for i in range(columns):
        texts = [None if i >= len(c) or c[i] is None else str(c[i]) for c in lists]
        out.append(pa.array(texts, pa.string()).take(encoded.indices))
    return out


def _grouped(
    live: pa.Table, keys: Sequence[Any], texts: Callable[[Any, pa.Table], list[pa.Array]], width: int
) -> list[pa.Array]:
    """`texts` of the rows of each key, put back into the order of the rows."""
    import pyarrow as pa

    numbers = {k: i for i, k in enumerate(dict.fromkeys(keys))}
    if len(numbers) <= 1:
        return texts(keys[0], live) if numbers else [pa.array([], pa.string())] * width
    code = np.array([numbers[k] for k in keys])
    parts: list[list[pa.Array]] = []
    order: list[Rows] = []
    for k, i in numbers.items():
        at = np.flatnonzero(code == i)
        order.append(at)
        parts.append(texts(k, live.take(pa.array(at))))
    back = pa.array(np.argsort(np.concatenate(order)))
    return [pa.concat_arrays([p[c] for p in parts]).take(back) for c in range(width)]
