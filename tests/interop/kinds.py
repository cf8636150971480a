# SPDX-License-Identifier: Apache-2.0
"""A table of each kind that shoal writes: its columns, keys and options, and what is done to it, commit after commit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import shoal
from shoal.table.table import Table

Row = dict[str, Any]
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)
COLUMNS = pa.schema([("p", pa.string()), ("k", pa.int32()), ("n", pa.int64()), ("s", pa.string()), ("t", pa.int32())])


def random_row(rng: random.Random, keys: int) -> Row:
    return {
        "p": rng.choice(["a", "b", "c"]),
        "k": rng.randrange(keys),
        "n": rng.choice([None, rng.randrange(9)]),
        "s": rng.choice([None, "", "x", "höhe", "a longer text that does not fit inline"]),
        "t": rng.randrange(5),
    }


@dataclass
class Kind:
    """A table, and how it is written: commits of random rows, then `then`."""

    name: str
    key: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    columns: pa.Schema = COLUMNS
    keys: int = 40
    rows: int = 15
    commits: int = 5
    deletes: float = 0.0
    stream: bool = True  # whether a stream of it is compared
    batches: bool = False  # without checkpoints: what a batch job does
    then: Callable[[Table], None] | None = None  # after the commits
    compacts: bool = True  # whether Java compacts it

    def create(self, lake: shoal.Lake) -> Table:
        options = {"bucket": "2" if self.key else "-1", **self.options}
        return lake.create_table(
            f"kinds.{self.name}", self.columns, primary_key=self.key, partition_by=self.by, options=options
        )

    def write(self, table: Table, commits: range) -> None:
        rng = random.Random(f"{self.name} {commits.start}")
        with table.write(commit_user=None if self.batches else "kinds") as w:
            for number in commits:
                rows = [random_row(rng, self.keys) for _ in range(self.rows)]
                rows = [{n: v for n, v in row.items() if n in self.columns.names} for row in rows]
                kinds = [self._kind(rng) for _ in rows]
                data = pa.Table.from_pylist(rows, schema=self.columns)
                if self.key:
                    w.write(data, pa.array(kinds, pa.int8()))
                else:
                    w.append(data)
                w.commit(checkpoint=None if self.batches else number)
        if self.then is not None:
            self.then(table)

    def _kind(self, rng: random.Random) -> int:
        return DELETE if rng.random() < self.deletes else INSERT


def kinds() -> Iterator[Kind]:
    pk = ("k",)
    part = ("p", "k")
    # ---- buckets
    yield Kind("dynamic", pk, options={"bucket": "-1", "dynamic-bucket.target-row-num": "9"}, deletes=0.2)
    yield Kind("dynamic_parts", part, ("p",), {"bucket": "-1", "dynamic-bucket.target-row-num": "5"}, deletes=0.2)
    # Java refuses to compact a table whose keys move between partitions ("Unsupported bucket mode: KEY_DYNAMIC")
    yield Kind("cross", pk, ("p",), {"bucket": "-1", "dynamic-bucket.target-row-num": "9"}, compacts=False)
    yield Kind("postponed", pk, options={"bucket": "-2", "postpone.default-bucket-num": "2"}, deletes=0.2, stream=False)
    yield Kind("postponed_batch", part, ("p",), {"bucket": "-2"}, batches=True, stream=False)
    yield Kind("bucketed_append", by=("p",), options={"bucket": "3", "bucket-key": "k"})
    yield Kind("unaware", by=("p",))
    # ---- engines
    small = {"num-sorted-run.compaction-trigger": "3"}
    sums = {
        "merge-engine": "aggregation", "fields.n.aggregate-function": "sum", "fields.t.aggregate-function": "max",
        "fields.s.aggregate-function": "listagg", "fields.p.aggregate-function": "last_non_null_value",
    }  # fmt: skip
    groups = {
        "merge-engine": "partial-update", "fields.t.sequence-group": "n,p", "fields.n.aggregate-function": "sum",
        "fields.p.aggregate-function": "first_value",
    }  # fmt: skip
    yield Kind("sequenced", pk, options={**small, "sequence.field": "t,n"}, deletes=0.2)
    yield Kind("aggregated", pk, options={**small, **sums})
    yield Kind("aggregated_dynamic", part, ("p",), {"bucket": "-1", **sums})
    yield Kind("partial", pk, options={**small, "merge-engine": "partial-update"})
    yield Kind("partial_groups", pk, options={**small, **groups})
    yield Kind("first_row", pk, options={"merge-engine": "first-row"}, stream=False)
    yield Kind("first_row_told", pk, options={"merge-engine": "first-row", "changelog-producer": "lookup"})
    yield Kind("write_only", pk, options={"write-only": "true", **sums})
    # ---- changelogs
    yield Kind("input", pk, options={**small, "changelog-producer": "input"}, deletes=0.2)
    yield Kind("lookup_sums", pk, options={**sums, "changelog-producer": "lookup"})
    yield Kind("lookup_dynamic", part, ("p",), {"bucket": "-1", "changelog-producer": "lookup"}, deletes=0.2)
    full = {"changelog-producer": "full-compaction", "full-compaction.delta-commits": "2"}
    yield Kind("full_partial", pk, options={**full, "merge-engine": "partial-update"})
    # ---- deletion vectors
    vectors = {"deletion-vectors.enabled": "true"}
    yield Kind("vectors", part, ("p",), vectors, deletes=0.2)
    yield Kind("vectors_sums", pk, options={**vectors, **sums}, stream=False)
    other_order = {"pk-clustering-override": "true", "clustering.columns": "s,t"}
    yield Kind("other_order", part, ("p",), {**vectors, **other_order}, deletes=0.2)
    yield Kind("other_order_first", pk, options={"merge-engine": "first-row", **other_order}, stream=False)
    yield Kind("append_vectors", by=("p",), options=vectors, then=lambda t: _deleted(t), stream=False)
    # ---- files
    yield Kind("orc", pk, options={**small, "file.format": "orc", "changelog-producer": "input"}, deletes=0.2)
    yield Kind("avro_append", options={"file.format": "avro"})
    mixed = {"file.format.per.level": "0:avro,5:orc", "file.compression.per.level": "0:snappy"}
    yield Kind("levels", pk, options={**small, **mixed, "data-file.thin-mode": "true"}, deletes=0.2)
    indexes = {
        "file-index.bloom-filter.columns": "s", "file-index.bitmap.columns": "n", "file-index.range-bitmap.columns": "t",
        "file-index.bsi.columns": "k",
    }  # fmt: skip
    yield Kind("indexed", options=indexes, rows=200, keys=1000)
    yield Kind("indexed_beside", options={**indexes, "file-index.in-manifest-threshold": "1 b"}, rows=200, keys=1000)
    yield Kind("manifests_orc", part, ("p",), {"manifest.format": "orc", **small}, deletes=0.2)
    # ---- rows that change, partitions that go
    yield Kind("tracked", options={"row-tracking.enabled": "true"}, compacts=False)
    yield Kind("replaced", part, ("p",), small, then=_replaced, stream=False)
    yield Kind("replaced_append", by=("p",), then=_replaced, stream=False)
    yield Kind("changed", pk, options=small, then=_changed, stream=False)
    yield Kind("changed_append", by=("p",), then=_changed, stream=False)


def _deleted(t: Table) -> None:
    t.delete("k < 12 AND n > 3")
    t.delete("s = 'x'")


def _changed(t: Table) -> None:
    t.delete("t = 1")
    t.update({"s": "updated", "n": None}, where="t = 2")
    source = pa.table({"k": pa.array([1, 2, 900], pa.int32()), "s": ["merged", "merged", "new"]})
    if t.primary_key:
        t.merge(source, on="k", when_matched_update={"s": "merged"}, when_not_matched_insert=True)


def _replaced(t: Table) -> None:
    rows = [{"p": "a", "k": k, "n": k, "s": "overwritten", "t": 0} for k in range(4)]
    t.overwrite(pa.Table.from_pylist(rows, schema=t.arrow_schema))
    t.drop_partitions([{"p": "b"}])
    rows = [{"p": "b", "k": k, "n": k, "s": "again", "t": 0} for k in range(2)]
    with t.write() as w:
        w.append(pa.Table.from_pylist(rows, schema=t.arrow_schema))
        w.commit()
