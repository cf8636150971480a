# SPDX-License-Identifier: Apache-2.0
"""One table's setting, and its life by shoal's own writer: in memory, on a clock and a background moved by hand.

A `Setting` says all that an owner decides or that happens to a table; `lived(setting)` writes it through the public
API and gives what a doctor finds. Draws of settings stand in `drawn`. Rows are few: it is the commits that cost time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from closing import closed_before_compression

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.doctor.beside import Beside
from shoal.doctor.checkup import Checkup, checkup
from shoal.doctor.diagnose.rules import diagnose
from shoal.doctor.flink import Job
from shoal.doctor.take import take
from shoal.store.cache import Cache
from shoal.store.memory import MemoryStore
from shoal.table import consumers
from shoal.table.metadata import Metadata
from shoal.table.table import Table

DAY = 86_400
REGIONS = ("eu", "us", "in", "jp")
FIXED, DYNAMIC, POSTPONE, APPEND, APPEND_FIXED = "fixed", "dynamic", "postpone", "append", "append with buckets"


@dataclass(frozen=True)
class Setting:
    """A table and its life. Rows and keys are those of the table, a checkpoint."""

    seed: str = "0"
    kind: str = FIXED
    interval_s: float = 60.0
    buckets: int = 2
    rows: int = 20
    keys: int = 500
    checkpoints: int = 60
    format: str = "avro"
    options: Mapping[str, object] = field(default_factory=dict)
    partitions: str = "none"  # none, region, day, hour, date and hour
    # ---- rows
    share: Callable[[int], float] = lambda _: 1.0  # of the rows, by checkpoint
    deletes: float = 0.0
    hot: float = 0.0  # of the rows, to one bucket key of many
    late: float = 0.0  # of the rows, to earlier days
    late_days: int = 7
    ascending: bool = False
    value_bytes: int = 8
    repeats: int = 1  # of a value's text: what compresses well
    closed_early: bool = False  # whether Parquet files are closed by their size before compression
    parts: int = 1  # calls of the writer a checkpoint
    event_speed: float = 1.0  # event time passes so many times as fast as commits do
    # ---- who does what
    intervals: Callable[[int], float] | None = None  # of each checkpoint, where it changes
    pause: Callable[[int], float] = lambda _: 0.0  # intervals that pass before a checkpoint
    user: Callable[[int], str] = lambda _: "writer"
    identifier: Callable[[int], int | None] = lambda i: i
    told_as: Callable[[int], int] | None = None  # the identifier that its snapshots hold, where it is another
    force_empty: bool = False
    busy: Callable[[int], bool] = lambda _: True  # whether compaction beside the writer has its turn
    compactors: tuple[Compactor, ...] = ()
    reader: int | None = None  # a consumer so many snapshots behind
    stuck_at: int = 0  # the checkpoint at which a consumer stops moving
    after: Callable[[Table, int], None] | None = None  # what else happens
    watermark: bool = False
    # ---- what else the doctor is told
    slo_s: float | None = None
    job: Job | None = None
    probes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def keyed(self) -> bool:
        return self.kind in (FIXED, DYNAMIC, POSTPONE)


@dataclass(frozen=True)
class Compactor:
    """A compaction job: when it runs, under whose name, and whether as a batch."""

    when: Callable[[int], bool]
    user: str = "compactor"
    batch: bool = False
    full: bool = False


def every(n: int, offset: int = 0) -> Callable[[int], bool]:
    return lambda i: i % n == offset


def lived(s: Setting) -> Checkup:
    """What the doctor says at the end of this life."""
    with closed_before_compression() if s.closed_early else nullcontext():
        return _lived(s)


def _lived(s: Setting) -> Checkup:
    clock, rng = ManualClock(), np.random.default_rng(hash_of(s.seed))
    background: list[ManualScheduler] = []

    def scheduler() -> ManualScheduler:
        background.append(ManualScheduler())
        return background[-1]

    lake = Lake(MemoryStore(), clock=clock, scheduler=scheduler)
    table = _table(lake, s)
    writer, name, event = None, None, 0.0
    try:
        for i in range(1, s.checkpoints + 1):
            interval = s.interval_s if s.intervals is None else s.intervals(i)
            gone = s.pause(i) * interval
            clock.sleep(gone)
            event += gone * s.event_speed
            if writer is None or s.user(i) != name:
                if writer is not None:
                    writer.close()
                name = s.user(i)
                writer = table.write(name)
            count = round(s.rows * s.share(i) * float(rng.uniform(0.9, 1.1)))
            if count:
                for part in _sliced(rows_of(s, rng, count, event, clock.now_ms()), s.parts):
                    _write(writer, s, rng, part)
            if s.busy(i):
                for one in background:
                    one.run_pending()
            clock.sleep(interval * float(rng.normal(1, 0.005)))
            event += interval * s.event_speed
            mark = clock.now_ms() - 5000 if s.watermark else None
            writer.commit(s.identifier(i), watermark=mark, force_snapshot=s.force_empty)
            for job in s.compactors:
                if job.when(i):
                    user = None if job.batch else job.user
                    table.maintain.compact(full=job.full, commit_user=user, checkpoint=None if job.batch else i)
            latest = table.metadata.latest_id()
            if latest is not None:
                if s.reader is not None:
                    consumers.save(table.store, "follower", max(latest + 1 - s.reader, 1))
                if s.stuck_at == i:
                    consumers.save(table.store, "stuck", latest + 1)
            if s.after is not None and latest is not None:  # a night may come first
                s.after(table, i)
    finally:
        if writer is not None:
            writer.close()
    metadata = table.metadata
    if s.told_as is not None:
        _rename(table, s.told_as)
        metadata = Metadata(table.store, Cache())
    slo = None if s.slo_s is None else round(s.slo_s * 1000)
    found = checkup(take(metadata, name="d.t", clock=clock), job=s.job, slo_ms=slo)
    if not s.probes:
        return found
    case = replace(found.case, beside=Beside(probes=s.probes))
    return Checkup(case, tuple(diagnose(case)))


def _rename(table: Table, told_as: Callable[[int], int]) -> None:
    """Other identifiers in the snapshots of checkpoints: what a job leaves that no writer of ours would."""
    for path in table.store.list_dir("snapshot")[1]:
        if "/snapshot-" in f"/{path}":
            path = path if path.startswith("snapshot/") else f"snapshot/{path}"
            facts = json.loads(table.store.read(path))
            if facts["commitIdentifier"] < 2**63 - 1 and facts["commitUser"] != "compactor":
                facts["commitIdentifier"] = told_as(facts["commitIdentifier"])
                table.store.put(path, json.dumps(facts).encode())


def hash_of(text: str) -> int:
    """A number for a text, the same in every run."""
    return random.Random(text).getrandbits(62)


def _table(lake: Lake, s: Setting) -> Table:
    fields = [("k", pa.int64()), ("g", pa.int32()), ("v", pa.string()), ("n", pa.int64())]
    keys = ["k"]
    if s.hot:
        keys = ["g", "k"]
    parted = {"none": [], "region": ["region"], "day": ["dt"], "hour": ["hour"], "date and hour": ["dt", "hh"]}
    by = parted[s.partitions]
    fields += [(n, pa.string()) for n in by]
    options: dict[str, object] = {"file.format": s.format, **s.options}
    if s.kind in (FIXED, APPEND_FIXED):
        options = {"bucket": s.buckets, **options}
        if s.hot or s.kind == APPEND_FIXED:
            options["bucket-key"] = "g" if s.hot else "k"
    elif s.kind == POSTPONE:
        options |= {"bucket": "-2"}
    else:
        options |= {"bucket": "-1"}
    texts = {n: str(v) for n, v in options.items()}
    return lake.create_table(
        "d.t", pa.schema(fields), primary_key=[*by, *keys] if s.keyed else [], partition_by=by, options=texts
    )


def rows_of(s: Setting, rng: np.random.Generator, count: int, event: float, now_ms: int) -> pa.Table:
    """So many rows of a setting: at a second of event time, and of the clock."""
    keys = np.arange(now_ms, now_ms + count) if s.ascending else rng.integers(0, s.keys, count)
    raw = rng.bytes(count * s.value_bytes // 2 + count).hex()
    values = [raw[j * s.value_bytes : (j + 1) * s.value_bytes] * s.repeats for j in range(count)]
    groups = np.where(rng.random(count) < s.hot, 7, keys % 211 if not s.hot else rng.integers(0, 300, count))
    columns: dict[str, Any] = {
        "k": pa.array(keys, pa.int64()), "g": pa.array(groups, pa.int32()), "v": pa.array(values),
        "n": pa.array(rng.integers(0, 100, count), pa.int64()),
    }  # fmt: skip
    back = np.where(rng.random(count) < s.late, rng.integers(1, s.late_days + 1, count), 0)
    if s.partitions == "region":
        columns["region"] = pa.array([REGIONS[j] for j in rng.choice(len(REGIONS), count, p=[0.5, 0.25, 0.15, 0.1])])
    elif s.partitions == "day":
        columns["dt"] = pa.array([_day(event - b * DAY) for b in back.tolist()])
    elif s.partitions == "hour":
        columns["hour"] = pa.array([_day(event - b * 3600, "%Y-%m-%d-%H") for b in back.tolist()])
    elif s.partitions == "date and hour":
        columns["dt"] = pa.array([_day(event - b * 3600) for b in back.tolist()])
        columns["hh"] = pa.array([_day(event - b * 3600, "%H") for b in back.tolist()])
    return pa.table(columns)


def _day(event: float, form: str = "%Y-%m-%d") -> str:
    from datetime import UTC, datetime

    return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=event)).strftime(form)


def _sliced(rows: pa.Table, parts: int) -> list[pa.Table]:
    size = -(-rows.num_rows // parts)
    return [rows.slice(at, size) for at in range(0, rows.num_rows, size)]


def _write(writer: Any, s: Setting, rng: np.random.Generator, rows: pa.Table) -> None:  # a Write
    if not s.keyed:
        writer.append(rows)
        return
    gone = int(rows.num_rows * s.deletes)
    if gone:
        writer.delete(rows.slice(0, gone))
        rows = rows.slice(gone)
    if rows.num_rows:
        writer.upsert(rows)
