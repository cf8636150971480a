# SPDX-License-Identifier: Apache-2.0
"""Which partitions and files cannot hold a row that a filter wants.

Arrow decides: every file becomes a fragment whose guarantee states its partition values and column bounds, and
`get_fragments(filter)` drops those that cannot match. Invariant: a file that may hold a matching row is never dropped.
Each bound stands alone as `(column >= low) | is_null(column)`: a joined range does not prune, and one without
`is_null` prunes wrongly for `IS NULL`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.errors import Unsupported
from shoal.format.data import ColumnBounds
from shoal.format.row import Value, arrow_column, decode
from shoal.format.types import Field, arrow_schema

if TYPE_CHECKING:
    import pyarrow.compute as pc


def keep_partitions(
    fields: Sequence[Field], partitions: Sequence[bytes], where: pc.Expression, columns: Sequence[Field]
) -> list[bool]:
    """For each partition whether it may hold a matching row."""
    guarantees = []
    for p in partitions:
        values = decode([f.type for f in fields], p, "partition")
        guarantees.append([_exactly(f, v) for f, v in zip(fields, values)])
    return _keep(guarantees, where, columns)


def keep_files(
    fields: Sequence[Field],
    bounds: Sequence[Mapping[str, ColumnBounds]],
    rows: Sequence[int],
    where: pc.Expression,
    columns: Sequence[Field],
) -> list[bool]:
    """For each file, by its column bounds, whether it may hold a matching row."""
    guarantees = []
    for b, n in zip(bounds, rows):
        guarantees.append([e for f in fields if f.name in b for e in _within(f, b[f.name], n)])
    return _keep(guarantees, where, columns)


def _exactly(f: Field, value: Value) -> pc.Expression:
    import pyarrow.compute as pc

    column = pc.field(f.name)
    return column.is_null() if value is None else column == arrow_column([value], f.type)[0]


def _within(f: Field, b: ColumnBounds, rows: int) -> list[pc.Expression]:
    import pyarrow.compute as pc

    column = pc.field(f.name)
    if b.nulls is not None and b.nulls == rows:
        return [column.is_null()]
    if f.type.root in ("FLOAT", "DOUBLE"):
        return []  # another writer's bounds may leave out NaN, which some engines sort above everything
    out = []
    try:
        if b.low is not None:
            out.append((column >= arrow_column([b.low], f.type)[0]) | column.is_null())
        if b.high is not None:
            out.append((column <= arrow_column([b.high], f.type)[0]) | column.is_null())
    except (UnicodeDecodeError, OverflowError, Unsupported, ValueError):
        return []  # a bound that was cut inside a character, or that Arrow cannot hold, bounds nothing
    return out


def _keep(guarantees: Sequence[Sequence[pc.Expression]], where: pc.Expression, columns: Sequence[Field]) -> list[bool]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    schema = arrow_schema(columns)
    kind, fs = ds.ParquetFileFormat(), LocalFileSystem()
    fragments = []
    for i, parts in enumerate(guarantees):
        guarantee = pc.scalar(True)
        for p in parts:
            guarantee = guarantee & p
        fragments.append(kind.make_fragment(str(i), fs, partition_expression=guarantee))
    dataset = ds.FileSystemDataset(fragments, schema, kind, fs)
    keep = [False] * len(guarantees)
    try:
        for fragment in dataset.get_fragments(where):
            keep[int(fragment.path)] = True
    except pa.ArrowException:
        return [True] * len(guarantees)  # a filter that Arrow cannot simplify prunes nothing
    return keep
