# SPDX-License-Identifier: Apache-2.0
"""What may not be committed on top of the newest snapshot, because another writer was there first.

Agrees with: ConflictDetection, RowIdColumnConflictChecker (2.0.0), in the order of their checks. Pure: the caller reads
what is there. Invariant: a check raises `Conflict` or says nothing. Stricter than Java: a file that one commit deletes
twice is refused, and so are files with columns of rows that a compaction gives new ids. The message names the files
instead of listing the whole partition.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal.errors import Conflict
from shoal.format.datafile import ADD, DELETE, DataFile, Entry
from shoal.format.index_manifest import IndexEntry
from shoal.lsm.levels import Key
from shoal.table.row_ids import dedicated
from shoal.table.staged import Content

_AGAIN = "plan the change again on the newest snapshot"
_ONE_COMPACTOR = "one compactor per bucket: set write-only on the other writers"


class AlreadyThere(Conflict):
    """A file that is to be added is live: whatever else happens, it must not be deleted."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the checks must know of a table.

    `bounds` gives the keys of a file, None where key ranges may overlap; `vectors_by_file`: an append table without
    buckets has deletion vectors; `evolution`: columns of a row lie in several files.
    """

    name: str
    bounds: Callable[[DataFile], tuple[Key, Key]] | None = None
    vectors_by_file: bool = False
    evolution: bool = False


@dataclass(frozen=True, slots=True)
class Base:
    """What is there: live files of the changed partitions, and the index entries of the table."""

    entries: Sequence[Entry]
    indexes: Sequence[IndexEntry] = ()
    next_row_id: int | None = None


def check(facts: Facts, base: Base, content: Content, *, rows_checked: bool = False) -> None:
    """Everything that two lists of files tell. `rows_checked`: the commit updates columns of rows that it has read."""
    if content.kind != "OVERWRITE":
        one_bucket_count(facts.name, base.entries, content.entries)
    merged = _files(facts, base, content)
    _keys(facts, content.entries, merged)
    if facts.evolution:
        _row_ids_exist(facts, base, content)
        if rows_checked or content.kind == "COMPACT":
            _row_ranges(facts, merged)
        if content.kind == "COMPACT":
            _rows_left(facts, content, merged)
        _indexed_rows(facts, base.entries, content.indexes)


# ---- bucket counts ---------------------------------------------------------------------------------------


def one_bucket_count(name: str, base: Iterable[Entry], delta: Iterable[Entry]) -> None:
    """A partition has one number of buckets; only an overwrite changes it."""
    there: dict[bytes, int] = {}
    for entries in (base, delta):
        for e in entries:
            if e.total_buckets > 0 and there.setdefault(e.partition, e.total_buckets) != e.total_buckets:
                raise bucket_count_conflict(name, there[e.partition], e.total_buckets)


def bucket_count_conflict(name: str, before: int, now: int) -> Conflict:
    return Conflict(
        f"{name}: a partition has {before} buckets and these files were written for {now}",
        hint="open the writer again; 'shoal compact rescale' (t.maintain.rescale()) changes the number of a partition",
    )


# ---- files -----------------------------------------------------------------------------------------------

_Identity = tuple[object, ...]


def _files(facts: Facts, base: Base, content: Content) -> list[Entry]:
    """What is live after the commit: every removed file was there, no file is added twice."""
    before: Iterable[tuple[_Identity, Entry]]
    if facts.vectors_by_file:
        marks = _marks(base.indexes)
        before = [((*e.identity, marks.get(e.file.file_name)), e) for e in base.entries]
        delta = _with_vectors(facts, base.entries, content)
    else:
        before = ((e.identity, e) for e in base.entries)
        delta = [(e.identity, e) for e in content.entries]
    _fold(facts, {}, delta)
    merged = dict(before)
    _fold(facts, merged, delta)
    for e in merged.values():
        if e.kind == DELETE:
            raise Conflict(
                f"{facts.name}: file {e.file.file_name} is not there any more, or its deletion vector is another one: "
                "another job compacted, changed or deleted it",
                hint=_ONE_COMPACTOR if content.kind == "COMPACT" else _AGAIN,
            )
    return list(merged.values())


def _fold(facts: Facts, into: dict[_Identity, Entry], delta: Iterable[tuple[_Identity, Entry]]) -> None:
    for identity, e in delta:
        old = into.get(identity)
        if old is None:
            into[identity] = e
        elif e.kind == DELETE and old.kind == ADD:
            del into[identity]
        elif e.kind == DELETE:
            raise Conflict(f"{facts.name}: file {e.file.file_name} is deleted twice", hint=_AGAIN)
        else:
            raise AlreadyThere(
                f"{facts.name}: file {e.file.file_name} is added although it is there already",
                hint="these files were committed before; after a restart, filter_and_commit leaves them out",
            )


def _marks(indexes: Iterable[IndexEntry]) -> dict[str, str]:
    """Index file with the deletion vector of each data file."""
    return {r.file_name: i.file_name for i in indexes if i.kind == ADD for r in i.dv_ranges or ()}


def _with_vectors(facts: Facts, base: Sequence[Entry], content: Content) -> list[tuple[_Identity, Entry]]:
    """The change as pairs of file and vector: a changed vector removes one pair and adds another."""
    changed: dict[str, list[IndexEntry]] = {}
    for i in content.indexes:
        for r in i.dv_ranges or ():
            changed.setdefault(r.file_name, []).append(i)
    out: list[tuple[_Identity, Entry]] = []
    for e in content.entries:
        vectors = changed.pop(e.file.file_name, [])
        if len(vectors) > 1:
            raise Conflict(f"{facts.name}: file {e.file.file_name} gets two deletion vectors", hint=_AGAIN)
        out.append(((*e.identity, vectors[0].file_name if vectors else None), e))
    if not changed:
        return out
    live = {e.file.file_name: e for e in base if e.kind == ADD}
    for name, vectors in changed.items():
        if name not in live:
            raise Conflict(
                f"{facts.name}: file {name}, which gets a deletion vector, is not there any more", hint=_AGAIN
            )
        e = live[name]
        if len(vectors) == 1 and vectors[0].kind == ADD:
            out.append(((*e.identity, None), e._replace(kind=DELETE)))
        for v in sorted(vectors, key=lambda v: v.kind, reverse=True):
            out.append(((*e.identity, v.file_name), e._replace(kind=v.kind)))
    return out


# ---- keys ------------------------------------------------------------------------------------------------


def _keys(facts: Facts, delta: Sequence[Entry], merged: Sequence[Entry]) -> None:
    """Above level 0 the files of a level hold keys one after the other. Levels that get no file stay as they are."""
    if facts.bounds is None:
        return
    touched = {_level(e) for e in delta if e.kind == ADD and e.file.level > 0}
    levels: dict[tuple[bytes, int, int], list[tuple[Key, Key, str]]] = {}
    for e in merged if touched else ():
        if _level(e) in touched:
            low, high = facts.bounds(e.file)
            levels.setdefault(_level(e), []).append((low, high, e.file.file_name))
    for (_, bucket, level), files in levels.items():
        files.sort(key=lambda f: f[0])
        for (_, high, a), (low, _, b) in pairwise(files):
            if high >= low:
                raise Conflict(
                    f"{facts.name}: level {level} of bucket {bucket} was rewritten by another job: files {a} and {b} "
                    "hold the same keys",
                    hint=_ONE_COMPACTOR,
                )


def _level(e: Entry) -> tuple[bytes, int, int]:
    return e.partition, e.bucket, e.file.level


# ---- row ids ---------------------------------------------------------------------------------------------

Span = tuple[int, int]  # first and last row id


def span(f: DataFile) -> Span:
    assert f.first_row_id is not None
    return f.first_row_id, f.first_row_id + f.row_count - 1


class Spans:
    """Row ids as spans that do not meet, for questions about many."""

    def __init__(self, spans: Iterable[Span], *, join: bool) -> None:
        """With `join`, spans that follow each other without a gap become one."""
        self.first: list[int] = []
        self.last: list[int] = []
        for a, b in sorted(spans):
            if self.last and a <= self.last[-1] + join:
                self.last[-1] = max(self.last[-1], b)
            else:
                self.first.append(a)
                self.last.append(b)

    def hold(self, s: Span) -> bool:
        i = bisect_left(self.last, s[0])
        return i < len(self.first) and self.first[i] <= s[0] and s[1] <= self.last[i]

    def equal(self, s: Span) -> bool:
        i = bisect_left(self.first, s[0])
        return i < len(self.first) and (self.first[i], self.last[i]) == s


def _with_rows(entries: Iterable[Entry]) -> list[Entry]:
    return [e for e in entries if e.file.first_row_id is not None]


def _by_bucket(entries: Iterable[Entry]) -> dict[tuple[bytes, int], Spans]:
    """Row ids of each bucket's files."""
    found: dict[tuple[bytes, int], list[Span]] = {}
    for e in _with_rows(entries):
        found.setdefault((e.partition, e.bucket), []).append(span(e.file))
    return {at: Spans(s, join=True) for at, s in found.items()}


