# SPDX-License-Identifier: Apache-2.0
"""What the doctor knows of one table over a span of snapshots: the one value that every judgement is a function of.

A `Window` comes from a table that is read now (`sample`), from the history store, or from both joined; debts, slopes,
diagnoses, forecasts and the timeline don't ask which. Everything in it is a number, a text or a time of the table
itself; nothing in it is a judgement.

Invariants: steps ascend by snapshot id; `flows` has a row only for steps that are here; `start` plus all flows up to a
snapshot is the state after it, also after a gap, whose net change is told by flows of the class `unseen`; what could
not be seen is a `Gap`, never a zero.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

# What happened to a file. UNSEEN is none of these: it is the net change of what could not be read.
FLUSH, REWRITE, UPGRADE, REMOVAL, CHANGELOG = "flush", "rewrite", "upgrade", "removal", "changelog"
UNSEEN = "unseen"

# The metadata objects one commit writes. "merged-manifest" is a base manifest that the commit rewrote.
MANIFEST_LISTS = ("base-list", "delta-list", "changelog-list")
MANIFESTS = ("delta-manifest", "merged-manifest", "changelog-manifest")
METADATA = ("snapshot", *MANIFEST_LISTS, *MANIFESTS, "index-manifest")


@dataclass(frozen=True, slots=True)
class Count:
    """Files with their bytes, and the rows in them where they hold rows."""

    files: int = 0
    bytes: int = 0
    rows: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.files + other.files, self.bytes + other.bytes, self.rows + other.rows)

    def __sub__(self, other: Count) -> Count:
        return Count(self.files - other.files, self.bytes - other.bytes, self.rows - other.rows)

    def to_dict(self) -> dict[str, int]:
        return {"files": self.files, "bytes": self.bytes, "rows": self.rows}


NOTHING = Count()


@dataclass(frozen=True, slots=True)
class Gap:
    """Snapshots that could not be seen. `missing`: a file is gone although its snapshot has not expired."""

    first: int
    last: int
    kind: Literal["expired", "missing"]
    what: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A snapshot by its id and the names of its base and delta list, which it shares with no other of that id.

    Ids are given away again after a rollback. `lists` is None where only the id is known.
    """

    id: int
    lists: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """One snapshot, as its JSON file and its manifest lists tell it."""

    id: int
    schema_id: int
    user: str
    identifier: int  # a streaming Flink sink's checkpoint id
    kind: str  # APPEND, COMPACT, OVERWRITE, ANALYZE
    time_ms: int
    total_records: int | None
    delta_records: int | None
    changelog_records: int | None
    watermark: int | None  # None also for Java's "no watermark" (-2^63)
    operation: str | None
    lists: tuple[str, str]  # names of base and delta list
    wrote: Mapping[str, Count]  # metadata files by the words of METADATA; "merged-manifest" only where it is known
    manifests: Count  # base and delta manifests: what a reader of this snapshot opens
    entries: int  # rows of these manifests, ADD and DELETE
    dead_entries: int  # the DELETE rows, each of which cancels an ADD
    live_files: int  # added - deleted over base and delta list
    identity_holds: bool  # whether the entries of the deltas add up to the same

    @property
    def mark(self) -> Mark:
        return Mark(self.id, self.lists)


@dataclass(frozen=True, slots=True)
class SchemaFacts:
    """One schema file: what the table was told to be from `time_ms` on."""

    id: int
    time_ms: int
    options: Mapping[str, str]
    partition_keys: tuple[str, ...]
    primary_keys: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """Something that keeps snapshots, or their files, from expiring."""

    kind: Literal["tag", "branch", "consumer", "changelog"]
    name: str
    snapshot: int  # the snapshot it holds, for a consumer the next one to read, for changelogs the earliest
    time_ms: int | None  # when it was made or last moved
    expires_ms: int | None = None  # when it goes by itself


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """The index files of the newest snapshot, by type (HASH, DELETION_VECTORS, ...)."""

    files: Mapping[str, Count]
    marked_rows: int  # rows that deletion vectors mark
    vectors: int  # data files that have one


@dataclass(frozen=True, slots=True)
class Pin:
    """What a tag or branch keeps of the table's data files that no retained snapshot reaches any more.

    `holds` overlaps with other pins; `alone` is what no other one keeps: what goes when this one goes. `own` are files
    that a branch wrote itself: it is a table of its own, and they are its data.
    """

    kind: Literal["tag", "branch"]
    name: str
    snapshot: int
    holds: Count
    alone: Count
    own: Count = NOTHING


