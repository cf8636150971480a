# SPDX-License-Identifier: Apache-2.0
"""A table with tags, a branch and a consumer in memory, and what each of them needs, worked out file by file."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.format.snapshot import Snapshot
from shoal.store.base import Store
from shoal.store.branch import BranchStore
from shoal.store.memory import MemoryStore
from shoal.store.prefix import PrefixStore
from shoal.table import history, refs
from shoal.table.metadata import Metadata
from shoal.table.table import Table
from tests.table.answers import Asked, once_for_equal_stores

SCHEMA = pa.schema([("dt", pa.string()), ("k", pa.int32()), ("v", pa.int64())])
NAMES = random.Random(11)
HOUR = 3_600_000
START = 1_767_225_600_000

Files = dict[str, bytes]


def lake(store: object, now: int = START) -> Lake:
    return Lake(store, clock=ManualClock(now), scheduler=ManualScheduler, rng=NAMES)  # type: ignore[arg-type]


def open_table(store: object, options: dict[str, object] | None = None, now: int = START + 24 * HOUR) -> Table:
    """The table with a cold cache, a day after its first commit."""
    table = lake(store, now).table("d.t")
    return table.with_options(options) if options else table


def write(store: object, table: str, first: int, last: int, compact: tuple[int, ...] = ()) -> None:
    """Commits `first` to `last`, a minute apart, and a full compaction after those of `compact`."""
    for c in range(first, last + 1):
        here = lake(store, START + c * 60_000)
        rnd = random.Random(c)
        rows = [{"dt": rnd.choice("ab"), "k": rnd.randint(0, 5), "v": c * 10 + i} for i in range(4)]
        with here.table(table).write() as w:
            w.upsert(rows)
            w.commit()
        if c in compact:
            here.table(table).maintain.compact(full=True)


def build(producer: str = "none") -> MemoryStore:
    """Nine commits, compactions, two tags whose snapshots can expire, a branch with commits of its own."""
    store = MemoryStore()
    lake(store).create_table(
        "d.t", SCHEMA, primary_key=["dt", "k"], partition_by=["dt"],
        options={"bucket": 1, "write-only": True, "manifest.merge-min-count": 3, "changelog-producer": producer},
    )  # fmt: skip
    write(store, "d.t", 1, 4, compact=(2, 4))
    tag(store, "early", 2)
    branch(store, "b", "early")
    write(store, "d.t$branch_b", 5, 7, compact=(6,))
    write(store, "d.t", 5, 7, compact=(6,))
    tag(store, "late", 6)
    write(store, "d.t", 8, 9, compact=(9,))
    return store


def tag(store: MemoryStore, name: str, snapshot: int) -> None:
    """As Java writes a tag without a time limit: the snapshot's file."""
    store.create(f"d.db/t/tag/tag-{name}", store.read(f"d.db/t/snapshot/snapshot-{snapshot}"))


def branch(store: MemoryStore, name: str, of_tag: str) -> None:
    """As Java makes a branch of a tag: copies of the tag, its snapshot and the schema, and the hints."""
    root = "d.db/t"
    at = f"{root}/branch/branch-{name}"
    data = store.read(f"{root}/tag/tag-{of_tag}")
    number = str(open_table(store).scan(tag=of_tag).snapshot.id)  # type: ignore[union-attr]
    store.put(f"{at}/tag/tag-{of_tag}", data)
    store.put(f"{at}/snapshot/snapshot-{number}", data)
    for hint in ("EARLIEST", "LATEST"):
        store.put(f"{at}/snapshot/{hint}", number.encode())
    store.put(f"{at}/schema/schema-0", store.read(f"{root}/schema/schema-0"))


# ---- what is there, and what is needed -------------------------------------------------------------------


def files(store: MemoryStore) -> Files:
    return {f.path: store.read(f.path) for f in store.list("")}


def copy(store: MemoryStore) -> MemoryStore:
    out = MemoryStore()
    for path, data in files(store).items():
        out.put(path, data)
    return out


def roots(store: Store) -> dict[str, Snapshot]:
    """Every snapshot, tag and changelog of main and of the branch, by the path of its file, read without hints."""
    main: Store = PrefixStore(store, "d.db/t")
    out: dict[str, Snapshot] = {}
    for name in [None, *refs.branch_names(main)]:
        meta = Metadata(main if name is None else BranchStore(main, name), lake(store).table("d.t").metadata.cache)
        at = "" if name is None else f"{name}:"
        out |= {f"{at}snapshot-{i}": meta.snapshot(i) for i in meta.snapshot_ids()}
        out |= {f"{at}tag-{t.name}": t.snapshot for t in refs.tags(meta)}
        for i in history.changelog_ids(meta):
            found = history.History(meta, decoupled=True).find(i)
            assert found is not None
            out[f"{at}changelog-{i}"] = found
    return out


def needed_of(store: MemoryStore) -> dict[str, frozenset[str]]:
    """By root (snapshot, tag, of main and branch) the files it cannot do without."""
    return {name: _needed(store, root) for name, root in roots(store).items()}


@once_for_equal_stores
def _needed(store: Asked, root: Snapshot) -> frozenset[str]:
    return frozenset(needed(store, root))  # type: ignore[arg-type]


def needed(store: Store, root: Snapshot, changelog: bool = False) -> Iterator[str]:
    """Files without which the snapshot cannot be read, and with `changelog` those of its changes."""
    table = lake(store).table("d.t")
    meta = table.metadata
    if changelog:
        metas = meta.changelog(root)
        lists = [root.changelog_manifest_list] if root.changelog_manifest_list else []
        rows = history.changelog_entries(meta, root)
    else:
        metas = meta.manifests(root)
        lists = [root.base_manifest_list, root.delta_manifest_list]
        rows = meta.live(root)
    for name in [*lists, *(m.file_name for m in metas)]:
        yield f"d.db/t/manifest/{name}"
    for p, b, n in zip(*(rows.column(c).to_pylist() for c in ("partition", "bucket", "file_name"))):
        yield f"d.db/t/{table.bucket_folder(p, b)}{n}"


def rows(store: MemoryStore) -> dict[str, list[str]]:
    """What each snapshot, tag and branch reads as."""
    out = {}
    for at in ("d.t", "d.t$branch_b"):
        table = lake(store).table(at)
        out |= {f"{at} {i}": rows_at(store, at, snapshot=i) for i in table.metadata.snapshot_ids()}
        out |= {f"{at} {n}": rows_at(store, at, tag=n) for n in refs.tag_names(table.metadata)}
    return out


@once_for_equal_stores
def rows_at(store: Asked, at: str, **when: object) -> list[str]:
    """The rows of a snapshot or tag of main or the branch."""
    return sorted(map(repr, lake(store).table(at).scan(**when).to_arrow().to_pylist()))  # type: ignore[arg-type]
