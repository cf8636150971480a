# SPDX-License-Identifier: Apache-2.0
"""`table.maintain.rescale()`: partitions written again with another number of buckets, and the option set to it.

First come, in a snapshot of a compaction, changes that the changelog has not told yet (`untold`); then one OVERWRITE
snapshot with the rows in their new buckets, then the schema with the new `bucket`. What lies between is a table that
reads as before: each partition says how many buckets it has, and nobody writes to one by another number. Doing it again
does what is left: it tells nothing twice, and rewrites no partition that has its buckets. Partitions that are not
chosen keep their number until they are rescaled. Agrees with: RescaleAction, RescaleProcedure (2.0.0), which leave the
option to ALTER TABLE, read without the rows that are not compacted yet, and lose the changes that are not told.
Invariant: whoever changes one of the partitions meanwhile makes it a `Conflict`, after which rows and buckets are as
they were; rows stream through the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import BadRequest, Conflict, NotFound, ShoalError
from shoal.format.datafile import Entry
from shoal.format.snapshot import BATCH_IDENTIFIER, Snapshot
from shoal.options import check
from shoal.table import alter as pure
from shoal.table.buckets import UNAWARE
from shoal.table.compact_choice import Choice
from shoal.table.newest_schema import of_today
from shoal.table.overwrite import Exactly
from shoal.table.postponed import POSTPONED
from shoal.table.progress import Meter, Tell
from shoal.table.row_kinds import INSERT
from shoal.table.schema_change import SetOption
from shoal.table.staged import Committed
from shoal.table.untold import tell, tells_late, untold
from shoal.table.upkeep import Keeper
from shoal.table.whole_partitions import as_new, by_partition, of_partitions, overwriting, real, rows_of
from shoal.table.write import Write

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table
    from shoal.table.upkeep import Upkeep

OPTION = "bucket"


@dataclass(frozen=True, slots=True)
class RescaledPartition:
    """A partition that is rescaled: how many buckets it had, and what is written again."""

    partition: str
    buckets: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Rescaled:
    """What a rescale did, or (`dry_run`) would do. `schema` is the id of the schema with the new option."""

    table: str
    buckets: int
    planned: tuple[RescaledPartition, ...]
    rows: int = 0
    files_after: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    snapshot: int | None = None
    schema: int | None = None
    untold: int = 0
    """Files whose changes no changelog has told yet."""
    told: int | None = None
    """The snapshot that tells them, before the rows are rewritten."""
    others: int = 0
    """Partitions that keep another number of buckets: they are read, and not written to before they are rescaled."""
    dry_run: bool = False
    upkeep: Upkeep | None = None

    def __str__(self) -> str:
        files, size = sum(p.files for p in self.planned), sum(p.bytes for p in self.planned)
        what = f"{files:,} files ({size:,} bytes) of {len(self.planned):,} partitions"
        said = []
        if self.untold:
            who = "would first tell" if self.told is None else f"snapshot {self.told} tells"
            said.append(f"{who} changes of {self.untold:,} files that waited for a compaction")
        if self.planned:
            said.append(
                f"would write {what} into {self.buckets:,} buckets each" if self.dry_run
                else f"snapshot {self.snapshot}, {what} became {self.files_after:,} in {self.buckets:,} buckets each"
            )  # fmt: skip
        if self.schema is not None:
            said.append(f"'{OPTION}' is {self.buckets} from schema {self.schema} on")
        if self.others:
            said.append(f"{self.others:,} other partitions keep another number of buckets until they are rescaled")
        return f"{self.table}: " + ("; ".join(said) or f"nothing to rescale, there are {self.buckets:,} buckets")

    def to_dict(self) -> dict[str, object]:
        out = {n: getattr(self, n) for n in self.__slots__ if n not in ("planned", "upkeep")}
        out["planned"] = [{n: getattr(p, n) for n in p.__slots__} for p in self.planned]
        out["upkeep"] = None if self.upkeep is None else self.upkeep.to_dict()
        return out


def rescale(
    table: Table, buckets: int | None, choice: Choice, *, dry_run: bool = False, progress: Tell | None = None
) -> Rescaled:
    """Write the chosen partitions again in so many buckets (the table's own number without any)."""
    started = table.clock.monotonic()
    check(table.schema.options, "write", has_primary_key=bool(table.primary_key))
    if table.metadata.latest_schema_id() is None:
        raise NotFound(f"{table.name}: the table is gone", hint="create it again")
    table = of_today(table)
    count = _count(table, buckets)
    work = _work(table, count, choice)
    if choice and not work.found:
        raise NotFound(
            f"{table.name} has no files in the partitions that are named: there is nothing to rescale",
            hint="leave partition and where out to rescale every partition",
        )
    sets = table.options.bucket not in (count, POSTPONED)
    waiting = untold(table, work.entries)
    if dry_run:
        schema = table.schema.id + 1 if sets else None
        return replace(_report(table, count, work), untold=waiting, schema=schema, dry_run=True)
    told: int | None = None
    if waiting and work.snapshot is not None:
        told = tell(table, work.snapshot, work.live, progress)
        work = _work(table, count, choice)
        if untold(table, work.entries):
            raise Conflict(
                f"{table.name}: others write to these partitions: there are changes to tell again",
                hint="nothing is rewritten: rescale again while nobody writes to these partitions",
            )
    out = replace(_report(table, count, work), untold=waiting, told=told)
    committed: Committed | None = None
    if work.partitions and work.snapshot is not None:
        committed, out = _rewritten(table, count, work.snapshot, work, out, progress)
    if sets:
        out = replace(out, schema=_set_option(table, count))
    if committed is not None:
        # as a compaction: the job beside write-only writers does their upkeep too
        after = Keeper(table.with_options({"write-only": False})).after(committed, BATCH_IDENTIFIER)
        out = replace(out, upkeep=after.upkeep)
    return replace(out, seconds=table.clock.monotonic() - started)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be rescaled in a snapshot, and what `live` files its buckets have."""

    snapshot: Snapshot | None
    found: int
    partitions: Mapping[bytes, Sequence[Entry]]
    others: int
    live: pa.Table

    @property
    def entries(self) -> Iterator[Entry]:
        return (e for entries in self.partitions.values() for e in entries)


def _work(table: Table, count: int, choice: Choice) -> _Work:
    newest = table.metadata.latest()
    live = real(table.metadata.live(newest))
    chosen = choice.of(table, live) if newest is not None else live
    work = {p: e for p, e in by_partition(chosen).items() if any(x.total_buckets != count for x in e)}
    others = {p for p, e in by_partition(live).items() if p not in work and any(x.total_buckets != count for x in e)}
    return _Work(newest, chosen.num_rows, work, len(others), of_partitions(live, work))


def _report(table: Table, count: int, work: _Work) -> Rescaled:
    planned = tuple(_planned(table, p, e) for p, e in work.partitions.items())
    return Rescaled(table.name, count, planned, others=work.others)


def _count(table: Table, buckets: int | None) -> int:
    """The number of buckets that is wanted, if the table can have it."""
    now = table.options.bucket
    if now == UNAWARE:
        what = "dynamic buckets" if table.primary_key else "no buckets"
        raise BadRequest(
            f"{table.name} has {what}: there is no number of them to change",
            hint="fixed and dynamic buckets do not turn into each other; copy the rows to another table",
        )
    if buckets is None:
        if now == POSTPONED:
            raise BadRequest(f"{table.name} postpones buckets: say how many its partitions are to have")
        return now
    if buckets < 1:
        raise BadRequest(f"{table.name}: {buckets} is no number of buckets", hint="at least one")
    if now != POSTPONED:  # what the schema would not take is refused before anything is written
        _next_schema(table, buckets)
    return buckets


def _next_schema(table: Table, count: int) -> None:
    pure.apply(
        table.schema, [SetOption(OPTION, str(count))], table=table.name, has_rows=True, time_ms=table.clock.now_ms()
    )


def _planned(table: Table, partition: bytes, entries: Sequence[Entry]) -> RescaledPartition:
    path = table.partition_path(partition).rstrip("/")
    size = sum(e.file.file_size for e in entries)
    return RescaledPartition(path, entries[0].total_buckets, len(entries), size)


# ---- the rows


def _rewritten(
    table: Table, count: int, newest: Snapshot, work: _Work, out: Rescaled, progress: Tell | None
) -> tuple[Committed, Rescaled]:
    """One snapshot in which the partitions have their rows in so many buckets."""
    import pyarrow as pa

    source = table.with_schema(table.schema)
    target = overwriting(table, newest, {OPTION: str(count)})
    source.memory = target.memory = max(1 << 20, table.memory // 2)
    meter = Meter([[x.file for x in e] for e in work.partitions.values()], table.clock.monotonic, progress)
    meter.told()
    rows = 0
    # files that wait for a compaction would not show, or be told as news
    settled = table.compacted_only or tells_late(table)
    with Write(target, ignore_previous=True) as w:
        for i, partition in enumerate(work.partitions):
            here = of_partitions(work.live, [partition])
            for batch in rows_of(source, newest, here, meter=meter.listening):
                w.replay(batch, pa.array(np.full(batch.num_rows, INSERT, np.int8)))
                rows += batch.num_rows
            meter.ended(i)
            meter.told()
        made = w.prepare(wait=True, compact="full" if settled else None)
        try:
            made = replace(made, changes=tuple(as_new(target, c) for c in made.changes))
        except BaseException:
            w.abort(made)
            raise
        committed = w.committer.overwrite(made, BATCH_IDENTIFIER, chosen=Exactly(work.partitions))
    files = [f for c in made.changes for f in c.new_files]
    size = sum(f.file_size for f in files)
    done = replace(out, rows=rows, files_after=len(files), bytes_written=size, snapshot=committed.snapshots[-1])
    return committed, done


# ---- the option


def _set_option(table: Table, count: int) -> int:
    """The id of the schema in which the table has so many buckets."""
    try:
        return table.alter(options={OPTION: str(count)}).schema.id
    except ShoalError as err:
        raise type(err)(
            f"{err.message}; the partitions of {table.name} have {count} buckets now, the option '{OPTION}' says "
            f"{table.options.bucket} still",
            hint=f"rescale to {count} again: it only sets the option",
        ) from err
