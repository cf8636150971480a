# SPDX-License-Identifier: Apache-2.0
"""The past of a table that nobody watched, from what it still retains; each number says how far it can be trusted.

Exact: retained snapshots, tags, schemas, the dead files that old manifests still name, and, where one writer numbered
them, the records each bucket ever got. Biased: files that lived. Averages have no shape. What nothing retains is named.

Invariant: nothing is guessed; a number that a rescale, an overwrite, several writers or an option makes meaningless
is void, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from shoal.clock import Clock
from shoal.doctor.allowance import FREE, Allowance, MeteredStore
from shoal.doctor.lists import vanished
from shoal.doctor.take import take
from shoal.doctor.window import FLUSH, Count, SchemaFacts, Window
from shoal.errors import NotFound, ShoalError
from shoal.format import paths
from shoal.format.datafile import COMPACT, DELETE
from shoal.format.snapshot import BATCH_IDENTIFIER, Snapshot
from shoal.format.snapshot import decode as decode_snapshot
from shoal.options import Options
from shoal.table.history import changelog_ids, changelog_path
from shoal.table.metadata import Metadata
from shoal.table.refs import tags

if TYPE_CHECKING:
    import pyarrow as pa

Trust = Literal["exact", "biased", "average", "void"]
_TREE = ("partition", "bucket")


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Records ever written to one bucket (its highest sequence number + 1), and what lives of them."""

    partition: str
    bucket: int
    records: int
    live_rows: int

    @property
    def update_ratio(self) -> float | None:
        """Records written for each row that lives; above 1 where rows are updated or deleted."""
        return self.records / self.live_rows if self.live_rows else None


@dataclass(frozen=True, slots=True)
class Point:
    """A tag: the whole state at one time of the past."""

    tag: str
    snapshot: int
    time_ms: int
    live: Count | None  # None when its manifests could not be read
    levels: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Past:
    """What can be told of the time before the first look."""

    window: Window  # the retained snapshots: exact
    dead: Count  # files that are gone but that the earliest manifests still name: exact for each file
    dead_from_ms: int | None  # creation of the oldest of them
    dead_sources: Mapping[str, int]  # of these, flushes and rewrites
    survivors: Mapping[int, Count]  # live files by their day of creation, day 0 is 1970-01-01: biased
    lifetimes: tuple[Lifetime, ...]
    lifetime_trust: Trust
    voids: tuple[str, ...]  # why lifetimes mean nothing, or less
    snapshots_ever: int | None  # average below: over the whole life
    life_ms: int | None
    checkpoints: Mapping[str, int]  # by commit user, the highest checkpoint id
    options: tuple[tuple[int, int, Mapping[str, tuple[str | None, str | None]]], ...]  # (time, schema, key: old, new)
    points: tuple[Point, ...]
    changelogs: tuple[tuple[int, int, str], ...]  # id, time, kind of snapshots whose changelog outlives them

    @property
    def records_ever(self) -> int | None:
        return None if self.lifetime_trust == "void" else sum(b.records for b in self.lifetimes)

    @property
    def shares(self) -> tuple[float, ...]:
        """Each bucket's share of all records, in the order of `lifetimes`: the skew of the keys."""
        ever = sum(b.records for b in self.lifetimes)
        return tuple(b.records / ever for b in self.lifetimes) if ever else ()

    @property
    def commits_per_hour(self) -> float | None:
        if not self.snapshots_ever or not self.life_ms:
            return None
        return self.snapshots_ever / (self.life_ms / 3_600_000)

    def to_dict(self) -> dict[str, Any]:  # JSON
        steps = self.window.steps
        return {
            "version": 1,
            "table": self.window.table,
            "retained": {
                "trust": "exact", "first": steps[0].id if steps else None, "last": steps[-1].id if steps else None,
                "snapshots": len(steps), "gaps": [asdict(g) for g in self.window.gaps],
            },
            "dead_files": {
                "trust": "exact", **self.dead.to_dict(), "from_ms": self.dead_from_ms,
                "sources": dict(self.dead_sources),
            },
            "survivors_by_day": {
                "trust": "biased", "days": {str(d): c.to_dict() for d, c in self.survivors.items()},
            },
            "lifetime": {
                "trust": self.lifetime_trust, "voids": list(self.voids), "records": self.records_ever,
                "buckets": [
                    {**asdict(b), "update_ratio": b.update_ratio, "share": share}
                    for b, share in zip(self.lifetimes, self.shares or (None,) * len(self.lifetimes))
                ],
            },
            "life": {
                "trust": "average", "snapshots": self.snapshots_ever, "ms": self.life_ms,
                "commits_per_hour": self.commits_per_hour, "checkpoints": dict(self.checkpoints),
            },
            "option_changes": {
                "trust": "exact",
                "changes": [
                    {"time_ms": t, "schema": i, "options": {k: list(v) for k, v in c.items()}}
                    for t, i, c in self.options
                ],
            },
            "tags": {"trust": "exact", "points": [
                {**asdict(p), "live": None if p.live is None else p.live.to_dict()} for p in self.points
            ]},
            "changelogs": {
                "trust": "exact", "snapshots": [{"id": i, "time_ms": t, "kind": k} for i, t, k in self.changelogs],
            },
            "unknown": list(UNKNOWABLE),
        }  # fmt: skip


