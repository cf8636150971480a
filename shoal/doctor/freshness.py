# SPDX-License-Identifier: Apache-2.0
"""How old rows are when readers see them, stage by stage, as far as a table tells without writing into it.

Event to commit: a column of event times against the time of the snapshot. Commit to visible: at once for most readers;
a table whose readers skip level 0 shows rows when compaction takes their file up, a changelog made by compaction when
that is done. Last, a streaming reader looks for snapshots every `continuous.discovery-interval`. Agrees with:
CoreOptions.batchScanSkipLevel0, LookupChangelogMergeFunctionWrapper, FullChangelogMergeTreeCompactRewriter (2.0.0).

Invariants: waits are counted from snapshots, by file and bucket, never assumed; a file not visible yet counts with the
time it has waited so far, and is told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, Literal

from shoal.doctor.states import class_is, ints
from shoal.doctor.window import CHANGELOG, FLUSH, REMOVAL, UPGRADE, SnapshotFacts, Window
from shoal.errors import BadRequest
from shoal.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.doctor.states import Ints
    from shoal.table.table import Table

Reader = Literal["batch", "stream"]
READERS: tuple[Reader, ...] = ("batch", "stream")
# Snapshots whose rows are read for their event times.
SNAPSHOTS = 20
_SECONDS = 100_000_000_000  # integers below this are epoch seconds: as milliseconds they would lie before 1974


@dataclass(frozen=True, slots=True)
class Spread:
    """Times in ms: how many, and where half and 99 of a hundred of them lie."""

    count: int
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        import numpy as np

        found = np.fromiter(values, np.float64)
        if not len(found):
            return None
        p50, p99 = np.percentile(found, [50, 99])
        return cls(len(found), float(p50), float(p99), float(found.max()))

    def to_dict(self) -> dict[str, Any]:  # JSON
        return {"count": self.count, "p50_ms": self.p50, "p99_ms": self.p99, "max_ms": self.most}


@dataclass(frozen=True, slots=True)
class Waits:
    """How long flushed files waited, after their commit, until readers of one kind saw their rows."""

    ms: tuple[float, ...]  # of every file, those that wait still included
    waiting: int  # files that no reader of this kind sees yet
    until: str  # what they wait for
    snapshots: tuple[int, ...] = ()  # the three that waited longest

    @property
    def spread(self) -> Spread | None:
        return Spread.of(self.ms)


def skips_level0(options: Options, *, primary_key: bool) -> bool:
    """Whether readers of the newest snapshot see only what compaction took above level 0."""
    vectors = options.deletion_vectors and not options.deletion_vectors_merge_on_read
    return primary_key and (vectors or options.merge_engine == "first-row")


def waits_of(window: Window, reader: Reader) -> Waits | None:
    """The waits of one kind of reader; None where rows show with their commit, or the state is not known."""
    schema = window.schema
    if schema is None or window.start is None or not window.steps:
        return None
    options, keyed = Options(schema.options, strict=False), bool(schema.primary_keys)
    if reader == "batch":
        return _taken_up(window, "compaction") if skips_level0(options, primary_key=keyed) else None
    if options.changelog_producer == "lookup" and keyed:
        return _taken_up(window, "lookup compaction")
    if options.changelog_producer == "full-compaction" and keyed:
        return _told(window)
    return None


def _taken_up(window: Window, until: str) -> Waits:
    """Files leave level 0 in the order they came: each is gone once as many left as had come by then."""
    import numpy as np

    assert window.start is not None
    flows = window.flows.filter(ints(window.flows, "level") == 0)
    start = window.start.filter(ints(window.start, "level") == 0)
    code, stood = _codes(start, flows)
    files, change = ints(flows, "files"), ints(flows, "change")
    came = class_is(flows, FLUSH)
    went = class_is(flows, REMOVAL) | (class_is(flows, UPGRADE) & (change < 0))
    here = np.bincount(stood, ints(start, "files"), int(max(code.max(initial=0), stood.max(initial=0))) + 1)
    in_at, out_at = _at(window, flows, came), _at(window, flows, went)
    in_code, in_sum = _summed(code[came], files[came])
    out_code, out_sum = _summed(code[went], files[went])
    return _waits(window, in_code, in_sum + here[in_code].astype(np.int64), in_at, out_code, out_sum, out_at, until)


def _told(window: Window) -> Waits:
    """Rows show with the next changelog of their bucket."""
    import numpy as np

    flows = window.flows
    code, _ = _codes(flows.slice(0, 0), flows)
    came, told = class_is(flows, FLUSH), class_is(flows, CHANGELOG)
    in_at, out_at = _at(window, flows, came), _at(window, flows, told)
    in_code, out_code = code[came], code[told]
    order, out_order = np.lexsort((in_at, in_code)), np.lexsort((out_at, out_code))
    in_code, in_at, out_code, out_at = in_code[order], in_at[order], out_code[out_order], out_at[out_order]
    return _waits(window, in_code, in_at, in_at, out_code, out_at, out_at, "full compaction")


def _codes(start: pa.Table, flows: pa.Table) -> tuple[Ints, Ints]:
    """A number for each partition and bucket: of the rows of flows, and of start."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    both = pa.concat_tables([start.select(["partition", "bucket"]), flows.select(["partition", "bucket"])])
    names = pc.binary_join_element_wise(both.column("partition"), both.column("bucket").cast(pa.string()), "\0")
    codes = np.asarray(names.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False), np.int64)
    return codes[start.num_rows :], codes[: start.num_rows]


