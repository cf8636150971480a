# SPDX-License-Identifier: Apache-2.0
"""The small-file debt of one table, as numbers: what was made, what is live, what is only retained.

Pure functions of a `Window`; `measure` reads one. Means are per snapshot (what readers meet), so a commit's new files
count until the compaction after it removes its inputs.

Invariants: made, live and retained are never added together, except that live + retained data files are the data files
on disk when the whole retention was seen; a number that the window cannot give is None, not 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from shoal.doctor.attribution import minutes_of
from shoal.doctor.segments import intervals_s
from shoal.doctor.states import States, class_is, ints, states
from shoal.doctor.take import take
from shoal.doctor.window import (
    CHANGELOG,
    FLUSH,
    MANIFEST_LISTS,
    MANIFESTS,
    NOTHING,
    REMOVAL,
    REWRITE,
    UPGRADE,
    Count,
    Gap,
    SchemaFacts,
    SnapshotFacts,
    Window,
)
from shoal.options import Options
from shoal.table.metadata import Metadata

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
POSTPONED = -2  # the bucket of rows that have none yet
# What a table's files are counted as. The first five are made by writers, readers of the newest snapshot need the rest.
KINDS = ("level0", "compacted", "sidecar", "changelog", "manifest", "manifest_list", "index_manifest", "snapshot")
TOP = 20  # buckets named one by one


@dataclass(frozen=True, slots=True)
class Limits:
    """The options that say how many files are too many."""

    primary_key: bool
    compaction_trigger: int
    stop_trigger: int
    target_size: int
    small_size: int
    min_file_num: int
    write_only: bool  # as writers of postponed rows always are
    top_level: int  # where full compactions write to
    size_amplification: int  # percent of the highest level that newer runs may reach before all are merged

    @classmethod
    def of(cls, schema: SchemaFacts) -> Limits:
        options = Options(schema.options, strict=False)
        target = options.target_file_size(bool(schema.primary_keys))
        return cls(
            bool(schema.primary_keys), options.compaction_trigger, options.stop_trigger, target,
            int(target * options.small_file_ratio), options.compaction_min_file_num,
            options.write_only or postpones(schema),
            options.num_levels - 1, options.max_size_amplification,
        )  # fmt: skip


def postpones(schema: SchemaFacts) -> bool:
    """Whether rows wait in `bucket-postpone` until a job gives them buckets; no writer compacts or expires then."""
    return bool(schema.primary_keys) and Options(schema.options, strict=False).bucket == POSTPONED


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket now, and over the window. `runs` are its level-0 files and its non-empty levels above."""

    partition: str
    bucket: int
    files: int
    level0: int
    runs: int
    bytes: int
    small: int  # files under the size that compaction leaves alone
    excess: int  # files beyond what its bytes need at the target size
    mean_files: float
    max_files: int
    mean_runs: float
    max_runs: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """All buckets with live files, and the worst of them by runs and files."""

    count: int
    mean_files: float  # per bucket and snapshot
    max_files: int
    mean_runs: float
    max_runs: int
    at_trigger: int  # buckets with more runs than start a compaction
    at_stop: int  # buckets with more runs than writers wait for
    excess: int
    small: int
    max_small: int  # small files of one bucket
    top: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class Live:
    """What a reader of the newest snapshot finds. `levels` ascend; `metadata` has keys of KINDS."""

    levels: Mapping[int, Count]
    metadata: Mapping[str, Count]
    sidecars: int
    mean_files: float  # per snapshot
    max_files: int

    @property
    def data(self) -> Count:
        return total(self.levels.values())

    @property
    def level0(self) -> Count:
        return self.levels.get(0, NOTHING)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whether the manifest lists add up: per sampled snapshot, and against the live entries of the newest one."""

    checked: int
    broken: tuple[int, ...]  # snapshot ids
    listed: int
    counted: int | None

    @property
    def holds(self) -> bool:
        return not self.broken and self.counted in (None, self.listed)


@dataclass(frozen=True, slots=True)
class Debt:
    """The debt of one table over one window of snapshots. `to_dict()` is a stable contract, versioned."""

    table: str
    first: int | None  # snapshot ids
    last: int | None
    first_ms: int
    last_ms: int
    snapshots: Mapping[str, int]  # by commit kind
    commits: int  # snapshots that bring data: every kind but COMPACT and ANALYZE
    interval_s: float | None  # median time between two APPEND snapshots of one user
    made: Mapping[str, Count]  # by KINDS
    upgraded: Count  # level changes: they write nothing
    removed: Count
    live: Live | None
    retained: Mapping[str, Count] | None  # by KINDS, with "data" for both kinds of data file
    covered_minutes: float | None  # each commit stands for one interval: what the made files are divided by
    per_minute: Mapping[str, float] | None  # files made, by KINDS
    commits_per_minute: float | None
    active_buckets: float | None  # that get a new file, per commit
    files_per_active_bucket: float | None
    buckets: Buckets | None
    flush_bytes: int
    rewrite_bytes: int
    flush_file_bytes: float | None  # median
    identity: Identity
    gaps: tuple[Gap, ...]
    complete: bool  # every retained snapshot was seen
    limits: Limits | None
    requests: int = field(default=0, compare=False)
    bytes_read: int = field(default=0, compare=False)

    @property
    def files_made(self) -> Count:
        return total(self.made.values())

    @property
    def files_per_minute(self) -> float | None:
        return None if self.per_minute is None else sum(self.per_minute.values())

    @property
    def files_per_commit(self) -> float | None:
        return self.files_made.files / self.commits if self.commits else None

    @property
    def write_amplification(self) -> float | None:
        """Bytes of data files written for each byte flushed."""
        return (self.flush_bytes + self.rewrite_bytes) / self.flush_bytes if self.flush_bytes else None

    def to_dict(self) -> dict[str, Any]:  # JSON: numbers, strings, lists and dicts of them
        live, identity = self.live, self.identity
        return {
            "version": VERSION,
            "table": self.table,
            "window": {
                "first": self.first, "last": self.last, "first_ms": self.first_ms, "last_ms": self.last_ms,
                "covered_minutes": self.covered_minutes, "complete": self.complete,
            },
            "snapshots": dict(self.snapshots),
            "commits": self.commits,
            "checkpoint_interval_s": self.interval_s,
            "made": {**dicts(self.made), "total": self.files_made.to_dict()},
            "upgraded": self.upgraded.to_dict(),
            "removed": self.removed.to_dict(),
            "live": None if live is None else {
                "data": live.data.to_dict(), "level0": live.level0.to_dict(), "sidecars": live.sidecars,
                "levels": dicts({str(k): v for k, v in live.levels.items()}), "metadata": dicts(live.metadata),
                "mean_files_per_snapshot": live.mean_files, "max_files": live.max_files,
            },
            "retained": None if self.retained is None else dicts(self.retained),
            "files_per_minute": None if self.per_minute is None else {
                **self.per_minute, "total": self.files_per_minute
            },
            "files_per_commit": self.files_per_commit,
            "commits_per_minute": self.commits_per_minute,
            "active_buckets_per_commit": self.active_buckets,
            "flush_files_per_active_bucket": self.files_per_active_bucket,
            "buckets": None if self.buckets is None else plain(self.buckets),
            "flush_bytes": self.flush_bytes,
            "rewrite_bytes": self.rewrite_bytes,
            "write_amplification": self.write_amplification,
            "flush_file_bytes_median": self.flush_file_bytes,
            "identity": {**plain(identity), "holds": identity.holds},
            "gaps": [plain(g) for g in self.gaps],
            "limits": None if self.limits is None else plain(self.limits),
            "requests": self.requests,
            "bytes_read": self.bytes_read,
        }  # fmt: skip


def plain(value: Any) -> dict[str, Any]:
    """A frozen dataclass as a dict for JSON."""
    from dataclasses import asdict

    return asdict(value)


def total(counts: Iterable[Count]) -> Count:
    return sum(counts, NOTHING)


def dicts(counts: Mapping[str, Count]) -> dict[str, dict[str, int]]:
    return {name: c.to_dict() for name, c in counts.items()}


def measure(metadata: Metadata, *, since: int | None = None) -> Debt:
    """Read a table and count its debt; two reads of the same table give the same numbers."""
    return debt(take(metadata, since=since))


def debt(window: Window, replayed: States | None = None) -> Debt:
    """The debt that a window shows; `replayed` are its states where the caller has them already."""
    steps, flows = window.steps, window.flows
    by_class = sums(flows, "class")
    flushed, rewritten = by_class.get(FLUSH, NOTHING), by_class.get(REWRITE, NOTHING)
    commits = data_commits(steps)
    limits = None if window.schema is None else Limits.of(window.schema)
    replayed = replay(window, limits) if replayed is None else replayed
    levels = None if replayed is None else _levels(replayed)
    made = made_files(steps, flows)
    minutes = minutes_of([s.time_ms for s in commits])
    active = active_buckets(flows)
    live = None if replayed is None else _live(window, replayed)
    return Debt(
        table=window.table,
        first=steps[0].id if steps else None,
        last=steps[-1].id if steps else None,
        first_ms=steps[0].time_ms if steps else 0,
        last_ms=steps[-1].time_ms if steps else 0,
        snapshots=dict(sorted(Counter(s.kind for s in steps).items())),
        commits=len(commits),
        interval_s=_interval(steps),
        made=made,
        upgraded=by_class.get(UPGRADE, NOTHING),
        removed=by_class.get(REMOVAL, NOTHING),
        live=live,
        retained=None if live is None or not window.complete else _retained(window),
        covered_minutes=minutes,
        per_minute=None if minutes is None else {kind: count.files / minutes for kind, count in made.items()},
        commits_per_minute=None if minutes is None else len(commits) / minutes,
        active_buckets=active / len(commits) if commits else None,
        files_per_active_bucket=flushed.files / active if active else None,
        buckets=None if replayed is None or limits is None else _buckets(replayed, limits),
        flush_bytes=flushed.bytes,
        rewrite_bytes=rewritten.bytes,
        flush_file_bytes=median_flush(flows),
        identity=Identity(
            len(steps), tuple(s.id for s in steps if not s.identity_holds), steps[-1].live_files if steps else 0,
            None if levels is None else total(levels.values()).files,
        ),
        gaps=window.gaps,
        complete=window.complete,
        limits=limits,
        requests=window.stock.requests,
        bytes_read=window.stock.bytes_read,
    )  # fmt: skip


def replay(window: Window, limits: Limits | None) -> States | None:
    """The states of a window. The highest level is the options', or a higher one that still holds files."""
    import pyarrow.compute as pc

    if window.start is None:
        return None
    seen = [pc.max(t.column("level")).as_py() for t in (window.start, window.flows) if t.num_rows]
    return states(window, top=max([0 if limits is None else limits.top_level, *(s for s in seen if s is not None)]))