UNKNOWABLE = (
    "file counts between these points",
    "how long commits took",
    "when snapshots expired",
    "when queries ran",
)


def rebuild(metadata: Metadata, *, name: str = "", clock: Clock, budget: Allowance = FREE) -> Past:
    """Read all that the table retains of its past. Costs O(live files), and O(files) for each tag.

    `budget` bounds the look at the retained snapshots; the rest only keeps to its requests a second.
    """
    window = take(metadata, name=name, clock=clock, budget=budget)
    reader = Metadata(MeteredStore(metadata.store, Allowance(rps=budget.rps), clock), metadata.cache)
    earliest = None if not window.steps else _read(reader, paths.snapshot(window.steps[0].id))
    newest = None if not window.steps else _read(reader, paths.snapshot(window.steps[-1].id))
    live = _live(reader, newest)
    dead, dead_from, sources = _dead(reader, earliest, live)
    trust, voids = _trust(window)
    changelogs = _changelogs(reader)
    points = _points(reader)
    first = window.schemas[0] if window.schemas and window.schemas[0].id == 0 else None
    last = window.steps[-1] if window.steps else None
    return Past(
        window, dead, dead_from, sources, _survivors(live),
        _lifetimes(window) if trust != "void" or window.end is not None else (), trust, voids,
        last.id if last else None, last.time_ms - first.time_ms if first and last and first.time_ms else None,
        _checkpoints(window), option_changes(window.schemas), points, changelogs,
    )  # fmt: skip


def _read(reader: Metadata, path: str) -> Snapshot | None:
    try:
        return decode_snapshot(reader.store.read(path), f"{reader.store.uri}/{path}")
    except NotFound:
        return None


def _live(reader: Metadata, snap: Snapshot | None) -> pa.Table | None:
    try:
        return reader.live(snap)
    except ShoalError as err:
        if not vanished(err):
            raise
        return None


