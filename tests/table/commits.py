"""Small tables in memory, and files that exist as metadata only: a commit never looks inside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.datafile import APPEND, EMPTY_ROW, DataFile, Stats
from shoal.format.deletion_vectors import DvRange
from shoal.format.index_manifest import ADD, GlobalIndex, IndexEntry
from shoal.format.row import encode
from shoal.format.snapshot import Snapshot
from shoal.format.types import parse
from shoal.store.memory import MemoryStore
from shoal.table.staged import BucketChanges, Staged
from shoal.table.table import Table

NOW = 1_700_000_000_000
SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int32()), ("v", pa.int64())])
_TEXT, _INT = parse("STRING"), parse("INT")


def lake(store: Any) -> Lake:
    return Lake(store, clock=ManualClock(NOW), scheduler=ManualScheduler)


def table(store: Any = None, *, keyed: bool = True, parts: bool = True, name: str = "d.t", **options: object) -> Table:
    """A table with columns p, k, v; options with `_` for `-` and `__` for `.`, also ones that writers refuse."""
    named = {k.replace("__", ".").replace("_", "-"): str(v) for k, v in options.items()}
    keys = (["p", "k"] if parts else ["k"]) if keyed else []
    made = lake(MemoryStore() if store is None else store).create_table(
        name, SCHEMA, primary_key=keys, partition_by=["p"] if parts else [], options={"bucket": "1" if keyed else "-1"}
    )
    return made.with_schema(replace(made.schema, options={**made.schema.options, **named}))


def part(value: str | None) -> bytes:
    return encode([_TEXT], [None if value is None else value.encode()])


def file(name: str, low: int = 0, high: int = 0, *, level: int = 0, rows: int = 1, **more: Any) -> DataFile:
    """A file of a keyed table with keys `low` to `high`."""
    keys = encode([_INT], [low]), encode([_INT], [high])
    given = {"file_source": APPEND, "min_sequence": 0, "max_sequence": rows - 1} | more
    return DataFile(
        name, 100, rows, *keys, Stats(*keys), Stats(), given.pop("min_sequence"), given.pop("max_sequence"), 0, level,
        **given,
    )  # fmt: skip


def plain(name: str, rows: int = 1, **more: Any) -> DataFile:
    """A file of a table without a key."""
    return file(name, rows=rows, **more)._replace(min_key=EMPTY_ROW, max_key=EMPTY_ROW, key_stats=Stats())


def hashes(name: str, partition: bytes, bucket: int = 0, kind: int = ADD) -> IndexEntry:
    return IndexEntry(kind, partition, bucket, "HASH", name, 8, 2)


def vectors(name: str, partition: bytes, files: list[str], bucket: int = 0, kind: int = ADD) -> IndexEntry:
    ranges = tuple(DvRange(f, 1, 20, 1) for f in files)
    return IndexEntry(kind, partition, bucket, "DELETION_VECTORS", name, 30, len(files), ranges)


def globally(name: str, first: int, last: int, field: int = 1, kind: int = ADD, **more: Any) -> IndexEntry:
    return IndexEntry(kind, EMPTY_ROW, 0, "btree", name, 8, 2, None, None, GlobalIndex(first, last, field, **more))


def staged(partition: bytes = EMPTY_ROW, bucket: int = 0, total: int = 1, *, base: int = 0, **changes: Any) -> Staged:
    return Staged((BucketChanges(partition, bucket, total, **{k: tuple(v) for k, v in changes.items()}),), base)


def snapshots(t: Table) -> list[Snapshot]:
    return [t.metadata.snapshot(i) for i in t.metadata.snapshot_ids()]


def names(t: Table) -> list[str]:
    """The live files, with their levels."""
    live = t.metadata.live(t.metadata.latest())
    return sorted(f"{n}@{lv}" for n, lv in zip(live.column("file_name").to_pylist(), live.column("level").to_pylist()))


def indexes(t: Table) -> list[str]:
    newest = t.metadata.latest()
    if newest is None or newest.index_manifest is None:
        return []
    return sorted(e.file_name for e in t.metadata.index_entries(newest.index_manifest))


def metadata_files(t: Table) -> set[str]:
    return {i.path.rsplit("/", 1)[-1] for i in t.store.list("manifest")}


def named_files(t: Table) -> set[str]:
    """Every file in `manifest/` that a snapshot names."""
    out: set[str] = set()
    for s in snapshots(t):
        lists = [s.base_manifest_list, s.delta_manifest_list, s.changelog_manifest_list, s.index_manifest]
        out |= {n for n in lists if n is not None}
        out |= {m.file_name for m in (*t.metadata.manifests(s), *t.metadata.changelog(s))}
    return out