# ---- flows -----------------------------------------------------------------------------------------------


def new_rows(flows: pa.Table) -> pa.Table:
    """The rows of a flow table that count once: of an upgrade's two only the one at its new level."""
    import pyarrow.compute as pc

    left = pc.and_(pc.equal(flows.column("class"), UPGRADE), pc.less(flows.column("change"), 0))
    return flows.filter(pc.invert(left))


def sums(flows: pa.Table, key: str) -> dict[Any, Count]:
    """Files, bytes and rows of a flow table by one column."""
    table = new_rows(flows).group_by(key).aggregate([("files", "sum"), ("bytes", "sum"), ("rows", "sum")])
    columns = [table.column(n).to_pylist() for n in (key, "files_sum", "bytes_sum", "rows_sum")]
    return {k: Count(*counts) for k, *counts in zip(*columns)}


def data_commits(steps: Iterable[SnapshotFacts]) -> list[SnapshotFacts]:
    """Snapshots that bring data: every kind but COMPACT and ANALYZE."""
    return [s for s in steps if s.kind not in ("COMPACT", "ANALYZE")]


def _wrote(steps: Iterable[SnapshotFacts], *kinds: str) -> Count:
    return total(step.wrote.get(kind, NOTHING) for step in steps for kind in kinds)


def made_files(steps: Sequence[SnapshotFacts], flows: pa.Table) -> dict[str, Count]:
    """What was written, by KINDS."""
    by_class = sums(flows, "class")
    return {
        "level0": by_class.get(FLUSH, NOTHING),
        "compacted": by_class.get(REWRITE, NOTHING),
        "sidecar": Count(int(ints(flows, "extras")[class_is(flows, FLUSH, REWRITE, CHANGELOG)].sum())),  # of any size
        "changelog": by_class.get(CHANGELOG, NOTHING),
        "manifest": _wrote(steps, *MANIFESTS),
        "manifest_list": _wrote(steps, *MANIFEST_LISTS),
        "index_manifest": _wrote(steps, "index-manifest"),
        "snapshot": _wrote(steps, "snapshot"),
    }


