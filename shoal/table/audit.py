# SPDX-License-Identifier: Apache-2.0
"""System tables that show a table's rows in another form: audit_log, binlog, read-optimized and row_tracking.

Rows are streamed as a scan streams them. Agrees with: AuditLogTable, BinlogTable, PackChangelogReader,
ReadOptimizedTable, RowTrackingTable (2.0.0). Invariant: a batch read gives one row a key, the newest version with the
kind it was stored with, deletes too; in a stream the two halves of an update become one row of the binlog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest, near
from shoal.format.schema import SEQUENCE_NUMBER, VALUE_KIND
from shoal.format.snapshot import Snapshot
from shoal.format.types import DataType, Field, arrow_schema
from shoal.table.frames import Frames
from shoal.table.incremental import from_options
from shoal.table.row_tracking import TRACKED
from shoal.table.scan import Scan
from shoal.table.selected import Selected
from shoal.table.stream import Changes, Follow
from shoal.table.travel import start_mode, view

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.table import Table

KINDS = ("+I", "-U", "+U", "-D")
_BEFORE = 1
ROW_KIND = Field(2147483641, "rowkind", DataType("VARCHAR", length=2147483647))
Batches = Iterator["pa.RecordBatch"]


@dataclass(frozen=True)
class AuditLog(Frames):
    """Rows with their kind in front, as text. With `packed`, every column is a list: the binlog.

    `open` makes the scan that is shown; its batches begin with `_VALUE_KIND`. `log`: its rows are changes in the order
    they happened, so that -U and +U rows stand side by side; otherwise they are the state of a table. `today` is the
    table without time travel, which a stream reads by the columns it has now.
    """

    table: Table
    open: Callable[..., Scan]
    where: pc.Expression | str | None = None
    wanted: Sequence[str] | None = None
    limit: int | None = None
    packed: bool = False
    log: bool = False
    today: Table | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._whole.names if self.wanted is None else self.wanted)

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the result."""
        import pyarrow as pa

        for c in self.columns:
            if c not in self._whole.names:
                known = self._whole.names
                raise BadRequest(
                    f"the audit log of {self.table.name} has no column '{c}'",
                    hint=near(c, known) or f"it has {', '.join(known)}",
                )
        return pa.schema([self._whole.field(c) for c in self.columns])

    @cached_property
    def _whole(self) -> pa.Schema:
        fields = self.table.schema.fields
        if self.packed:
            fields = tuple(
                Field(f.id, f.name, DataType("ARRAY", element=f.type.with_nullable(True)), f.description)
                for f in fields
            )
        extra = (SEQUENCE_NUMBER,) if _with_sequence(self.table) else ()
        return arrow_schema([ROW_KIND, *extra, *fields])

    # ---- rows

    def to_batches(self) -> Batches:
        """The rows, streamed."""
        left = self.limit
        schema = self.schema
        if left == 0:
            return
        kind = VALUE_KIND.name
        parts = (Changes(0, b.drop_columns([kind]), b.column(kind)) for b in self._scan.to_batches())
        for c in _whole_updates(parts) if self.packed and self.log else parts:
            out = self._shaped(c.rows, c.kinds, schema, pack=self.log)
            if left is not None:
                out = out.slice(0, left)
                left -= out.num_rows
            if out.num_rows:
                yield out
            if left == 0:
                return

    def follow(self, **how: Any) -> Iterator[Changes]:
        """The same rows as a stream, snapshot after snapshot; arguments are those of `Table.follow`."""
        log = self if self.today is None else replace(self, table=self.today, today=None)
        schema = log.schema
        stream = Follow(log.table, columns=log._needed, where=log._pushed, **how)
        changes = _whole_updates(stream) if log.packed else stream
        for c in changes:
            rows = log._shaped(c.rows, c.kinds, schema, pack=True)
            if rows.num_rows:
                yield replace(c, rows=rows, kinds=_inserts(rows.num_rows))

    # ---- parts

    @cached_property
    def _scan(self) -> Scan:
        whole = self.limit if self._kept is None else None
        return self.open(where=self._pushed, columns=self._needed, limit=whole)

    @cached_property
    def _filter(self) -> tuple[pc.Expression | None, list[str]]:
        """The filter, and the columns it reads."""
        if self.where is None:
            return None, []
        from shoal.table.where import columns_of, parse, wide_paths

        wide = () if self.packed else wide_paths(list(self.table.readable.values()))
        where = parse(self.where, self._whole, wide) if isinstance(self.where, str) else self.where
        return where, columns_of(where, self._whole)

    @property
    def _below(self) -> bool:
        """Whether the filter is about the table's own columns, so that the scan can apply it and prune by it."""
        return not self.packed and all(c in self.table.schema.names for c in self._filter[1])

    @property
    def _pushed(self) -> pc.Expression | None:
        return self._filter[0] if self._below else None

    @property
    def _kept(self) -> pc.Expression | None:
        return None if self._below else self._filter[0]

    @property
    def _needed(self) -> list[str]:
        """Columns to read: the wanted ones, and those of a filter that is applied here."""
        names = dict.fromkeys((*self.columns, *([] if self._below else self._filter[1])))
        return [n for n in names if n != ROW_KIND.name]

    def _shaped(self, rows: pa.RecordBatch, kinds: pa.Array, schema: pa.Schema, *, pack: bool) -> pa.RecordBatch:
        import pyarrow as pa

        columns = {name: rows.column(name) for name in rows.schema.names}
        if self.packed:
            columns, kinds = self._lists(columns, kinds, pack)
        columns[ROW_KIND.name] = pa.array(KINDS, pa.string()).take(kinds)
        if self._kept is None:
            return pa.RecordBatch.from_arrays([columns[n] for n in schema.names], schema=schema)
        names = dict.fromkeys((*schema.names, *self._filter[1]))
        table = pa.Table.from_arrays(
            [columns[n] for n in names], schema=pa.schema([self._whole.field(n) for n in names])
        )
        table = table.filter(self._kept).select(schema.names).combine_chunks()
        return pa.RecordBatch.from_arrays(
            [c.chunk(0) if c.num_chunks else pa.array([], c.type) for c in table.columns], schema=schema
        )

    def _lists(self, columns: dict[str, pa.Array], kinds: pa.Array, pack: bool) -> tuple[dict[str, pa.Array], pa.Array]:
        """Every column as lists of one value, or of two for an update."""
        import pyarrow as pa

        n = len(kinds)
        starts = _starts(kinds) if pack else np.arange(n, dtype=np.int32)
        offsets = pa.array(np.append(starts, n).astype(np.int32))
        out = {}
        for name, column in columns.items():
            if name == SEQUENCE_NUMBER.name:
                out[name] = column.take(pa.array(starts))
            else:
                out[name] = pa.ListArray.from_arrays(offsets, column, type=self._whole.field(name).type)
        # an update is told as its second half
        return out, kinds.take(pa.array(np.append(starts[1:], n)[: len(starts)] - 1))


