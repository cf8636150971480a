# SPDX-License-Identifier: Apache-2.0
"""D1: what the doctor's look costs for each new snapshot: reads and CPU, whatever the table's age and size.

The table is real as far as it goes: shoal commits to it, and its history is made long, and its live files
many, by repeating entries under new names in further snapshots, which is what thousands of commits leave.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from bench.context import Context
from bench.measure import Figure
from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.doctor.take import Known, take
from shoal.format import manifest, paths
from shoal.format.datafile import ADD, DELETE, Entry
from shoal.format.manifest import ManifestMeta
from shoal.store.cache import Cache
from shoal.store.local import LocalStore
from shoal.store.wrappers import CountingStore
from shoal.table.manifest_merge import coded, meta_of
from shoal.table.metadata import Metadata
from shoal.table.table import Table

_READS, _CPU_MS = (5, 4), (3, 1)  # must, goal
_NEW = 50  # snapshots a look catches up with
_FLUSH = 4  # files a commit adds; as many go, so that live files stay
_ROWS = 13  # how many numbers of rows the files of different commits have: as many rows seldom come as go


def looks(ctx: Context) -> Iterator[Figure]:
    """Ages of 10 to 10,000 snapshots, live files of 100 and 10,000, with a changelog and without."""
    for snapshots in (10, 100, 1_000) if ctx.quick else (10, 100, 1_000, 10_000):
        yield from _measured(ctx.root, f"{snapshots:,} snapshots, 100 live files", snapshots, 100, ctx.repeat)
    yield from _measured(ctx.root, "100 snapshots, 10,000 live files", 100, 10_000, ctx.repeat)
    yield from _measured(ctx.root, "100 snapshots, 100 live files, changelog", 100, 100, ctx.repeat, changelog=True)


def _measured(
    root: str, case: str, snapshots: int, live: int, repeat: int, *, changelog: bool = False
) -> Iterator[Figure]:
    grown = Grown(f"{root}/doctor", live, changelog)
    grown.commits(snapshots)
    clock = ManualClock()
    known = Known.of(take(grown.table.metadata, clock=clock))
    grown.commits(_NEW)

    def look() -> tuple[float, int]:
        store = CountingStore(grown.table.store)
        metadata = Metadata(store, Cache())
        start = time.process_time()
        window = take(metadata, clock=clock, known=known)
        took = time.process_time() - start
        assert len(window.steps) == _NEW and not window.events and not window.gaps
        return took, store.calls.total()

    runs = [look() for _ in range(repeat)]
    nothing = CountingStore(grown.table.store)
    now = Known.of(take(grown.table.metadata, clock=clock, known=known))
    take(Metadata(nothing, Cache()), clock=clock, known=now)
    fixed = nothing.calls.total()
    yield Figure("D1", f"{case}, reads", (runs[0][1] - fixed) / _NEW, "a snapshot", *_READS, detail={"fixed": fixed})
    yield Figure("D1", f"{case}, CPU", min(t for t, _ in runs) / _NEW * 1000, "ms a snapshot", *_CPU_MS)


class Grown:
    """A table that grows by snapshots whose entries repeat the first commit's under new names."""

    def __init__(self, root: str, live: int, changelog: bool) -> None:
        self._names = 0
        self.clock = ManualClock()
        shutil.rmtree(root, ignore_errors=True)
        store = LocalStore(root)
        lake = Lake(store, clock=self.clock, scheduler=ManualScheduler, rng=random.Random(1))
        schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
        options = {"bucket": _FLUSH, "write-only": "true"}
        self.table: Table = lake.create_table("d.t", schema, primary_key=["k"], options=options)
        with self.table.write() as w:
            w.upsert(pa.table([list(range(400))] * 2, schema=schema))
            w.commit()
        first = self.table.metadata.latest()
        assert first is not None
        self._entries = manifest.entries_of(self.table.metadata.live(first))
        self._live: list[Entry] = [self._entry(i) for i in range(live)]
        self._snapshot, self._changelog, self._files = first, changelog, live
        self._base = [self._manifest(self._live[i : i + 2_000]) for i in range(0, live, 2_000)]
        self._publish([], [])

    def _entry(self, i: int) -> Entry:
        e = self._entries[i % len(self._entries)]
        rows = e.file.row_count + i // _FLUSH % _ROWS
        return e._replace(file=e.file._replace(file_name=f"data-{i:08d}-0.parquet", row_count=rows))

    def _manifest(self, entries: list[Entry]) -> ManifestMeta:
        encoded = coded(entries)
        data = manifest.write_entries([c.data for c in encoded], "zstd")
        self._names += 1
        name = f"manifest-{self._names:09d}-0"
        self.table.store.put(paths.manifest(name), data)
        return meta_of(name, len(data), encoded, self.table.schema.partition_types)

    def _list(self, metas: list[ManifestMeta]) -> tuple[str, int]:
        data = manifest.encode_list(metas, "zstd")
        self._names += 1
        name = f"manifest-list-{self._names:09d}-0"
        self.table.store.put(paths.manifest(name), data)
        return name, len(data)

    def commits(self, count: int) -> None:
        """Each adds files and removes as many; every 30 the manifests are merged, as a writer does."""
        for _ in range(count):
            new = [self._entry(self._files + i) for i in range(_FLUSH)]
            self._files += _FLUSH
            gone, self._live = self._live[:_FLUSH], self._live[_FLUSH:] + new
            delta = [e._replace(kind=ADD) for e in new] + [e._replace(kind=DELETE) for e in gone]
            if len(self._base) > 30:
                before = [*gone, *self._live[: -len(new)]]
                self._base = [self._manifest(before[i : i + 2_000]) for i in range(0, len(before), 2_000)]
            self._publish(delta, [e._replace(file=e.file._replace(file_name=f"c-{e.file.file_name}")) for e in new])

    def _publish(self, delta: list[Entry], log: list[Entry]) -> None:
        self.clock.sleep(10)
        metas = [self._manifest(delta)] if delta else []
        base, delta_list = self._list(self._base), self._list(metas)
        logs = self._list([self._manifest(log)]) if self._changelog and log else (None, None)
        s = self._snapshot
        self._snapshot = replace(
            s, id=s.id + 1, base_manifest_list=base[0], base_manifest_list_size=base[1],
            delta_manifest_list=delta_list[0], delta_manifest_list_size=delta_list[1],
            changelog_manifest_list=logs[0], changelog_manifest_list_size=logs[1], time_ms=self.clock.now_ms(),
            delta_record_count=sum(e.file.row_count * (-1 if e.kind == DELETE else 1) for e in delta), uuid=None,
        )  # fmt: skip
        self.table.store.create(paths.snapshot(self._snapshot.id), self._snapshot.encode())
        self.table.store.put(paths.LATEST, str(self._snapshot.id).encode())
        self._base = [*self._base, *metas]
