# SPDX-License-Identifier: Apache-2.0
"""What stands beside a table's snapshots: schemas, tags, consumers, branches, long-lived changelogs, index files.

Invariants: schemas that are known are not read again; what vanishes while it is read is left out; a spent allowance
ends the look, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.clock import Clock
from shoal.doctor.allowance import MeteredStore
from shoal.doctor.lists import vanished
from shoal.doctor.window import NOTHING, Count, Holder, IndexFacts, SchemaFacts, Stock
from shoal.errors import NotFound, ShoalError
from shoal.format import paths
from shoal.format.snapshot import Snapshot
from shoal.store.branch import BranchStore
from shoal.table import consumers
from shoal.table.history import changelog_ids
from shoal.table.metadata import Metadata
from shoal.table.refs import Tag, branch_names, decode_tag

if TYPE_CHECKING:
    from shoal.store.base import FileInfo


def schema_facts(reader: Metadata, known: tuple[SchemaFacts, ...] = ()) -> tuple[SchemaFacts, ...]:
    """Every schema that is there, ascending."""
    have = {s.id: s for s in known}
    out = []
    for schema_id in paths.schema_ids(reader.store.list_dir(paths.SCHEMA)[1]):
        if schema_id not in have:
            try:
                s = reader.schema(schema_id)
            except NotFound:
                continue
            have[schema_id] = SchemaFacts(
                s.id, s.time_ms, dict(s.options), s.partition_keys, s.primary_keys, tuple(s.names)
            )
        out.append(have[schema_id])
    return tuple(out)


def stock_of(
    reader: Metadata, store: MeteredStore, newest: Snapshot | None, clock: Clock
) -> tuple[Callable[[bool], Stock], bool]:
    """What one look at the newest snapshot shows, and whether the allowance cut it.

    The first is a function of whether something else was cut already.
    """
    cut = False
    holders: list[Holder] = []
    for some in (_tags, _consumers, _branches, _changelogs):
        if not store.can_afford():
            cut = True
            break
        cut = some(reader, store, clock, holders) or cut
    index = IndexFacts({}, 0, 0) if newest is None else _index(reader, newest)
    earliest = reader.earliest_id()
    latest = newest.id if newest is not None else reader.latest_id()
    holders.sort(key=lambda h: (h.kind, h.snapshot, h.name))
    return (
        lambda partial: Stock(
            clock.now_ms(), earliest, latest, tuple(holders), index, store.requests, store.bytes_read, partial or cut
        ),
        cut,
    )


def _files(store: MeteredStore, folder: str, prefix: str) -> list[tuple[str, FileInfo]]:
    """(name, file) of the files of a folder whose names begin with `prefix`, sorted."""
    start = f"{folder}/{prefix}"
    return sorted(
        ((f.path.removeprefix(start), f) for f in store.list(folder) if f.path.startswith(start)), key=lambda n: n[0]
    )


def _tags(reader: Metadata, store: MeteredStore, clock: Clock, out: list[Holder]) -> bool:
    for name, file in _files(store, paths.TAG, "tag-"):
        if not store.can_afford():
            return True

        def load(name: str = name, file: FileInfo = file) -> tuple[Tag, int]:
            data = store.read(file.path)
            return decode_tag(name, data, f"{store.uri}/{file.path}"), 4 * len(data)

        try:
            key = (store.uri, f"{file.path} {file.size} {file.modified_ms}")  # a tag may be replaced
            tag = reader.cache.get(key, load)
        except NotFound:
            continue
        made: int | None = file.modified_ms or None
        if tag.created is not None:  # the maker's wall clock, which is taken to be in the zone of this one
            made = round(tag.created.replace(tzinfo=clock.zone).timestamp() * 1000)
        ends = None if made is None or tag.retained_ms is None else made + tag.retained_ms
        out.append(Holder("tag", name, tag.snapshot.id, made, ends))
    return False


def _consumers(reader: Metadata, store: MeteredStore, clock: Clock, out: list[Holder]) -> bool:
    for name, file in _files(store, paths.CONSUMER, "consumer-"):
        if not store.can_afford():
            return True
        at = consumers.progress(store, name)
        if at is not None:
            out.append(Holder("consumer", name, at, file.modified_ms or None))
    return False


def _branches(reader: Metadata, store: MeteredStore, clock: Clock, out: list[Holder]) -> bool:
    if isinstance(store.of, BranchStore):
        return False  # it is one
    for name in branch_names(store):
        if not store.can_afford():
            return True
        ids = Metadata(BranchStore(store, name), reader.cache).snapshot_ids()
        if ids:
            out.append(Holder("branch", name, ids[0], None))
    return False


def _changelogs(reader: Metadata, store: MeteredStore, clock: Clock, out: list[Holder]) -> bool:
    ids = changelog_ids(reader)
    if ids:
        out.append(Holder("changelog", f"{ids[0]} to {ids[-1]}", ids[0], None))
    return False


def _index(reader: Metadata, newest: Snapshot) -> IndexFacts:
    """The index files by type. A list that vanished is no list."""
    if newest.index_manifest is None:
        return IndexFacts({}, 0, 0)
    try:
        entries = reader.index_entries(newest.index_manifest)
    except ShoalError as err:
        if not vanished(err):
            raise
        return IndexFacts({}, 0, 0)
    files: dict[str, Count] = {}
    marked = vectors = 0
    for e in entries:
        files[e.index_type] = files.get(e.index_type, NOTHING) + Count(1, e.file_size, e.row_count)
        for r in e.dv_ranges or ():
            vectors += 1
            marked += r.cardinality or 0
    return IndexFacts(dict(sorted(files.items())), marked, vectors)