@dataclass(frozen=True, slots=True)
class Pins:
    """All pins, from the manifests of tags and branches. `exact` is False where not all of them were read."""

    pins: tuple[Pin, ...]
    together: Count  # each file once
    exact: bool = True


@dataclass(frozen=True, slots=True)
class FanIn:
    """How a read of the newest snapshot merges, by the key ranges of its files: only runs of one section are merged."""

    files: int
    bytes: int
    sections: int
    merging_sections: int  # of more than one run
    merging_files: int
    merging_bytes: int
    deepest: int  # runs of the section with the most
    mean_runs: float  # of the section a byte lies in


@dataclass(frozen=True, slots=True)
class Stock:
    """What one look at the newest snapshot shows besides the flows.

    `pins` and `fan_in` cost manifests of old snapshots and all live entries: only a first look reads them, None else.
    """

    taken_ms: int  # the doctor's clock
    earliest: int | None  # snapshot ids that exist
    latest: int | None
    holders: tuple[Holder, ...]
    index: IndexFacts
    requests: int
    bytes_read: int
    partial: bool = False  # a budget cut the sample off
    pins: Pins | None = None
    fan_in: FanIn | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that is no snapshot: resync, rollback, a change of options, a cut sample, a fix that was applied."""

    time_ms: int
    kind: str
    what: str
    snapshot: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive snapshots of one table with what each did, oldest first.

    `flows`: one row per snapshot x class x partition x bucket x level x change, columns of `flow_fields()`; an upgrade
    has two, what leaves its old level and what comes to the new one.
    `start`: files, bytes and rows by partition, bucket, level before the first step, columns of `state_fields()`; None
    when they could not be read, so that stocks are unknown and only flows count.
    """

    table: str  # its address
    name: str  # database.table where known
    steps: tuple[SnapshotFacts, ...]
    flows: pa.Table
    start: pa.Table | None
    schemas: tuple[SchemaFacts, ...]  # all that still exist, ascending
    stock: Stock
    after: Mark | None = None  # the snapshot that the steps follow; None when they begin where the table does
    gaps: tuple[Gap, ...] = ()
    events: tuple[Event, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)  # where a number comes from when not from this window
    # Metadata files, by the words of METADATA, that the first step names but that were written before it.
    inherited: Mapping[str, Count] = field(default_factory=dict)
    small_size: int | None = None  # files below it count as `small`

    @property
    def schema(self) -> SchemaFacts | None:
        """The newest schema: what the next writer uses."""
        return self.schemas[-1] if self.schemas else None

    @property
    def complete(self) -> bool:
        """Whether every retained snapshot is here."""
        earliest, latest = self.stock.earliest, self.stock.latest
        if earliest is None or latest is None:
            return not self.steps
        return not self.stock.partial and sum(s.id >= earliest for s in self.steps) == latest - earliest + 1

    @property
    def end(self) -> pa.Table | None:
        """The state after the last step."""
        return None if self.start is None else advance(self.start, self.flows)


def flow_fields() -> pa.Schema:
    """Columns of `Window.flows`. Partition is text (`dt=2024-05-01/`), sequence numbers are null for removals.

    `extras` counts the files beside the data files (indexes), `small` the files under target size times
    `compaction.small-file-ratio`, as the newest schema had them when the row was made.
    """
    import pyarrow as pa

    return pa.schema([
        ("snapshot", pa.int64()), ("class", pa.string()), ("change", pa.int8()), ("partition", pa.string()),
        ("bucket", pa.int32()), ("total_buckets", pa.int32()), ("level", pa.int32()), ("files", pa.int64()),
        ("bytes", pa.int64()), ("rows", pa.int64()), ("deleted_rows", pa.int64()), ("min_sequence", pa.int64()),
        ("max_sequence", pa.int64()), ("extras", pa.int64()), ("largest", pa.int64()), ("small", pa.int64()),
    ])  # fmt: skip


def state_fields() -> pa.Schema:
    """Columns of `Window.start` and of every state after it."""
    import pyarrow as pa

    return pa.schema([
        ("partition", pa.string()), ("bucket", pa.int32()), ("total_buckets", pa.int32()), ("level", pa.int32()),
        ("files", pa.int64()), ("bytes", pa.int64()), ("rows", pa.int64()), ("max_sequence", pa.int64()),
        ("extras", pa.int64()), ("small", pa.int64()),
    ])  # fmt: skip


_CELL = ("partition", "bucket", "total_buckets", "level")
_SUMMED = ("files", "bytes", "rows", "extras", "small")


