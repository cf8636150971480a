# SPDX-License-Identifier: Apache-2.0
"""What a scan does, said before it is done: files kept and dropped by reason, and how much there is to merge.

Invariant: an explanation reads metadata only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.table.split import Plan, files_in

if TYPE_CHECKING:
    import pyarrow.compute as pc

_SHOWN = 8  # buckets that the text names


@dataclass(frozen=True, slots=True)
class ExplainedBucket:
    """One bucket of a plan: `runs` are the most sorted runs that some key range lies in."""

    partition: str
    bucket: int
    files: int
    bytes: int
    rows: int
    runs: int
    deletion_vectors: int


@dataclass(frozen=True, slots=True)
class Explained:
    """What a scan does, for people (`str`) and scripts (`to_dict`)."""

    table: str
    snapshot: int | None
    files: int
    bytes: int
    rows: int
    dropped: dict[str, int]
    buckets: int
    runs_max: int
    merged_buckets: int
    columns: tuple[str, ...]
    where: str | None
    by_bucket: tuple[ExplainedBucket, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.table}: " + (f"snapshot {self.snapshot}" if self.snapshot else "no snapshot yet")]
        lines.append(f"  columns  {', '.join(self.columns)}")
        if self.where:
            lines.append(f"  where    {self.where}")
        lines.append(f"  files    {self.files:,} in {self.buckets:,} buckets, {self.bytes:,} bytes, {self.rows:,} rows")
        for reason, n in self.dropped.items():
            lines.append(f"  dropped  {n:,} files by {reason}")
        lines.append(f"  merge    {self.merged_buckets:,} buckets have overlapping runs, at most {self.runs_max}")
        busiest = sorted((b for b in self.by_bucket if b.runs > 1), key=lambda b: -b.runs)
        for b in busiest[:_SHOWN]:
            place = f"{b.partition} bucket {b.bucket}".strip()
            lines.append(f"           {place}: {b.runs:,} runs in {b.files:,} files, {b.bytes:,} bytes")
        if len(busiest) > _SHOWN:
            lines.append(f"           and {len(busiest) - _SHOWN:,} more buckets")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        out = {name: getattr(self, name) for name in self.__slots__}
        out["by_bucket"] = [{n: getattr(b, n) for n in b.__slots__} for b in self.by_bucket]
        return out


def explain(plan: Plan, columns: Sequence[str], where: pc.Expression | None) -> Explained:
    """Which files are kept and dropped, and the runs to merge by bucket."""
    table, splits = plan.table, plan.splits
    files = files_in(splits)
    buckets = tuple(
        ExplainedBucket(
            partition=table.partition_path(s.partition).rstrip("/"),
            bucket=s.bucket,
            files=len(s.files),
            bytes=sum(f.file_size for f in s.files),
            rows=sum(f.row_count for f in s.files),
            runs=s.runs if table.primary_key else min(1, len(s.files)),
            deletion_vectors=sum(f.file_name in s.deletions for f in s.files),
        )
        for s in splits
    )
    return Explained(
        table=table.name,
        snapshot=plan.snapshot.id if plan.snapshot else None,
        files=len(files),
        bytes=sum(f.file_size for f in files),
        rows=sum(f.row_count for f in files),
        dropped=plan.dropped,
        buckets=len(splits),
        runs_max=max((b.runs for b in buckets), default=0),
        merged_buckets=sum(b.runs > 1 for b in buckets),
        columns=tuple(columns),
        where=None if where is None else str(where),
        by_bucket=buckets,
    )