def _dead(reader: Metadata, snap: Snapshot | None, live: pa.Table | None) -> tuple[Count, int | None, dict[str, int]]:
    """Files that the manifests before the earliest snapshot add and remove: made and gone before it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if snap is None:
        return Count(), None, {}
    try:
        tables = [reader.entries(m) for m in reader.base(snap) if m.deleted or m.added]
        state = reader.live_in(reader.base(snap))
    except ShoalError as err:
        if not vanished(err):
            raise
        return Count(), None, {}
    if not tables:
        return Count(), None, {}
    entries = pa.Table.from_batches(tables)
    gone = entries.filter(pc.equal(entries.column("kind"), DELETE))
    # An upgraded file leaves its old level and lives on.
    gone = gone.filter(pc.invert(pc.is_in(gone.column("file_name"), state.column("file_name").combine_chunks())))
    each = gone.group_by("file_name").aggregate([
        ("file_size", "max"), ("row_count", "max"), ("creation_ms", "min"), ("file_source", "max"),
    ])  # fmt: skip
    total = [int(pc.sum(each.column(n), min_count=0).as_py()) for n in ("file_size_max", "row_count_max")]
    made = pc.equal(each.column("file_source_max"), COMPACT)
    rewrites = int(pc.sum(made, min_count=0).as_py())
    sources = {"flush": int(pc.sum(pc.invert(made), min_count=0).as_py()), "rewrite": rewrites}
    return Count(each.num_rows, *total), pc.min(each.column("creation_ms_min")).as_py(), sources


def _survivors(live: pa.Table | None) -> dict[int, Count]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if live is None or not live.num_rows:
        return {}
    day = pc.floor(pc.divide(live.column("creation_ms").cast(pa.float64()), 86_400_000.0)).cast(pa.int64())
    table = pa.table({"day": day, "size": live.column("file_size"), "rows": live.column("row_count")})
    sums = table.filter(pc.is_valid(table.column("day"))).group_by("day").aggregate([
        ("size", "count"), ("size", "sum"), ("rows", "sum"),
    ])  # fmt: skip
    rows = zip(*(sums.column(n).to_pylist() for n in ("day", "size_count", "size_sum", "rows_sum")))
    return {d: Count(*c) for d, *c in sorted(rows)}


def _lifetimes(window: Window) -> tuple[Lifetime, ...]:
    import pyarrow.compute as pc

    end = window.end
    if end is None:
        return ()
    end = end.filter(pc.greater_equal(end.column("bucket"), 0))
    sums = end.group_by(list(_TREE), use_threads=False).aggregate([("max_sequence", "max"), ("rows", "sum")])
    rows = sums.sort_by([(n, "ascending") for n in _TREE]).select([*_TREE, "max_sequence_max", "rows_sum"])
    return tuple(
        Lifetime(p, b, most + 1, live) for p, b, most, live in zip(*(c.to_pylist() for c in rows.columns))
    )  # fmt: skip


def _trust(window: Window) -> tuple[Trust, tuple[str, ...]]:
    """Whether the highest sequence number counts the records of a bucket, and what stands against it."""
    import pyarrow.compute as pc

    schema = window.schema
    voids = []
    if schema is None or window.end is None:
        return "void", ("the live files could not be read",)
    if not schema.primary_keys:
        return "void", ("a table without primary key does not number its records over its life",)
    every = [Options(s.options, strict=False) for s in window.schemas]
    if any(o.get("sequence.snapshot-ordering") for o in every):
        voids.append("sequence.snapshot-ordering: numbers follow snapshots, not records")
    if any(str(o.get("write.sequence-number-init-mode")) != "scan" for o in every):
        voids.append("write.sequence-number-init-mode is not scan: numbers do not go on from the last")
    totals = window.end.group_by(["partition"]).aggregate([("total_buckets", "count_distinct")])
    asked = {str(o.get("bucket")) for o in every}
    if pc.any(pc.greater(totals.column("total_buckets_count_distinct"), 1)).as_py() or len(asked) > 1:
        voids.append("the buckets were rescaled: rows moved, and their numbers began again")
    overwrites = [s.id for s in window.steps if s.kind == "OVERWRITE"]
    if overwrites:
        voids.append(f"overwritten in snapshot {overwrites[0]}: the numbers of what was replaced are gone")
    if together := _writers_together(window):
        voids.append(f"several writers at one time in {together}: their numbers overlap")
    if voids:
        return "void", tuple(voids)
    first = window.steps[0].id if window.steps else 1
    notes = ["at least: newest records that were deletes leave no trace once a full compaction drops them"]
    if first > 1:
        notes.append(f"exact if nothing was overwritten, and one writer wrote, before snapshot {first}")
    return "exact", tuple(notes)


def _writers_together(window: Window) -> str | None:
    """A bucket in which files of two commit users have numbers that overlap; None when there is none."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    flushes = window.flows.filter(pc.equal(window.flows.column("class"), FLUSH))
    flushes = flushes.filter(pc.is_valid(flushes.column("min_sequence")))
    if len({s.user for s in window.steps}) < 2 or flushes.num_rows < 2:
        return None
    flushes = flushes.sort_by([("partition", "ascending"), ("bucket", "ascending"), ("snapshot", "ascending")])
    users = {s.id: s.user for s in window.steps}
    names = pa.array([users[i] for i in flushes.column("snapshot").to_pylist()]).dictionary_encode()
    user = names.indices.to_numpy()
    parts = flushes.column("partition").combine_chunks().dictionary_encode().indices.to_numpy()
    bucket = flushes.column("bucket").to_numpy()
    low, high = flushes.column("min_sequence").to_numpy(), flushes.column("max_sequence").to_numpy()
    same = (parts[1:] == parts[:-1]) & (bucket[1:] == bucket[:-1])
    clash = np.flatnonzero(same & (user[1:] != user[:-1]) & (low[1:] <= high[:-1]))
    if not len(clash):
        return None
    at = int(clash[0]) + 1
    where = flushes.column("partition")[at].as_py()
    return f"{where}bucket {bucket[at]}"


def _checkpoints(window: Window) -> dict[str, int]:
    """The highest commit identifier of each streaming user."""
    out: Counter[str] = Counter()
    for s in window.steps:
        if s.identifier != BATCH_IDENTIFIER:
            out[s.user] = max(out[s.user], s.identifier)
    return dict(sorted(out.items()))


def option_changes(
    schemas: tuple[SchemaFacts, ...],
) -> tuple[tuple[int, int, Mapping[str, tuple[str | None, str | None]]], ...]:
    """Each change of options with its time, schema and keys: (old, new)."""
    out = []
    for before, after in pairwise(schemas):
        keys = sorted(before.options.keys() | after.options.keys())
        changed = {
            k: (before.options.get(k), after.options.get(k))
            for k in keys
            if before.options.get(k) != after.options.get(k)
        }
        if changed:
            out.append((after.time_ms, after.id, changed))
    return tuple(out)


def _points(reader: Metadata) -> tuple[Point, ...]:
    import pyarrow.compute as pc

    out = []
    for t in tags(reader):
        live = _live(reader, t.snapshot)
        count, levels = None, {}
        if live is not None:
            size, rows = (int(pc.sum(live.column(n), min_count=0).as_py()) for n in ("file_size", "row_count"))
            count = Count(live.num_rows, size, rows)
            levels = dict(sorted(Counter(live.column("level").to_pylist()).items()))
        out.append(Point(t.name, t.snapshot.id, t.snapshot.time_ms, count, levels))
    return tuple(out)


def _changelogs(reader: Metadata) -> tuple[tuple[int, int, str], ...]:
    found = (_read(reader, changelog_path(i)) for i in changelog_ids(reader))
    return tuple((s.id, s.time_ms, s.commit_kind) for s in found if s is not None)
