# SPDX-License-Identifier: Apache-2.0
"""What only tags and branches keep: their own manifests against the files that retained snapshots reach.

A file that a tag lists is kept for the tag alone when it was removed before the earliest retained snapshot; whatever a
retained snapshot still lists, or removed later, is there anyway. A branch keeps what the tag lists that it was made
from; what it wrote since is its own.

Invariants: exact by file name, or `exact` is False; one manifest is read once; nothing is read beyond the allowance.
Agrees with: TagDeletion, BranchManager (2.0.0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.doctor.allowance import MeteredStore
from shoal.doctor.lists import vanished
from shoal.doctor.window import NOTHING, Count, Holder, Pin, Pins
from shoal.errors import ShoalError
from shoal.format.manifest import ManifestMeta
from shoal.store.branch import BranchStore
from shoal.table.metadata import Metadata
from shoal.table.refs import find_tag, tag_names

if TYPE_CHECKING:
    import pyarrow as pa

# A branch of more snapshots than this is known by its first and its last one alone.
_SNAPSHOTS = 200

Files = Mapping[str, Count]  # by name


def pins_of(reader: Metadata, store: MeteredStore, holders: Iterable[Holder], reachable: frozenset[str]) -> Pins | None:
    """The pins of tags and branches; `reachable` are the files that retained snapshots reach. None without any."""
    kept: list[tuple[Holder, dict[str, Count], Count]] = []
    exact = True
    for holder in holders:
        if holder.kind not in ("tag", "branch"):
            continue
        own: Files = {}
        try:
            if holder.kind == "tag":
                files, whole = _tagged(reader, store, holder.name)
            else:
                files, own, whole = _branched(reader, store, holder)
        except ShoalError as err:
            if not vanished(err):
                raise
            files, whole = {}, False  # deleted while it was looked at
        exact = exact and whole
        rest = {n: c for n, c in files.items() if n not in reachable}
        kept.append((holder, rest, _sum(c for n, c in own.items() if n not in files and n not in reachable)))
    if not kept:
        return None
    times = Counter(name for _, files, _ in kept for name in files)
    every: dict[str, Count] = {}
    for _, files, _ in kept:
        every.update(files)
    pins = tuple(
        Pin(
            "tag" if h.kind == "tag" else "branch", h.name, h.snapshot, _sum(files.values()),
            _sum(c for n, c in files.items() if times[n] == 1), own,
        )
        for h, files, own in kept
    )  # fmt: skip
    return Pins(pins, _sum(every.values()), exact)


def _sum(counts: Iterable[Count]) -> Count:
    return sum(counts, NOTHING)


def _tagged(reader: Metadata, store: MeteredStore, name: str) -> tuple[Files, bool]:
    found = find_tag(reader, name)
    if found is None:
        return {}, True
    return _live(reader, store, reader.manifests(found.snapshot))


def _branched(reader: Metadata, store: MeteredStore, holder: Holder) -> tuple[Files, Files, bool]:
    """What a branch began with, which its copy of a tag lists, and all that its snapshots list."""
    branch = Metadata(BranchStore(store, holder.name), reader.cache)
    begun: dict[str, Count] = {}
    whole = True
    for name in tag_names(branch):
        some, all_read = _tagged(branch, store, name)
        begun.update(some)
        whole = whole and all_read
    ids = branch.snapshot_ids()
    if not ids or not store.can_afford(2 * len(ids)):
        return begun, {}, whole and not ids
    first, all_read = _live(branch, store, branch.manifests(branch.snapshot(ids[0])))
    out, many = dict(first), len(ids) > _SNAPSHOTS
    whole = whole and all_read and not many
    for i in ids[-1:] if many else ids[1:]:
        snap = branch.snapshot(i)
        some, all_read = _live(branch, store, branch.manifests(snap) if many else branch.delta(snap))
        out.update(some)
        whole = whole and all_read
    return begun, out, whole


def _live(reader: Metadata, store: MeteredStore, metas: Sequence[ManifestMeta]) -> tuple[Files, bool]:
    if metas and not store.can_afford(len(metas), sum(m.file_size for m in metas)):
        return {}, False
    return named(reader.live_in(metas)), True


def named(live: pa.Table) -> dict[str, Count]:
    """Live entries by file name."""
    columns = (live.column(n).to_pylist() for n in ("file_name", "file_size", "row_count"))
    return {name: Count(1, size, rows) for name, size, rows in zip(*columns)}
