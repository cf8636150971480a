# SPDX-License-Identifier: Apache-2.0
"""Checkups as Prometheus metrics: what dashboards draw and alerts ask.

Labels are catalog, database, table, and where NAMES says so one or two more. All are gauges: a look counts what its
window saw, which begins where snapshots are retained, and falls when old ones expire; a counter may not fall, so there
is none, and rates are given as gauges of their own. Invariants: a number that is not known has no sample; every name
is in NAMES, which docs and tests read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.doctor.checkup import CANNOT_READ, Checkup
from shoal.doctor.finding import SEVERITIES
from shoal.doctor.freshness import READERS, freshness
from shoal.metrics import Group, Registry

PREFIX = "shoal_doctor_"
NAMES: Mapping[str, tuple[str, str, str]] = {  # name -> kind, further labels, help
    "verdict_code": ("gauge", "", "exit code of the check: 0 well, 1 sick, 3 cannot be read, 4 too little data"),
    "findings": ("gauge", "severity", "findings by severity"),
    "finding": ("gauge", "id,severity", "1 for each diagnosis that found something"),
    "live_files": ("gauge", "level", "live data files of the newest snapshot"),
    "live_bytes": ("gauge", "level", "bytes of the live data files"),
    "runs_max": ("gauge", "", "sorted runs of the worst bucket"),
    "runs_stop": ("gauge", "", "sorted runs above which writers wait"),
    "merge_debt": ("gauge", "", "sorted runs beyond one, over all buckets"),
    "excess_files": ("gauge", "", "live files beyond what their bytes need"),
    "retained_files": ("gauge", "holder", "data and changelog files that only the past holds, by who holds them"),
    "retained_bytes": ("gauge", "holder", "bytes of these files"),
    "snapshots": ("gauge", "", "retained snapshots"),
    "manifests": ("gauge", "", "manifests that a reader of the newest snapshot opens"),
    "manifest_bytes": ("gauge", "", "bytes of these manifests"),
    "dead_entries": ("gauge", "", "manifest entries that only cancel others"),
    "flow_files": ("gauge", "class", "files by class since the first snapshot of the window"),
    "flow_bytes": ("gauge", "class", "bytes by class since the first snapshot of the window"),
    "flow_files_per_minute": ("gauge", "class", "files a minute by class, over the window"),
    "write_amplification": ("gauge", "", "data bytes written for each byte flushed, over the window"),
    "sustainability_ratio": ("gauge", "", "files flushed for each one that compaction pays; above 1 the debt grows"),
    "slope": ("gauge", "stock", "growth of a stock a minute, at equal phase"),
    "slope_ci_low": ("gauge", "stock", "lower end of its 95 % interval"),
    "slope_ci_high": ("gauge", "stock", "upper end of its 95 % interval"),
    "stall_eta_seconds": ("gauge", "", "until the first writer waits, at this rate; 0: it waits now"),
    "commit_interval_seconds": ("gauge", "", "between two commits of a writer, the median"),
    "snapshot_age_seconds": ("gauge", "", "since the newest snapshot"),
    "freshness_seconds": (
        "gauge",
        "stage",
        "how old rows are, 99 of 100, at their commit (--event-time) and when readers see them",
    ),
    "consumer_lag_snapshots": ("gauge", "consumer", "snapshots that a consumer has not read"),
    "look_timestamp_seconds": ("gauge", "", "when this look was taken, as Unix time"),
    "sample_requests": ("gauge", "", "requests of the look that these metrics come from"),
    "sample_partial": ("gauge", "", "1 when a budget cut the look"),
    "bucket_runs": ("gauge", "partition,bucket", "sorted runs of one of the 20 worst buckets"),
    "bucket_files": ("gauge", "partition,bucket", "files of one of the 20 worst buckets"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


class _Samples:
    """A group's keeper: its gauges have a value once and for all."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def put(self, s: Sample) -> None:
        value = int(s.value) if float(s.value).is_integer() else float(s.value)
        self.group.gauge(s.name, NAMES[s.name][2], lambda: value, ours=True)