def _at(window: Window, flows: pa.Table, chosen: Any) -> Ints:  # chosen: an array of bool
    """Positions of the steps of the chosen rows."""
    import numpy as np

    ids = np.array([s.id for s in window.steps], np.int64)
    return np.asarray(np.searchsorted(ids, ints(flows, "snapshot")[chosen]), np.int64)


def _summed(code: Ints, files: Ints) -> tuple[Ints, Ints]:
    """Running sums by code. Rows keep their order in time, which is that of flows."""
    import numpy as np

    out = np.zeros(len(code), np.int64)
    order = np.argsort(code, kind="stable")
    sums = np.cumsum(files[order])
    first = np.r_[True, np.diff(code[order]) != 0] if len(order) else np.zeros(0, np.bool_)
    before = np.where(first, sums - files[order], 0)
    out[order] = sums - np.maximum.accumulate(before) if len(order) else sums
    return code, out


def _waits(
    window: Window, in_code: Ints, in_key: Ints, in_at: Ints, out_code: Ints, out_key: Ints, out_at: Ints, until: str
) -> Waits:
    """For each that came: the first that went in its bucket whose key is no less."""
    import numpy as np

    times = np.array([s.time_ms for s in window.steps], np.int64)
    now = max(window.stock.taken_ms, int(times[-1]))
    span = int(max(in_key.max(initial=0), out_key.max(initial=0))) + 1
    order = np.lexsort((out_key, out_code))
    keys = (out_code * span + out_key)[order]
    found = np.searchsorted(keys, in_code * span + in_key)
    there = found < len(keys)
    at = np.minimum(found, max(len(keys) - 1, 0))
    if len(keys):
        there &= out_code[order][at] == in_code
    seen = np.where(there, times[out_at[order][at]] if len(keys) else now, now)
    # A compaction that was committed before what it is matched with would be a clock that went back.
    ms = np.maximum(seen - times[in_at], 0)
    ids = [s.id for s in window.steps]
    slowest = [ids[int(in_at[i])] for i in np.argsort(-ms, kind="stable")[:3]]
    return Waits(tuple(ms.astype(np.float64).tolist()), int((~there).sum()), until, tuple(sorted(set(slowest))))


# ---- rows ------------------------------------------------------------------------------------------------


def event_lags(table: Table, column: str, steps: Sequence[SnapshotFacts]) -> tuple[float, ...]:
    """Snapshot time - event time, in ms, of every row of the newest commits among `steps`."""
    kinds = {f.name: f.type for f in table.arrow_schema}
    if column not in kinds:
        raise BadRequest(f"{table.name} has no column '{column}'", hint=f"columns: {', '.join(kinds)}")
    lags: list[float] = []
    for s in [s for s in steps if s.kind == "APPEND"][-SNAPSHOTS:]:
        for batch in table.changes(s.id - 1, s.id, mode="delta", columns=[column]).to_batches():
            times = epoch_ms(batch.column(column), f"{table.name}.{column}", table.clock.zone)
            lags += (s.time_ms - times).tolist()
    return tuple(lags)


def epoch_ms(values: pa.Array, name: str, zone: tzinfo) -> Any:  # an array of int64, nulls left out
    """Event times as epoch milliseconds: of timestamps (without a zone: local time) or of integers (s, ms)."""
    import datetime as dt

    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    values = values.drop_null()
    kind = values.type
    if pa.types.is_timestamp(kind):
        ms = np.asarray(values.cast(pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64()).to_numpy(False), np.int64)
        if kind.tz is None and zone is not UTC and len(ms):
            local = dt.datetime.fromtimestamp(int(ms[0]) / 1000, UTC).replace(tzinfo=zone).utcoffset()
            ms = ms - round((local or dt.timedelta()).total_seconds() * 1000)
        return ms
    if pa.types.is_integer(kind):
        numbers = np.asarray(pc.cast(values, pa.int64()).to_numpy(False), np.int64)
        return np.where(np.abs(numbers) < _SECONDS, numbers * 1000, numbers)
    raise BadRequest(f"{name} is {kind}", hint="event times are timestamps, or integers: epoch seconds or milliseconds")


