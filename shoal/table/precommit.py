# SPDX-License-Identifier: Apache-2.0
"""Small files of one checkpoint become fewer before they are committed (`precommit-compact`).

Changelog files of a partition are copied byte for byte into one file that their names share
(`format/compacted_changelog`); new files of a table without keys and buckets are read and written together. Which ones:
`lsm/precommit_pick`. Agrees with: ChangelogCompactTask, AppendPreCommitCompactWorkerOperator (2.0.0), but for two
things: what was there before is deleted after the commit and not before, so that a checkpoint whose commit died can be
committed again; and new files written together still say that a writer made them: Java calls them a compaction's, and
rows of row-tracking tables stay without ids. Invariant: the rows of a checkpoint are those that were staged; nothing is
visible before the commit, and a failure deletes what was written here.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from shoal.errors import Corrupt, ShoalError, Unsupported
from shoal.format.compacted_changelog import FORMATS, shared_name, slice_name
from shoal.format.data import format_of
from shoal.format.datafile import DataFile
from shoal.lsm.precommit_pick import gathered
from shoal.store.base import Sink, Store, delete_each
from shoal.table.append_compact import policy_of
from shoal.table.buckets import UNAWARE
from shoal.table.new_files import NewFiles, new_uuid
from shoal.table.pending import write_files
from shoal.table.runs import BucketFiles
from shoal.table.staged import BucketChanges, Staged

if TYPE_CHECKING:
    from shoal.table.table import Table

OPTION = "precommit-compact"
Kind = Literal["new_files", "changelog_files", "compact_changelog"]
_APPEND, _COMPACT = "append", "compact"
_CHANGELOGS: tuple[tuple[Kind, str], ...] = (("changelog_files", _APPEND), ("compact_changelog", _COMPACT))

# Bytes that one thread reads at a time.
_PIECE = 8 << 20


@dataclass(frozen=True, slots=True)
class Replaced:
    """Files that were written here, and those that they stand for; `part` is the snapshot that they go into."""

    part: str
    made: tuple[tuple[Store, str], ...]
    away: tuple[tuple[Store, str], ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A staged value as it is committed."""

    staged: Staged
    replaced: tuple[Replaced, ...] = ()

    def committed(self) -> None:
        """Delete what was replaced. What cannot be deleted is left for orphan cleaning: the rows are committed."""
        _forget([f for r in self.replaced for f in r.away])

    def failed(self, parts: Sequence[str], *, keep_files: bool) -> None:
        """Only `parts` were committed. With `keep_files` what was staged stays, for another try; else nothing does."""
        for r in self.replaced:
            _forget(r.made if keep_files and r.part not in parts else r.away)


def check_precommit(table: Table) -> None:
    """`Unsupported` for tables whose new files cannot be written together."""
    if _joins(table) and table.options.data_evolution:
        raise Unsupported(
            f"{table.name}: '{OPTION}' does not work with 'data-evolution.enabled'",
            hint=f"take '{OPTION}' away: Paimon's writers refuse it too",
        )


def ready(table: Table, staged: Staged, *, rows: bool, changelog: bool, done: Sequence[str] = ()) -> Ready:
    """The value with its small files written together, where the table asks for it.

    `rows`: new files hold rows that nobody has looked at yet. Without `changelog` those files stay as they are, and so
    do those of parts that are committed already (`done`).
    """
    if not table.options.get(OPTION):
        return Ready(staged)
    work = _Work(table, staged)
    try:
        if table.primary_key:
            for kind, part in _CHANGELOGS if changelog else ():
                if part not in done:
                    work.share(kind, part)
        elif rows and _APPEND not in done and _joins(table) and not table.options.data_evolution:
            work.join()
    except BaseException:
        _forget([f for r in work.replaced for f in r.made])
        raise
    return work.result()


def _joins(table: Table) -> bool:
    return bool(table.options.get(OPTION)) and not table.primary_key and table.options.bucket == UNAWARE


def _forget(places: Sequence[tuple[Store, str]]) -> None:
    with suppress(ShoalError):
        delete_each(places)


@dataclass(frozen=True, slots=True)
class _At:
    """One staged file: which change it is in, and where among its files."""

    change: int
    position: int
    bucket: int
    file: DataFile


