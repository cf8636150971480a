# SPDX-License-Identifier: Apache-2.0
"""P1: planning a table of 20,000 files, from nothing and from the cache.

The table has one real commit; its entries are repeated under new names. "Plan" is the entry table after pruning,
"splits" also groups the files of each bucket into sections and runs, which every read needs. The limit reads the
manifests' bytes.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import replace

import shoal
from bench import rows, tables
from bench.context import Context
from bench.measure import Figure, alternate, timed
from shoal.format import manifest, paths
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
    metas = []
    for start in range(0, _FILES, each):
        part = []
        for i in range(start, start + each):
            e = entries[i % len(entries)]
            low = i * 500
            unique = f"data-{uuid.uuid4()}-0.parquet"
            file = e.file._replace(file_name=unique, min_sequence=low, max_sequence=low + 499)
            part.append(e._replace(file=file))
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
    assert _entries(shoal.open(root).table(f"{tables.DATABASE}.{name}")) == _FILES
    return name
