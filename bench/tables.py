# SPDX-License-Identifier: Apache-2.0
"""Tables to measure on, made once a run in the bench's folder, by shoal or by the peers' Rust writer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import shoal
from bench import rows
from shoal.format.deletion_vectors import INDEX_TYPE, DeletionVector, encode_file
from shoal.format.index_manifest import ADD, IndexEntry, encode_index_manifest
from shoal.table.table import Table

if TYPE_CHECKING:
    from bench.peers import Peers

DATABASE = "bench"
# Every commit must stay a sorted run of its own, so nothing compacts by itself. zstd-1 is Paimon's default.
OPTIONS = {"write-only": "true", "num-sorted-run.stop-trigger": "2147483647", "file.compression.zstd-level": "1"}
# A run of the largest table must fit one buffer, or it would become several runs.
_WRITER_MEMORY = 16 << 30


def open_table(root: str, name: str, memory: int = 256 << 20) -> Table:
    """The table through a lake of its own: nothing is cached."""
    return shoal.open(root, memory=memory).table(f"{DATABASE}.{name}")


def create(root: str, name: str, kind: str, *, memory: int = 256 << 20, keyed: bool = True, **options: object) -> Table:
    """A new table; one of that name, left by a run that was stopped, is removed."""
    shutil.rmtree(f"{root}/{DATABASE}.db/{name}", ignore_errors=True)
    lake = shoal.open(root, memory=memory)
    extra = OPTIONS if keyed else {"file.compression.zstd-level": "1"}
    key = rows.key_names(kind) if keyed else ()
    return lake.create_table(f"{DATABASE}.{name}", rows.schema(kind), primary_key=key, options={**extra, **options})


def merge_table(root: str, kind: str, count: int, runs: int, peers: Peers | None = None) -> str:
    """Name of a one-bucket table of `runs` overlapping runs; the peers write it where they are given."""
    name = f"merge_{kind}_{count}_{runs}" + ("_rust" if peers else "")
    if os.path.exists(f"{root}/{DATABASE}.db/{name}/snapshot/snapshot-{runs}"):
        return name
    if peers:
        peers.make_merge_table(root, name, kind, count, runs)
        return name
    table = create(root, name, kind, memory=_WRITER_MEMORY, **{"bucket": 1, "write-buffer-size": "8 gb"})
    for part in rows.runs(kind, count, runs):
        _write(table, part)
    return name


ENGINES: dict[str, dict[str, str]] = {
    "partial-update": {"merge-engine": "partial-update"},
    "sequence group": {"merge-engine": "partial-update", "fields.g_seq.sequence-group": "c_int,c_big,c_txt"},
    "aggregation": {
        "merge-engine": "aggregation", "fields.c_int.aggregate-function": "max",
        "fields.c_big.aggregate-function": "sum", "fields.c_dbl.aggregate-function": "sum",
        "fields.g_seq.aggregate-function": "max", "fields.c_dec.aggregate-function": "sum",
        "fields.default-aggregate-function": "last_non_null_value",
    },
}  # fmt: skip


def engine_table(root: str, kind: str, count: int, runs: int, engine: str) -> str:
    """The same runs under another merge engine: each of them holds a key once, so the files would be the same."""
    base = merge_table(root, kind, count, runs)
    name = f"{base}_{engine.replace(' ', '_')}"
    folder = f"{root}/{DATABASE}.db"
    if not os.path.exists(f"{folder}/{name}"):
        shutil.copytree(f"{folder}/{base}", f"{folder}/{name}", copy_function=os.link)
        schema = open_table(root, base).schema
        changed = replace(schema, options={**schema.options, **ENGINES[engine]})
        _replace(f"{folder}/{name}/schema/schema-0", changed.encode())
    return name


def ranged_table(root: str, files: int, each: int) -> str:
    """Name of a table of so many files, each with a key range of its own, as after a full compaction."""
    name = f"ranged_{files}_{each}"
    if not os.path.exists(f"{root}/{DATABASE}.db/{name}/snapshot/snapshot-{files}"):
        table = create(root, name, "bigint", memory=_WRITER_MEMORY, **{"bucket": 1, "write-buffer-size": "8 gb"})
        rng = np.random.default_rng(5)
        keys = np.sort(rows.keys("bigint", np.arange(files * each))[0].to_numpy())
        for i in range(files):
            part = rows.table("bigint", np.arange(each), rng)
            part = part.set_column(0, part.schema.field(0), pa.array(keys[i * each : (i + 1) * each]))
            _write(table, part)
    return name


def append_table(root: str, kind: str, count: int, parts: int) -> str:
    """Name of a table without keys."""
    name = f"append_{kind}_{count}_{parts}"
    if not os.path.exists(f"{root}/{DATABASE}.db/{name}/snapshot/snapshot-{parts}"):
        table = create(root, name, kind, memory=_WRITER_MEMORY, keyed=False)
        for part in rows.runs(kind, count, parts):
            _write(table, part, keyed=False)
    return name


def compacted_table(root: str, kind: str, count: int) -> str:
    """Name of a table of five runs that were compacted into one."""
    name = f"compacted_{kind}_{count}"
    if not os.path.exists(f"{root}/{DATABASE}.db/{name}/snapshot/snapshot-6"):
        table = create(root, name, kind, memory=_WRITER_MEMORY, **{"bucket": 1, "write-buffer-size": "8 gb"})
        for part in rows.runs(kind, count, 5):
            _write(table, part)
        table.maintain.compact(full=True)
    return name


def deleted_table(root: str, base: str) -> str:
    """The same files with deletion vectors on a tenth of the rows of each; they must not overlap."""
    name = f"{base}_deleted"
    folder = f"{root}/{DATABASE}.db/{name}"
    if os.path.exists(f"{folder}/index"):
        return name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(f"{root}/{DATABASE}.db/{base}", folder, copy_function=os.link)
    table = open_table(root, base)
    changed = replace(table.schema, options={**table.schema.options, "deletion-vectors.enabled": "true"})
    _replace(f"{folder}/schema/schema-0", changed.encode())
    rng = np.random.default_rng(11)
    (split,) = table.scan().plan().splits
    vectors = {f.file_name: DeletionVector.of(_tenth(rng, f.row_count)) for f in split.files}
    data, ranges = encode_file(vectors)
    entry = IndexEntry(ADD, split.partition, split.bucket, INDEX_TYPE, "index-0", len(data), len(ranges), ranges)
    _replace(f"{folder}/manifest/index-manifest-0", encode_index_manifest([entry], "zstandard"))
    last = max(int(n.split("-")[1]) for n in os.listdir(f"{folder}/snapshot") if n.startswith("snapshot-"))
    with open(f"{folder}/snapshot/snapshot-{last}", "rb") as f:
        snapshot = json.load(f)
    snapshot["indexManifest"] = "index-manifest-0"
    _replace(f"{folder}/snapshot/snapshot-{last}", json.dumps(snapshot).encode())
    os.mkdir(f"{folder}/index")
    _replace(f"{folder}/index/index-0", data)
    return name


def _tenth(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.permutation(count)[: count // 10]


def _replace(path: str, data: bytes) -> None:
    """A file of its own, where a link to another table's may be."""
    if os.path.exists(path):
        os.unlink(path)
    with open(path, "wb") as f:
        f.write(data)


def _write(table: Table, part: pa.Table, keyed: bool = True) -> None:
    with table.write() as w:
        (w.upsert if keyed else w.append)(part)
        w.commit()


def data_files(table: Table) -> list[str]:
    """Paths of the live data files."""
    folder = table.store.uri.removeprefix("file://").removeprefix("file:")
    return [
        f"{folder}/{table.file_at(split.partition, split.bucket, f)[1]}"
        for split in table.scan().plan().splits
        for f in split.files
    ]


def counted(batches: Iterator[pa.RecordBatch]) -> int:
    """Rows of a stream; each batch is dropped before the next is made."""
    return sum(b.num_rows for b in batches)
