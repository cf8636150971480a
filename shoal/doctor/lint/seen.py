# SPDX-License-Identifier: Apache-2.0
"""What the snapshots of a window show that rules ask for: who writes, who compacts, how often, and how large.

Invariant: every value is counted from the window alone; what it cannot show is None or empty, and a rule that needs it
then says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from shoal.doctor.window import CHANGELOG, FLUSH

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.doctor.window import Holder, SnapshotFacts, Window

_HEAD = 8 << 10  # a manifest without entries has less, whatever its format
BATCH = 2**63 - 1  # the identifier of every batch commit


@dataclass(frozen=True)
class Seen:
    """Answers about one window."""

    window: Window

    # ---- commits

    @property
    def steps(self) -> tuple[SnapshotFacts, ...]:
        return self.window.steps

    @cached_property
    def commits(self) -> int:
        """Commits: the APPEND and COMPACT snapshots of one checkpoint count once."""
        return len({(s.user, s.identifier) for s in self.steps if s.identifier != BATCH}) + sum(
            s.identifier == BATCH for s in self.steps
        )

    @cached_property
    def snapshots_per_commit(self) -> float | None:
        return len(self.steps) / self.commits if self.commits else None

    @cached_property
    def interval_ms(self) -> int | None:
        """Median time between the commits of the busiest streaming writer; None below five of them."""
        times: dict[str, dict[int, int]] = {}
        for s in self.steps:
            if s.kind == "APPEND" and s.identifier != BATCH:
                times.setdefault(s.user, {}).setdefault(s.identifier, s.time_ms)
        busiest = max(times.values(), key=len, default={})
        if len(busiest) < 5:
            return None
        rows = sorted(busiest.items())
        # identifiers that are missing were checkpoints without rows
        gaps = [(t2 - t1) / max(i2 - i1, 1) for (i1, t1), (i2, t2) in pairwise(rows)]
        return max(0, round(median(gaps)))

    @cached_property
    def writers(self) -> frozenset[str]:
        """Users that wrote rows."""
        return frozenset(self._user[s] for s in self._snapshots(FLUSH))

    @cached_property
    def compactors(self) -> frozenset[str]:
        """Users that made COMPACT snapshots."""
        return frozenset(s.user for s in self.steps if s.kind == "COMPACT")

    @property
    def dedicated(self) -> frozenset[str]:
        """Users that compact and write nothing."""
        return self.compactors - self.writers

    @cached_property
    def commits_without_compaction(self) -> int:
        """Commits that wrote rows since the newest COMPACT snapshot."""
        last = max((s.id for s in self.steps if s.kind == "COMPACT"), default=-1)
        return len({(self._user[s], self._identifier[s]) for s in self._snapshots(FLUSH) if s > last})

    def shared_partitions(self, kind: str) -> dict[str, frozenset[str]]:
        """Partitions that several users wrote to (`flush`) or compacted (`rewrite`) at one time, with these users.

        One after the other is no sharing: every batch job and every new start of a stream has a user of its own.
        """
        pairs = self._flows(kind).group_by(["partition", "snapshot"]).aggregate([])
        spans: dict[str, dict[str, tuple[int, int]]] = {}
        for partition, snapshot in zip(pairs["partition"].to_pylist(), pairs["snapshot"].to_pylist()):
            if (user := self._user.get(snapshot)) is not None:
                users = spans.setdefault(partition, {})
                first, last = users.get(user, (snapshot, snapshot))
                users[user] = (min(first, snapshot), max(last, snapshot))
        return {p: together for p, users in sorted(spans.items()) if (together := _together(users))}

    @cached_property
    def concurrent_users(self) -> frozenset[str]:
        """Users whose commits lie between those of another one."""
        spans: dict[str, tuple[int, int]] = {}
        for s in self.steps:
            spans[s.user] = (spans.get(s.user, (s.id, s.id))[0], s.id)
        return _together(spans)

    # ---- sizes

    @cached_property
    def flush_bytes(self) -> float | None:
        """Median size of the files that writers flushed, by bucket and snapshot."""
        import pyarrow.compute as pc

        flows = self._flows(FLUSH)
        sizes = pc.divide(flows["bytes"], pc.max_element_wise(flows["files"], 1))
        return _median(sizes)

    @cached_property
    def arrivals(self) -> dict[tuple[str, int], int]:
        """Rows that writers flushed, by partition and bucket."""
        sums = self._flows(FLUSH).group_by(["partition", "bucket"]).aggregate([("rows", "sum")])
        rows = sorted(zip(*(sums[c].to_pylist() for c in ("partition", "bucket", "rows_sum"))))
        return {(partition, bucket): count for partition, bucket, count in rows}

    @cached_property
    def changelog_files(self) -> float | None:
        """Median number of changelog files of one snapshot in one partition."""
        sums = self._flows(CHANGELOG).group_by(["snapshot", "partition"]).aggregate([("files", "sum")])
        return _median(sums["files_sum"])

    @cached_property
    def bucket_bytes(self) -> Mapping[tuple[str, int], int]:
        """Live bytes by partition and bucket after the window; empty when the state is not known."""
        return {k: v[0] for k, v in self._state.items()}

    @cached_property
    def live(self) -> tuple[int, int, int]:
        """Live files, bytes and rows after the window."""
        values = list(self._state.values())
        return sum(v[1] for v in values), sum(v[0] for v in values), sum(v[2] for v in values)

    @cached_property
    def total_buckets(self) -> dict[int, list[str]]:
        """Partitions that hold files, by how many buckets they have."""
        out: dict[int, set[str]] = {}
        for (partition, _), (_, files, _, total) in self._state.items():
            if files > 0:
                out.setdefault(total, set()).add(partition)
        return {total: sorted(found) for total, found in sorted(out.items())}

    @property
    def postponed(self) -> int:
        """Live files that wait in bucket-postpone."""
        return sum(files for (_, bucket), (_, files, _, _) in self._state.items() if bucket == -2)

    @cached_property
    def partitions(self) -> list[str]:
        """Partitions with live files, as their folders are called (`dt=2024-05-01/`)."""
        return sorted({p for (p, _), v in self._state.items() if v[1] > 0})

    @property
    def bytes_per_entry(self) -> float | None:
        """Manifest bytes per entry of the newest snapshot, without the heads of the files."""
        last = self.steps[-1] if self.steps else None
        if last is None or not last.entries:
            return None
        return max(0, last.manifests.bytes - _HEAD * last.manifests.files) / last.entries

    # ---- readers

    @property
    def consumers(self) -> tuple[Holder, ...]:
        return tuple(h for h in self.window.stock.holders if h.kind == "consumer")

    def behind_ms(self, holder: Holder) -> int | None:
        """How old the snapshot is that a consumer reads next; None when the window does not hold it."""
        if not self.steps or holder.snapshot > self.steps[-1].id:
            return 0
        at = next((s.time_ms for s in self.steps if s.id == holder.snapshot), None)
        return None if at is None else max(0, self.window.stock.taken_ms - at)

    @property
    def expired_late_ms(self) -> int | None:
        """How old the oldest snapshot is."""
        return max(0, self.window.stock.taken_ms - self.steps[0].time_ms) if self.steps else None

    # ---- columns of the window

    @cached_property
    def _user(self) -> Mapping[int, str]:
        return {s.id: s.user for s in self.steps}

    @cached_property
    def _identifier(self) -> Mapping[int, int]:
        return {s.id: s.identifier for s in self.steps}

    def _flows(self, kind: str) -> pa.Table:
        """What was added of one class."""
        import pyarrow.compute as pc

        flows = self.window.flows
        return flows.filter(pc.and_(pc.equal(flows["class"], kind), pc.greater(flows["change"], 0)))

    def _snapshots(self, kind: str) -> set[int]:
        return self._user.keys() & set(self._flows(kind)["snapshot"].unique().to_pylist())

    @cached_property
    def _state(self) -> Mapping[tuple[str, int], tuple[int, int, int, int]]:
        """(bytes, files, rows, total buckets) of each bucket that holds files after the window."""
        end = self.window.end
        if end is None:
            return {}
        sums = end.group_by(["partition", "bucket"]).aggregate(
            [("bytes", "sum"), ("files", "sum"), ("rows", "sum"), ("total_buckets", "max")]
        )
        columns = ("partition", "bucket", "bytes_sum", "files_sum", "rows_sum", "total_buckets_max")
        rows = sorted(zip(*(sums[c].to_pylist() for c in columns)))
        return {(p, b): (size, files, count, total) for p, b, size, files, count, total in rows}


def _median(values: Any) -> float | None:  # Any: an Arrow array of numbers
    return float(median(values.to_pylist())) if len(values) else None


def _together(spans: Mapping[str, tuple[int, int]]) -> frozenset[str]:
    """Those whose span (first and last snapshot) overlaps that of another one."""
    rows = sorted(spans.items(), key=lambda row: row[1])
    out: set[str] = set()
    open_until, owner = -1, ""
    for user, (first, last) in rows:
        if first < open_until:
            out |= {user, owner}
        if last > open_until:
            open_until, owner = last, user
    return frozenset(out)
