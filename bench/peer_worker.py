# SPDX-License-Identifier: Apache-2.0
"""The peers' side: runs in the interpreter that has pypaimon, and never imports shoal.

Reads requests as `bench.peers` sends them. `native` means every Rust path of pypaimon switched on.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import time
from functools import cache
from typing import Any

import pyarrow as pa

from bench import rows

OPTIONS = {
    "write-only": "true", "num-sorted-run.stop-trigger": "2147483647", "file.format": "parquet",
    "file.compression": "zstd", "file.compression.zstd-level": "1",
}  # fmt: skip
DATABASE = "bench"


def _catalog(root: str) -> Any:
    from pypaimon import CatalogFactory

    catalog = CatalogFactory.create({"warehouse": root})
    catalog.create_database(DATABASE, True)
    return catalog


def _create(root: str, name: str, kind: str, bucket: int) -> Any:
    from pypaimon import Schema

    shutil.rmtree(f"{root}/{DATABASE}.db/{name}", ignore_errors=True)
    catalog = _catalog(root)
    schema = Schema.from_pyarrow_schema(
        rows.schema(kind), primary_keys=rows.key_names(kind), options={**OPTIONS, "bucket": str(bucket)}
    )
    catalog.create_table(f"{DATABASE}.{name}", schema, True)
    return catalog.get_table(f"{DATABASE}.{name}")


def _commit(table: Any, batches: list[Any]) -> None:
    builder = table.new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    for b in batches:
        (write.write_arrow if isinstance(b, pa.Table) else write.write_arrow_batch)(b)
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def _native(table: Any, on: bool) -> Any:
    flag = str(on).lower()
    keys = ("read.native.enabled", "scan.native-plan.enabled", "write.native.enabled", "commit.native.enabled")
    return table.copy(dict.fromkeys(keys, flag))


def _cpu(work: Any) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("pypaimon", "pypaimon-rust", "pyarrow")}


def make_merge_table(root: str, name: str, kind: str, count: int, runs: int) -> None:
    table = _native(_create(root, name, kind, 1), True)
    for part in rows.runs(kind, count, runs):
        _commit(table, [part])


def read(root: str, name: str, native: bool) -> float:
    """Plan and read the whole table."""
    table = _native(_catalog(root).get_table(f"{DATABASE}.{name}"), native)

    def work() -> None:
        builder = table.new_read_builder()
        builder.new_read().to_arrow(builder.new_scan().plan().splits())

    return _cpu(work)


def plan(root: str, name: str, native: bool) -> float:
    table = _native(_catalog(root).get_table(f"{DATABASE}.{name}"), native)
    return _cpu(lambda: table.new_read_builder().new_scan().plan().splits())


@cache
def _upserts(kind: str, count: int) -> list[Any]:
    return [pa.Table.from_batches([b]) for b in rows.upserts(kind, count)]


def write(root: str, kind: str, count: int, buckets: int, native: bool) -> float:
    table = _native(_create(root, "peer_write", kind, buckets), native)
    batches = _upserts(kind, count)
    return _cpu(lambda: _commit(table, batches))


def commits(root: str, count: int, native: bool) -> list[float]:
    table = _native(_create(root, "peer_commits", "bigint", 1), native)
    return [_cpu_quick(table, b) for b in rows.upserts("bigint", 100 * count, batch=100)]


def _cpu_quick(table: Any, batch: Any) -> float:
    start = time.process_time()
    _commit(table, [pa.Table.from_batches([batch])])
    return time.process_time() - start


VERBS = {f.__name__: f for f in (versions, make_merge_table, read, plan, write, commits)}


def main() -> None:
    # libraries print to stdout; the answers get it for themselves
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": VERBS[request.pop("verb")](**request)}
        except Exception as err:  # noqa: BLE001  the other side reports it
            answer = {"error": f"{type(err).__name__}: {err}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
