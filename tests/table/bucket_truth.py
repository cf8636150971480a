# SPDX-License-Identifier: Apache-2.0
"""Makes data/buckets.json: histories of tables without a fixed bucket number, and where Java put the rows.

python tests/table/bucket_truth.py sql FOLDER     writes FOLDER/t.sql and FOLDER/history.json
oracle-sql -DREADER=core -DWAREHOUSE=file:FOLDER/wh FOLDER/t.sql
python tests/table/bucket_truth.py take FOLDER    reads what Java wrote, into data/buckets.json
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "buckets.json"
ENGINES = {
    "x_dedup": {},
    "x_first": {"merge-engine": "first-row"},
    "x_partial": {"merge-engine": "partial-update"},
    "x_agg": {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"},
}


def history() -> dict[str, Any]:
    rng = random.Random(7)
    out: dict[str, Any] = {}

    def table(name: str, columns: dict[str, str], key: list[str], partition: list[str], **options: str) -> None:
        options = {"bucket": "-1", "write-only": "true", **{k.replace("__", "."): v for k, v in options.items()}}
        out[name] = {"columns": columns, "key": key, "partition": partition, "options": options, "commits": []}

    def put(name: str, rows: list[list[object]], overwrite: bool = False) -> None:
        out[name]["commits"].append({"overwrite": overwrite, "rows": rows})

    def some(low: int, high: int, row: Any) -> list[list[object]]:
        return [row(i) for i in range(rng.randrange(low, high))]

    rows_each = "dynamic-bucket.target-row-num"
    table("plain", {"k": "INT", "v": "INT"}, ["k"], [], **{rows_each: "7"})
    for b in range(6):
        put("plain", some(5, 20, lambda i, b=b: [rng.randrange(60), b * 100 + i]))
    table("parts", {"p": "INT", "k": "STRING", "v": "INT"}, ["p", "k"], ["p"], **{rows_each: "5"})
    for b in range(6):
        put("parts", some(5, 30, lambda i, b=b: [rng.randrange(3), f"key-{rng.randrange(30)}", b * 100 + i]))
    put("parts", some(12, 13, lambda i: [1, f"key-{rng.randrange(40)}", 900 + i]), overwrite=True)
    put("parts", some(20, 21, lambda i: [rng.randrange(3), f"key-{rng.randrange(60)}", 1000 + i]))
    table("many", {"k": "BIGINT", "v": "INT"}, ["k"], [], **{rows_each: "2"})
    for b in range(3):
        put("many", some(23, 24, lambda i, b=b: [rng.randrange(10**12), b * 100 + i]))
    capped = {rows_each: "3", "dynamic-bucket.max-buckets": "2"}
    table("capped", {"p": "INT", "k": "INT", "v": "INT"}, ["p", "k"], ["p"], **capped)
    for b in range(3):
        put("capped", some(6, 7, lambda i, b=b: [rng.randrange(2), rng.randrange(8), b * 100 + i]))
    for name, options in ENGINES.items():
        table(name, {"p": "INT", "k": "INT", "v": "INT"}, ["k"], ["p"], **{rows_each: "4"}, **options)
        put(name, [[0, 0, 0]])  # into an empty table Java places a whole batch in order of its keys
        for b in range(5):
            put(name, some(5, 20, lambda i, b=b: [rng.randrange(3), rng.randrange(25), b * 100 + i]))
    two = {"p": "INT", "q": "STRING", "k": "INT", "v": "INT"}
    table("x_two", two, ["k", "p"], ["p", "q"], **{rows_each: "3"})
    put("x_two", [[0, "a", 0, 0]])
    for b in range(4):
        row = lambda i, b=b: [rng.randrange(2), rng.choice("ab"), rng.randrange(9), b * 100 + i]  # noqa: E731
        put("x_two", some(10, 20, row))
    late = {"bucket": "-2", "postpone.batch-write-fixed-bucket": "false"}
    table("late", {"p": "INT", "k": "STRING", "v": "INT"}, ["p", "k"], ["p"], **late)
    for b in range(3):
        put("late", some(12, 13, lambda i, b=b: [rng.randrange(2), f"k{rng.randrange(10)}", b * 100 + i]))
    late = {"bucket": "-2", "postpone.default-bucket-num": "3"}
    table("late_fixed", {"p": "INT", "k": "STRING", "v": "INT"}, ["p", "k"], ["p"], **late)
    for b in range(2):
        put("late_fixed", some(12, 13, lambda i, b=b: [rng.randrange(2), f"k{rng.randrange(10)}", b * 100 + i]))
    return out


def sql(tables: dict[str, Any]) -> str:
    def text(v: object) -> str:
        return f"'{v}'" if isinstance(v, str) else str(v)

    out = [
        "CREATE CATALOG p WITH ('type'='paimon', 'warehouse'='${WAREHOUSE}');", "USE CATALOG p;",
        "CREATE DATABASE d;", "USE d;", "SET 'parallelism.default'='1';", "SET 'execution.runtime-mode'='batch';",
    ]  # fmt: skip
    for name, t in tables.items():
        columns = ", ".join(f"{c} {kind}" for c, kind in t["columns"].items())
        partition = f" PARTITIONED BY ({', '.join(t['partition'])})" if t["partition"] else ""
        options = ", ".join(f"'{k}'='{v}'" for k, v in t["options"].items())
        key = f"PRIMARY KEY ({', '.join(t['key'])}) NOT ENFORCED"
        out.append(f"CREATE TABLE {name} ({columns}, {key}){partition} WITH ({options});")
        for c in t["commits"]:
            verb = "OVERWRITE" if c["overwrite"] else "INTO"
            rows = ", ".join(f"({', '.join(map(text, r))})" for r in c["rows"])
            out.append(f"INSERT {verb} {name} VALUES {rows};")
    return "\n".join(out)


def placed(table: Any) -> dict[str, Any]:
    """Of every bucket: the rows a read gives, and the hashes of its index file (None without one)."""
    from shoal.format import hash_index
    from shoal.format.manifest import entries_of
    from shoal.format.schema import VALUE_KIND
    from shoal.table.read import read
    from shoal.table.runs import BucketFiles
    from shoal.table.scan import Plan, Scan

    out: dict[str, Any] = {}
    newest = table.metadata.latest()
    view = table.with_options({"batch-scan-mode": "compact"})
    scan = Scan(view, snapshot=newest)
    for s in scan.plan().splits:
        one = Plan(view, newest, s.entries, {}, {(s.partition, s.bucket): s.deletions})
        rows = [[*r.values()] for b in read(scan, one) for r in b.to_pylist()]
        out[f"{table.partition_path(s.partition)}{s.bucket}"] = {"rows": sorted(rows), "hashes": None}
    late = [e for e in entries_of(table.metadata.live(newest)) if e.bucket < 0]
    for e in late:
        files = BucketFiles(table, e.partition, e.bucket, [VALUE_KIND, *table.schema.fields])
        rows = [[*r.values()] for b in files.batches((e.file,), 1000) for r in b.to_pylist()]
        place = out.setdefault(f"{table.partition_path(e.partition)}{e.bucket}", {"files": []})
        place["files"].append({**described(e.file), "rows": rows})
    for e in table.metadata.index_entries(newest.index_manifest) if newest.index_manifest else ():
        store, path = table.index_at(e.partition, e.bucket, e.file_name, e.external_path)
        hashes = hash_index.decode(store.read(path), path)
        out[f"{table.partition_path(e.partition)}{e.bucket}"]["hashes"] = sorted(hashes.tolist())
    return out


def described(f: Any) -> dict[str, Any]:
    """What the metadata of a file says, without what differs from run to run."""
    told = {k: v for k, v in f._asdict().items() if k not in ("file_name", "file_size", "creation_ms")}
    return json.loads(json.dumps(told, default=lambda v: v.hex() if isinstance(v, bytes) else str(v)))  # type: ignore[no-any-return]


def main(step: str, folder: Path) -> None:
    if step == "sql":
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "history.json").write_text(json.dumps(history()))
        (folder / "t.sql").write_text(sql(history()))
        return
    import shoal

    tables = json.loads((folder / "history.json").read_text())
    lake = shoal.open(str(folder / "wh"))
    for name, t in tables.items():
        t["java"] = placed(lake.table(f"d.{name}"))
    lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(t, separators=(',', ':'))}" for n, t in tables.items())
    DATA.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
