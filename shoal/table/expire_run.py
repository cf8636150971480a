# SPDX-License-Identifier: Apache-2.0
"""Expiry done: old snapshots, decoupled changelogs and idle consumers of a table are removed with the files only they
need.

Agrees with: ExpireSnapshotsImpl, ExpireChangelogImpl, ConsumerManager.expire (2.0.0); where Java is in doubt it deletes
quietly or leaves files behind, here nothing is deleted and an error says why. Invariant: everything is decided and
checked before the first deletion. Data files go first, then manifests, then lists, then the snapshot files from the
oldest on, then the hint: a death at any point leaves every snapshot that stays, every tag and every branch as it was,
and the next run finishes the work.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, cast

from shoal.errors import Conflict, ShoalError
from shoal.format import paths
from shoal.format.snapshot import Snapshot
from shoal.table import consumers, history, refs
from shoal.table import expire_guard as guards
from shoal.table.expire import First, Plan, Quiet, plan_changelogs, plan_snapshots, retention_of
from shoal.table.expire_files import Doomed, File, of_changelogs, of_snapshots, overwrites
from shoal.table.expire_guard import CHANGELOGS, Memory, Moved, hint, memory_of, names_in, span
from shoal.table.travel import moment

if TYPE_CHECKING:
    from shoal.table.table import Table

_ATTEMPTS = 3
_THREADS = 8
_EARLIEST_CHANGELOG, _LATEST_CHANGELOG = f"{paths.CHANGELOG}/EARLIEST", f"{paths.CHANGELOG}/LATEST"
_NOTHING = Plan(0, 0, "the table has no snapshot")


@dataclass(frozen=True, slots=True)
class Expired:
    """What an expiry removed, or (`dry_run`) would remove. `bytes` is what is known of its size."""

    table: str
    snapshots: tuple[int, ...] = ()
    changelogs: tuple[int, ...] = ()
    reason: str = ""
    data_files: int = 0
    metadata_files: int = 0
    bytes: int = 0
    files: tuple[str, ...] = ()
    resumed: tuple[int, ...] = ()
    dry_run: bool = False

    def __str__(self) -> str:
        if not self.snapshots and not self.changelogs:
            return f"{self.table}: nothing to expire, {self.reason}"
        would = "would remove" if self.dry_run else "removed"
        what = [f"{len(ids):,} {n} ({ids[0]} to {ids[-1]})" for n, ids in self._ranges() if ids]
        return (
            f"{self.table}: {would} {' and '.join(what)}, {self.data_files:,} data files and "
            f"{self.metadata_files:,} metadata files ({self.bytes:,} bytes)"
        )

    def _ranges(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return ("snapshots", self.snapshots), ("changelogs", self.changelogs)

    def to_dict(self) -> dict[str, object]:
        return {n: getattr(self, n) for n in self.__slots__}


@dataclass(slots=True)
class _Work:
    """One expiry, decided: what goes, and what the decision rests on."""

    plan: Plan = _NOTHING
    changelog_plan: Plan = _NOTHING
    line: dict[int, Snapshot] = field(default_factory=dict)
    latest: int = 0
    decoupled: bool = False
    first: Doomed = field(default_factory=Doomed)
    second: Doomed = field(default_factory=Doomed)  # with the changelogs
    quiet: Quiet | None = None  # when to look again
    hint: int | None = None  # what to write to EARLIEST when nothing goes
    changelog_hint: int | None = None  # the same for changelogs

    @property
    def empty(self) -> bool:
        return not self.plan.ids and not self.changelog_plan.ids


# ---- what callers call -----------------------------------------------------------------------------------


def expire(
    table: Table,
    *,
    retain_min: int | None = None,
    retain_max: int | None = None,
    older_than: int | str | datetime | None = None,
    max_deletes: int | None = None,
    dry_run: bool = False,
) -> Expired:
    """Remove snapshots, and changelogs that outlived theirs, as the options say or as given here.

    `older_than` is a time (epoch milliseconds, a datetime, or text in local time); without it `snapshot.time-retained`
    counts. Tags, branches and consumers keep what they need. When something cannot be read, or listings or the newest
    snapshot do not hold still, nothing is deleted and the error says why.
    """
    before = None if older_than is None else moment(table.clock, older_than, "older_than")
    return _expire(table, retain_min, retain_max, before, max_deletes, dry_run)


def expire_after(table: Table, newest: int, made: bool) -> Expired | None:
    """What a commit expires; None where nothing can be due. `made` says that snapshot `newest` was made just now.

    What the last look found tells when the next one is worth its calls, so that most commits cost none.
    """
    memory, now = memory_of(table.metadata.cache, refs.root_of(table.store).uri), table.clock.now_ms()
    quiet = memory.quiet.get(table.store.uri)
    if quiet is not None and quiet.retention == retention_of(table.options) and quiet.holds(newest, now):
        return None
    return _expire(table, newest=newest if made else None)


def expire_consumers(table: Table, *, dry_run: bool = False) -> tuple[str, ...]:
    """Forget consumers whose file was not written for `consumer.expiration-time`; returns their names.

    The age is what the store's own clock says: the time since then until the newest file in `snapshot/` was written,
    which after a commit is now. A reader is not forgotten because this machine's clock is a day ahead.
    """
    idle = cast("int | None", table.options.get("consumer.expiration-time"))
    if idle is None:
        return ()
    before = table.clock.now_ms() - idle
    folder = f"{paths.CONSUMER}/consumer-"
    found = {f.path.removeprefix(folder): f.modified_ms for f in table.store.list(paths.CONSUMER)}
    old = [n for n, ms in sorted(found.items()) if ms < before and "/" not in n]
    if not old:
        return ()
    now = max((f.modified_ms for f in table.store.list(paths.SNAPSHOT)), default=0)
    old = [n for n in old if found[n] < now - idle]
    for name in () if dry_run else old:
        table.store.delete(folder + name)
    return tuple(old)


# ---- deciding --------------------------------------------------------------------------------------------


def _expire(
    table: Table, least: int | None = None, most: int | None = None, before: int | None = None,
    limit: int | None = None, dry_run: bool = False, newest: int | None = None,
) -> Expired:  # fmt: skip
    """`newest` is a snapshot that was made just now: the hints are fresh then, and no folder of them is listed."""
    memory = memory_of(table.metadata.cache, refs.root_of(table.store).uri)
    moved: Moved | None = None
    for _ in range(_ATTEMPTS):
        try:
            work = _decide(table, memory, least, most, before, limit, newest)
            if not dry_run:
                _still_so(table, memory, work)
        except Moved as err:
            moved = err
            continue
        except ShoalError as err:
            raise type(err)(f"{table.name}: nothing was expired: {err.message}", hint=err.hint) from err
        if not dry_run:
            _do(table, work)
            if work.quiet is not None and (least, most, before, limit) == (None,) * 4:
                memory.quiet[table.store.uri] = work.quiet
        return _report(table, work, dry_run)
    assert moved is not None
    raise Conflict(
        f"{table.name}: nothing was expired: {moved.message}", hint="the table does not hold still; run it again"
    ) from moved


def _decide(
    table: Table, memory: Memory, least: int | None, most: int | None, before: int | None, limit: int | None,
    newest: int | None,
) -> _Work:  # fmt: skip
    meta, now = table.metadata, table.clock.now_ms()
    retention = retention_of(table.options, retain_max=most, retain_min=least, max_deletes=limit)
    here = span(meta, listed=newest is None)
    if newest is not None and (here is None or here[1] < newest):
        raise Moved(f"snapshot {newest} was just made and is not to be seen")
    if here is None:
        return _Work()
    low, high = here
    work = _Work(latest=high, decoupled=retention.decoupled)

    times: dict[int, int] = {}

    def time(i: int) -> int | None:
        snap = guards.read(meta, i)
        if snap is not None:
            times[i] = snap.time_ms
        return None if snap is None else snap.time_ms

    cutoff = now - retention.snapshots.time_ms if before is None else before
    work.plan = plan_snapshots(low, high, time, retention.snapshots, cutoff)
    kept = _changelogs(table, memory) if retention.decoupled else {}
    consumer = _least_consumer(table, memory) if work.plan.ids or kept else None
    if consumer is not None and retention.consumers_hold_snapshots:
        work.plan = plan_snapshots(low, high, time, retention.snapshots, cutoff, consumer)
    if not work.plan.ids and (hint(meta, paths.EARLIEST) or 0) < low:
        work.hint = low  # none yet, or an expiry died before it
    if work.plan.ids or kept:
        work.line = guards.line(meta, low, high, memory)
    if retention.decoupled:
        kept = kept | {i: work.line[i] for i in work.plan.ids}
        if kept:
            work.changelog_plan = plan_changelogs(
                min(kept), max(kept), high, lambda i: kept[i].time_ms if i in kept else None, retention.changelogs,
                now - retention.changelogs.time_ms, consumer,
            )  # fmt: skip
            if work.changelog_plan.end not in kept:  # as Java: the oldest that stays must be there
                work.changelog_plan = replace(work.changelog_plan, end=work.changelog_plan.begin)
            elif not work.changelog_plan.ids:
                known = hint(meta, _EARLIEST_CHANGELOG)
                if known is None if work.changelog_plan.young else known is not None and known < min(kept):
                    work.changelog_hint = min(kept)  # as Java: none yet; or an expiry died before it
    if not work.empty:
        _files(table, memory, work, kept)
    oldest = First(work.plan.end, times.get(work.plan.end + 1))
    left = [i for i in kept if i >= work.changelog_plan.end]
    changelog = First(left[0], kept[left[0]].time_ms) if len(left) > 1 else None  # the newest always stays
    work.quiet = Quiet(retention, oldest, changelog)
    return work


def _files(table: Table, memory: Memory, work: _Work, kept: dict[int, Snapshot]) -> None:
    """Fill in the files that go."""
    plan, changelogs, line = work.plan, work.changelog_plan, work.line
    guard = guards.guard(table, line, plan.end, memory)
    work.first = of_snapshots(table, line, plan, guard, work.decoupled, overwrites(line, plan.end))
    if changelogs.ids:
        again = overwrites(kept | line, changelogs.end - 1)
        work.second = of_changelogs(table, kept, changelogs, guard, line[plan.end], again)


def _changelogs(table: Table, memory: Memory) -> dict[int, Snapshot]:
    here = span(table.metadata, CHANGELOGS)
    return {} if here is None else guards.line(table.metadata, *here, memory, CHANGELOGS)


def _least_consumer(table: Table, memory: Memory) -> int | None:
    """The oldest snapshot that a consumer needs."""
    names = names_in(table.store, paths.CONSUMER, "consumer-", memory)
    at = [consumers.progress(table.store, n.removeprefix("consumer-")) for n in names]
    return min((i for i in at if i is not None), default=None)


def _still_so(table: Table, memory: Memory, work: _Work) -> None:
    """Raise `Moved` when what was decided no longer rests on what is there."""
    if work.empty:
        return
    meta, line, plan = table.metadata, work.line, work.plan
    for i in sorted({plan.begin, plan.end, work.latest}):
        if guards.read(meta, i) != line[i]:
            raise Moved(f"snapshot {i} was removed or replaced meanwhile")
    newer = work.latest + 1
    while (snap := guards.read(meta, newer)) is not None:
        if snap.commit_kind == "OVERWRITE":
            raise Moved(f"snapshot {newer} was committed meanwhile and may need old files again")
        newer += 1
    root = refs.root_of(table.store)
    for store, folder, prefix, at in (
        (table.store, paths.TAG, "tag-", 1), (root, paths.BRANCH, "branch-", 0),
        (table.store, paths.CONSUMER, "consumer-", 1),
    ):  # fmt: skip
        names = {n for n in store.list_dir(folder)[at] if n.startswith(prefix)}
        new = names - memory.names.get(f"{store.uri}/{folder}", set())
        if new:
            raise Moved(f"{store.uri}/{folder}/{min(new)} was made meanwhile")


# ---- doing -----------------------------------------------------------------------------------------------


def _do(table: Table, work: _Work) -> None:
    meta, store, plan = table.metadata, table.store, work.plan
    if work.hint is not None:
        store.put(paths.EARLIEST, str(work.hint).encode())
    if plan.ids:
        _delete(table, work.first)
        if work.decoupled:
            for i in plan.ids:
                store.put(history.changelog_path(i), work.line[i].encode())
            store.put(_LATEST_CHANGELOG, str(plan.end - 1).encode())
        for i in plan.ids:
            store.delete(paths.snapshot(i))
        if meta.exists(paths.snapshot(plan.end)):  # else another expiry went further
            store.put(paths.EARLIEST, str(plan.end).encode())
    if work.changelog_plan.ids:
        _delete(table, work.second)
        for i in work.changelog_plan.ids:
            store.delete(history.changelog_path(i))
        store.put(_EARLIEST_CHANGELOG, str(work.changelog_plan.end).encode())
    elif work.changelog_hint is not None:
        store.put(_EARLIEST_CHANGELOG, str(work.changelog_hint).encode())


def _delete(table: Table, doomed: Doomed) -> None:
    """Data files, then manifests, then lists: what is left is always named by something that is left."""
    _delete_all(doomed.data)
    if table.options.get("snapshot.clean-empty-directories"):
        _remove_folders(table, doomed.buckets)
    _delete_all(doomed.manifests)
    _delete_all(doomed.lists)


def _delete_all(files: Iterable[File]) -> None:
    """Delete in any order; the first failure is raised, and the next run deletes the rest."""
    going = list(dict.fromkeys((f.store, f.path) for f in files))
    if len(going) <= _THREADS:
        for store, path in going:
            store.delete(path)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda at: at[0].delete(at[1]), going):
            pass


def _remove_folders(table: Table, buckets: Iterable[tuple[bytes, int]]) -> None:
    """Remove folders of buckets and partitions that are empty now, the deepest first. Others stay: see `LocalStore`."""
    folders: dict[str, None] = {}
    for partition, bucket in buckets:
        folder = table.bucket_folder(partition, bucket).rstrip("/")
        depth = table.partition_path(partition).count("/")
        for _ in range(depth + 1):
            folders[folder] = None
            folder = folder.rpartition("/")[0]
    for folder in sorted(folders, key=lambda f: -f.count("/")):
        if table.store.list_dir(folder) == ([], []):
            table.store.delete(folder)


def _report(table: Table, work: _Work, dry_run: bool) -> Expired:
    both = (work.first, work.second)
    files = tuple(dict.fromkeys(f for d in both for f in d.files))
    data = {f for d in both for f in d.data}
    return Expired(
        table.name,
        tuple(work.plan.ids),
        tuple(work.changelog_plan.ids),
        work.plan.reason,
        data_files=len(data),
        metadata_files=len(files) - len(data),
        bytes=sum(f.size for f in files),
        files=tuple(f.path for f in files),
        resumed=work.first.resumed,
        dry_run=dry_run,
    )
