# SPDX-License-Identifier: Apache-2.0
"""Java and shoal cluster the same tables: the same files to the same levels, each goes on where the other stopped."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shoal

pytestmark = pytest.mark.java

COLUMNS = pa.schema([("p", pa.string()), ("id", pa.int32()), ("a", pa.int32()), ("b", pa.string())])
CLUSTERED = {"clustering.incremental": "true", "sink.parallelism": "1", "scan.parallelism": "1"}
TABLES: dict[str, dict[str, str]] = {
    "by_one": {"clustering.columns": "a", "num-sorted-run.compaction-trigger": "3"},
    "by_two": {"clustering.columns": "a,b", "num-sorted-run.compaction-trigger": "2"},
    "by_hilbert": {
        "clustering.columns": "a,b",
        "clustering.strategy": "hilbert",
        "num-sorted-run.compaction-trigger": "4",
        "compaction.max-size-amplification-percent": "500",
    },
    "marks": {
        "clustering.columns": "a",
        "deletion-vectors.enabled": "true",
        "num-sorted-run.compaction-trigger": "2",
        "compaction.max-size-amplification-percent": "800",
    },
    "local": {"clustering.columns": "b", "clustering.incremental.mode": "local-sort", "num-levels": "4"},
    "tracked": {"clustering.columns": "a", "row-tracking.enabled": "true", "num-sorted-run.compaction-trigger": "2"},
}
BUCKETS = {
    "clustering.columns": "a,b", "bucket": "2", "bucket-key": "id", "bucket-append-ordered": "false",
    "num-sorted-run.compaction-trigger": "3",
}  # fmt: skip


def rows(answer: Any) -> list[str]:
    return sorted(json.dumps(r, sort_keys=True) for r in answer)


def live(t: Any) -> dict[str, tuple[str, int]]:
    """Partition and level of each file."""
    return {f["file_path"]: (str(f["partition"]), f["level"]) for f in t.inspect.files().to_pylist()}


def write(t: Any, rng: random.Random, count: int) -> None:
    start = rng.randint(0, 10**6)
    with t.write() as w:
        w.append(
            [
                {"p": rng.choice("xy"), "id": start + i, "a": rng.randint(-500, 500), "b": f"text {rng.randint(0, 99)}"}
                for i in range(count)
            ]
        )
        w.commit()


def history(t: Any, seed: int) -> None:
    """Commits of all sizes with clusterings between them, then some that nobody has clustered."""
    rng = random.Random(seed)
    for _ in range(3):
        for _ in range(rng.randint(1, 4)):
            write(t, rng, rng.choice([5, 50, 500, 3_000]))
        t.maintain.compact(full=rng.random() < 0.2)
    for _ in range(rng.randint(2, 5)):
        write(t, rng, rng.choice([5, 50, 500]))
    if t.options.deletion_vectors:
        t.delete("a < -200")


def test_java_picks_the_same_files_to_the_same_levels_and_goes_on_from_ours(java: Any, tmp_path: Path) -> None:
    lake = shoal.open(tmp_path)
    tables = {}
    for name, options in TABLES.items():
        for seed in (1, 2):
            key = f"{name}_{seed}"
            tables[key] = lake.create_table(
                f"d.{key}", COLUMNS, partition_by=["p"], options={"bucket": "-1", **CLUSTERED, **options}
            )
            history(tables[key], seed)
    tables["buckets"] = lake.create_table("d.buckets", COLUMNS, partition_by=["p"], options={**CLUSTERED, **BUCKETS})
    history(tables["buckets"].with_options({"write-only": "true"}), 1)
    names = list(tables)
    full = {n for n in names if n.endswith("_2")}
    before = {n: live(t) for n, t in tables.items()}
    mine = {n: rows(t.scan().to_arrow().to_pylist()) for n, t in tables.items()}
    planned = {n: tables[n].maintain.compact(full=n in full, dry_run=True).planned for n in names}
    assert sum(bool(p) for p in planned.values()) > len(names) // 2
    assert len({p.output_level for ps in planned.values() for p in ps}) > 2

    def call(n: str) -> str:
        return f"CALL sys.compact(`table` => 'd.{n}'" + (", compact_strategy => 'full')" if n in full else ")")

    reads = [f"SELECT * FROM d.{n}" for n in names]
    answers = java(tmp_path, [*reads, *(call(n) for n in names), *reads])
    for i, n in enumerate(names):
        assert rows(answers[i].rows) == mine[n], n
        assert rows(answers[2 * len(names) + i].rows) == mine[n], n
        after = live(tables[n])
        gone = {path: at for path, at in before[n].items() if path not in after}
        new = {path: at for path, at in after.items() if path not in before[n]}
        if n == "buckets":  # Java keeps the level-0 files of a bucket in a hash set: which come first has no rule
            assert gone and all(level > 0 for _, level in new.values())
            continue
        assert len(gone) == sum(p.files for p in planned[n]), n
        counts: dict[str, int] = {}
        for p in planned[n]:
            counts[p.partition] = counts.get(p.partition, 0) + p.files
        theirs: dict[str, int] = {}
        for path in gone:
            partition = path.split("/bucket-")[0].rpartition("/")[2]
            theirs[partition] = theirs.get(partition, 0) + 1
        assert theirs == counts, n
        assert {level for _, level in new.values()} == {p.output_level for p in planned[n]}, n
    for n in names:  # and on from there
        for _ in range(3):
            write(tables[n], random.Random(9), 20)
        more = rows(tables[n].scan().to_arrow().to_pylist())
        tables[n].maintain.compact()
        tables[n].maintain.compact(full=True)
        assert rows(tables[n].scan().to_arrow().to_pylist()) == more, n
        assert tables[n].maintain.compact(full=True).planned == ()
        mine[n] = more
    # what shoal sorted in full is sorted in full for Java
    again = sorted(full)[0]
    last = tables[again].metadata.latest_id()
    answers = java(tmp_path, [*reads, call(again)])
    for i, n in enumerate(names):
        assert rows(answers[i].rows) == mine[n], n
    assert tables[again].metadata.latest_id() == last


def test_both_sort_partitions_of_the_same_table(java: Any, tmp_path: Path) -> None:
    lake = shoal.open(tmp_path)
    orders = [("order", "a"), ("zorder", "a,b"), ("hilbert", "a,b,id")]
    tables = {}
    for name, options in (("plain", {}), ("tracked", {"row-tracking.enabled": "true"}),
                          ("marks", {"deletion-vectors.enabled": "true"})):  # fmt: skip
        t = tables[name] = lake.create_table(
            f"d.{name}", COLUMNS, partition_by=["p"], options={"bucket": "-1", **options}
        )
        rng = random.Random(4)
        for _ in range(3):
            write(t, rng, 300)
        if name == "marks":
            t.delete("a < -200")
        for strategy, columns in orders:
            t.maintain.compact(order_strategy=strategy, order_by=columns.split(","), where="p = 'x'")
        write(t, rng, 30)
    mine = {n: rows(t.scan().to_arrow().to_pylist()) for n, t in tables.items()}
    reads = [f"SELECT * FROM d.{n}" for n in tables]
    sorts = [
        f"CALL sys.compact(`table` => 'd.{n}', order_strategy => '{strategy}', order_by => '{columns}')"
        for n, (strategy, columns) in zip(tables, orders)
    ]
    answers = java(tmp_path, [*reads, *sorts, *reads])
    for i, (n, t) in enumerate(tables.items()):
        assert rows(answers[i].rows) == mine[n], n
        assert rows(answers[6 + i].rows) == mine[n], n
        assert rows(t.scan().to_arrow().to_pylist()) == mine[n], n
        newest = t.metadata.latest()
        assert newest is not None and newest.commit_kind == "OVERWRITE"
        t.maintain.compact(order_strategy="order", order_by=["b", "a"])
        assert rows(t.scan().to_arrow().to_pylist()) == mine[n], n
