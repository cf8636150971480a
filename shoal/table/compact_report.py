# SPDX-License-Identifier: Apache-2.0
"""What a compaction on demand would do and why, or did: values for people (`str`) and scripts (`to_dict`).

Invariant: every reason belongs to a rule, and `RULES` says which options make it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.table.compact import Compacted
    from shoal.table.upkeep import Upkeep

RULES = {
    "early full": "a full compaction is due by compaction.optimization-interval, compaction.total-size-threshold or "
    "compaction.incremental-size-threshold",
    "space": "from num-sorted-run.compaction-trigger runs on: what is newer than the oldest run is over "
    "compaction.max-size-amplification-percent of it",
    "size ratio": "from num-sorted-run.compaction-trigger runs on: the next run is no more than compaction.size-ratio "
    "per cent (in off-peak hours compaction.offpeak-ratio more) larger than all newer ones together",
    "run count": "more runs than num-sorted-run.compaction-trigger",
    "level 0": "level 0 does not wait: the table looks rows up (changelog-producer lookup, first-row, deletion "
    "vectors, force-lookup), has compaction.force-up-level-0, or takes batch writes beside postponed rows",
    "clustered": "with pk-clustering-override: sorted files whose clustering.columns meet, or under half of "
    "target-file-size, beside each other",
    "asked for": "a full compaction; of a bucket that has one already, the files with deleted or too old rows, or with "
    "compaction.force-rewrite-all-files all",
    "neighbours": "as many files that follow each other as compaction.min.file-num",
    "small files": "files under compaction.small-file-ratio of target-file-size: compaction.min.file-num of them, or "
    "twice target-file-size",
    "waited": "files that many rounds found too few",
    "deleted rows": "files with deletion vectors: small ones, or over compaction.delete-ratio-threshold of their rows",
    "row ids": "files whose rows follow each other by their ids: compaction.min.file-num of them, or target-file-size",
    "blob files": "files of one BLOB column: blob-compaction.enabled",
    "sorted": "whole partitions in another order, by --order-strategy and --order-by",
    "idle": "partitions without a new file for clustering.history-partition.idle-to-full-sort",
    "postponed": "rows of bucket-postpone get real buckets",
}


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """A bucket that a compaction would work on, and why."""

    partition: str
    bucket: int
    files: int
    bytes: int
    output_level: int
    rule: str
    """One of `RULES`."""
    reason: str


@dataclass(frozen=True, slots=True)
class DoneCompaction:
    """One compaction of one bucket: files in and out, bytes of what was rewritten, and how long it took.

    Without a bucket it is that of a partition whose rows went from all of its buckets into others.
    """

    partition: str
    bucket: int | None
    output_level: int
    reason: str
    inputs: int
    outputs: int
    input_bytes: int
    output_bytes: int
    bytes_read: int
    bytes_written: int
    fresh_bytes: int
    seconds: float

    @property
    def write_amplification(self) -> float | None:
        """Bytes written for each byte that was not on the output level yet; None where all of them were."""
        return self.bytes_written / self.fresh_bytes if self.fresh_bytes else None

    def to_dict(self) -> dict[str, object]:
        return {**{n: getattr(self, n) for n in self.__slots__}, "write_amplification": self.write_amplification}


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a compaction did, or (`snapshot` None) would do."""

    table: str
    planned: tuple[PlannedBucket, ...]
    files_before: int = 0
    files_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    snapshot: int | None = None
    upkeep: Upkeep | None = None
    compactions: tuple[DoneCompaction, ...] = ()

    @property
    def write_amplification(self) -> float | None:
        """That of all compactions together."""
        fresh = sum(c.fresh_bytes for c in self.compactions)
        return sum(c.bytes_written for c in self.compactions) / fresh if fresh else None

    def __str__(self) -> str:
        if not self.planned:
            return f"{self.table}: nothing to compact"
        files, size = sum(p.files for p in self.planned), sum(p.bytes for p in self.planned)
        if self.snapshot is None:
            return f"{self.table}: would compact {files:,} files ({size:,} bytes) in {len(self.planned):,} buckets"
        return (
            f"{self.table}: snapshot {self.snapshot}, {self.files_before:,} files became {self.files_after:,} in "
            f"{len(self.planned):,} buckets, {self.bytes_read:,} bytes read, {self.bytes_written:,} written"
            + ("" if (more := self.write_amplification) is None else f", write amplification {more:.2f}")
        )

    def to_dict(self) -> dict[str, object]:
        out = {n: getattr(self, n) for n in self.__slots__ if n not in ("planned", "upkeep", "compactions")}
        out["write_amplification"] = self.write_amplification
        out["compactions"] = [c.to_dict() for c in self.compactions]
        out["planned"] = [{n: getattr(p, n) for n in p.__slots__} for p in self.planned]
        out["upkeep"] = None if self.upkeep is None else self.upkeep.to_dict()
        return out


def done_compaction(partition: str, bucket: int | None, c: Compacted) -> DoneCompaction:
    """What is reported of a compaction."""
    return DoneCompaction(
        partition, bucket, c.output_level, c.reason, len(c.before), len(c.after), c.input_bytes, c.output_bytes,
        c.bytes_read, c.bytes_written, c.fresh_bytes, c.seconds,
    )  # fmt: skip
