# SPDX-License-Identifier: Apache-2.0
"""What a committer does after each commit: tags that make themselves, then old tags, partitions, consumers, snapshots.

Agrees with: TableCommitImpl.maintain, TagAutoManager, BatchWriteGeneratorTagOperator (2.0.0). Invariant: nothing of it
can fail a commit, which has happened by then; what could not be done is in `Upkeep.failure`, stops what follows it, and
is tried again after the next commit. Only a tag that could not go stops nothing, as it still holds what it held, and an
expiry that died may have to be finished before it can. A commit after which nothing is due costs no call to the store.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shoal.errors import ShoalError
from shoal.format.snapshot import BATCH_IDENTIFIER, Snapshot
from shoal.table import auto_tags
from shoal.table.auto_tags import AutoTags, drop_surplus, make_batch_tag, make_due_tags
from shoal.table.expire_run import Expired, expire_after, expire_consumers
from shoal.table.partition_done import mark_done, marks_done
from shoal.table.partition_expiry import Checks, ExpiredPartitions, automatic, expire_partitions
from shoal.table.tags import expire_tags_when_due

if TYPE_CHECKING:
    from shoal.clock import Scheduler
    from shoal.table.staged import Committed
    from shoal.table.table import Table


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What was done after a commit. `failure` says why nothing, or not all, was done; the commit itself stands."""

    tags: AutoTags = field(default_factory=AutoTags)
    expired_tags: tuple[str, ...] = ()
    partitions: ExpiredPartitions | None = None
    consumers: tuple[str, ...] = ()
    expired: Expired | None = None
    partitions_done: tuple[str, ...] = ()
    failure: ShoalError | None = None

    def __str__(self) -> str:
        said = [str(self.tags)] if self.tags.created or self.tags.deleted else []
        for what, names in (("tags", self.expired_tags), ("consumers", self.consumers)):
            said += [f"expired {what} {', '.join(names)}"] if names else []
        if self.partitions is not None and self.partitions.partitions:
            said.append(str(self.partitions))
        if self.expired is not None and (self.expired.snapshots or self.expired.changelogs):
            said.append(str(self.expired))
        said += [f"marked {len(self.partitions_done):,} partitions done"] if self.partitions_done else []
        if self.failure is not None:
            said.append(f"upkeep failed: {self.failure.message}")
        return "; ".join(said) or "nothing was due"

    def to_dict(self) -> dict[str, object]:
        return {
            "tags": self.tags.to_dict(), "expired_tags": list(self.expired_tags),
            "partitions": None if self.partitions is None else self.partitions.to_dict(),
            "consumers": list(self.consumers), "expired": None if self.expired is None else self.expired.to_dict(),
            "partitions_done": list(self.partitions_done),
            "failure": None if self.failure is None else self.failure.message,
        }  # fmt: skip


