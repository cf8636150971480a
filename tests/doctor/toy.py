# SPDX-License-Identifier: Apache-2.0
"""A table of named files in memory, and the window of it: the truth that replays are held against.

Files are objects, commits are lists of them; nothing here is computed the way the doctor computes it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from shoal.doctor.window import (
    Count,
    Holder,
    IndexFacts,
    SchemaFacts,
    SnapshotFacts,
    Stock,
    Window,
    flow_fields,
    state_fields,
)

WROTE = {"snapshot": Count(1, 500), "base-list": Count(1, 900), "delta-list": Count(1, 900)}
WROTE |= {"delta-manifest": Count(1, 2000)}


@dataclass(eq=False)
class File:
    bucket: int
    size: int
    level: int = 0
    partition: str = ""
    rows: int = 10


@dataclass
class Done:
    """One snapshot: what it did, and all files that are live after it."""

    id: int
    kind: str
    time_ms: int
    identifier: int
    user: str
    rows: list[tuple[str, int, File, int]]  # class, change, file, level then
    live: list[tuple[File, int]] = field(default_factory=list)  # with the level then


class Toy:
    def __init__(self, options: Mapping[str, str] | None = None, *, keys: tuple[str, ...] = ("k",)) -> None:
        self.options, self.keys = dict(options or {}), keys
        self.live: list[File] = []
        self.done: list[Done] = []

    def commit(
        self, *changes: tuple[str, File] | tuple[str, File, int], at: int, kind: str = "APPEND",
        identifier: int | None = None, user: str = "me",
    ) -> None:  # fmt: skip
        """Changes are ("flush" | "rewrite" | "removal" | "changelog", file) or ("upgrade", file, level)."""
        rows = []
        for name, file, *to in changes:
            if name == "upgrade":
                rows += [(name, -1, file, file.level), (name, 1, file, to[0])]
                file.level = to[0]
                continue
            rows.append((name, -1 if name == "removal" else 1, file, file.level))
            if name == "removal":
                self.live.remove(file)
            elif name != "changelog":
                self.live.append(file)
        number = len(self.done) + 1
        live = [(f, f.level) for f in self.live]
        self.done.append(Done(number, kind, at, number if identifier is None else identifier, user, rows, live))

    def window(
        self, *, since: int = 1, earliest: int | None = None, holders: tuple[Holder, ...] = (), taken_ms: int = 0
    ) -> Window:
        """The window of the snapshots from `since` on."""
        done = self.done[since - 1 :]
        before = self.done[since - 2].live if since > 1 else []
        schema = SchemaFacts(0, 0, self.options, (), self.keys, ("k",))
        ids = [d.id for d in self.done]
        stock = Stock(
            taken_ms,
            (earliest or since) if ids else None,
            ids[-1] if ids else None,
            holders,
            IndexFacts({}, 0, 0),
            0,
            0,
        )
        return Window(
            "memory:toy", "db.toy", tuple(_facts(d) for d in done), _flows(done), _state(before), (schema,), stock
        )


def _facts(d: Done) -> SnapshotFacts:
    return SnapshotFacts(
        d.id, 0, d.user, d.identifier, d.kind, d.time_ms, None, None, None, None, None, ("", ""), WROTE, Count(3, 6000), 30, 2,
        len(d.live), True,
    )  # fmt: skip


def _flows(done: list[Done]) -> pa.Table:
    groups: dict[tuple[object, ...], list[File]] = defaultdict(list)
    for d in done:
        for name, change, file, level in d.rows:
            groups[d.id, name, change, file.partition, file.bucket, level].append(file)
    names = ("snapshot", "class", "change", "partition", "bucket", "level")
    rows = [
        dict(zip(names, key)) | {
            "files": len(files), "bytes": sum(f.size for f in files), "rows": sum(f.rows for f in files),
            "largest": max(f.size for f in files), "extras": 0, "small": sum(f.size < 1000 for f in files),
        }
        for key, files in groups.items()
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=flow_fields())


def _state(live: list[tuple[File, int]]) -> pa.Table:
    groups: dict[tuple[object, ...], list[File]] = defaultdict(list)
    for file, level in live:
        groups[file.partition, file.bucket, level].append(file)
    rows = [
        dict(zip(("partition", "bucket", "level"), key)) | {
            "files": len(files), "bytes": sum(f.size for f in files), "rows": sum(f.rows for f in files), "extras": 0,
            "small": sum(f.size < 1000 for f in files),
        }
        for key, files in groups.items()
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=state_fields())


def histogram(d: Done) -> Counter[tuple[str, int, int]]:
    return Counter((f.partition, f.bucket, level) for f, level in d.live)


def runs(d: Done, partition: str, bucket: int) -> int:
    levels = Counter(level for f, level in d.live if (f.partition, f.bucket) == (partition, bucket))
    return levels[0] + sum(1 for level in levels if level)


def steady_table(
    checkpoints: int, *, buckets: int = 2, interval_ms: int = 10_000, every: int = 5, size: int = 100,
    options: Mapping[str, str] | None = None, changelog: bool = False, top: int = 5,
) -> Toy:  # fmt: skip
    """Each checkpoint flushes a file in each bucket; every `every`-th one all runs become one file of constant size."""
    toy = Toy(options)
    for n in range(1, checkpoints + 1):
        new = [File(b, size) for b in range(buckets)]
        logs = [("changelog", File(b, size)) for b in range(buckets) if changelog]
        toy.commit(*[("flush", f) for f in new], *logs, at=n * interval_ms, identifier=n)
        if n % every == 0:
            changes = [("removal", f) for f in toy.live]
            merged = [("rewrite", File(b, size * every, level=top)) for b in range(buckets)]
            toy.commit(*changes, *merged, at=n * interval_ms + 20, kind="COMPACT", identifier=n)
    return toy
