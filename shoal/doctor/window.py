# SPDX-License-Identifier: Apache-2.0
"""What the doctor knows of one table over a span of snapshots: the one value that every judgement is a function of.

A `Window` comes from a table that is read now (`sample`), from the history store, or from both joined; debts, slopes,
diagnoses, forecasts and the timeline don't ask which. Everything in it is a number, a text or a time of the table
itself; nothing in it is a judgement.

Invariants: steps ascend by snapshot id; `flows` has a row only for steps that are here; `start` plus the flows up to a
snapshot is the state after it, from `start_before` on; what could not be seen is a `Gap`, never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shoal.doctor.sample import Count, Gap

if TYPE_CHECKING:
    import pyarrow as pa


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
    wrote: Mapping[str, Count]  # metadata files by the words of sample.METADATA
    manifests: Count  # base and delta manifests: what a reader of this snapshot opens
    entries: int  # rows of these manifests, ADD and DELETE
    dead_entries: int  # the DELETE rows, each of which cancels an ADD
    live_files: int  # added - deleted over base and delta list
    identity_holds: bool  # whether the entries of the deltas add up to the same


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
class Stock:
    """What one look at the newest snapshot shows besides the flows."""

    taken_ms: int  # the doctor's clock
    earliest: int | None  # snapshot ids that exist
    latest: int | None
    holders: tuple[Holder, ...]
    index: IndexFacts
    requests: int
    bytes_read: int
    partial: bool = False  # a budget cut the sample off


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
    `start`: files, bytes and rows by partition, bucket, level before the step `start_before` (None: before the first
    step), columns of `state_fields()`; None when they could not be read, so that stocks are unknown and only flows
    count. Steps before `start_before` lie behind a gap or a resync: they too have flows only.
    """

    table: str  # its address
    name: str  # database.table where known
    steps: tuple[SnapshotFacts, ...]
    flows: pa.Table
    start: pa.Table | None
    schemas: tuple[SchemaFacts, ...]  # all that still exist, ascending
    stock: Stock
    gaps: tuple[Gap, ...] = ()
    events: tuple[Event, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)  # where a number comes from when not from this window
    start_before: int | None = None  # the snapshot whose state before it `start` is
    # Metadata files, by the words of sample.METADATA, that the first step names but that were written before it.
    inherited: Mapping[str, Count] = field(default_factory=dict)

    @property
    def schema(self) -> SchemaFacts | None:
        """The newest schema: what the next writer uses."""
        return self.schemas[-1] if self.schemas else None


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
