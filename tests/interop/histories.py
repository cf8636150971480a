# SPDX-License-Identifier: Apache-2.0
"""Tables that shoal writes in many commits, and what each must hold, worked out with nothing of shoal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import shoal
from shoal.table.table import Table

Row = dict[str, Any]
Change = tuple[str, Row]  # "+" upsert or append, "-" delete


@dataclass
class History:
    """A table and its commits. `compact_after` maps a commit to whether shoal compacts fully (True) or as it picks."""

    name: str
    columns: list[tuple[str, pa.DataType]]
    commits: list[list[Change]]
    primary_key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    compact_after: dict[int, bool] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(n, t) for n, t in self.columns])

    def write(self, lake: shoal.Lake) -> Table:
        table = lake.create_table(
            self.name, self.schema, primary_key=self.primary_key, partition_by=self.partition_by, options=self.options
        )
        with table.write(commit_user="history") as w:
            for number, changes in enumerate(self.commits):
                for sign, row in changes:
                    batch = pa.Table.from_pylist([row], schema=self.schema)
                    if not self.primary_key:
                        w.append(batch)
                    elif sign == "+":
                        w.upsert(batch)
                    else:
                        w.delete(batch)
                w.commit(checkpoint=number)
                if number in self.compact_after:
                    table.maintain.compact(full=self.compact_after[number])
        return table

    def rows(self, commits: list[list[Change]] | None = None) -> list[Row]:
        """The rows after these commits (all of them when not given)."""
        changes = [c for commit in (self.commits if commits is None else commits) for c in commit]
        if not self.primary_key:
            return [row for _, row in changes]
        order = [n for n in self.options.get("sequence.field", "").split(",") if n]
        last: dict[Any, tuple[Any, str, Row]] = {}
        for sign, row in changes:
            if sign == "-" and self.options.get("ignore-delete") == "true":
                continue
            key = tuple(row[k] for k in self.primary_key)
            # a null sequence is below every other; of equal ones the later wins
            rank = tuple((row[n] is not None, row[n]) for n in order)
            if key not in last or _not_below(rank, last[key][0]):
                last[key] = (rank, sign, row)
        return [row for _, sign, row in last.values() if sign == "+"]


def _not_below(a: Any, b: Any) -> bool:
    for (a_set, x), (b_set, y) in zip(a, b):
        if a_set != b_set:
            return bool(a_set)
        if a_set and x != y:
            return bool(x > y)
    return True


def _changes(rng: random.Random, commits: int, size: int, keys: int, row: Any, deletes: float) -> list[list[Change]]:
    return [
        [("-" if rng.random() < deletes else "+", row(rng, rng.randrange(keys))) for _ in range(size)]
        for _ in range(commits)
    ]


def histories() -> Iterator[History]:
    """The tables. Deletes carry whole rows, as a change stream has them."""
    rng = random.Random(7)

    def pair(r: random.Random, k: int) -> Row:
        text = r.choice(["", "x", "höhe", "a longer text that does not fit inline", None])
        return {"k1": f"key {k % 7}", "k2": k - 20, "v": r.choice([None, r.random() * 1e6]), "s": text}

    pair_columns = [("k1", pa.string()), ("k2", pa.int64()), ("v", pa.float64()), ("s", pa.string())]
    yield History(
        "d.composite", pair_columns, _changes(rng, 12, 25, 60, pair, 0.2), ("k1", "k2"),
        options={"bucket": "2", "num-sorted-run.compaction-trigger": "3"},
    )  # fmt: skip
    yield History(
        "d.level0_only", pair_columns, _changes(rng, 6, 20, 50, pair, 0.3), ("k2", "k1"),
        options={"bucket": "1", "write-only": "true"},
    )  # fmt: skip
    yield History(
        "d.compacted_by_shoal", pair_columns, _changes(rng, 10, 20, 40, pair, 0.3), ("k1", "k2"),
        options={"bucket": "1", "write-only": "true", "num-sorted-run.compaction-trigger": "3"},
        compact_after={4: True, 6: False, 8: False},
    )  # fmt: skip

    def stamped(r: random.Random, k: int) -> Row:
        return {"id": k, "ts": r.choice([None, r.randrange(6)]), "n": r.randrange(4), "v": f"v{r.randrange(10_000)}"}

    stamped_columns = [("id", pa.int32()), ("ts", pa.int64()), ("n", pa.int32()), ("v", pa.string())]
    yield History(
        "d.sequenced", stamped_columns, _changes(rng, 9, 15, 20, stamped, 0), ("id",),
        options={"bucket": "1", "sequence.field": "ts", "num-sorted-run.compaction-trigger": "3"},
    )  # fmt: skip
    # write-only: a full compaction forgets a delete and its sequence, then an older row shows again (in Java too)
    yield History(
        "d.sequenced_twice", stamped_columns, _changes(rng, 9, 15, 20, stamped, 0.3), ("id",),
        options={"bucket": "2", "sequence.field": "ts,n", "write-only": "true"},
    )  # fmt: skip
    yield History(
        "d.ignoring_deletes", stamped_columns, _changes(rng, 5, 15, 20, stamped, 0.4), ("id",),
        options={"bucket": "1", "ignore-delete": "true"},
    )  # fmt: skip

    def dated(r: random.Random, k: int) -> Row:
        return {"day": k % 3, "id": k, "ok": r.choice([True, False]), "price": None if k % 5 == 0 else k * 1.5}

    dated_columns = [("day", pa.int32()), ("id", pa.int32()), ("ok", pa.bool_()), ("price", pa.float32())]
    yield History(
        "d.partitioned", dated_columns, _changes(rng, 8, 15, 40, dated, 0.2), ("day", "id"), ("day",),
        {"bucket": "2", "num-sorted-run.compaction-trigger": "3"},
    )  # fmt: skip
    yield History(
        "d.manifests", dated_columns, _changes(rng, 25, 3, 40, dated, 0), (), ("day",),
        {"manifest.merge-min-count": "3", "manifest.full-compaction-threshold-size": "4 kb",
         "manifest.target-file-size": "2 kb", "compaction.min.file-num": "2"},
    )  # fmt: skip
    yield History(
        "d.appended", pair_columns, _changes(rng, 7, 10, 40, pair, 0), options={"compaction.min.file-num": "2"}
    )
    yield History(
        "d.appended_bucketed", pair_columns, _changes(rng, 7, 10, 40, pair, 0),
        options={"bucket": "3", "bucket-key": "k2,k1"},
    )  # fmt: skip