def advance(state: pa.Table, flows: pa.Table) -> pa.Table:
    """The state after `flows`: cells that hold files, in the order of their keys.

    `max_sequence` of a cell is the highest of all files that it was seen to hold since it last held none, so that two
    steps give what one gives.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = state_fields()
    moved = flows.filter(pc.not_equal(flows.column("class"), CHANGELOG))
    if not moved.num_rows:
        return state
    change = moved.column("change").cast(pa.int64())
    signed = {n: pc.multiply(moved.column(n), change) for n in _SUMMED}
    parts = [state, pa.table([signed[n] if n in signed else moved.column(n) for n in fields.names], fields)]
    table = pa.concat_tables(parts).combine_chunks()
    at = np.r_[np.full(state.num_rows, -1, np.int64), np.asarray(moved.column("snapshot").to_numpy(), np.int64)]
    order = table.select(_CELL).append_column("at", pa.array(at))
    rows = pc.sort_indices(order, [(n, "ascending") for n in (*_CELL, "at")]).to_numpy()
    table, at = table.take(pa.array(rows)), at[rows]
    new = np.ones(len(at), np.bool_)
    for n in _CELL:
        codes = table.column(n).combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        new[1:] &= codes[1:] == codes[:-1]
    new[1:] = ~new[1:]
    cells = np.flatnonzero(new)  # where each cell begins
    cell = np.cumsum(new) - 1
    sums = {n: np.add.reduceat(table.column(n).to_numpy(), cells) for n in _SUMMED}
    running = np.cumsum(table.column("files").to_numpy())
    running -= np.r_[0, running[cells[1:] - 1]][cell]
    last_of = np.r_[at[1:] != at[:-1], True] | np.r_[new[1:], True]  # the last row of a cell and snapshot
    emptied = np.r_[False, (last_of & (running == 0))[:-1]] & ~new
    lives = np.flatnonzero(new | emptied)  # where each stretch begins in which a cell held files
    least = np.iinfo(np.int64).min
    highest = np.maximum.reduceat(pc.fill_null(table.column("max_sequence"), least).to_numpy(), lives)
    last_life = np.r_[np.searchsorted(lives, cells[1:]), len(lives)] - 1
    top = highest[last_life]
    columns: dict[str, object] = {n: table.column(n).take(pa.array(cells)) for n in _CELL}
    columns |= {n: pa.array(v) for n, v in sums.items()}
    columns["max_sequence"] = pa.array(top, mask=top == least)
    out = pa.table([columns[n] for n in fields.names], fields)
    return out.filter(pc.not_equal(out.column("files"), 0)).combine_chunks()


def difference(actual: pa.Table, told: pa.Table, snapshot: int) -> pa.Table:
    """Flows of the class `unseen` at `snapshot` that make the state `told` the state `actual`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    minus = told.select(_CELL)
    for n in _SUMMED:
        minus = minus.append_column(n, pc.negate(told.column(n)))
    minus = minus.append_column("max_sequence", pa.nulls(told.num_rows, pa.int64())).select(actual.column_names)
    both = pa.concat_tables([actual, minus]).group_by(list(_CELL), use_threads=False)
    sums = both.aggregate([*((n, "sum") for n in _SUMMED), ("max_sequence", "max")])
    sums = sums.rename_columns([*_CELL, *_SUMMED, "max_sequence"])
    count = sums.num_rows
    zero, null = pa.repeat(0, count), pa.nulls(count, pa.int64())
    fields, parts = flow_fields(), []
    for sign in (1, -1):  # a cell may have gained files and lost bytes: then both rows tell of it
        known = {n: pc.max_element_wise(pc.multiply(sums.column(n), sign), 0) for n in _SUMMED}
        some = pc.greater(functools.reduce(pc.add, known.values()), 0)
        known |= {n: sums.column(n) for n in (*_CELL, "max_sequence")}
        known |= {"snapshot": pa.repeat(snapshot, count), "class": pa.repeat(UNSEEN, count)}
        known |= {"change": pa.repeat(sign, count), "deleted_rows": zero, "largest": zero, "min_sequence": null}
        parts.append(pa.table([known[n] for n in fields.names], fields.names).cast(fields).filter(some))
    return in_order(pa.concat_tables(parts))


def in_order(flows: pa.Table) -> pa.Table:
    """Flows in the order of their keys, in one chunk."""
    keys = ("snapshot", "class", "change", "partition", "bucket", "total_buckets", "level")
    return flows.sort_by([(n, "ascending") for n in keys]).combine_chunks()