def _row_ids_exist(facts: Facts, base: Base, content: Content) -> None:
    """Files that hold columns of existing rows, or compacted rows, must find those rows."""
    rows = [e for e in _with_rows(base.entries) if not dedicated(e.file.file_name)]
    added = [e for e in _with_rows(content.entries) if e.kind == ADD]
    if content.kind == "COMPACT":
        spans = _by_bucket(rows)
        for e in added:
            there = spans.get((e.partition, e.bucket))
            if there is None or not there.hold(span(e.file)):
                raise _lost_rows(facts, e)
        return
    known = base.next_row_id
    added = [e for e in added if known is not None and span(e.file)[0] < known]
    every = Spans((span(e.file) for e in rows), join=False) if added else None
    for e in added:
        assert every is not None
        s = span(e.file)
        if not (every.hold(s) if dedicated(e.file.file_name) else every.equal(s)):
            raise _lost_rows(facts, e)


def _lost_rows(facts: Facts, e: Entry) -> Conflict:
    first, last = span(e.file)
    return Conflict(
        f"{facts.name}: file {e.file.file_name} is about rows {first} to {last}, which lie in other files now: "
        "another job compacted or replaced them",
        hint=_AGAIN,
    )


def _row_ranges(facts: Facts, merged: Sequence[Entry]) -> None:
    """Files with columns of the same rows hold exactly the same rows; blobs and vectors lie inside one such range."""
    files = _with_rows(merged)
    plain = sorted((span(e.file), e.file.file_name) for e in files if not dedicated(e.file.file_name))
    for (a, name), (b, other) in pairwise(plain):
        if a != b and b[0] <= a[1]:
            raise Conflict(
                f"{facts.name}: files {name} and {other} hold rows {a[0]} to {a[1]} and {b[0]} to {b[1]}: "
                "an update and a compaction met",
                hint=_AGAIN,
            )
    ranges = Spans((s for s, _ in plain), join=False)
    for e in files:
        if dedicated(e.file.file_name) and not ranges.hold(span(e.file)):
            raise _lost_rows(facts, e)