class Keeper:
    """The upkeep of one committer. Not for several threads.

    With `snapshot.expire.execution-mode` `async` the removal of old things runs on `scheduler`, one run at a time; its
    outcome is told with a later commit. Old partitions are dropped by a commit of a user of its own, so that a writer
    sees it as another's and looks at its buckets again.
    """

    def __init__(self, table: Table, scheduler: Scheduler | None = None) -> None:
        self.table = table
        # the outcome of the last run that has ended
        self.last: Upkeep | None = None
        beside = table.options.get("snapshot.expire.execution-mode") == "async"
        self._scheduler = scheduler if beside else None
        self._pending: Future[Upkeep] | None = None
        self._active = not table.options.write_only
        self._marks = bool(table.schema.partition_keys) and marks_done(table.options)
        self._tags = auto_tags.policy_of(table.options, table.clock.zone) if self._active else None
        self._tagged: auto_tags.Progress | None = None
        self._surplus = False  # tags beyond the most are there
        self._partitions = automatic(table) if self._active else None
        self._checks = None if self._partitions is None else Checks(self._partitions, table.clock, table.rng)
        self._newest = 0

    def after(self, committed: Committed, identifier: int) -> Committed:
        """The upkeep after a commit, which is given back with what was done."""
        if committed.replayed:
            return committed
        outcome = self._run(committed.snapshots[-1] if committed.snapshots else None, identifier)
        if self._marks and identifier == BATCH_IDENTIFIER:
            outcome = self._mark(outcome or Upkeep(), committed)
        if outcome is None:
            return committed
        self.last = outcome
        return replace(committed, upkeep=outcome)

    def _mark(self, done: Upkeep, committed: Committed) -> Upkeep:
        """As Java: after the rest, whatever came of it, and on tables that are written only too."""
        try:
            return replace(done, partitions_done=mark_done(self.table, committed.partitions))
        except ShoalError as err:
            return replace(done, failure=done.failure or err)

    def wants_snapshot(self, identifier: int, latest: Callable[[], Snapshot | None]) -> bool:
        """Whether a checkpoint without rows should make a snapshot all the same, because a tag is due."""
        if self._tags is None or identifier == BATCH_IDENTIFIER:
            return False
        try:
            self._tagged = auto_tags.progress(self.table, self._tags) if self._tagged is None else self._tagged
        except ShoalError:
            return False  # the upkeep after this commit meets the same failure, and tells it
        newest = latest() if self._tags.mode == "watermark" else None
        return auto_tags.needs_snapshot(self._tags, self._tagged, newest, self.table.clock.now_ms())

    def _run(self, made: int | None, identifier: int) -> Upkeep | None:
        self._newest = made or self._newest
        batch = identifier == BATCH_IDENTIFIER and self.table.options.get("tag.automatic-creation") == "batch"
        if not self._active:
            return self._batch_tag(Upkeep()) if batch else None
        beside = self._scheduler
        done = self._all(made, identifier) if beside is None else self._beside(beside, made, identifier)
        return self._batch_tag(done or Upkeep()) if batch and (done is None or done.failure is None) else done

    def _beside(self, scheduler: Scheduler, made: int | None, identifier: int) -> Upkeep | None:
        """Drop partitions here, where commits are made; the rest runs aside, and is waited for by nobody."""
        before: Upkeep | None = None
        if self._pending is not None and self._pending.done():
            before = None if self._pending.cancelled() else self._pending.result()
            self._pending = None
        try:
            dropped = self._drop_partitions(identifier)
        except ShoalError as err:
            return Upkeep(failure=err)
        if self._pending is None:
            self._pending = scheduler.submit(lambda: self._all(made, None))
        return before if dropped is None else replace(before or Upkeep(), partitions=dropped)

    def _all(self, made: int | None, identifier: int | None) -> Upkeep:
        """Every step in Java's order; without an identifier all but the partitions."""
        done = Upkeep()
        try:
            done = replace(done, tags=self._make_tags())
            done = self._drop_tags(done)
            if identifier is not None:
                done = replace(done, partitions=self._drop_partitions(identifier))
            done = replace(done, consumers=expire_consumers(self.table))
            return replace(done, expired=self._expire(made))
        except ShoalError as err:
            return replace(done, failure=err)

    # ---- the steps

    def _make_tags(self) -> AutoTags:
        if self._tags is None:
            return AutoTags()
        made, self._tagged = make_due_tags(self.table, self._tagged, self._newest or None, drop=False)
        self._surplus |= bool(made.created)
        return made

    def _drop_tags(self, done: Upkeep) -> Upkeep:
        """Tags that are too many, or retained long enough. A failure is kept, and the next steps follow."""
        try:
            if self._surplus and self._tags is not None:
                done = replace(done, tags=replace(done.tags, deleted=drop_surplus(self.table, self._tags)))
                self._surplus = False
            if self.table.options.get("tag.time-expire-enabled"):
                done = replace(done, expired_tags=expire_tags_when_due(self.table))
        except ShoalError as err:
            done = replace(done, failure=err)
        return done

    def _drop_partitions(self, identifier: int) -> ExpiredPartitions | None:
        policy, table = self._partitions, self.table
        if policy is None or self._checks is None or not self._checks.due(table.clock.now_ms(), identifier):
            return None
        dropped = expire_partitions(table, policy, table.local_now_ms() - policy.after_ms, identifier)
        self._newest = max(self._newest, *dropped.snapshots, 0)
        return dropped

    def _expire(self, made: int | None) -> Expired | None:
        if self.table.primary_key and self.table.options.bucket == -2:
            return None  # as Java: the job that compacts postponed rows expires, see PrimaryKeyFileStoreTable
        if not self._newest:  # nothing was committed yet: an idle job
            self._newest = self.table.metadata.latest_id() or 0
        return expire_after(self.table, self._newest, made is not None) if self._newest else None

    def _batch_tag(self, done: Upkeep) -> Upkeep:
        """A batch has ended: tag what it made."""
        try:
            made = make_batch_tag(self.table)
        except ShoalError as err:
            return replace(done, failure=err)
        return replace(done, tags=made)