# ---- all of it -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Freshness:
    """The stages of one table. A stage that the table does not tell is None."""

    table: str
    snapshot: int | None
    age_ms: int | None  # of the newest snapshot
    watermark_lag_ms: int | None  # newest snapshot's time - its watermark
    interval: Spread | None  # between the commits of the busiest writer
    event_to_commit: Spread | None
    batch: Waits | None  # None: visible with the commit
    stream: Waits | None
    discovery_ms: int
    delay_ms: int
    slo_ms: int | None = None
    event_lags: tuple[float, ...] = field(default=(), repr=False)

    def total_ms(self, reader: Reader) -> float | None:
        """The 99th percentile of all stages together, at most: they add up only if the worst of each meet."""
        before = self.event_to_commit or self.interval
        if before is None:
            return None
        waits = self.batch if reader == "batch" else self.stream
        after = 0.0 if waits is None or waits.spread is None else waits.spread.p99
        return before.p99 + after + (self.discovery_ms + self.delay_ms if reader == "stream" else 0)

    def meets(self, reader: Reader) -> bool | None:
        total = self.total_ms(reader)
        return None if self.slo_ms is None or total is None else total <= self.slo_ms

    def probes(self) -> Mapping[str, tuple[float, ...]]:
        """What a `Case` takes: how old rows were at their commit, and when a batch reader saw them."""
        if not self.event_lags:
            return {}
        waits = self.batch or self.stream
        after = 0.0 if waits is None or waits.spread is None else waits.spread.p50
        return {"commit": self.event_lags, "read": tuple(v + after for v in self.event_lags)}

    def to_dict(self) -> dict[str, Any]:  # JSON
        def spread(found: Spread | None) -> Any:
            return None if found is None else found.to_dict()

        def waits(found: Waits | None) -> Any:
            return None if found is None else {
                "until": found.until, "waiting": found.waiting, "wait": spread(found.spread),
                "snapshots": list(found.snapshots),
            }  # fmt: skip

        return {
            "table": self.table, "snapshot": self.snapshot, "age_ms": self.age_ms,
            "watermark_lag_ms": self.watermark_lag_ms, "commit_interval": spread(self.interval),
            "event_to_commit": spread(self.event_to_commit), "commit_to_visible": {
                "batch": waits(self.batch), "stream": waits(self.stream),
                "discovery_interval_ms": self.discovery_ms, "snapshot_delay_ms": self.delay_ms,
            },
            "total_p99_ms": {"batch": self.total_ms("batch"), "stream": self.total_ms("stream")},
            "slo_ms": self.slo_ms, "meets": {"batch": self.meets("batch"), "stream": self.meets("stream")},
        }  # fmt: skip


def freshness(
    window: Window, *, name: str = "", now_ms: int | None = None, lags: Sequence[float] = (), slo_ms: int | None = None
) -> Freshness:
    """The stages that a window shows; `lags` are those of `event_lags`."""
    schema, steps = window.schema, window.steps
    options = Options({} if schema is None else schema.options, strict=False)
    newest = steps[-1] if steps else None
    now = window.stock.taken_ms if now_ms is None else now_ms
    marked = next((s for s in reversed(steps) if s.watermark is not None), None)
    return Freshness(
        name or window.name or window.table, None if newest is None else newest.id,
        None if newest is None else now - newest.time_ms,
        None if marked is None or marked.watermark is None else marked.time_ms - marked.watermark,
        Spread.of(_intervals(steps)), Spread.of(lags), waits_of(window, "batch"), waits_of(window, "stream"),
        discovery_ms(options), delay_ms(options), slo_ms, tuple(lags),
    )  # fmt: skip


def _intervals(steps: Sequence[SnapshotFacts]) -> list[float]:
    from itertools import pairwise

    by_user: dict[str, list[SnapshotFacts]] = {}
    for s in steps:
        if s.kind == "APPEND":
            by_user.setdefault(s.user, []).append(s)
    own = max(by_user.values(), key=len, default=[])
    return [float(b.time_ms - a.time_ms) for a, b in pairwise(own)]


def discovery_ms(options: Options) -> int:
    """How often a streaming reader looks for the next snapshot."""
    return _ms(options.get("continuous.discovery-interval"))


def delay_ms(options: Options) -> int:
    """How long a streaming reader leaves a snapshot alone."""
    return _ms(options.get("streaming.read.snapshot.delay"))


def _ms(value: object) -> int:
    return value if isinstance(value, int) else 0
