# SPDX-License-Identifier: Apache-2.0
"""Carrying out a compaction task: merge what overlaps, rewrite what is small, move the rest up, tell what changed.

Agrees with: MergeTreeCompactTask, MergeTreeCompactRewriter, ChangelogMergeTreeRewriter and its two kinds,
BucketedDvMaintainer (2.0.0). Invariant: the files of `after` hold what the files of `before` held, without the versions
that are hidden; nothing is visible until a commit says so, and a failure deletes what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from shoal.budget import Budget
from shoal.errors import NotFound
from shoal.format.datafile import COMPACT, DataFile
from shoal.format.deletion_vectors import DeletionVector
from shoal.format.schema import LEVEL
from shoal.format.types import Field
from shoal.lsm.changelog import Changes, FirstRowFold, FullFold, LookupFold, Merged
from shoal.lsm.levels import Levels
from shoal.lsm.merge import RunInput, merge_blocks, merge_runs, needs_sequence
from shoal.lsm.pick import Plan, Policy, Task, Upgrade, task, tells_changes, upgrade
from shoal.lsm.rolling import FileSpec, RollingWriter
from shoal.lsm.sections import Section
from shoal.store.base import delete_each
from shoal.table.new_files import NewFiles
from shoal.table.newest_schema import columns_of_today
from shoal.table.old_rows import OldRows
from shoal.table.record_expire import RecordExpire, record_expire
from shoal.table.runs import SYSTEM_FIELDS, BucketFiles
from shoal.table.staged import BucketChanges, Indexes, new_extras
from shoal.table.stored_lookups import StoredLookups, stores_lookups
from shoal.table.table_metrics import BucketSizes

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.progress import Meter
    from shoal.table.table import Table

Files = tuple[DataFile, ...]
Vectors = Mapping[str, DeletionVector]
_Fold = LookupFold | FirstRowFold | FullFold


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of one compaction of one bucket. Bytes are file sizes, seconds are wall time."""

    before: Files
    after: Files
    output_level: int
    reason: str
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    changelog: Files = ()
    new_indexes: Indexes = ()
    deleted_indexes: Indexes = ()
    vectors: Vectors | None = None
    """The bucket's deletion vectors after this, where it changed them."""

    @property
    def input_bytes(self) -> int:
        return sum(f.file_size for f in self.before)

    @property
    def output_bytes(self) -> int:
        return sum(f.file_size for f in self.after)

    @property
    def fresh_bytes(self) -> int:
        """Bytes of the inputs that come to the output level; append tables have one level, where all of them count."""
        return sum(f.file_size for f in self.before if not self.output_level or f.level != self.output_level)

    @property
    def written(self) -> Files:
        """Files that this compaction wrote, changelog files too; upgrades wrote nothing."""
        old = {f.file_name for f in self.before}
        return (*(f for f in self.after if f.file_name not in old), *self.changelog)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task made of its bucket, for a commit, and how it went. `changes` is None where nothing was to do."""

    changes: BucketChanges | None
    done: tuple[Compacted, ...]
    sizes: tuple[BucketSizes, ...] = ()
    """Of the bucket, as it is then."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where a compaction works: one bucket of a table."""

    table: Table
    partition: bytes
    bucket: int
    spec: FileSpec
    meter: Meter | None = None
    """Told of what is read."""

    def knowing(self, files: Iterable[DataFile]) -> Bucket:
        """This bucket with today's columns where some of the files may have columns that the table's holder does not
        know of; itself elsewhere."""
        if all(f.schema_id <= self.table.schema.id for f in files):
            return self
        table = columns_of_today(self.table)
        return replace(self, table=table, spec=NewFiles(table).spec(self.partition, self.bucket))


def compact(
    at: Bucket,
    plan: Plan,
    levels: Levels,
    policy: Policy,
    budget: Budget,
    vectors: Vectors | None = None,
    *,
    overwrites: bool = False,
) -> Compacted:
    """Carry out `plan`. Reads and writes data files; returns what a commit needs.

    `vectors` are the bucket's deletion vectors, None where its table has none. A writer that `overwrites` does not know
    what was there before, so its lookups tell no changes.
    """
    started = at.table.clock.monotonic()
    expire = record_expire(at.table)
    expired = {f.file_name for f in plan.files if expire.touches(at.table, f)} if expire else set()
    work = task(plan, levels, policy, expired=expired)
    rewriter = _Rewriter(at, levels, policy, work, budget, vectors, expire, overwrites)
    try:
        for group in work.rewrites:
            rewriter.rewrite(group)
        for f in work.upgrades:
            rewriter.upgrade(f)
    except BaseException:
        rewriter.abort()
        raise
    seconds = at.table.clock.monotonic() - started
    return replace(rewriter.result(plan.reason), seconds=seconds)


