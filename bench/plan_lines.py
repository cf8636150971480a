# SPDX-License-Identifier: Apache-2.0
"""P1, P2: planning tables of 20,000 and of a million files. P3: one key out of a hundred files.

The table has one real commit; its entries are repeated under new names. "Plan" is the entry table after pruning,
"splits" also groups the files of each bucket into sections and runs, which every read needs. The limit reads the
manifests' bytes.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

import shoal
from bench import rows, tables
from bench.context import Context
from bench.measure import Figure, alternate, timed
from shoal.format import manifest, paths
from shoal.format.row import encode
from shoal.table.manifest_merge import coded, meta_of
from shoal.table.table import Table

_BUCKETS = 10
_FILES = 20_000
_COLD, _CACHED = (0.35, 0.15), (0.040, 0.005)


def plan(ctx: Context) -> Iterator[Figure]:
    """P1: 20 manifests of 1,000 entries, and 2,000 of 10."""
    for manifests in (20, 2_000):
        name = _make(ctx.root, manifests)
        warm = tables.open_table(ctx.root, name)
        _entries(warm)
        best = alternate(
            {
                "limit": timed(lambda name=name: _read_bytes(ctx.root, name)),
                "cold": timed(lambda name=name: _entries(tables.open_table(ctx.root, name))),
                "cold splits": timed(lambda name=name: _splits(tables.open_table(ctx.root, name))),
                "cached": timed(lambda warm=warm: _entries(warm)),
                "cached splits": timed(lambda warm=warm: _splits(warm)),
                "cold files": timed(lambda name=name: _files(tables.open_table(ctx.root, name))),
                "cached files": timed(lambda warm=warm: _files(warm)),
            },
            ctx.repeat,
        )
        # seconds each: a round is enough to place them
        others = {
            "pypaimon": ctx.peer("plan", name=name, native=False),
            "rust": ctx.peer("plan", name=name, native=True),
        }
        peers = alternate(others, 1 if ctx.quick else 2)
        for what in ("cold", "cached"):
            must, goal = _COLD if what == "cold" else _CACHED
            case = f"{manifests:,} manifests, {what}"
            yield Figure("P1", case, best[what], "s", must, goal, limit=best["limit"])
            yield Figure(
                "P1", f"{case}, with splits", best[f"{what} splits"], "s", must, goal, limit=best["limit"], peers=peers
            )
            # splits decode their files when they are read, by whoever reads them: no part of a plan, shown all the same
            yield Figure("P1", f"{case}, every file decoded", best[f"{what} files"], "s", limit=best["limit"])


def _entries(table: Table) -> int:
    return int(table.scan().plan().entries.num_rows)


def _splits(table: Table) -> int:
    return len(table.scan().plan().splits)


def _files(table: Table) -> int:
    return sum(len(s.files) for s in table.scan().plan().splits)


def _folder(root: str, name: str) -> str:
    return f"{root}/{tables.DATABASE}.db/{name}"


def _read_bytes(root: str, name: str) -> int:
    folder = f"{_folder(root, name)}/manifest"
    total = 0
    for file in os.listdir(folder):
        with open(f"{folder}/{file}", "rb") as f:
            total += len(f.read())
    return total


def filtered(ctx: Context) -> Iterator[Figure]:
    """P2: 1,000 partitions of 1,000 files each; a manifest has ten partitions, or all. The filter wants one."""
    files = 100_000 if ctx.quick else 1_000_000
    where = "p = 500"

    def planned(table: Table) -> int:
        return len(table.scan(where=where).plan().splits)

    for mixed in (False, True):
        name = _make_partitions(ctx.root, files, mixed=mixed)
        warm = tables.open_table(ctx.root, name)
        assert planned(warm) == _BUCKETS
        best = alternate(
            {
                "cached": timed(lambda warm=warm: planned(warm)),
                "cold": timed(lambda name=name: planned(tables.open_table(ctx.root, name))),
            },
            2 if mixed else ctx.repeat,
        )
        case = f"{files:,} entries, {'all' if mixed else 'ten'} partitions a manifest"
        yield Figure("P2", f"{case}, cached", best["cached"], "s", 0.5, 0.1)
        yield Figure("P2", f"{case}, cold", best["cold"], "s", 4, 1)


def points(ctx: Context) -> Iterator[Figure]:
    """P3: one key of a table whose 100 files each hold a key range; CPU ms of one lookup."""
    each = 5_000 if ctx.quick else 50_000
    name = tables.ranged_table(ctx.root, 100, each)
    every = np.sort(rows.keys("bigint", np.arange(100 * each))[0].to_numpy())
    keys = [int(k) for k in every[np.random.default_rng(9).integers(0, len(every), 20)]]
    warm = tables.open_table(ctx.root, name)

    def lookup(open_again: bool) -> None:
        for k in keys:
            table = tables.open_table(ctx.root, name) if open_again else warm
            found = table.scan(where=f"k = {k}").to_arrow()
            assert found.num_rows == 1

    lookup(False)
    cases = {"warm": timed(lambda: lookup(False)), "cold": timed(lambda: lookup(True))}
    best = alternate(cases, ctx.repeat)
    for what, must, goal in (("warm", 20, 8), ("cold", 30, 15)):
        yield Figure("P3", f"100 files, {what}", best[what] / len(keys) * 1000, "ms", must, goal)


def _make_partitions(root: str, files: int, *, mixed: bool) -> str:
    """A table with so many files in 1,000 partitions and 100 manifests, each of ten partitions or of all."""
    name = f"partitions_{files}" + ("_mixed" if mixed else "")
    if os.path.exists(f"{_folder(root, name)}/.done"):
        return name
    shutil.rmtree(f"{_folder(root, name)}", ignore_errors=True)
    schema = pa.schema([pa.field("p", pa.int32(), False), pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
    table = shoal.open(root).create_table(
        f"{tables.DATABASE}.{name}", schema, primary_key=["p", "k"], partition_by=["p"],
        options={"bucket": _BUCKETS, "write-only": "true"},
    )  # fmt: skip
    with table.write() as w:
        n = 5_000
        w.upsert(pa.table([pa.array([0] * n, pa.int32()), list(range(n)), list(range(n))], schema=schema))
        w.commit()
    types = table.schema.partition_types

    def groups() -> Iterator[list[manifest.Entry]]:
        first = table.metadata.latest()
        assert first is not None
        entries = manifest.entries_of(table.metadata.live(first))
        each = files // (100_000 if mixed else 1_000)
        for start in range(0, 1_000, 10):
            part = []
            for p in range(1_000) if mixed else range(start, start + 10):
                partition = encode(types, [p])
                for i in range(each):
                    e = entries[i % len(entries)]
                    file = e.file._replace(file_name=f"data-{uuid.uuid4()}-0.parquet")
                    part.append(e._replace(file=file, partition=partition))
            yield part

    _replace_manifests(table, groups())
    return name


def _make(root: str, manifests: int) -> str:
    """A table whose only snapshot has `manifests` manifests with 20,000 entries together."""
    name = f"plan_{manifests}"
    if os.path.exists(f"{_folder(root, name)}/.done"):
        return name
    table = tables.create(root, name, "bigint", bucket=_BUCKETS)
    with table.write() as w:
        w.upsert(next(rows.runs("bigint", 5_000, 1)))
        w.commit()
    first = table.metadata.latest()
    assert first is not None
    entries = manifest.entries_of(table.metadata.live(first))
    each = _FILES // manifests

    def groups() -> Iterator[list[manifest.Entry]]:
        for start in range(0, _FILES, each):
            part = []
            for i in range(start, start + each):
                e = entries[i % len(entries)]
                low = i * 500
                unique = f"data-{uuid.uuid4()}-0.parquet"
                file = e.file._replace(file_name=unique, min_sequence=low, max_sequence=low + 499)
                part.append(e._replace(file=file))
            yield part

    _replace_manifests(table, groups())
    assert _entries(shoal.open(root).table(f"{tables.DATABASE}.{name}")) == _FILES
    return name


def _replace_manifests(table: Table, groups: Iterator[list[manifest.Entry]]) -> None:
    """A second snapshot that has these entries and no others, one manifest a group."""
    first = table.metadata.latest()
    assert first is not None
    metas = []
    for part in groups:
        encoded = coded(part)
        data = manifest.write_entries([c.data for c in encoded], "zstd")
        file_name = f"manifest-{uuid.uuid4()}-0"
        table.store.put(paths.manifest(file_name), data)
        metas.append(meta_of(file_name, len(data), encoded, table.schema.partition_types))
    lists = []
    for content in (metas, []):
        data = manifest.encode_list(content, "zstd")
        lists.append((f"manifest-list-{uuid.uuid4()}-0", len(data)))
        table.store.put(paths.manifest(lists[-1][0]), data)
    (base, base_size), (delta, delta_size) = lists
    snap = replace(
        first, id=2, base_manifest_list=base, base_manifest_list_size=base_size, delta_manifest_list=delta,
        delta_manifest_list_size=delta_size, uuid=str(uuid.uuid4()),
    )  # fmt: skip
    table.store.create(paths.snapshot(2), snap.encode())
    table.store.put(paths.LATEST, b"2")
    table.store.put(".done", b"")
