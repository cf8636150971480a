# SPDX-License-Identifier: Apache-2.0
"""Which partitions cannot hold a row that a filter wants.

Arrow decides: each partition becomes a fragment whose guarantee states its values, and `get_fragments(filter)` drops
those that cannot match. So a filter may do with partition columns what it likes (`substr(dt, 1, 7) = '2026-11'`), and
be joined with conditions on other columns. Invariant: a partition that may hold a matching row is never dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.format.types import Field, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


def keep_partitions(
    names: Sequence[str], partitions: Sequence[Sequence[pa.Scalar]], where: pc.Expression, columns: Sequence[Field]
) -> list[bool]:
    """For each partition, told by its values, whether it may hold a match; `columns` are all that a filter may name."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    kind, fs = ds.ParquetFileFormat(), LocalFileSystem()
    fragments = []
    for i, values in enumerate(partitions):
        guarantee = pc.scalar(True)
        for name, v in zip(names, values):
            column = pc.field(name)
            guarantee &= column == v if v.is_valid else column.is_null()
        fragments.append(kind.make_fragment(str(i), fs, partition_expression=guarantee))
    keep = [False] * len(partitions)
    try:
        for fragment in ds.FileSystemDataset(fragments, arrow_schema(columns), kind, fs).get_fragments(where):
            keep[int(fragment.path)] = True
    except pa.ArrowException:
        return [True] * len(partitions)  # a filter that Arrow cannot simplify prunes nothing
    return keep
