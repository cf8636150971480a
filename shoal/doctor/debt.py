# SPDX-License-Identifier: Apache-2.0
"""The small-file debt of one table, as numbers: what was made, what is live, what is only retained.

Pure functions of a `Sample` and the live entries of its newest snapshot; `measure` reads both. Means are per snapshot
(what readers meet), so a commit's new files count until the compaction after it removes its inputs.

Invariants: made, live and retained are never added together, except that live + retained data files are the data files
on disk when the whole retention was sampled; a number that the sample cannot give is None, not 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from shoal.doctor.sample import (
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
    Sample,
    Step,
    live_entries,
    sample,
)
from shoal.format import paths
from shoal.format.schema import Schema
from shoal.format.snapshot import Snapshot
from shoal.options import Options
from shoal.table.metadata import Metadata

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Ints = np.ndarray[Any, np.dtype[np.int64]]  # one dimension each

VERSION = 1
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
    write_only: bool

    @classmethod
    def of(cls, schema: Schema) -> Limits:
        options = Options(schema.options, strict=False)
        target = options.target_file_size(bool(schema.primary_keys))
        return cls(
            bool(schema.primary_keys), options.compaction_trigger, options.stop_trigger, target,
            int(target * options.small_file_ratio), options.compaction_min_file_num, options.write_only,
        )  # fmt: skip


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
    """Sample a table and count its debt; two reads of the same table give the same numbers."""
    taken = sample(metadata, since=since)
    return debt(taken, live_entries(metadata, taken))


def debt(taken: Sample, live: pa.Table | None) -> Debt:
    """The debt that a sample shows, with the live entries of its newest snapshot (None when they cannot be read)."""
    steps, flows = taken.steps, taken.flows()
    by_class = _sums(flows, "class")
    flushed, rewritten = by_class.get(FLUSH, NOTHING), by_class.get(REWRITE, NOTHING)
    commits = [s.snapshot for s in steps if s.snapshot.commit_kind not in ("COMPACT", "ANALYZE")]
    limits = None if taken.schema is None else Limits.of(taken.schema)
    made = _made(steps, by_class, _extras(taken.entries))
    minutes = _covered_minutes(commits)
    active = _active(flows)
    return Debt(
        table=taken.uri,
        first=steps[0].snapshot.id if steps else None,
        last=steps[-1].snapshot.id if steps else None,
        first_ms=steps[0].snapshot.time_ms if steps else 0,
        last_ms=steps[-1].snapshot.time_ms if steps else 0,
        snapshots=dict(sorted(Counter(s.snapshot.commit_kind for s in steps).items())),
        commits=len(commits),
        interval_s=_interval(steps),
        made=made,
        upgraded=by_class.get(UPGRADE, NOTHING),
        removed=by_class.get(REMOVAL, NOTHING),
        live=None if live is None else _live(steps, live),
        retained=None if live is None else _retained(taken, live),
        covered_minutes=minutes,
        per_minute=None if minutes is None else {kind: count.files / minutes for kind, count in made.items()},
        commits_per_minute=None if minutes is None else len(commits) / minutes,
        active_buckets=active / len(commits) if commits else None,
        files_per_active_bucket=flushed.files / active if active else None,
        buckets=None if live is None or limits is None else _buckets(taken, live, limits),
        flush_bytes=flushed.bytes,
        rewrite_bytes=rewritten.bytes,
        flush_file_bytes=_median_flush(taken.entries),
        identity=Identity(
            len(steps), tuple(s.snapshot.id for s in taken.broken), steps[-1].live_listed if steps else 0,
            None if live is None else live.num_rows,
        ),
        gaps=taken.gaps,
        complete=taken.complete,
        limits=limits,
        requests=taken.requests,
        bytes_read=taken.bytes_read,
    )  # fmt: skip


# ---- flows -----------------------------------------------------------------------------------------------


def _sums(flows: pa.Table, key: str) -> dict[Any, Count]:
    """Files, bytes and rows of a flow table by one column."""
    table = flows.group_by(key).aggregate([("files", "sum"), ("bytes", "sum"), ("rows", "sum")])
    columns = [table.column(n).to_pylist() for n in (key, "files_sum", "bytes_sum", "rows_sum")]
    return {k: Count(*counts) for k, *counts in zip(*columns)}


def _wrote(steps: Iterable[Step], *kinds: str) -> Count:
    return total(step.wrote[kind] for step in steps for kind in kinds)


def _made(steps: Iterable[Step], by_class: Mapping[str, Count], extras: int) -> dict[str, Count]:
    steps = tuple(steps)
    return {
        "level0": by_class.get(FLUSH, NOTHING),
        "compacted": by_class.get(REWRITE, NOTHING),
        "sidecar": Count(extras),  # manifests do not say their size
        "changelog": by_class.get(CHANGELOG, NOTHING),
        "manifest": _wrote(steps, *MANIFESTS),
        "manifest_list": _wrote(steps, *MANIFEST_LISTS),
        "index_manifest": _wrote(steps, "index-manifest"),
        "snapshot": _wrote(steps, "snapshot"),
    }


def _extras(entries: pa.Table) -> int:
    """Files that came with new data and changelog files."""
    import pyarrow as pa
    import pyarrow.compute as pc

    new = pc.is_in(entries.column("class"), pa.array([FLUSH, REWRITE, CHANGELOG]))
    return int(pc.sum(entries.column("extras").filter(new), min_count=0).as_py())


def _interval(steps: Iterable[Step]) -> float | None:
    """Median seconds between two APPEND snapshots of the same user."""
    times: dict[str, list[int]] = {}
    for step in steps:
        if step.snapshot.commit_kind == "APPEND":
            times.setdefault(step.snapshot.commit_user, []).append(step.snapshot.time_ms)
    gaps = [b - a for ordered in times.values() for a, b in pairwise(ordered)]
    return median(gaps) / 1000 if gaps else None


def _median_flush(entries: pa.Table) -> float | None:
    import pyarrow.compute as pc

    sizes = entries.column("file_size").filter(pc.equal(entries.column("class"), FLUSH)).to_numpy()
    if not len(sizes):
        return None
    import numpy as np

    return float(np.median(sizes))


def _covered_minutes(commits: Sequence[Snapshot]) -> float | None:
    """The time the commits stand for: n of them span n - 1 intervals, and the first brought what came before it."""
    if len(commits) < 2 or commits[-1].time_ms <= commits[0].time_ms:
        return None
    return (commits[-1].time_ms - commits[0].time_ms) / 60_000 * len(commits) / (len(commits) - 1)


def _active(flows: pa.Table) -> int:
    """Buckets that got a new file, summed over the snapshots."""
    import pyarrow.compute as pc

    flushes = flows.filter(pc.equal(flows.column("class"), FLUSH))
    return int(flushes.group_by(["snapshot", "partition", "bucket"]).aggregate([]).num_rows)


# ---- stocks ----------------------------------------------------------------------------------------------


def _live(steps: tuple[Step, ...], live: pa.Table) -> Live:
    import pyarrow.compute as pc

    table = live.group_by("level").aggregate([("file_name", "count"), ("file_size", "sum"), ("row_count", "sum")])
    names = ("level", "file_name_count", "file_size_sum", "row_count_sum")
    levels = {level: Count(*c) for level, *c in zip(*(table.column(n).to_pylist() for n in names))}
    metadata = {}
    if steps:
        newest = steps[-1]
        metadata = {
            "manifest": newest.manifests,
            "manifest_list": newest.wrote["base-list"] + newest.wrote["delta-list"],
            "index_manifest": Count(1 if newest.snapshot.index_manifest else 0),
            "snapshot": newest.wrote["snapshot"],
        }
    listed = [s.live_listed for s in steps]
    extras = int(pc.sum(pc.list_value_length(live.column("extra_files")), min_count=0).as_py())
    mean = sum(listed) / len(listed) if listed else 0.0
    return Live(dict(sorted(levels.items())), metadata, extras, mean, max(listed, default=0))


def _retained(taken: Sample, live: pa.Table) -> dict[str, Count] | None:
    """What only older snapshots hold; None when some of them were not sampled. Tags and branches are not asked."""
    import pyarrow.compute as pc

    if not taken.complete:
        return None
    steps, entries = taken.steps, taken.entries
    # What the earliest snapshot removed went with the snapshot before it; an upgraded file is still in place.
    first = steps[0].snapshot.id if steps else 0
    dead = entries.filter(
        pc.and_(pc.equal(entries.column("class"), REMOVAL), pc.greater(entries.column("snapshot"), first))
    )
    dead = dead.filter(pc.invert(pc.is_in(dead.column("file_name"), live.column("file_name").combine_chunks())))
    dead = dead.group_by("file_name").aggregate([("file_size", "max"), ("row_count", "max"), ("extras", "max")])
    size, rows, extras = (
        int(pc.sum(dead.column(n), min_count=0).as_py()) for n in ("file_size_max", "row_count_max", "extras_max")
    )
    changelog = entries.filter(pc.equal(entries.column("class"), CHANGELOG))
    held: dict[str, Count] = {
        "data": Count(dead.num_rows, size, rows),
        "sidecar": Count(extras + int(pc.sum(changelog.column("extras"), min_count=0).as_py())),
        "changelog": Count(
            int(pc.sum(changelog.column("files"), min_count=0).as_py()),
            int(pc.sum(changelog.column("file_size"), min_count=0).as_py()),
            int(pc.sum(changelog.column("row_count"), min_count=0).as_py()),
        ),
    }
    for kind, words in (
        ("manifest", MANIFESTS), ("manifest_list", MANIFEST_LISTS), ("index_manifest", ("index-manifest",)),
        ("snapshot", ("snapshot",)),
    ):  # fmt: skip
        held[kind] = _wrote(steps, *words) + total(taken.inherited.get(w, NOTHING) for w in words)
    if steps:
        newest = steps[-1]
        held["manifest"] -= newest.manifests
        held["manifest_list"] -= newest.wrote["base-list"] + newest.wrote["delta-list"]
        held["snapshot"] -= newest.wrote["snapshot"]
        held["index_manifest"] -= Count(1 if newest.snapshot.index_manifest else 0)
    return held


def _buckets(taken: Sample, live: pa.Table, limits: Limits) -> Buckets:
    """Files and runs of every bucket, now and over the snapshots since the last gap."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    window = _unbroken(taken)
    moves = taken.entries.filter(pc.not_equal(taken.entries.column("class"), CHANGELOG))
    moves = moves.filter(pc.greater_equal(moves.column("snapshot"), window[0])) if window else moves.slice(0, 0)
    partitions = pa.chunked_array(
        [*live.column("partition").chunks, *moves.column("partition").chunks], pa.binary()
    ).combine_chunks().dictionary_encode()  # fmt: skip
    codes = partitions.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    numbers = np.concatenate([_ints(live, "bucket"), _ints(moves, "bucket")])
    keys, bucket = np.unique(codes << 32 | (numbers & 0xFFFFFFFF), return_inverse=True)
    level = np.concatenate([_ints(live, "level"), _ints(moves, "level")])
    cells, cell = np.unique(bucket << 8 | (level + 1), return_inverse=True)  # a level fits in 8 bits: 0 to num-levels
    cell_bucket, cell_upper = cells >> 8, (cells & 0xFF) > 1
    alive = live.num_rows

    at = np.searchsorted(np.asarray(window, np.int64), _ints(moves, "snapshot"))
    change = _ints(moves, "change")
    n, cell_end = max(len(window), 1), np.bincount(cell[:alive], minlength=len(cells))
    files_end = np.bincount(bucket[:alive], minlength=len(keys))
    mean_files, max_files = _over_time(_Moves.of(bucket[alive:], at, change), files_end, n)
    # A level above 0 is one run while it holds a file; a level-0 file is a run of its own.
    by_cell = _Moves.of(cell[alive:], at, change)
    after = by_cell.after(cell_end)
    runs_change = _runs(after, cell_upper[by_cell.key]) - _runs(after - by_cell.change, cell_upper[by_cell.key])
    runs_end = np.bincount(cell_bucket, _runs(cell_end, cell_upper), len(keys)).astype(np.int64)
    moved = _Moves.of(cell_bucket[by_cell.key], by_cell.at, runs_change)
    mean_runs, max_runs = _over_time(moved, runs_end, n)

    size = _ints(live, "file_size")
    bytes_end = np.bincount(bucket[:alive], size, len(keys)).astype(np.int64)
    level0 = np.bincount(bucket[:alive], _ints(live, "level") == 0, len(keys)).astype(np.int64)
    small = np.bincount(bucket[:alive], size < limits.small_size, len(keys)).astype(np.int64)
    needed = np.maximum(-(-bytes_end // limits.target_size), 1)
    excess = np.maximum(files_end - needed, 0)
    held = keys.astype(np.int64) & 0xFFFFFFFF
    held[held >= 1 << 31] -= 1 << 32  # bucket -2 is the postpone bucket: its files wait outside the merge tree
    treed = limits.primary_key & (held >= 0)
    texts = [_partition_text(taken.schema, p) for p in partitions.dictionary.to_pylist()]
    worst = np.lexsort((held, -files_end, -runs_end))[:TOP]
    columns = (held, files_end, level0, runs_end, bytes_end, small, excess, mean_files, max_files, mean_runs, max_runs)
    rows = zip(worst.tolist(), *(c[worst].tolist() for c in columns))
    top = tuple(Bucket(texts[int(keys[i]) >> 32], *row) for i, *row in rows if files_end[i])
    at_trigger, at_stop = treed & (runs_end > limits.compaction_trigger), treed & (runs_end > limits.stop_trigger)
    return Buckets(
        int((files_end > 0).sum()), _mean(mean_files), _max(max_files), _mean(mean_runs), _max(max_runs),
        int(at_trigger.sum()), int(at_stop.sum()), int(excess.sum()), int(small.sum()), _max(small), top,
    )  # fmt: skip


def _unbroken(taken: Sample) -> list[int]:
    """The newest sampled snapshots without a gap between them: as far as stocks can be followed back."""
    ids = [s.snapshot.id for s in taken.steps]
    for i in range(len(ids) - 1, 0, -1):
        if ids[i] != ids[i - 1] + 1:
            return ids[i:]
    return ids


def _partition_text(schema: Schema | None, partition: bytes) -> str:
    if schema is None or not schema.partition_fields:
        return ""
    options = Options(schema.options, strict=False)
    return paths.partition_path(
        schema.partition_fields, partition, str(options.get("partition.default-name")),
        bool(options.get("partition.legacy-name")),
    ).rstrip("/")  # fmt: skip


def _ints(table: pa.Table, column: str) -> Ints:
    import numpy as np

    return np.asarray(table.column(column).to_numpy(), np.int64)


def _runs(files: Ints, upper: Any) -> Ints:  # `upper` is an array of bool
    import numpy as np

    return np.where(upper, files > 0, files).astype(np.int64)


def _mean(values: Any) -> float:
    return float(values.mean()) if len(values) else 0.0


def _max(values: Any) -> int:
    return int(values.max()) if len(values) else 0


@dataclass(frozen=True, slots=True)
class _Moves:
    """Changes of a count by key and snapshot position, sorted, one per key and position."""

    key: Ints
    at: Ints
    change: Ints

    @classmethod
    def of(cls, key: Ints, at: Ints, change: Ints) -> _Moves:
        import numpy as np

        if not len(key):
            return cls(key, at, change)
        order = np.lexsort((at, key))
        key, at, change = key[order], at[order], change[order]
        starts = np.flatnonzero(np.r_[True, (key[1:] != key[:-1]) | (at[1:] != at[:-1])])
        return cls(key[starts], at[starts], np.add.reduceat(change, starts))

    def after(self, end: Ints) -> Ints:
        """The count after each change, told backwards from the counts at the end."""
        import numpy as np

        so_far = np.cumsum(self.change)
        totals = np.zeros(len(end), np.int64)
        np.maximum.at(last := np.full(len(end), -1), self.key, np.arange(len(self.key)))
        totals[last >= 0] = so_far[last[last >= 0]]
        return end[self.key] - (totals[self.key] - so_far)


def _over_time(moves: _Moves, end: Ints, n: int) -> tuple[Any, Ints]:  # Any: an array of floats
    """Mean and maximum of each key's count over `n` snapshots."""
    import numpy as np

    if not len(moves.key):
        return end.astype(np.float64), end.astype(np.int64)
    after = moves.after(end)
    first = np.r_[True, moves.key[1:] != moves.key[:-1]]
    until = np.r_[np.where(first[1:], n, moves.at[1:]), n]
    sums = np.bincount(moves.key, after * (until - moves.at), len(end)).astype(np.float64)
    highest = np.full(len(end), -1)
    np.maximum.at(highest, moves.key, after)
    # Before its first change a key held what that change started from.
    start, before = moves.at[first], (after - moves.change)[first]
    sums[moves.key[first]] += before * start
    highest[moves.key[first]] = np.maximum(highest[moves.key[first]], np.where(start > 0, before, -1))
    still = highest < 0
    sums[still], highest[still] = end[still] * n, end[still]
    return sums / n, highest
