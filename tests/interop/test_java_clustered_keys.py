# SPDX-License-Identifier: Apache-2.0
"""Tables sorted by other columns than their key: Java and shoal compact the same files to the same ones, each goes on
where the other stopped, and both read the same rows."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.format.manifest import entries_of

pytestmark = [pytest.mark.java, pytest.mark.timeout(1800)]

COLUMNS = pa.schema(
    [("p", pa.string()), ("a", pa.string()), ("k", pa.int32()), ("w", pa.string()), ("v", pa.int32()),
     ("d", pa.float64())]
)  # fmt: skip
CLUSTERED = {"pk-clustering-override": "true", "bucket": "1"}
MARKS = {**CLUSTERED, "deletion-vectors.enabled": "true"}
FIRST = {**CLUSTERED, "merge-engine": "first-row"}
TABLES: dict[str, tuple[list[str], dict[str, str]]] = {
    "marks": (["k"], {**MARKS, "clustering.columns": "w"}),
    "two": (["a", "k"], {**MARKS, "clustering.columns": "v,w", "bucket": "2"}),
    "parts": (["p", "k"], {**MARKS, "clustering.columns": "d,w", "file.format": "orc"}),
    "thin": (["a", "k"], {**MARKS, "clustering.columns": "w", "data-file.thin-mode": "true"}),
    "wide": (["k"], {**MARKS, "clustering.columns": "w", "deletion-vectors.bitmap64": "true"}),
    "told": (["k"], {**MARKS, "clustering.columns": "v", "changelog-producer": "input", "file.format": "avro"}),
    "rolled": (["k"], {**MARKS, "clustering.columns": "v,k", "target-file-size": "8 kb"}),
    "first": (["k"], {**FIRST, "clustering.columns": "w"}),
    "first_marks": (["k"], {**FIRST, "clustering.columns": "w,v", "deletion-vectors.enabled": "true"}),
}


def made(folder: Path) -> dict[str, Any]:
    lake = shoal.open(folder)
    return {
        name: lake.create_table(
            f"d.{name}", COLUMNS, primary_key=key, partition_by=["p"] if "p" in key else [], options=options
        )
        for name, (key, options) in TABLES.items()
    }


def row(rng: random.Random) -> dict[str, Any]:
    return {
        "p": rng.choice("xy"), "a": rng.choice(["one", "two"]), "k": rng.randrange(1_500),
        "w": rng.choice([None, "", "b", "bb", "c é", "z"]), "v": rng.randint(-20, 20),
        "d": rng.choice([None, -0.0, 0.0, 1.5, -2.5, float("inf")]),
    }  # fmt: skip


def write(t: Any, rng: random.Random, count: int) -> None:
    with t.write() as w:
        w.upsert([row(rng) for _ in range(count)])
        if t.options.merge_engine != "first-row":
            w.delete([{c: row(rng)[c] for c in t.primary_key} for _ in range(count // 8)])
        w.commit()


def rows(answer: Any) -> list[str]:
    return sorted(json.dumps({k: str(v) if v == float("inf") else v for k, v in r.items()}) for r in answer)


def java_rows(answer: Any) -> list[str]:
    return sorted(json.dumps({k: "inf" if v == "Infinity" else v for k, v in r.items()}) for r in answer)


def read(t: Any) -> list[str]:
    return rows(t.scan().to_arrow().to_pylist())


def live(t: Any) -> Counter[tuple[object, ...]]:
    """What the metadata says of each live file, and how many of its rows are marked."""
    snapshot = t.metadata.latest()
    marked = t.metadata.deletions(snapshot.index_manifest) if snapshot.index_manifest else {}
    out: Counter[tuple[object, ...]] = Counter()
    for e in entries_of(t.metadata.live(snapshot)):
        f = e.file
        mark = marked.get((e.partition, e.bucket), {}).get(f.file_name)
        out[(
            e.partition, e.bucket, e.total_buckets, f.level, f.row_count, f.min_key, f.max_key, f.key_stats,
            f.value_stats, f.value_stats_cols, f.min_sequence, f.max_sequence, f.delete_row_count, f.file_source,
            f.schema_id, None if mark is None else mark.cardinality,
        )] += 1  # fmt: skip
    return out


def in_order(t: Any) -> list[list[tuple[object, ...]]]:
    """The clustering columns of the rows of each Parquet file, as they lie in it."""
    names = [f.name for f in t.clustered_fields]
    found = (pq.read_table(f["file_path"], columns=names).to_pylist() for f in t.inspect.files().to_pylist())
    return sorted(([tuple(r.values()) for r in f] for f in found), key=repr)


def test_both_compact_the_same_files_to_the_same_ones(java: Any, tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    tables = made(mine)
    rng = random.Random(3)
    for n, round_ in enumerate(["minor", "full", "minor"]):
        for t in tables.values():
            late = t.with_options({"write-only": "true"})
            for _ in range(rng.randint(1, 3)):
                write(late, rng, rng.choice([5, 100, 2_500]))
        shutil.rmtree(theirs, ignore_errors=True)
        shutil.copytree(mine, theirs)
        call = f"CALL sys.compact_database(including_databases => 'd', compact_strategy => '{round_}')"
        answers = java(theirs, [call, *(f"SELECT * FROM d.{n}" for n in tables)])
        lake = shoal.open(theirs)
        for i, (name, t) in enumerate(tables.items()):
            planned = t.maintain.compact(full=round_ == "full", dry_run=True).planned
            assert planned and {p.output_level for p in planned} == {1}
            t.maintain.compact(full=round_ == "full")
            assert java_rows(answers[1 + i].rows) == read(t), (n, name)
            other = lake.table(f"d.{name}")
            assert live(t) == live(other), (n, name)
            if t.options.file_format == "parquet":
                assert in_order(t) == in_order(other), (n, name)
    assert sum(live(tables["rolled"]).values()) > 1


def literal(value: object, kind: str) -> str:
    if value is None:
        return f"CAST(NULL AS {kind})"
    if value == float("inf"):
        return "CAST('Infinity' AS DOUBLE)"
    if isinstance(value, float):
        return f"CAST('{value}' AS DOUBLE)"
    return f"'{value}'" if isinstance(value, str) else str(value)


KINDS = {"p": "STRING", "a": "STRING", "k": "INT", "w": "STRING", "v": "INT", "d": "DOUBLE"}


def insert(name: str, new: list[dict[str, Any]]) -> str:
    values = ", ".join("(" + ", ".join(literal(r[c], t) for c, t in KINDS.items()) + ")" for r in new)
    return f"INSERT INTO d.{name} /*+ OPTIONS('sink.parallelism' = '1') */ VALUES {values}"


def test_each_writes_on_top_of_the_other(java: Any, tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    tables = made(mine)
    rng = random.Random(8)
    for t in tables.values():
        write(t, rng, 300)
    for n in range(2):
        # Flink's SQL has no negative zero, and Java tells a least zero of a Parquet file as one
        new = [r | {"d": r["d"] or 3.5} for r in (row(rng) for _ in range(60))]
        shutil.rmtree(theirs, ignore_errors=True)
        shutil.copytree(mine, theirs)
        inserts = "; ".join(insert(name, new) for name in tables)
        gone = "DELETE FROM d.marks WHERE v < -15"
        answers = java(
            theirs,
            [f"EXECUTE STATEMENT SET BEGIN {inserts}; END", gone, *(f"SELECT * FROM d.{name}" for name in tables)],
        )
        for t in tables.values():
            with t.write() as w:
                w.append(new)
                w.commit()
        tables["marks"].delete("v < -15")
        lake = shoal.open(theirs)
        for i, (name, t) in enumerate(tables.items()):
            other = lake.table(f"d.{name}")
            assert java_rows(answers[i - len(tables)].rows) == read(t) == read(other), (n, name)
            assert live(t) == live(other), (n, name)
        # and on from what Java made
        for name in tables:
            old, tables[name] = tables[name], lake.table(f"d.{name}")
            before = rng.getstate()
            for t in (old, tables[name]):
                rng.setstate(before)
                write(t, rng, 200)
            assert live(old) == live(tables[name])
            assert read(old) == read(tables[name])
        mine, theirs = theirs, mine