class _Rewriter:
    """One task under way: what it read, wrote and marked so far."""

    def __init__(
        self,
        at: Bucket,
        levels: Levels,
        policy: Policy,
        work: Task,
        budget: Budget,
        vectors: Vectors | None,
        expire: RecordExpire | None,
        overwrites: bool,
    ) -> None:
        self._overwrites = overwrites
        self._at = at
        self._levels = levels
        self._policy = policy
        self._work = work
        self._budget = budget
        self._vectors = vectors
        self._expire = expire
        self._read = 0
        self._writers: list[RollingWriter] = []
        self._before: list[DataFile] = []
        self._after: list[DataFile] = []
        self._changelog: list[DataFile] = []
        self._rewritten: set[str] = set()
        self._lookups: StoredLookups | None = None
        if stores_lookups(at.table):
            self._lookups = StoredLookups(at.table, at.partition, at.bucket, at.spec)

    # ---- the two things that happen to files

    def rewrite(self, group: Sequence[Section]) -> None:
        """Merge neighbouring sections into files of the output level."""
        if tells_changes(group, self._work.output_level, self._policy):
            self._tell(group, keep=True, drop_deletes=self._work.drop_delete)
        else:
            self._merge(group)

    def upgrade(self, file: DataFile) -> None:
        """Move a file up, by itself; where its rows are news, they are told."""
        level = self._work.output_level
        how = upgrade(file, level, self._policy)
        if how is Upgrade.REWRITE:
            self._tell((((file,),),), keep=True, drop_deletes=self._policy.deletion_vectors)
            return
        moved = file.upgraded(level)
        if how is Upgrade.CHANGELOG:
            self._tell((((file,),),), keep=False, drop_deletes=False)
            moved = self._looked_up(moved, moved=True)
        self._before.append(file)
        self._after.append(moved)

    # ---- merging

    def _merge(self, group: Sequence[Section]) -> None:
        """A plain merge."""
        table = self._at.table
        leveled = table.rules.lookup and any(len(section) > 1 for section in group)
        files = self._files((*SYSTEM_FIELDS, LEVEL) if leveled else SYSTEM_FIELDS)
        columns = [*table.schema.names, *(f.name for f in SYSTEM_FIELDS)]
        writer = self._writer(group)
        for section in group:
            rules = table.rules if leveled else replace(table.rules, lookup=False)
            runs = [self._run(files, run) for run in section]
            merged = merge_runs(runs, rules, columns, self._budget, drop_deletes=self._work.drop_delete, ordered=True)
            for batch in merged:
                writer.write(batch)
        self._close(group, writer)

    def _tell(self, group: Sequence[Section], *, keep: bool, drop_deletes: bool) -> None:
        """A merge that also tells what changed, and marks rows that are replaced. `keep` writes the rows too."""
        table = self._at.table
        files = self._files((*SYSTEM_FIELDS, LEVEL))
        size = sum(f.file_size for section in group for run in section for f in run)
        budget = self._budget.share(2)  # a block becomes rows and what they were
        writer = self._writer(group) if keep else None
        told = None
        if self._changes is not None:
            told = RollingWriter(self._at.spec, level=self._work.output_level, expected_bytes=size, changelog=True)
            self._writers.append(told)
        for section in group:
            runs = [self._run(files, run) for run in section]
            fold = self._fold(runs, drop_deletes, keep)
            blocks: Iterator[Merged] = merge_blocks(runs, table.rules, fold, budget)
            for block in blocks:
                if writer is not None and block.rows is not None:
                    writer.write(block.rows)
                if told is not None and block.changelog is not None:
                    told.write(block.changelog)
        if writer is not None:
            self._close(group, writer)
        else:
            self._read += size
        if told is not None:
            self._changelog += told.close()

    def _fold(self, runs: Sequence[RunInput], drop_deletes: bool, keep: bool) -> _Fold:
        rules, names = self._at.table.rules, self._at.table.schema.names
        sequenced = needs_sequence([r.sequences for r in runs], rules)
        columns = tuple(names)
        if self._policy.full_changelog:
            assert self._changes is not None
            return FullFold(rules, columns, self._policy.num_levels - 1, self._changes, sequenced)
        if self._at.table.options.merge_engine == "first-row":
            return FirstRowFold(rules, columns, self._old_rows, self._changes, sequenced)
        return LookupFold(rules, columns, self._old_rows, self._changes, sequenced, drop_deletes, keep)

    @cached_property
    def _changes(self) -> Changes | None:
        """How the changelog is made; None where compactions make none."""
        o = self._at.table.options
        if o.changelog_producer not in ("lookup", "full-compaction"):
            return None
        if o.changelog_producer == "lookup" and self._overwrites:
            return None
        if not o.get("changelog-producer.row-deduplicate"):
            return Changes()
        ignored = cast("Sequence[str]", o.get("changelog-producer.row-deduplicate-ignore-fields") or ())
        return Changes(tuple(n for n in self._at.table.schema.names if n not in ignored))

    @cached_property
    def _old_rows(self) -> OldRows:
        o = self._at.table.options
        only_places = self._vectors is not None and self._policy.last_wins and self._changes is None
        return OldRows(
            self._at.table, self._at.partition, self._at.bucket, self._at.spec, self._levels,
            self._work.output_level, vectors=self._vectors,
            values=not only_places and o.merge_engine != "first-row",
            # where only keys count, Java does not look at the time
            expire=None if o.merge_engine == "first-row" else self._expire,
        )  # fmt: skip

    # ---- files

    def _files(self, system: Sequence[Field]) -> BucketFiles:
        at = self._at
        fields = (*at.table.schema.fields, *system)
        return BucketFiles(
            at.table,
            at.partition,
            at.bucket,
            fields,
            recent=at.spec.recent,
            laid_down=at.table.lookup_files,
            deletions=self._vectors,
            meter=at.meter,
        )

    def _run(self, files: BucketFiles, run: Sequence[DataFile]) -> RunInput:
        opened, expire = files.run(run), self._expire
        if expire is None:
            return opened

        def young(rows: int) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for batch in opened.open(rows):
                keep = expire.keeps(batch.column(expire.column))
                yield batch if keep.all() else batch.filter(pa.array(keep))

        return replace(opened, open=young)

    def _writer(self, group: Sequence[Section]) -> RollingWriter:
        size = sum(f.file_size for section in group for run in section for f in run)
        writer = RollingWriter(self._at.spec, level=self._work.output_level, source=COMPACT, expected_bytes=size)
        self._writers.append(writer)
        return writer

    def _close(self, group: Sequence[Section], writer: RollingWriter) -> None:
        files = [f for section in group for run in section for f in run]
        self._read += sum(f.file_size for f in files)
        self._before += files
        self._after += [self._looked_up(f) for f in writer.close()]
        self._rewritten.update(f.file_name for f in files)

    def _looked_up(self, file: DataFile, *, moved: bool = False) -> DataFile:
        """The file, with what is kept beside it for those who look its keys up."""
        return file if self._lookups is None else self._lookups.beside(file, moved=moved)

    def abort(self) -> None:
        for w in self._writers:
            w.abort()
        if self._lookups is not None:
            self._lookups.abort()

    # ---- what came of it

    def result(self, reason: str) -> Compacted:
        written = sum(f.file_size for w in self._writers for f in w.files)
        return Compacted(
            tuple(self._before), tuple(self._after), self._work.output_level, reason, self._read, written,
            changelog=tuple(self._changelog), vectors=self._marked(),
        )  # fmt: skip

    def _marked(self) -> Vectors | None:
        """The bucket's vectors with the rows that were replaced, without the files that are gone; None: as before."""
        if self._vectors is None:
            return None
        out = dict(self._vectors)
        changed = False
        marks = self._old_rows.marks if "_old_rows" in self.__dict__ else {}
        for name, positions in marks.items():
            there = out.get(name)
            parts = positions if there is None else [there.positions, *positions]
            wide = bool(self._at.table.options.get("deletion-vectors.bitmap64"))
            out[name] = DeletionVector.of(np.concatenate(parts), wide)
            changed = True
        for name in self._rewritten:
            changed |= out.pop(name, None) is not None
        return out if changed else None


def discard(at: Bucket, result: Compacted) -> None:
    """Delete the files of a result that will not be committed."""
    for f in result.written:
        try:
            at.spec.remove(f)
        except NotFound:
            continue
    delete_each(at.table.beside(at.partition, at.bucket, f, n) for f, n in new_extras(result.before, result.after))