def _starts(kinds: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Where the rows of the binlog start: a -U takes the row behind it along, whatever that is."""
    before = np.asarray(kinds) == _BEFORE
    at = np.arange(len(before), dtype=np.int32)
    # in a run of -U rows every second one was taken along by the one in front of it
    run = np.maximum.accumulate(np.where(before, -1, at)) + 1
    takes = before & ((at - run) % 2 == 0)
    taken = np.zeros(len(before), bool)
    taken[1:] = takes[:-1]
    return at[~taken]


def _whole_updates(changes: Iterator[Changes]) -> Iterator[Changes]:
    """The same changes, cut so that no batch ends between the two halves of an update."""
    import pyarrow as pa

    held: Changes | None = None
    for c in changes:
        if held is not None:
            if held.snapshot == c.snapshot:
                rows = pa.Table.from_batches([held.rows, c.rows]).combine_chunks().to_batches()[0]
                c = replace(c, rows=rows, kinds=pa.concat_arrays([held.kinds, c.kinds]))
            else:
                yield held
            held = None
        n = len(c.kinds)
        if n and c.kinds[n - 1].as_py() == _BEFORE and _starts(c.kinds)[-1] == n - 1:
            held = replace(c, rows=c.rows.slice(n - 1), kinds=c.kinds.slice(n - 1))
            c = replace(c, rows=c.rows.slice(0, n - 1), kinds=c.kinds.slice(0, n - 1))
        yield c
    if held is not None:
        yield held


def _inserts(rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.array(np.zeros(rows, np.int8))


def _with_sequence(table: Table) -> bool:
    return bool(table.primary_key) and table.options.get("table-read.sequence-number.enabled") is True


# ---- what the entry calls


def audit_log(
    table: Table,
    *,
    where: str | pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    packed: bool = False,
) -> AuditLog:
    """Rows with their kinds, deletes too, at the place that the table's options name; packed: the binlog."""
    if start_mode(table.options) == "incremental":

        def changes(*, where: pc.Expression | None, columns: Sequence[str], limit: int | None) -> Scan:
            return from_options(table, where, [VALUE_KIND.name, *columns], limit)

        return AuditLog(table, changes, where, columns, limit, packed, log=True)
    seen = view(table)

    def scan(**what: Any) -> Scan:
        state = Selected(seen.snapshot, seen.entries(), merge=True, deletes=True)
        return Scan(seen.table, selected=state, kinds=True, **what)

    return AuditLog(seen.table, scan, where, columns, limit, packed, today=table)


def read_optimized(
    table: Table,
    snap: Snapshot | None,
    *,
    where: str | pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Scan:
    """Rows that a full compaction has merged already: the files of the highest level; of append tables all."""
    import pyarrow.compute as pc

    live = table.metadata.live(snap)
    if table.primary_key:
        live = live.filter(pc.equal(live.column("level"), table.options.num_levels - 1))
    return Scan(table, where=where, columns=columns, limit=limit, selected=Selected(snap, live))


def row_tracking(
    table: Table,
    snap: Snapshot | None,
    *,
    where: str | pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Scan:
    """Rows with their id and the sequence number of their newest change."""
    if not table.options.row_tracking:
        raise BadRequest(
            f"{table.name} does not track rows", hint="create the table with 'row-tracking.enabled' = 'true'"
        )
    names = [*table.schema.names, *(f.name for f in TRACKED)]
    state = Selected(snap, table.metadata.live(snap))
    return Scan(table, where=where, columns=names if columns is None else columns, limit=limit, selected=state)
