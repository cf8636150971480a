# SPDX-License-Identifier: Apache-2.0
"""Which partitions a compaction is for: named ones, those that a condition holds for, those at rest.

Agrees with: CompactProcedure, CompactAction (`partitions`, `where`, `partition_idle_time`; 2.0.0). Invariant: whole
partitions are taken or left, by their values and by when their newest file was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.clock import local_ms
from shoal.errors import BadRequest
from shoal.option_values import parse_duration

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.table import Table

IDLE = "idle_time"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is asked for; everything that is given must hold. `idle_time` is a duration, or milliseconds."""

    where: str | pc.Expression | None = None
    partitions: Sequence[Mapping[str, object]] | None = None
    idle_time: str | int | None = None

    def __bool__(self) -> bool:
        return self.where is not None or self.partitions is not None or self.idle_time is not None

    def of(self, table: Table, live: pa.Table) -> pa.Table:
        """The entries of the partitions that are asked for."""
        if not self:
            return live
        import pyarrow as pa
        import pyarrow.compute as pc

        if not table.schema.partition_keys:
            raise BadRequest(
                f"{table.name} has no partitions to choose from",
                hint="compact the whole table: leave partition, where and idle time out",
            )
        there: list[bytes] = pc.unique(live.column("partition")).to_pylist()
        kept = set(there)
        if self.partitions is not None:
            from shoal.table.overwrite import Partitions

            named = Partitions(table, self.partitions)
            kept = {p for p in kept if p in named}
        if self.where is not None:
            kept &= _holding(table, self.where, there)
        if self.idle_time is not None:
            kept &= _idle(table, self.idle_time, live)
        column = live.column("partition")
        return live.filter(pc.is_in(column, pa.array(sorted(kept), column.type)))


def _holding(table: Table, where: str | pc.Expression, partitions: Sequence[bytes]) -> set[bytes]:
    """The partitions whose values fit the condition, which may ask for nothing else."""
    import pyarrow as pa

    from shoal.format.row import arrow_column, decode
    from shoal.table.where import columns_of, parse, wide_paths

    if isinstance(where, str):
        where = parse(where, table.readable_schema, wide_paths(table.readable.values()))
    keys = table.schema.partition_keys
    others = [c for c in columns_of(where, table.readable_schema) if c not in keys]
    if others:
        raise BadRequest(
            f"{table.name}: a compaction takes whole partitions, '{others[0]}' is no partition column",
            hint=f"the partition columns are {', '.join(keys)}",
        )
    fields = table.schema.partition_fields
    rows = [decode([f.type for f in fields], p, "partition") for p in partitions]
    columns = {f.name: arrow_column([r[i] for r in rows], f.type) for i, f in enumerate(fields)}
    at = pa.table({**columns, "_AT": pa.array(range(len(rows)), pa.int64())})
    return {partitions[i] for i in at.filter(where).column("_AT").to_pylist()}


def _idle(table: Table, idle_time: str | int, live: pa.Table) -> set[bytes]:
    """The partitions without a file that is younger."""
    import pyarrow.compute as pc

    idle_ms = idle_time if isinstance(idle_time, int) else parse_duration(idle_time, IDLE)
    before = local_ms(table.clock, table.clock.now_ms() - idle_ms)
    newest = live.group_by("partition").aggregate([("creation_ms", "max")])
    return set(newest.filter(pc.less(newest.column("creation_ms_max"), before)).column("partition").to_pylist())
