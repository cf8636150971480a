# SPDX-License-Identifier: Apache-2.0
"""D9: compaction works, and still leaves many files: they are closed at a size or row count that is too small.

A default bucket is left alone with as many runs as start a compaction (5; without a primary key: as many small files),
so compacted files up to that number cost nobody more. A bucket with more, and with more than twice what its bytes need
at the default target, all closed by a limit that somebody set, costs more to open than it must. Agrees with:
CoreOptions.targetFileSize, RollingFileWriter, AppendCompactCoordinator (2.0.0). Invariant: one large load, or a bucket
of many files at the default target, is no finding here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.doctor.debt import Limits
from shoal.doctor.diagnose.case import Case
from shoal.doctor.finding import Finding
from shoal.doctor.report import brief
from shoal.doctor.states import class_is, ints
from shoal.doctor.window import FLUSH, REWRITE
from shoal.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "target or format too small"
_TIMES = 3  # a bucket must have been written in files of this size so often: a single load is no rhythm
_SHARE = 0.1  # of the flushes
_OPENING = 0.2  # of the cost of a read that may go into opening files
_EVEN = 0.5  # a file of at least this share of the target was closed by the target
_UNDER = 0.25  # files below this share of the target were not closed by it


@dataclass(frozen=True, slots=True)
class _Cell:
    """Compacted files of one bucket: those above level 0, or those that compaction leaves alone."""

    partition: str
    bucket: int
    levels: int
    files: int
    bytes: int
    rows: int
    times: int
    snapshots: tuple[int, ...]

    @property
    def mean(self) -> float:
        return self.bytes / self.files

    def needed(self, target: int) -> int:
        """Files that the bytes need at a target size; each level has at least one."""
        return max(self.levels, -(-self.bytes // target))


def too_small(case: Case) -> Iterator[Finding]:
    """Buckets whose compacted files stop at a small limit, or whose new files do at a row count."""
    limits, end = case.limits, case.window.end
    if limits is None:
        return
    found = [] if end is None else list(_compacted(case, limits, end))
    yield from found or _flushed(case, limits)


def _flushed(case: Case, limits: Limits) -> Iterator[Finding]:
    """New files that are closed at 'target-file-row-num', so that a commit makes several of them in a bucket."""
    import numpy as np

    flows, rows = case.window.flows, case.options.target_file_rows
    if rows is None:
        return
    files, count, largest = ints(flows, "files"), ints(flows, "rows"), ints(flows, "largest")
    mine = class_is(flows, FLUSH)
    closed = mine & (files > 1) & (count >= files * rows * _EVEN) & (largest < limits.small_size)
    commits = np.unique(ints(flows, "snapshot")[closed])
    if len(commits) < _TIMES or closed.sum() < _SHARE * mine.sum():
        return
    made, extra = int(files[mine].sum()), int((files[closed] - 1).sum())
    size = int(ints(flows, "bytes")[closed].sum() / files[closed].sum())
    yield Finding(
        "D9", NAME, "warn", "supported",
        {"table": case.window.name or case.window.table, "class": FLUSH, "option": "target-file-row-num"},
        {"row_limit": rows, "mean_file_bytes": size, "target_bytes": limits.target_size, "commits": len(commits),
         "flushed_files": made, "extra_files": extra},
        f"new files of {size:,} bytes are closed at 'target-file-row-num' = {rows:,} rows: {extra:,} of {made:,} "
        "flushed files are there for it alone",
        ("ALTER TABLE ... RESET ('target-file-row-num')",),
        f"{made:,} flushed files become {made - extra:,}", tuple(commits[-3:].tolist()),
    )  # fmt: skip


def _compacted(case: Case, limits: Limits, end: pa.Table) -> Iterator[Finding]:
    default = Options({}, strict=False).target_file_size(limits.primary_key)
    usual = Options({}, strict=False)
    most = usual.compaction_trigger if limits.primary_key else usual.compaction_min_file_num
    cells = [c for c in _cells(case, end, limits) if c.files > most and c.files > 2 * c.needed(default)]
    often = [c for c in cells if c.times >= _TIMES]
    if not often:
        return
    worst = max(often, key=lambda c: c.files)
    found = _cause(case.options, limits, default, worst)
    if found is None:
        return
    cause, says, change, wanted = found
    files = sum(c.files for c in often)
    needed = sum(c.needed(default) for c in often)
    opening = case.options.split_open_file_cost
    share = (files - needed) * opening / (sum(c.bytes for c in often) + files * opening)
    yield Finding(
        "D9", NAME, "warn" if share >= _OPENING else "info", "supported",
        {"table": case.window.name or case.window.table, "partition": worst.partition.rstrip("/"),
         "bucket": worst.bucket, "option": cause},
        {"files": worst.files, "mean_file_bytes": round(worst.mean), "bucket_bytes": worst.bytes,
         "target_bytes": limits.target_size, "default_target_bytes": default, "times_written": worst.times,
         "buckets": len(often), "files_in_them": files, "files_needed": needed, "opening_share": round(share, 3)},
        says, change,
        f"{files:,} compacted files become about {needed:,} as buckets are compacted again; flushed files, and the "
        f"interval they come at, stay as they are{wanted}",
        worst.snapshots,
    )  # fmt: skip


def _cause(options: Options, limits: Limits, default: int, cell: _Cell) -> tuple[str, str, tuple[str, ...], str] | None:
    rows = options.target_file_rows
    where = f"bucket {cell.bucket} keeps {cell.files:,} compacted files of {cell.mean:,.0f} bytes"
    set_default = f"ALTER TABLE ... SET ('target-file-size' = '{default >> 20} mb')"
    again = "CALL sys.compact(`table` => '...', compact_strategy => 'full')"
    if rows is not None and cell.rows / cell.files >= _EVEN * rows and cell.mean < _EVEN * limits.target_size:
        return (
            "target-file-row-num", f"{where}: each is closed at 'target-file-row-num' = {rows:,} rows",
            ("ALTER TABLE ... RESET ('target-file-row-num')", again), "",
        )  # fmt: skip
    if limits.target_size < default and cell.mean >= _EVEN * limits.target_size:
        return (
            "target-file-size", f"{where}: each is closed at 'target-file-size' = {limits.target_size:,} bytes",
            (set_default, again), "",
        )  # fmt: skip
    if not limits.primary_key and cell.mean >= limits.small_size and options.small_file_ratio < _EVEN:
        return (
            "compaction.small-file-ratio",
            f"{where}: 'compaction.small-file-ratio' = {options.small_file_ratio} leaves all above "
            f"{limits.small_size:,} bytes alone",
            ("ALTER TABLE ... SET ('compaction.small-file-ratio' = '0.7')", again), "",
        )  # fmt: skip
    if cell.mean < _UNDER * limits.target_size and limits.primary_key:
        factor = limits.target_size / cell.mean
        wanted = max(round(factor * limits.target_size), default)
        return (
            "file.format",
            f"{where}, {brief(factor)} times less than 'target-file-size': in the format '{options.file_format}' they "
            "are closed by their size before compression",
            (f"ALTER TABLE ... SET ('target-file-size' = '{wanted >> 20} mb')", again),
            "; measured by what this table's files compress to",
        )  # fmt: skip
    return None


def _cells(case: Case, end: pa.Table, limits: Limits) -> list[_Cell]:
    """The compacted files of each bucket, with how often several of them were written at once."""
    held: dict[tuple[str, int], list[dict[str, int]]] = {}
    for row in end.to_pylist():  # a row for each level of a bucket
        if row["bucket"] >= 0 and row["files"] > 0 and (row["level"] > 0 or not limits.primary_key):
            held.setdefault((row["partition"], row["bucket"]), []).append(row)
    written = _written(case, limits)
    out = []
    for (partition, bucket), rows in held.items():
        seen = written.get((partition, bucket), [])
        small = 0 if limits.primary_key else sum(r["small"] for r in rows)
        files, size, count = (sum(r[n] for r in rows) for n in ("files", "bytes", "rows"))
        if files > small:
            out.append(_Cell(partition, bucket, len(rows), files - small, size, count, len(seen), tuple(seen[-3:])))
    return out


def _written(case: Case, limits: Limits) -> dict[tuple[str, int], list[int]]:
    """Snapshots that wrote several files at once, or files that are large enough, by bucket."""
    flows = case.window.flows
    classes = (REWRITE,) if limits.primary_key else (REWRITE, FLUSH)
    files, largest = ints(flows, "files"), ints(flows, "largest")
    chosen = class_is(flows, *classes) & (files > 0)
    chosen &= (files > 1) if limits.primary_key else (largest >= limits.small_size)
    rows = flows.filter(chosen).select(["snapshot", "partition", "bucket"]).to_pydict()
    out: dict[tuple[str, int], list[int]] = {}
    for snapshot, partition, bucket in zip(*rows.values()):
        seen = out.setdefault((partition, bucket), [])
        if not seen or seen[-1] != snapshot:
            seen.append(snapshot)
    return out
