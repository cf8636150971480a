# SPDX-License-Identifier: Apache-2.0
"""The four stocks of debt, never added together, and the flows that fill and drain them.

Merge debt is what readers must merge; excess files are what a table has more than its bytes need; retained debt is what
only old snapshots, changelogs, tags and branches hold; metadata debt is what planning reads. Every mean says which one
it is: `mean_per_snapshot` is what readers meet (an APPEND snapshot still lists what the COMPACT after it removes),
`mean_at_checkpoint_ends` is taken when compaction had its turn, and is lower.

Invariants: a number that the window cannot give is None; bounds are bounds where files cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor.attribution import minutes_of
from shoal.doctor.cycles import Cycles, Phase, checkpoint_ends, table_phase
from shoal.doctor.debt import Limits, data_commits, in_tree, needed_files, sums
from shoal.doctor.report import brief
from shoal.doctor.states import States, class_is, ints
from shoal.doctor.window import (
    CHANGELOG,
    FLUSH,
    METADATA,
    NOTHING,
    REMOVAL,
    REWRITE,
    UPGRADE,
    Count,
    Holder,
    SnapshotFacts,
    Window,
)
from shoal.errors import BadRequest
from shoal.options import Options
from shoal.table.expire import Retention, retention_of

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.doctor.states import Bools, Ints

_EVEN = 1.02
CLASSES = (FLUSH, REWRITE, REMOVAL, UPGRADE, CHANGELOG, "metadata")


@dataclass(frozen=True, slots=True)
class Level:
    """A stock over a window: now, at most, and both means."""

    now: int
    most: int
    mean_per_snapshot: float
    mean_at_checkpoint_ends: float

    @classmethod
    def of(cls, series: Ints, ends: Ints) -> Level:
        if not len(series):
            return cls(0, 0, 0.0, 0.0)
        return cls(int(series[-1]), int(series.max()), float(series.mean()), float(series[ends].mean()))

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "now": self.now, "most": self.most, "mean_per_snapshot": self.mean_per_snapshot,
            "mean_at_checkpoint_ends": self.mean_at_checkpoint_ends,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class MergeDebt:
    """Sorted runs beyond one, over all buckets that are merge trees, and what they cost a reader of everything."""

    runs_to_merge: Level
    buckets: int  # that have files
    files_opened: int  # by a read of the newest snapshot
    files_after_full: int  # by the same read after a full compaction
    overlapping_bytes: int  # in buckets of more than one run: at most these bytes are merged while reading

    @property
    def read_amplification(self) -> float | None:
        return self.files_opened / self.files_after_full if self.files_after_full else None

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "runs_to_merge": self.runs_to_merge.to_dict(), "buckets": self.buckets, "files_opened": self.files_opened,
            "files_after_full": self.files_after_full, "read_amplification": self.read_amplification,
            "overlapping_bytes": self.overlapping_bytes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExcessFiles:
    """Live files beyond what their bytes need at the target size, and the small ones among the live files."""

    live: Level
    excess: Level
    small: int  # under target size x `compaction.small-file-ratio`

    @property
    def small_share(self) -> float | None:
        return self.small / self.live.now if self.live.now else None

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "live": self.live.to_dict(), "excess": self.excess.to_dict(), "small": self.small,
            "small_share": self.small_share,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """What one holder keeps. `least` and `most` differ where files cannot be told apart; None: not in this window."""

    kind: str  # snapshots, overdue snapshots, consumer, tag, branch, changelog
    name: str
    snapshot: int | None
    least: Count | None
    most: Count | None

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "kind": self.kind, "name": self.name, "snapshot": self.snapshot,
            "least": None if self.least is None else self.least.to_dict(),
            "most": None if self.most is None else self.most.to_dict(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class RetainedDebt:
    """Files that only the past holds: dead data files and changelog of retained snapshots, then what each holder keeps.

    `holders` overlap: a file that a tag and a consumer keep is in both.
    """

    snapshots: int | None  # retained ones
    dead: Count | None  # data files; None when not every retained snapshot was seen
    changelog: Count | None
    holders: tuple[Held, ...]

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "snapshots": self.snapshots, "dead": None if self.dead is None else self.dead.to_dict(),
            "changelog": None if self.changelog is None else self.changelog.to_dict(),
            "holders": [h.to_dict() for h in self.holders],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class MetadataDebt:
    """What planning reads for the newest snapshot, and what else lies in the table's folder."""

    manifests: Count
    entries: int
    dead_entries: int
    index_files: Mapping[str, Count]
    marked_rows: int
    vectors: int
    snapshots: int | None
    schemas: int

    @property
    def dead_ratio(self) -> float | None:
        """Entries that only cancel others, for each live one."""
        live = self.entries - 2 * self.dead_entries
        return self.dead_entries / live if live > 0 else None

    @property
    def bytes_per_entry(self) -> float | None:
        return self.manifests.bytes / self.entries if self.entries else None

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "manifests": self.manifests.to_dict(), "entries": self.entries, "dead_entries": self.dead_entries,
            "dead_ratio": self.dead_ratio, "bytes_per_entry": self.bytes_per_entry,
            "index_files": {k: c.to_dict() for k, c in self.index_files.items()}, "marked_rows": self.marked_rows,
            "vectors": self.vectors, "snapshots": self.snapshots, "schemas": self.schemas,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Flows:
    """What a minute of the table's clock brings, by class. An upgrade writes nothing; a removal deletes nothing yet."""

    minutes: float | None
    made: Mapping[str, Count]  # over the window, by CLASSES
    expired: Count | None  # deleted from disk; None when the window does not show it

    def per_minute(self, name: str) -> float | None:
        return self.made[name].files / self.minutes if self.minutes else None

    @property
    def live_net(self) -> float | None:
        """Files a minute that the live files grow by."""
        files = self.made[FLUSH].files + self.made[REWRITE].files - self.made[REMOVAL].files
        return files / self.minutes if self.minutes else None

    @property
    def physical_net(self) -> float | None:
        """Files a minute that the folder grows by."""
        if not self.minutes or self.expired is None:
            return None
        made = sum(self.made[name].files for name in (FLUSH, REWRITE, CHANGELOG, "metadata"))
        return (made - self.expired.files) / self.minutes

    @property
    def write_amplification(self) -> float | None:
        flushed = self.made[FLUSH].bytes
        return (flushed + self.made[REWRITE].bytes) / flushed if flushed else None

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "minutes": self.minutes, "made": {k: c.to_dict() for k, c in self.made.items()},
            "files_per_minute": {k: self.per_minute(k) for k in self.made},
            "expired": None if self.expired is None else self.expired.to_dict(), "live_net_per_minute": self.live_net,
            "physical_net_per_minute": self.physical_net, "write_amplification": self.write_amplification,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sustainability:
    """Files flushed against files that compaction does away with, over whole cycles of each bucket.

    `ratio` above 1: the debt grows. None where nothing is paid at all (`paid_per_minute` 0), which is worse.
    """

    flush_per_minute: float
    paid_per_minute: float
    buckets: int
    basis: str  # "full cycles", "drains", or "window" where buckets never drain
    provisional: bool

    @property
    def ratio(self) -> float | None:
        return self.flush_per_minute / self.paid_per_minute if self.paid_per_minute > 0 else None

    @property
    def paid(self) -> str:
        """The ratio in words."""
        if self.ratio is None:
            return "nothing is paid"
        many = brief(self.ratio)
        return f"{many} file{'' if many == '1' else 's'} flushed for each one paid"

    @property
    def pays(self) -> bool:
        """Whether the debt is paid, within what the first level of a young table takes."""
        return self.ratio is not None and self.ratio <= _EVEN

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {
            "ratio": self.ratio, "flush_per_minute": self.flush_per_minute, "paid_per_minute": self.paid_per_minute,
            "buckets": self.buckets, "basis": self.basis, "provisional": self.provisional, "pays": self.pays,
        }  # fmt: skip