def text_of(
    checkups: Iterable[Checkup], *, catalog: str, now_ms: int, per_bucket: bool = False, unread: Iterable[str] = ()
) -> str:
    """All tables in Prometheus' text format; `unread` are tables that could not be, at `now_ms`."""
    registry = Registry()
    for c in checkups:
        database, _, table = c.name.rpartition(".")
        for s in samples(c, per_bucket=per_bucket):
            registry.of(_Samples, "doctor", catalog=catalog, database=database, table=table, **s.labels).put(s)
    for name in unread:
        database, _, table = name.rpartition(".")
        made = registry.of(_Samples, "doctor", catalog=catalog, database=database, table=table)
        made.put(Sample("verdict_code", {}, CANNOT_READ))
        made.put(Sample("look_timestamp_seconds", {}, now_ms / 1000))
    return registry.prometheus()


def samples(c: Checkup, *, per_bucket: bool = False) -> list[Sample]:
    """Everything that is known of one table."""
    m, w = c.case.model, c.case.window
    d = m.debt
    out: list[Sample] = []

    def put(name: str, value: float | int | None, **labels: str) -> None:
        if value is not None:
            out.append(Sample(name, labels, float(value)))

    put("verdict_code", c.verdict.code)
    for severity in SEVERITIES:
        put("findings", c.counts[severity], severity=severity)
    worst = {f.id: f.severity for f in reversed(c.findings)}
    for found, severity in worst.items():
        put("finding", 1, id=found, severity=severity)
    if d.live is not None:
        for level, count in d.live.levels.items():
            put("live_files", count.files, level=str(level))
            put("live_bytes", count.bytes, level=str(level))
    if d.buckets is not None and d.limits is not None and d.limits.primary_key:
        put("runs_max", max((b.runs for b in d.buckets.top), default=0))
        put("runs_stop", d.limits.stop_trigger)
    put("merge_debt", None if m.merge is None else m.merge.runs_to_merge.now)
    put("excess_files", None if m.excess is None else m.excess.excess.now)
    for h in m.retained.holders:
        if h.most is not None:
            holder = f"{h.kind}/{h.name}" if h.name else h.kind
            put("retained_files", h.most.files, holder=holder)
            put("retained_bytes", h.most.bytes, holder=holder)
    put("snapshots", m.retained.snapshots)
    if m.metadata is not None:
        put("manifests", m.metadata.manifests.files)
        put("manifest_bytes", m.metadata.manifests.bytes)
        put("dead_entries", m.metadata.dead_entries)
    for name, count in m.flows.made.items():
        put("flow_files", count.files, **{"class": name})
        put("flow_bytes", count.bytes, **{"class": name})
        put("flow_files_per_minute", m.flows.per_minute(name), **{"class": name})
    put("write_amplification", d.write_amplification)
    put("sustainability_ratio", None if m.sustainability is None else m.sustainability.ratio)
    for name, trend in m.trends.items():
        if trend.slope is not None:
            put("slope", trend.slope.value, stock=name)
            put("slope_ci_low", trend.slope.low, stock=name)
            put("slope_ci_high", trend.slope.high, stock=name)
    for stall in m.stalls[:1]:
        eta = stall.minutes  # without an upper bound it may be that nothing comes of it
        put("stall_eta_seconds", None if eta.value is None or eta.high is None else 60 * eta.value)
    put("commit_interval_seconds", d.interval_s)
    if w.steps:
        put("snapshot_age_seconds", max(w.stock.taken_ms - w.steps[-1].time_ms, 0) / 1000)
    fresh = freshness(w, lags=c.case.probes.get("commit", ()))
    at_commit = fresh.event_to_commit
    put("freshness_seconds", None if at_commit is None else at_commit.p99 / 1000, stage="commit")
    for reader in READERS:
        total = fresh.total_ms(reader)
        put("freshness_seconds", None if total is None else total / 1000, stage=reader)
    for one in w.stock.holders:
        if one.kind == "consumer" and w.stock.latest is not None:
            put("consumer_lag_snapshots", max(w.stock.latest - one.snapshot + 1, 0), consumer=one.name)
    put("look_timestamp_seconds", w.stock.taken_ms / 1000)
    put("sample_requests", w.stock.requests)
    put("sample_partial", int(w.stock.partial))
    if per_bucket:
        for b in m.buckets:
            where = {"partition": b.cycles.partition, "bucket": str(b.cycles.number)}
            put("bucket_runs", b.runs, **where)
            put("bucket_files", b.files, **where)
    return out


def name_table() -> str:
    """All metrics as a Markdown table, for docs/doctor-metrics.md."""
    rows = ["| metric | kind | further labels | what |", "|---|---|---|---|"]
    rows += [f"| `{PREFIX}{n}` | {k} | {labels} | {text} |" for n, (k, labels, text) in NAMES.items()]
    return "\n".join(rows) + "\n"