def _rows_left(facts: Facts, content: Content, merged: Sequence[Entry]) -> None:
    """Rows whose files go without others in their place get new ids: no file may hold columns of them still."""
    plain = [e for e in _with_rows(content.entries) if not dedicated(e.file.file_name)]
    kept = Spans((span(e.file) for e in plain if e.kind == ADD), join=False)
    gone = Spans((s for s in (span(e.file) for e in plain if e.kind == DELETE) if not kept.hold(s)), join=True)
    for e in _with_rows(merged) if gone.first else ():
        if gone.hold(span(e.file)):
            raise _lost_rows(facts, e)


def _indexed_rows(facts: Facts, base: Sequence[Entry], indexes: Sequence[IndexEntry]) -> None:
    """Rows that a new global index covers must be there."""
    added = [(i, i.global_index) for i in indexes if i.kind == ADD and i.global_index is not None]
    spans = _by_bucket(e for e in base if e.kind == ADD) if added else {}
    for i, g in added:
        there = spans.get((i.partition, i.bucket))
        if there is None or not there.hold((g.row_range_start, g.row_range_end)):
            raise Conflict(
                f"{facts.name}: index file {i.file_name} covers rows {g.row_range_start} to {g.row_range_end}, "
                "which are not all there any more",
                hint="build the index again",
            )


# ---- columns ---------------------------------------------------------------------------------------------


class WrittenColumns:
    """Which columns of which rows a commit writes, to be held against what others wrote meanwhile."""

    def __init__(self, files: Iterable[DataFile], field_ids: Callable[[int], Mapping[str, int]]) -> None:
        """`field_ids`: ids by name of a schema."""
        self._field_ids = field_ids
        groups: list[tuple[int, int, set[int]]] = []
        for f in sorted((f for f in files if f.first_row_id is not None), key=span):
            first, last = span(f)
            if groups and first <= groups[-1][1]:
                start, end, fields = groups.pop()
                groups.append((start, max(end, last), fields | self._written(f)))
            else:
                groups.append((first, last, self._written(f)))
        self._groups = groups
        self._last = [g[1] for g in groups]

    def __bool__(self) -> bool:
        return bool(self._groups)

    def meet(self, f: DataFile) -> bool:
        """Whether another commit's file has one of these columns of one of these rows."""
        if f.first_row_id is None:
            return False
        first, last = span(f)
        for start, _, fields in self._groups[bisect_left(self._last, first) :]:
            if start > last:
                return False
            if f.write_cols is None or fields & self._written(f):
                return True
        return False

    def _written(self, f: DataFile) -> set[int]:
        ids = self._field_ids(f.schema_id)
        if f.write_cols is None:
            return set(ids.values())
        return {ids[c] for c in f.write_cols if c in ids}


def column_conflict(name: str, f: DataFile, snapshot: int, user: str) -> Conflict:
    return Conflict(
        f"{name}: file {f.file_name} of snapshot {snapshot} by {user} changed the same columns of the same rows",
        hint="run the update again: it was computed from older rows",
    )