def _interval(steps: Iterable[SnapshotFacts]) -> float | None:
    """Median seconds of checkpoint clock between two APPEND snapshots of the same user."""
    of_user: dict[str, list[SnapshotFacts]] = {}
    for step in steps:
        if step.kind == "APPEND":
            of_user.setdefault(step.user, []).append(step)
    gaps = [s for mine in of_user.values() for s in intervals_s(mine).tolist() if s == s]
    return median(gaps) if gaps else None


def median_flush(flows: pa.Table) -> float | None:
    """The median size of new files, each counted at the mean size of its bucket and commit."""
    import numpy as np

    mine = class_is(flows, FLUSH)
    files, size = ints(flows, "files")[mine], ints(flows, "bytes")[mine]
    if not files.sum():
        return None
    return float(np.median(np.repeat(size / files, files)))


def active_buckets(flows: pa.Table) -> int:
    """Buckets that got a new file, summed over the snapshots."""
    import pyarrow.compute as pc

    flushes = flows.filter(pc.equal(flows.column("class"), FLUSH))
    return int(flushes.group_by(["snapshot", "partition", "bucket"]).aggregate([]).num_rows)


# ---- stocks ----------------------------------------------------------------------------------------------


def _levels(replayed: States) -> dict[int, Count]:
    """Live data files by level, after the last step."""
    import numpy as np

    levels, code = np.unique(replayed.cell_level, return_inverse=True)
    columns = []
    for name in ("files", "bytes", "rows"):
        np.add.at(column := np.zeros(len(levels), np.int64), code, replayed.cell_end[name])
        columns.append(column.tolist())
    return {level: Count(*counts) for level, *counts in zip(levels.tolist(), *columns) if counts[0]}