# ---- live stocks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parts:
    """A stock as a sum over buckets: its value before and after each move, and before the first of each bucket."""

    before: Ints
    after: Ints
    start: Ints

    def series(self, states: States) -> Ints:
        return states.total(self.before, self.after, int(self.start.sum()))

    def phase(self, states: States, found: Cycles, *, crests: bool = False) -> Phase:
        return table_phase(states, found, self.before, self.after, self.start, crests=crests)


def merge_parts(states: States, limits: Limits) -> Parts:
    """Runs beyond one of each bucket that is a merge tree."""
    import numpy as np

    treed = in_tree(states, limits)
    mine = treed[states.moves.bucket]
    before, after = (np.where(mine, np.maximum(m["runs"] - 1, 0), 0) for m in (states.moves.before, states.moves.after))
    return Parts(before, after, np.where(treed, np.maximum(states.start["runs"] - 1, 0), 0))


def excess_parts(states: States, limits: Limits) -> Parts:
    """Files of each bucket beyond what its bytes need."""
    import numpy as np

    def excess(columns: Mapping[str, Ints]) -> Ints:
        needed = needed_files(columns["files"], columns["bytes"], limits.target_size)
        return np.asarray(np.maximum(columns["files"] - needed, 0), np.int64)

    return Parts(excess(states.moves.before), excess(states.moves.after), excess(states.start))


