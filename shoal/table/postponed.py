# SPDX-License-Identifier: Apache-2.0
"""`postpone.merge-on-read`: a batch read that merges the rows of `bucket-postpone` into the buckets they belong to.

Rows of a partition's postponed files are read once, in chunks within the budget; each chunk is sorted by target bucket
and key, and put aside on disk when there is more than one. A bucket's merge then gets its part of every chunk as one
more run. Agrees with: PostponeMergeReadBuilder, PostponeMergeInputOperator, PostponeUtils,
MergeFileSplitRead.createPostponeMergeReader (2.0.0). Invariant: a postponed row counts as newer than every real row of
its partition; rows of one writer keep their order, and the n-th rows of two writers stand side by side.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from shoal.budget import Budget
from shoal.errors import BadRequest, Corrupt, StorageFailed, Unsupported
from shoal.format.datafile import DataFile
from shoal.format.hashing import buckets
from shoal.format.manifest import entries_of
from shoal.format.schema import LEVEL, SEQUENCE_NUMBER, VALUE_KIND
from shoal.format.types import Field, arrow_schema
from shoal.lsm.keys import Array, column_words, stable_order
from shoal.lsm.merge import SEQUENCE, RunInput, merge_runs
from shoal.lsm.sections import sections
from shoal.table.runs import BucketFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.scan import Scan
    from shoal.table.split import Split
    from shoal.table.table import Table

OPTION = "postpone.merge-on-read"
POSTPONED = -2
# Part of the budget that a chunk may take before it is sorted, which copies it.
_CHUNK_SHARE = 0.15
_READ_ROWS = 65_536
# Rows of a batch that is put aside, about.
_KEPT_ROWS = 8_192


def configured(table: Table) -> bool:
    """Whether reads of this table merge its postponed rows."""
    return bool(table.primary_key) and table.options.bucket == POSTPONED and bool(table.options.get(OPTION))


def refuse(table: Table, what: str) -> None:
    """Raise when the table merges postponed rows, which `what` cannot do."""
    if configured(table):
        raise Unsupported(
            f"{table.name}: '{OPTION}' is for batch reads of one snapshot, not for {what}",
            hint=f"read it with_options({{'{OPTION}': 'false'}})",
        )


def check(table: Table) -> None:
    """Raise where a merge of postponed rows has no meaning."""
    if configured(table) and table.options.scan_bucket is not None:
        raise BadRequest(
            f"{table.name}: 'scan.bucket' reads one bucket, '{OPTION}' spreads rows over all of them",
            hint="leave one of the two out",
        )


def merged(scan: Scan, split: Split, budget: Budget) -> Iterator[pa.RecordBatch]:
    """The rows of a partition with postponed rows, bucket after bucket."""
    real, late, count = _files(split)
    needed = _needed(scan)
    with ExitStack() as stack:
        chunks = _Chunks(scan.table, split, needed, count, budget, stack)
        newest = max((f.max_sequence for files in real.values() for f in files), default=-1)
        chunks.fill(_by_writer(scan.table, late), newest + 1)
        if scan.table.clustered and real:
            raise Unsupported(
                f"{scan.table.name}: '{OPTION}' cannot merge into files sorted by 'pk-clustering-override' columns",
                hint=f"read it with_options({{'{OPTION}': 'false'}})",
            )
        for bucket in range(max(count, max(real, default=0) + 1)):
            files = BucketFiles(
                scan.table, split.partition, bucket, needed, deletions=split.deletions,
                pruning=scan.file_pruning(merged=True),
            )  # fmt: skip
            runs = [files.run(run) for run in _runs(scan.table, real.get(bucket, ()))]
            yield from _bucket(scan, runs, chunks.runs(bucket), needed, budget)


def _bucket(
    scan: Scan, real: list[RunInput], late: list[RunInput], needed: Sequence[Field], budget: Budget
) -> Iterator[pa.RecordBatch]:
    rules = scan.table.rules
    names = [f.name for f in ([VALUE_KIND, *scan.read_fields] if scan.kinds else scan.read_fields)]
    if rules.engine is not None and real and late:
        # Java merges each side by itself first, and then the two results: a delete ends on its own side
        fields = [f for f in needed if f is not LEVEL]
        inner = budget.share(3)

        def side(runs: list[RunInput]) -> RunInput:
            def rows(_: int) -> Iterator[pa.RecordBatch]:
                import pyarrow as pa

                schema, columns = arrow_schema(fields), [f.name for f in fields]
                for b in merge_runs(runs, rules, columns, inner, drop_deletes=False, ordered=True):
                    yield pa.RecordBatch.from_arrays(b.columns, schema=schema)

            low, high = min(r.sequences[0] for r in runs), max(r.sequences[1] for r in runs)
            return RunInput(rows, max(r.row_bytes for r in runs), (low, high), sum(r.rows for r in runs))

        real, late, rules = [side(real)], [side(late)], replace(rules, lookup=False)
    if real or late:
        yield from merge_runs([*real, *late], rules, names, budget, drop_deletes=not scan.deletes, ordered=False)


def _needed(scan: Scan) -> list[Field]:
    """The columns that every run has."""
    table, rules = scan.table, scan.table.rules
    names = rules.needs([f.name for f in scan.read_fields if f.id != SEQUENCE_NUMBER.id])
    fields = [*(table.schema.field(n) for n in names), SEQUENCE_NUMBER, VALUE_KIND]
    return [*fields, LEVEL] if rules.lookup else fields


def _files(split: Split) -> tuple[dict[int, list[DataFile]], list[DataFile], int]:
    """(real files by bucket, postponed files, how many buckets the partition has)."""
    real: dict[int, list[DataFile]] = {}
    late: list[DataFile] = []
    counts = set()
    for e in entries_of(split.entries):
        if e.bucket >= 0:
            real.setdefault(e.bucket, []).append(e.file)
            counts.add(e.total_buckets)
        else:
            late.append(e.file)
    if len(counts) > 1:
        place = split.table.partition_path(split.partition).rstrip("/") or "the table"
        raise Corrupt(
            f"{split.table.name}: files of {place} were written for {' and '.join(map(str, sorted(counts)))} buckets",
            hint=f"rescale it ('shoal compact rescale', t.maintain.rescale()), or read without '{OPTION}'",
        )
    # a partition without real buckets has nothing to meet: its rows may stay in one
    return real, late, max(1, *counts) if counts else 1


def _runs(table: Table, files: Sequence[DataFile]) -> list[tuple[DataFile, ...]]:
    """The files of a bucket as few sorted runs: the i-th runs of its sections, one after the other."""
    deep = zip_longest(*sections(files, table.bounds), fillvalue=())
    return [tuple(f for run in runs for f in run) for runs in deep]


def _by_writer(table: Table, files: Sequence[DataFile]) -> list[list[DataFile]]:
    """The files of each writer in the order it wrote them; writers in the order of their first file."""
    found: dict[str, list[DataFile]] = {}
    for f in files:
        end = f.file_name.rfind("-w-")
        if end < 0:
            raise Corrupt(
                f"{table.name}: postponed file {f.file_name} does not name its writer",
                hint="its name should be like data-u-USER-s-0-w-UUID-0.avro; rows of unknown order cannot be merged",
            )
        found.setdefault(f.file_name[:end], []).append(f)
    return [sorted(of_one, key=lambda f: f.creation_ms or 0) for of_one in found.values()]


# ---- chunks ----------------------------------------------------------------------------------------------


@dataclass
class _Chunk:
    """Rows in the order of bucket, key and sequence: in memory, or in a file that gives single batches."""

    row_bytes: float
    sequences: tuple[int, int]
    held: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    kept: dict[int, tuple[int, int]] = field(default_factory=dict)  # numbers of a bucket's batches in the file
    rows: dict[int, int] = field(default_factory=dict)
    file: IO[bytes] | None = None

    def run(self, bucket: int) -> RunInput:
        # versions of a key lie together, ascending: the run may hold a key more than once
        return RunInput(
            lambda _: self._batches(bucket), self.row_bytes, self.sequences, self.rows[bucket], unique=False
        )

    def _batches(self, bucket: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.ipc as ipc

        if self.file is None:
            yield from self.held[bucket]
            return
        self.file.seek(0)
        reader = ipc.open_file(pa.PythonFile(self.file, "r"))
        for i in range(*self.kept[bucket]):
            yield reader.get_batch(i)


class _Chunks:
    """Postponed rows of one partition, to be had bucket by bucket."""

    def __init__(
        self, table: Table, split: Split, needed: Sequence[Field], count: int, budget: Budget, stack: ExitStack
    ) -> None:
        self._table = table
        self._needed = needed
        self._schema = arrow_schema(list(needed))
        stored = [f for f in needed if f is not SEQUENCE_NUMBER]
        self._files = BucketFiles(table, split.partition, POSTPONED, stored, deletions=split.deletions)
        self._count = count
        self._budget = budget
        self._stack = stack
        self._chunks: list[_Chunk] = []

    def runs(self, bucket: int) -> list[RunInput]:
        return [c.run(bucket) for c in self._chunks if bucket in c.rows]

    def fill(self, writers: Sequence[Sequence[DataFile]], base: int) -> None:
        """Read the files. The n-th row of the w-th of W writers gets the sequence number base + n * W + w."""
        import pyarrow as pa

        limit, size = self._budget.total * _CHUNK_SHARE, 0
        waiting: list[pa.RecordBatch] = []
        for w, files in enumerate(writers):
            n = 0
            for batch in self._files.batches(files, _READ_ROWS):
                if not batch.num_rows:
                    continue
                numbers = base + np.arange(n, n + batch.num_rows, dtype=np.int64) * len(writers) + w
                n += batch.num_rows
                arrays = [pa.array(numbers) if f is SEQUENCE_NUMBER else batch.column(f.name) for f in self._needed]
                waiting.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
                size += waiting[-1].nbytes
                if size >= limit:
                    self._sort(waiting, size, aside=True)
                    waiting, size = [], 0
        if waiting:
            self._sort(waiting, size, aside=bool(self._chunks))

    def _sort(self, batches: list[pa.RecordBatch], size: int, *, aside: bool) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(batches).combine_chunks()
        bucket = self._targets(table)
        words = [bucket.astype(np.uint64)]
        for name in (*self._table.rules.keys, SEQUENCE):
            words += column_words(_column(table, name))
        order, _ = stable_order(words)
        first = np.zeros(len(order), bool)
        first[0] = True
        for w in words[:-1]:  # without the sequence number: where another key begins
            here = w[order]
            first[1:] |= here[1:] != here[:-1]
        numbers = table.column(SEQUENCE).to_numpy()
        chunk = _Chunk(size / len(order), (int(numbers.min()), int(numbers.max())))
        table, bucket = table.take(pa.array(order)), bucket[order]
        parts = _cut(table, bucket, first)
        if aside:
            self._put_aside(chunk, parts)
        else:
            self._budget.reserve(size)
            self._stack.callback(self._budget.release, size)
            for b, part in parts:
                chunk.held.setdefault(b, []).append(part)
                chunk.rows[b] = chunk.rows.get(b, 0) + part.num_rows
        self._chunks.append(chunk)

    def _targets(self, table: pa.Table) -> Array:
        """The bucket that each row belongs to."""
        if self._count == 1:
            return np.zeros(table.num_rows, np.int32)
        fields = [self._table.schema.field(k) for k in self._table.bucket_key]
        columns = [_column(table, f.name) for f in fields]
        return buckets(columns, [f.type for f in fields], self._count, self._table.options.bucket_function)

    def _put_aside(self, chunk: _Chunk, parts: Iterator[tuple[int, pa.RecordBatch]]) -> None:
        import pyarrow as pa
        import pyarrow.ipc as ipc

        # it has no name, so that nothing is left behind whatever ends the process
        file: Any = tempfile.TemporaryFile(prefix="shoal-postponed-")  # noqa: SIM115 - closed by the stack
        self._stack.callback(file.close)
        try:
            options = ipc.IpcWriteOptions(compression="lz4")
            with ipc.new_file(pa.PythonFile(file, "w"), self._schema, options=options) as writer:
                for i, (b, part) in enumerate(parts):
                    writer.write_batch(part)
                    chunk.kept[b] = (chunk.kept.get(b, (i, i))[0], i + 1)
                    chunk.rows[b] = chunk.rows.get(b, 0) + part.num_rows
        except OSError as err:
            raise StorageFailed(
                f"{self._table.name}: cannot put postponed rows aside in {tempfile.gettempdir()}: {err}",
                hint="set TMPDIR to a larger disk, or compact the table",
            ) from err
        chunk.file = file


def _cut(table: pa.Table, bucket: Array, first: Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Sorted rows in batches of one bucket each; all versions of a key are in one batch."""
    begins = np.flatnonzero(first)
    changes = np.flatnonzero(np.append(True, bucket[1:] != bucket[:-1]))
    at = np.searchsorted(begins, np.arange(0, len(first), _KEPT_ROWS))
    cuts = np.unique(np.concatenate([begins[at[at < len(begins)]], changes, [len(first)]])).tolist()
    for a, b in pairwise(cuts):
        yield int(bucket[a]), table.slice(a, b - a).combine_chunks().to_batches()[0]


def _column(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()
