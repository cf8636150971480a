# SPDX-License-Identifier: Apache-2.0
"""Rules about buckets: how many, how even, who may write them.

Agrees with: ChannelComputer.select, BucketMode, PostponeBucketFileStoreWrite, the data distribution page (2.0.0).
Invariant: sizes and shares come from snapshots; without them only what options contradict is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from shoal.doctor.lint.compaction import COMPACT
from shoal.doctor.lint.rules import Say, rule
from shoal.doctor.lint.subject import Subject
from shoal.doctor.lint.texts import amount

_PAGE = "primary-key-table/data-distribution.md"
_SMALL, _LARGE = 200 << 20, 1 << 30  # what the documentation calls a healthy bucket
_COMMITS = 20  # below that a table is too young to be judged by its size


@rule(
    "L-09",
    "error",
    "several writers in dynamic buckets",
    "≥ 2 users write one partition of a dynamic-bucket table at one time†",
    page=_PAGE,
    samples=True,
)
def writers(subject: Subject) -> Iterator[Say]:
    assert subject.seen is not None
    if not subject.has_key or subject.options.bucket != -1:
        return
    shared = subject.seen.shared_partitions("flush")
    for partition, users in list(shared.items())[:1]:
        yield Say(
            f"'bucket' = '-1' and {len(users)} users ({', '.join(sorted(users))}) wrote partition "
            f"'{partition or 'the whole table'}': one key may lie in two buckets",
            "bucket",
            ("one writer at a time per partition, or a fixed number of buckets",),
            "rows may come twice",
            evidence={"users": tuple(sorted(users)), "partitions": len(shared)},
            confidence="consistent with",
        )


@rule("L-24", "warn", "skewed buckets", "a bucket gets > 3 x the median of rows†", page=_PAGE, samples=True)
def skew(subject: Subject) -> Iterator[Say]:
    assert subject.seen is not None
    by_partition: dict[str, list[tuple[int, int]]] = {}
    for (partition, bucket), rows in subject.seen.arrivals.items():
        by_partition.setdefault(partition, []).append((rows, bucket))
    for partition, found in by_partition.items():
        middle = median(rows for rows, _ in found)
        rows, bucket = max(found)
        if len(found) >= 3 and rows > 3 * middle and rows >= 1000:
            where = f"bucket {bucket}" + (f" of '{partition}'" if partition else "")
            yield Say(
                f"{where} got {rows:,} rows, {rows / max(1, middle):.1f} times the median of {len(found)} buckets",
                "bucket",
                ("a bucket-key with more even values", "'local-merge-buffer-size' where few keys change often"),
                evidence={"rows": rows, "median": float(middle), "buckets": len(found)},
            )
            return


@rule(
    "L-25",
    "warn",
    "bucket size",
    "median bucket with new rows < 200 MB (and more than one bucket) or > 1 GB†",
    page="primary-key-table/table-mode.md",
    samples=True,
)
def size(subject: Subject) -> Iterator[Say]:
    assert subject.seen is not None
    sizes, hot = subject.seen.bucket_bytes, subject.seen.arrivals
    found = [size for at, size in sizes.items() if at in hot and at[1] >= 0]
    if not found or not subject.has_key:
        return
    middle = median(found)
    per_partition = max(len([1 for p, _ in hot if p == partition]) for partition in {p for p, _ in hot})
    bucket = subject.options.bucket
    if middle > _LARGE:
        yield Say(
            f"'bucket' = '{bucket}': the median bucket that gets rows holds {amount(middle)}, and only one task "
            "reads it",
            "bucket",
            ("more buckets: ALTER TABLE ... SET ('bucket' = 'N'), then rewrite the partitions",),
            evidence={"median_bytes": float(middle), "buckets": len(found)},
        )
    elif middle < _SMALL and per_partition > 1:
        young = subject.seen.commits < _COMMITS
        yield Say(
            f"'bucket' = '{bucket}': the median bucket that gets rows holds {amount(middle)} in {per_partition} "
            "buckets a "
            "partition; 200 mb to 1 gb is healthy",
            "bucket",
            ("fewer buckets: every commit makes a file in each",),
            severity="info" if young else None,
            evidence={"median_bytes": float(middle), "buckets": len(found)},
        )


@rule(
    "L-33",
    "warn",
    "idle sink tasks",
    "sink.parallelism > a fixed number of buckets",
    source="paimon-core/src/main/java/org/apache/paimon/table/sink/ChannelComputer.java",
    page="maintenance/write-performance.md",
    kinds=("table", "hint"),
)
def idle(subject: Subject) -> Iterator[Say]:
    tasks, buckets = subject.number("sink.parallelism"), subject.options.bucket
    if tasks is None or buckets < 1 or tasks <= buckets:
        return
    parted = subject.schema is None or bool(subject.schema.partition_keys)
    yield Say(
        f"'sink.parallelism' = '{tasks}' and 'bucket' = '{buckets}': at most {buckets} tasks write "
        + ("one partition at a time" if parted else "the table, the others idle"),
        "sink.parallelism",
        (f"take {buckets}, or a divisor of it",),
        severity="info" if parted else None,
    )


@rule(
    "L-49",
    "warn",
    "small dynamic buckets",
    "dynamic-bucket.target-row-num x row bytes < 200 MB†",
    page=_PAGE,
    samples=True,
)
def small_dynamic(subject: Subject) -> Iterator[Say]:
    assert subject.seen is not None
    key = "dynamic-bucket.target-row-num"
    setting, rows = subject.setting(key), subject.options.dynamic_bucket_rows
    _, size_, count = subject.seen.live
    if setting is None or subject.options.bucket != -1 or not subject.has_key or not count:
        return
    full = rows * size_ / count
    if full < _SMALL:
        yield Say(
            f"'{key}' = '{setting.value}': a full bucket holds about {amount(full)} of this table's rows; 200 mb to "
            "1 gb is "
            "healthy",
            key,
            (f"set it to about {round(_SMALL * count / size_, -3):,.0f}".replace(",", ""),),
            evidence={"bucket_bytes": full, "row_bytes": size_ / count},
        )


@rule(
    "L-50",
    "warn",
    "postponed rows nobody places",
    "postponed buckets, files wait in bucket-postpone, and no compaction†",
    page=_PAGE,
    samples=True,
)
def postponed(subject: Subject) -> Iterator[Say]:
    assert subject.seen is not None
    files = subject.seen.postponed
    if subject.options.bucket == -2 and files and not subject.seen.compactors:
        yield Say(
            f"'bucket' = '-2': {files} files wait in bucket-postpone, and no COMPACT snapshot has placed any: "
            "readers do not see "
            "their rows",
            "bucket", (COMPACT,), evidence={"files": files},
        )  # fmt: skip