def live_parts(states: States) -> Parts:
    return Parts(states.moves.before["files"], states.moves.after["files"], states.start["files"])


def merge_debt(states: States, limits: Limits) -> MergeDebt:
    end = states.end
    needed = int(needed_files(end["files"], end["bytes"], limits.target_size).sum())
    several = in_tree(states, limits) & (end["runs"] > 1)
    opened = int(end["files"].sum())
    return MergeDebt(
        Level.of(merge_parts(states, limits).series(states), checkpoint_ends(states)), int((end["files"] > 0).sum()),
        opened, min(needed, opened), int(end["bytes"][several].sum()),
    )  # fmt: skip


def excess_files(states: States, limits: Limits) -> ExcessFiles:
    ends = checkpoint_ends(states)
    return ExcessFiles(
        Level.of(states.sum_of("files"), ends), Level.of(excess_parts(states, limits).series(states), ends),
        max(int(states.cell_end["small"].sum()), 0),
    )  # fmt: skip


# ---- what the past holds ---------------------------------------------------------------------------------


def retained_debt(window: Window, states_at: States | None, *, complete: bool) -> RetainedDebt:
    """The dead files by who holds them."""
    stock = window.stock
    if stock.earliest is None or stock.latest is None:
        return RetainedDebt(None, NOTHING, NOTHING, ())
    snapshots = stock.latest - stock.earliest + 1
    dead = _of(window.flows, REMOVAL, stock.earliest + 1, stock.latest) if complete else None
    told = _of(window.flows, CHANGELOG, stock.earliest, stock.latest) if complete else None
    held = [*_by_retention(window, complete), *(_held_by(window, states_at, h) for h in stock.holders)]
    return RetainedDebt(snapshots, dead, told, tuple(held))


def _of(flows: pa.Table, name: str, first: int, last: int) -> Count:
    """Files of one class in the snapshots `first` to `last`."""
    ids = ints(flows, "snapshot")
    mine = class_is(flows, name) & (ids >= first) & (ids <= last)
    return Count(*(int(ints(flows, column)[mine].sum()) for column in ("files", "bytes", "rows")))


