# SPDX-License-Identifier: Apache-2.0
"""The index files of a table after a commit: those before, with what the commit removes and adds.

Agrees with: IndexManifestFileHandler (2.0.0). Pure. Invariant: what is kept is of kind ADD; a bucket has one hash index
and one file of deletion vectors, a data file has one vector, rows have one global index of a kind. Java throws while it
prepares the snapshot where this raises `Conflict`: another writer changed the same index first.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import Conflict
from shoal.format.datafile import ADD, DELETE
from shoal.format.index_manifest import GlobalIndex, IndexEntry
from shoal.table.staged import HASHES, VECTORS

_HINT = "plan the change again on the newest snapshot"


def combined(previous: Sequence[IndexEntry], changes: Sequence[IndexEntry], *, by_file: bool) -> list[IndexEntry]:
    """The entries of the next index manifest.

    `by_file`: deletion vectors belong to single data files, as in append tables without buckets; elsewhere a bucket
    has one index file of each type.
    """
    kinds = dict.fromkeys(e.index_type for e in (*previous, *changes))
    out: list[IndexEntry] = []
    for kind in kinds:
        old = [e for e in previous if e.index_type == kind]
        new = [e for e in changes if e.index_type == kind]
        if not new:
            out += old
        elif kind == VECTORS and by_file:
            out += _by_file(old, new)
        elif kind in (HASHES, VECTORS):
            out += _by_bucket(old, new)
        else:
            out += _global(old, new)
    return out


def _by_bucket(old: Sequence[IndexEntry], new: Sequence[IndexEntry]) -> list[IndexEntry]:
    there = {(e.partition, e.bucket): e for e in old}
    for e in new:
        if e.kind == DELETE:
            there.pop((e.partition, e.bucket), None)
    there |= {(e.partition, e.bucket): e for e in new if e.kind == ADD}
    return list(there.values())


def _by_file(old: Sequence[IndexEntry], new: Sequence[IndexEntry]) -> list[IndexEntry]:
    there = {e.file_name: e for e in old}
    marked = {r.file_name for e in old for r in e.dv_ranges or ()}
    for e in new:
        files = [r.file_name for r in e.dv_ranges or ()]
        if e.kind == ADD:
            if e.file_name in there:
                raise Conflict(f"index file {e.file_name} is added twice", hint=_HINT)
            if twice := marked.intersection(files):
                raise Conflict(f"data file {min(twice)} already has a deletion vector", hint=_HINT)
            there[e.file_name] = e
            marked.update(files)
        else:
            if e.file_name not in there:
                raise Conflict(f"index file {e.file_name} is not there any more", hint=_HINT)
            if gone := set(files) - marked:
                raise Conflict(f"the deletion vector of data file {min(gone)} is not there any more", hint=_HINT)
            del there[e.file_name]
            marked.difference_update(files)
    return list(there.values())


def _global(old: Sequence[IndexEntry], new: Sequence[IndexEntry]) -> list[IndexEntry]:
    there = {e.file_name: e for e in old}
    for e in new:
        if e.kind == DELETE:
            there.pop(e.file_name, None)
    added = [e for e in new if e.kind == ADD]
    for kept in there.values():
        for e in added:
            if kept.global_index and e.global_index and _clash(kept.global_index, e.global_index):
                g = kept.global_index
                raise Conflict(
                    f"{e.index_type} index {e.file_name} of field {g.field_id} meets index file {kept.file_name} of"
                    f" rows {g.row_range_start} to {g.row_range_end}",
                    hint="remove that index file in the same commit",
                )
    return list((there | {e.file_name: e for e in added}).values())


def _clash(a: GlobalIndex, b: GlobalIndex) -> bool:
    """Whether two global indexes of one type cannot both be there."""
    if a.field_id != b.field_id or (a.source_meta is not None and b.source_meta is not None):
        return False
    if a.extra_field_ids != b.extra_field_ids:
        return True
    return a.row_range_start <= b.row_range_end and b.row_range_start <= a.row_range_end