def _live(window: Window, replayed: States) -> Live:
    steps = window.steps
    metadata = {}
    if steps:
        newest = steps[-1]
        metadata = {
            "manifest": newest.manifests,
            "manifest_list": newest.wrote["base-list"] + newest.wrote["delta-list"],
            "index_manifest": Count(1 if window.stock.index.files else 0),
            "snapshot": newest.wrote["snapshot"],
        }
    listed = [s.live_files for s in steps]
    mean = sum(listed) / len(listed) if listed else 0.0
    extras = int(replayed.cell_end["extras"].sum())
    return Live(_levels(replayed), metadata, extras, mean, max(listed, default=0))


def _retained(window: Window) -> dict[str, Count]:
    """What only older snapshots hold, when all of them are here. Tags and branches are not asked."""
    import pyarrow.compute as pc

    earliest = window.stock.earliest or 0
    steps, flows = tuple(s for s in window.steps if s.id >= earliest), window.flows
    # What the earliest snapshot removed went with the snapshot before it; an upgraded file is still in place.
    ids = flows.column("snapshot")
    dead = flows.filter(pc.and_(pc.equal(flows.column("class"), REMOVAL), pc.greater(ids, earliest)))
    told = flows.filter(pc.and_(pc.equal(flows.column("class"), CHANGELOG), pc.greater_equal(ids, earliest)))
    held: dict[str, Count] = {
        "data": total(sums(dead, "class").values()),
        "sidecar": Count(int(ints(dead, "extras").sum() + ints(told, "extras").sum())),
        "changelog": total(sums(told, "class").values()),
    }
    for kind, words in (
        ("manifest", MANIFESTS), ("manifest_list", MANIFEST_LISTS), ("index_manifest", ("index-manifest",)),
        ("snapshot", ("snapshot",)),
    ):  # fmt: skip
        held[kind] = _wrote(steps, *words) + total(window.inherited.get(w, NOTHING) for w in words)
    if steps:
        newest = steps[-1]
        held["manifest"] -= newest.manifests
        held["manifest_list"] -= newest.wrote["base-list"] + newest.wrote["delta-list"]
        held["snapshot"] -= newest.wrote["snapshot"]
        held["index_manifest"] -= Count(1 if window.stock.index.files else 0)
    return held


def needed_files(files: Any, size: Any, target: int) -> Any:  # arrays of int64
    """The fewest files that hold these bytes at the target size, by bucket; none where there is no file."""
    import numpy as np

    return np.where(files > 0, np.maximum(-(-size // target), 1), 0)


def in_tree(replayed: States, limits: Limits) -> Any:  # an array of bool
    """The buckets that are merge trees: those of a table with a primary key, but for postponed rows (bucket -2)."""
    return limits.primary_key & (replayed.number >= 0)


def _buckets(replayed: States, limits: Limits) -> Buckets:
    """Files and runs of every bucket, now and over the steps that the state is known after."""
    import numpy as np

    end = replayed.end
    files, runs, size = end["files"], end["runs"], end["bytes"]
    (mean_files, max_files), (mean_runs, max_runs) = replayed.over_time("files"), replayed.over_time("runs")
    small = np.maximum(replayed.held("small"), 0)
    excess = np.maximum(files - needed_files(files, size, limits.target_size), 0)
    treed = in_tree(replayed, limits)
    worst = np.lexsort((replayed.number, -files, -runs))[:TOP]
    columns = (
        replayed.number, files, end["level0"], runs, size, small, excess, mean_files, max_files, mean_runs, max_runs
    )  # fmt: skip
    rows = zip(worst.tolist(), *(c[worst].tolist() for c in columns))
    names = [replayed.partitions[p].rstrip("/") for p in replayed.partition_of[worst].tolist()]
    top = tuple(Bucket(name, *row) for name, (i, *row) in zip(names, rows) if files[i])
    at_trigger, at_stop = treed & (runs > limits.compaction_trigger), treed & (runs > limits.stop_trigger)
    return Buckets(
        int((files > 0).sum()), _mean(mean_files), _max(max_files), _mean(mean_runs), _max(max_runs),
        int(at_trigger.sum()), int(at_stop.sum()), int(excess.sum()), int(small.sum()), _max(small), top,
    )  # fmt: skip


def _mean(values: Any) -> float:
    return float(values.mean()) if len(values) else 0.0


def _max(values: Any) -> int:
    return int(values.max()) if len(values) else 0