def _by_retention(window: Window, complete: bool) -> list[Held]:
    """What retained snapshots hold: those that the options ask for, and those that should have expired."""
    if not complete or not window.steps:
        return []
    earliest, latest = window.stock.earliest or 0, window.stock.latest or 0
    due = due_earliest(window)
    dead = _of(window.flows, REMOVAL, due + 1, latest) + _of(window.flows, CHANGELOG, due, latest)
    out = [Held("snapshots", "", due, dead, dead)]
    if due > earliest:
        late = _of(window.flows, REMOVAL, earliest + 1, due) + _of(window.flows, CHANGELOG, earliest, due - 1)
        out.append(Held("overdue snapshots", "", earliest, late, late))
    return out


def retention(window: Window) -> Retention:
    """What the newest schema keeps of snapshots and changelogs; Paimon's defaults where its numbers contradict."""
    schema = window.schema
    try:
        return retention_of(Options({} if schema is None else schema.options, strict=False))
    except BadRequest:
        return retention_of(Options({}, strict=False))


def due_earliest(window: Window) -> int:
    """The snapshot that would be the earliest if expiry had just run by the options, nobody asking for more."""
    steps = [s for s in window.steps if s.id >= (window.stock.earliest or 0)]
    keep = retention(window).snapshots
    now, latest = max(window.stock.taken_ms, steps[-1].time_ms), steps[-1].id
    young = next((s.id for s in steps if now - s.time_ms <= keep.time_ms), latest)
    due = min(max(young, latest - keep.most + 1), latest - keep.least + 1)
    return max(due, steps[0].id)


def _held_by(window: Window, replayed: States | None, holder: Holder) -> Held:
    """What a holder keeps that would go without it."""
    earliest, kind = window.stock.earliest or 0, holder.kind
    if kind == "consumer":
        # It keeps the snapshots from its next one on: what those hold that the options would let go.
        due = due_earliest(window) if window.steps else earliest
        first = max(holder.snapshot, earliest)
        if due <= first:
            return Held(kind, holder.name, holder.snapshot, NOTHING, NOTHING)
        late = _of(window.flows, REMOVAL, first + 1, due) + _of(window.flows, CHANGELOG, first, due - 1)
        return Held(kind, holder.name, holder.snapshot, late, late)
    if kind == "changelog":
        seen = bool(window.steps) and window.steps[0].id <= holder.snapshot
        told = _of(window.flows, CHANGELOG, holder.snapshot, earliest - 1) if seen else None
        return Held(kind, holder.name, holder.snapshot, told, told)
    if holder.snapshot >= earliest:
        return Held(kind, holder.name, holder.snapshot, NOTHING, NOTHING)  # its snapshot is still there anyway
    bounds = _alive_then_dead(replayed, holder.snapshot, earliest)
    return Held(kind, holder.name, holder.snapshot, *(bounds or (None, None)))


def _alive_then_dead(replayed: States | None, then: int, until: int) -> tuple[Count, Count] | None:
    """Bounds on the files that lived after snapshot `then` and were removed up to `until`; None where it is not told.

    In a bucket a files lived, b came, r went: of the a at least r - b are gone, and at most all of them or r.
    """
    import numpy as np

    if replayed is None or not replayed.steps or replayed.steps[0].id - 1 > then:
        return None
    ids = np.array([s.id for s in replayed.steps], np.int64)
    first, last = np.searchsorted(ids, [then, until], side="right")
    moves = replayed.moves
    upto, later = moves.at < first, (moves.at >= first) & (moves.at < last)

    def by_bucket(values: Ints, chosen: Bools) -> Ints:
        np.add.at(out := np.zeros(replayed.count, np.int64), moves.bucket[chosen], values[chosen])
        return out

    found = []
    for held, came, went in (
        ("files", ("flush", "rewrite"), "removal"), ("bytes", ("flush_bytes", "rewrite_bytes"), "removal_bytes")
    ):  # fmt: skip
        lived = replayed.start[held] + by_bucket(moves.after[held] - moves.before[held], upto)
        came_then = sum((by_bucket(moves.done[n], later) for n in came), np.zeros(replayed.count, np.int64))
        gone = by_bucket(moves.done[went], later)
        found.append((int(np.clip(gone - came_then, 0, lived).sum()), int(np.minimum(lived, gone).sum())))
    (low, high), (low_bytes, high_bytes) = found
    return Count(low, low_bytes), Count(high, high_bytes)


