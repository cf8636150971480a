# SPDX-License-Identifier: Apache-2.0
"""D13: a bucket gets several small files in one commit, because its rows did not fit into the write buffer.

By default rows that don't fit are spilled to local disk and come out as one file. More than one file under the target
means that spilling is off, that its disk was full, or that buckets take the buffer from each other. Agrees with:
MergeTreeWriter, AppendOnlyWriter, MemoryPoolFactory (2.0.0). Invariants: files that were closed at the target size are
a large commit, not an overflow; tasks that write one append bucket side by side are none either.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from shoal.doctor.diagnose.case import Case
from shoal.doctor.finding import Evidence, Finding
from shoal.doctor.report import brief
from shoal.doctor.states import class_is, ints
from shoal.doctor.window import FLUSH

NAME = "buffer overflow"
_COMMITS = 3  # fewer are a load, or a catch-up
_SHARE = 0.1  # of the flushes of a bucket
_FULL = 0.5  # of 'target-file-row-num': the last file of a flush may hold a single row


def overflow(case: Case) -> Iterator[Finding]:
    """Buckets with several flushed files a commit, none of them of full size."""
    import numpy as np

    limits, flows, options = case.limits, case.window.flows, case.options
    if limits is None or not (limits.primary_key or options.write_buffer_for_append):
        return
    appends = np.array([s.id for s in case.window.steps if s.kind == "APPEND"], np.int64)
    ids, number = ints(flows, "snapshot"), ints(flows, "bucket")
    # Several tasks write the one bucket of a table without buckets, and the postponed one.
    mine = class_is(flows, FLUSH) & np.isin(ids, appends) & (number >= 0)
    if not limits.primary_key:
        mine &= ints(flows, "total_buckets") > 0
    files, largest = ints(flows, "files"), ints(flows, "largest")
    over = mine & (files > 1) & (largest < limits.small_size)
    if options.target_file_rows is not None:  # files that were closed by their rows
        over &= ints(flows, "rows") < files * options.target_file_rows * _FULL
    commits = np.unique(ids[over])
    flushes = int(mine.sum())
    if len(commits) < _COMMITS or not flushes:
        return
    share = float(over.sum()) / flushes
    extra = int((files[over] - 1).sum())
    rows = median((ints(flows, "rows")[over] // files[over]).tolist())
    size = median((ints(flows, "bytes")[over] // files[over]).tolist())
    made = int(files[mine].sum())
    worst = int(np.flatnonzero(over)[int(np.argmax(files[over]))])
    partition = flows.column("partition")[worst].as_py().rstrip("/")
    active = flushes / max(len(np.unique(ids[mine])), 1)
    preempted = sum(case.job.metric("bufferPreemptCount", None)) if case.job is not None else None
    evidence: dict[str, Evidence] = {
        "share_of_flushes": round(share, 3), "commits": len(commits), "most_files": int(files[worst]),
        "extra_files": extra, "rows_per_file": int(rows), "bytes_per_file": int(size),
        "buckets_per_commit": round(active, 1), "write_buffer_bytes": options.write_buffer_size,
        "spillable": options.write_buffer_spillable,
    }  # fmt: skip
    if preempted is not None:
        evidence["buffer_preempted"] = preempted
    why, change, option = _cause(case, active, bool(preempted))
    yield Finding(
        "D13", NAME, "warn" if share >= _SHARE else "info", "supported" if option else "consistent with",
        {"table": case.window.name or case.window.table, "partition": partition, "bucket": int(number[worst]),
         "level": 0, "class": FLUSH, **({"option": option} if option else {})},
        evidence,
        f"{share:.0%} of the flushes of a bucket make several files in one commit, up to {int(files[worst])}, of about "
        f"{rows:,.0f} rows and {size:,.0f} bytes each: {why}",
        change,
        f"{made:,} flushed files become {made - extra:,}: {brief(made / (made - extra), 2)} times fewer runs to merge",
        tuple(commits[-3:].tolist()),
    )  # fmt: skip


def _cause(case: Case, active: float, preempted: bool) -> tuple[str, tuple[str, ...], str | None]:
    options = case.options
    size = options.write_buffer_size
    larger = f"ALTER TABLE ... SET ('write-buffer-size' = '{max(2 * size, 256 << 20) >> 20} mb') where memory is free"
    if not options.write_buffer_spillable:
        return (
            "'write-buffer-spillable' is off, so a full buffer becomes a file",
            ("ALTER TABLE ... SET ('write-buffer-spillable' = 'true')", larger), "write-buffer-spillable",
        )  # fmt: skip
    if case.window.schema is not None and "write-buffer-spill.max-disk-size" in case.window.schema.options:
        disk = options.write_buffer_spill_disk
        return (
            f"spilled rows fill 'write-buffer-spill.max-disk-size' ({disk:,} bytes)",
            ("ALTER TABLE ... RESET ('write-buffer-spill.max-disk-size')", larger),
            "write-buffer-spill.max-disk-size",
        )  # fmt: skip
    if preempted:
        return (
            f"{active:.0f} buckets take memory from each other",
            (larger, "more writer tasks, or fewer buckets for each of them"), "write-buffer-size",
        )  # fmt: skip
    return (
        f"the buffer ({size:,} bytes for {active:.0f} buckets a commit) or the disk it spills to was full",
        (larger, "look for full local disks of the task managers", "fewer active buckets for each writer task"), None,
    )  # fmt: skip