class _Work:
    """A staged value while its files are replaced."""

    def __init__(self, table: Table, staged: Staged) -> None:
        self.table, self.staged = table, staged
        self.changes = list(staged.changes)
        self.replaced: list[Replaced] = []

    def result(self) -> Ready:
        kept = (c for c in self.changes if c != BucketChanges(c.partition, c.bucket, c.total_buckets))
        return Ready(replace(self.staged, changes=tuple(kept)) if self.replaced else self.staged, tuple(self.replaced))

    # ---- changelog files that share one

    def share(self, kind: Kind, part: str) -> None:
        o = self.table.options
        buffer = cast(int, o.get("changelog.precommit-compact.buffer-size"))
        policy = policy_of(self.table)
        for partition, found in self._by_partition(kind).items():
            # files of other formats, and those that share a file already, stay as they are
            for name in FORMATS:
                files = [a for a in found if a.bucket >= 0 and format_of(a.file.file_name) == name]
                files.sort(key=lambda a: a.bucket)
                sizes = [a.file.file_size for a in files]
                for group in gathered(sizes, min(policy.enough, buffer), policy.target):
                    self._shared(kind, part, partition, [files[i] for i in group], name)

    def _shared(self, kind: Kind, part: str, partition: bytes, group: Sequence[_At], format_name: str) -> None:
        table, first = self.table, group[0]
        whole = shared_name(new_uuid(table), first.bucket, first.file.file_size, format_name)
        folder = None if first.file.external_path is None else first.file.external_path.rpartition("/")[0]
        new = []
        offset = 0
        for a in group:
            name = slice_name(whole, offset, a.file.file_size)
            new.append(a.file._replace(file_name=name, external_path=folder and f"{folder}/{name}"))
            offset += a.file.file_size
        sources = [table.file_at(partition, a.bucket, a.file) for a in group]
        store, path = table.file_at(partition, first.bucket, new[0])
        self._copied(sources, [a.file.file_size for a in group], store, path)
        self.replaced.append(Replaced(part, ((store, path),), tuple(sources)))
        for a, f in zip(group, new):
            files = list(getattr(self.changes[a.change], kind))
            files[a.position] = f
            self._set(a.change, kind, tuple(files))

    def _copied(self, sources: Sequence[tuple[Store, str]], sizes: Sequence[int], store: Store, path: str) -> None:
        o = self.table.options
        buffer = min(cast(int, o.get("changelog.precommit-compact.buffer-size")), self.table.memory // 8)
        threads = cast("int | None", o.get("changelog.precommit-compact.thread-num")) or os.cpu_count() or 1
        sink = store.sink(path)
        try:
            copy([(*s, n) for s, n in zip(sources, sizes)], sink, threads=threads, buffer=buffer)
            sink.close()
        except BaseException:
            sink.abort()
            _forget([(store, path)])  # the store may have kept it and lost the answer
            raise

    # ---- new files written together

    def join(self) -> None:
        policy = policy_of(self.table)
        files = NewFiles(self.table)
        for partition, found in self._by_partition("new_files").items():
            chosen = [a for a in found if _plain(self.changes[a.change])]
            for group in gathered([a.file.file_size for a in chosen], policy.enough, policy.target):
                self._joined(files, partition, [chosen[i] for i in group])

    def _joined(self, files: NewFiles, partition: bytes, group: Sequence[_At]) -> None:
        table, first = self.table, group[0]
        old = [a.file for a in group]
        opened = BucketFiles(table, partition, first.bucket, table.schema.fields)
        size = sum(f.file_size for f in old)
        written = write_files(
            files.spec(partition, first.bucket), opened.batches(old, threads=True), old[0].min_sequence, size
        )
        if table.options.row_tracking:
            written = [f._replace(min_sequence=0, max_sequence=f.row_count - 1) for f in written]
        made = [p for f in written for p in _places(table, partition, first.bucket, f)]
        away = [p for a in group for p in _places(table, partition, a.bucket, a.file)]
        self.replaced.append(Replaced(_APPEND, tuple(made), tuple(away)))
        gone = {f.file_name for f in old}
        for i in dict.fromkeys(a.change for a in group):
            c = self.changes[i]
            kept: list[DataFile] = []
            for f in c.new_files:
                if i == first.change and f.file_name == first.file.file_name:
                    kept += written
                elif f.file_name not in gone:
                    kept.append(f)
            self._set(i, "new_files", tuple(kept))

    # ----

    def _by_partition(self, kind: Kind) -> dict[bytes, list[_At]]:
        out: dict[bytes, list[_At]] = {}
        for i, c in enumerate(self.staged.changes):
            files: tuple[DataFile, ...] = getattr(c, kind)
            out.setdefault(c.partition, []).extend(_At(i, k, c.bucket, f) for k, f in enumerate(files))
        return out

    def _set(self, change: int, kind: Kind, files: tuple[DataFile, ...]) -> None:
        self.changes[change] = replace(self.changes[change], **{kind: files})  # type: ignore[arg-type]


def _places(table: Table, partition: bytes, bucket: int, file: DataFile) -> Iterator[tuple[Store, str]]:
    yield table.file_at(partition, bucket, file)
    yield from (table.beside(partition, bucket, file, extra) for extra in file.extra_files)


def _plain(c: BucketChanges) -> bool:
    """Whether a change is rows of a writer alone, and no index speaks of its files."""
    return not (c.deleted_files or c.new_indexes or c.deleted_indexes)


def copy(sources: Sequence[tuple[Store, str, int]], sink: Sink, *, threads: int, buffer: int) -> None:
    """Write the bytes of the files (store, path, size) one after the other, read by `threads` ahead of the writing.

    No more than `buffer` bytes wait in memory, or one piece.
    """
    piece = max(1, min(_PIECE, buffer))
    waiting: deque[tuple[Future[bytes], str, int]] = deque()
    held = 0
    with ThreadPoolExecutor(max(1, threads), thread_name_prefix="shoal-precommit") as pool:
        try:
            for store, path, start, length in _pieces(sources, piece):
                while waiting and held + length > buffer:
                    held -= _written(*waiting.popleft(), sink)
                waiting.append((pool.submit(store.read_range, path, start, length), path, length))
                held += length
            while waiting:
                _written(*waiting.popleft(), sink)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _pieces(sources: Sequence[tuple[Store, str, int]], most: int) -> Iterator[tuple[Store, str, int, int]]:
    for store, path, size in sources:
        for start in range(0, size, most):
            yield store, path, start, min(most, size - start)


def _written(read: Future[bytes], path: str, length: int, sink: Sink) -> int:
    data = read.result()
    if len(data) != length:
        raise Corrupt(f"{path} is shorter than the writer said", hint="write the checkpoint again")
    sink.write(data)
    return length