def metadata_debt(window: Window) -> MetadataDebt | None:
    """What the newest step says; None without one."""
    if not window.steps:
        return None
    newest, stock = window.steps[-1], window.stock
    snapshots = None if stock.earliest is None or stock.latest is None else stock.latest - stock.earliest + 1
    return MetadataDebt(
        newest.manifests, newest.entries, newest.dead_entries, stock.index.files, stock.index.marked_rows,
        stock.index.vectors, snapshots, len(window.schemas),
    )  # fmt: skip


# ---- flows -----------------------------------------------------------------------------------------------


def flows_of(window: Window) -> Flows:
    """The flows of all steps; expiry is seen where the window reaches back before the earliest snapshot."""
    by_class = sums(window.flows, "class")
    made = {name: by_class.get(name, NOTHING) for name in CLASSES}
    made["metadata"] = _metadata(window.steps)
    return Flows(minutes_of([s.time_ms for s in data_commits(window.steps)]), made, _expired(window))


def _metadata(steps: Sequence[SnapshotFacts]) -> Count:
    total = NOTHING
    for step in steps:
        for kind in METADATA:
            total += step.wrote.get(kind, NOTHING)
    return total


def _expired(window: Window) -> Count | None:
    """What this window made and expiry has deleted since; tags that hold some of it are not asked."""
    earliest = window.stock.earliest
    if earliest is None or not window.steps:
        return None
    first = window.steps[0].id
    if first >= earliest:
        return NOTHING if earliest == 1 else None
    old = [s for s in window.steps if s.id < earliest]
    data = _of(window.flows, REMOVAL, first, earliest) + _of(window.flows, CHANGELOG, first, earliest - 1)
    return data + _metadata(old)


def sustainability(states: States, limits: Limits, found: Cycles) -> Sustainability | None:
    """The ratio over whole cycles of each bucket; None where no bucket has been through one, or been past its trigger.

    A bucket that never drained, but had more runs than start a compaction, counts with the whole window.
    """
    import numpy as np

    moves = states.moves
    if not len(moves):
        return None
    chosen = found.full if not found.provisional else found.drain
    count = np.bincount(moves.bucket[chosen], minlength=states.count)
    first, last = np.full(states.count, len(states.steps)), np.full(states.count, -1)
    np.minimum.at(first, moves.bucket[chosen], moves.at[chosen])
    np.maximum.at(last, moves.bucket[chosen], moves.at[chosen])
    whole = count >= 2
    _, most_runs = states.over_time("runs")
    starved = ~whole & (count == 0) & in_tree(states, limits) & (most_runs > limits.compaction_trigger)
    first[starved], last[starved] = -1, len(states.steps) - 1
    counted = whole | starved
    if not counted.any() or not len(states.steps):
        return None
    begin = states.times_ms[np.clip(first, 0, len(states.steps) - 1)]  # of buckets that count
    minutes = (states.times_ms[np.maximum(last, 0)] - begin) / 60_000
    counted &= minutes > 0
    inside = counted[moves.bucket] & (moves.at > first[moves.bucket]) & (moves.at <= last[moves.bucket])
    per = 1 / np.where(minutes > 0, minutes, 1.0)
    weight = per[moves.bucket[inside]]
    flushed = float((moves.done["flush"][inside] * weight).sum())
    paid = float(((moves.done["removal"] - moves.done["rewrite"])[inside] * weight).sum())
    basis = "window" if not (whole & counted).any() else "full cycles" if not found.provisional else "drains"
    return Sustainability(flushed, paid, int(counted.sum()), basis, found.provisional)
