# SPDX-License-Identifier: Apache-2.0
"""Parquet, CSV and JSON-lines files, read one after another as one stream of change rows.

A column may hold the row kind; without it every row is an insert. Rows are due all at once, by a column
of times, or at a steady rate. A stream keeps the order of the files, then of the rows in them.

Invariant: one block of one file is in memory at a time, plus the rows of the take. A position is the
number of rows before it, so a cold start skips whole Parquet row groups and re-reads CSV and JSON.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from shoal.errors import BadRequest, Corrupt, NotFound, StorageFailed, near
from shoal.flow.source import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Changes, check_take

Seconds: TypeAlias = npt.NDArray[np.float64]
Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

# Paimon's and Flink's words, their letters, and Debezium's `op` (r is a row of the first read).
KIND_WORDS = {
    "+I": INSERT,
    "-U": UPDATE_BEFORE,
    "+U": UPDATE_AFTER,
    "-D": DELETE,
    "I": INSERT,
    "U": UPDATE_AFTER,
    "D": DELETE,
    "c": INSERT,
    "r": INSERT,
    "u": UPDATE_AFTER,
    "d": DELETE,
}
_WORDS, _CODES = pa.array(list(KIND_WORDS)), pa.array(list(KIND_WORDS.values()), pa.int8())

PARQUET_ROWS = 16_384
PAGE_BYTES = 256 << 10
TEXT_BYTES = 1 << 20
# Enough of both ends to tell two files apart without reading them whole.
EDGE_BYTES = 64 << 10
ASK_SCHEMA = "give FilesSource(schema=...) with the types you mean"


class FilesSource:
    """The rows of files in order; `paths` is a path, a glob, or a list of them. A glob is sorted by name.

    `time_column` with `speed` makes each row due at its time, counted from the first time of the stream; a row
    whose time is missing or earlier than one before it is due together with the row before it. Integers are
    epoch milliseconds.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        kind_column: str | None = None,
        time_column: str | None = None,
        speed: float | None = None,
        rows_per_second: float | None = None,
        primary_key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        schema: pa.Schema | None = None,
    ) -> None:
        self._kind, self._time = kind_column, time_column
        self._speed, self._rate = _check_pace(time_column, speed, rows_per_second)
        self._files, self._columns = _open_all(_find(paths), schema)
        self.primary_key, self.partition_by = tuple(primary_key), tuple(partition_by)
        for name in (kind_column, time_column, *self.primary_key, *self.partition_by):
            if name is not None and name not in self._columns.names:
                raise BadRequest(
                    f"{self._files[0].path} has no column {name!r}",
                    hint=near(name, self._columns.names) or f"its columns are {', '.join(self._columns.names)}",
                )
        if time_column is not None:
            _check_time_type(time_column, self._columns.field(time_column).type)
        self.schema: pa.Schema = pa.schema([field for field in self._columns if field.name != kind_column])
        self._cursor: _Cursor | None = None

    @property
    def total(self) -> int | None:
        """Known from the start for Parquet; for CSV and JSON once they have been read to their end."""
        counts = [file.rows for file in self._files]
        return None if None in counts else sum(count for count in counts if count is not None)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self._kind}\n{self._columns.to_string(show_field_metadata=False)}".encode())
        for file in self._files:
            with _reading(file.path), open(file.path, "rb") as opened:
                edges = opened.read(EDGE_BYTES)
                opened.seek(max(len(edges), file.size - EDGE_BYTES))
                edges += opened.read(EDGE_BYTES)
            digest.update(f"\n{Path(file.path).name} {file.size} ".encode() + hashlib.sha256(edges).digest())
        return f"files-1 {len(self._files)} sha256={digest.hexdigest()[:32]}"

    def take(self, position: int, *, until_s: float | None, max_rows: int) -> Changes:
        """Up to `max_rows` rows from `position` that are due at `until_s`."""
        check_take(position, max_rows, self.total)
        cursor, self._cursor = self._cursor, None  # a take that fails leaves no half-moved cursor behind
        if cursor is None or cursor.position != position:
            cursor = self._seek(position)
        rows, kinds = [], []
        wanted = max_rows
        while wanted and (block := cursor.block()) is not None:
            due = block.rows.num_rows if until_s is None else int(np.searchsorted(block.due_s, until_s, side="right"))
            if due == 0:
                break
            part = cursor.advance(min(due, wanted))
            wanted -= part.rows.num_rows
            kinds.append(self._kinds(part))
            rows.append(pa.RecordBatch.from_arrays([part.rows[n] for n in self.schema.names], schema=self.schema))
        ahead = cursor.block()
        self._cursor = cursor
        return Changes(
            rows=pa.concat_batches(rows) if rows else pa.RecordBatch.from_pylist([], schema=self.schema),
            kinds=pa.concat_arrays(kinds) if kinds else pa.array([], pa.int8()),
            position=cursor.position,
            at_s=cursor.at_s,
            next_s=float(ahead.due_s[0]) if ahead is not None else None,
        )

    def _kinds(self, block: _Block) -> pa.Int8Array:
        if self._kind is None:
            return pa.array(np.full(block.rows.num_rows, INSERT, np.int8))
        column = block.rows[self._kind]
        kinds = decode_kinds(column)
        if kinds.null_count:
            bad = pc.index(kinds.is_null(), True).as_py()
            raise BadRequest(
                f"{block.file.path} row {block.first + bad + 1}: "
                f"{column[bad].as_py()!r} in column {self._kind!r} is not a row kind",
                hint=f"row kinds are {', '.join(KIND_WORDS)} or 0 to 3",
            )
        return kinds

    def _seek(self, position: int) -> _Cursor:
        """A cursor at `position`; with a time column, the times before it are read once more."""
        pace = _Pace(self._rate, self._time, self._speed)
        pace.position = position
        number, before = 0, position
        while before and number < len(self._files):
            file = self._files[number]
            rows = file.rows if file.rows is not None else file.count()
            if self._time is not None:
                for times in file.read(0, min(rows, before), [self._time]):
                    pace.see(times[self._time])
            if before < rows:
                break
            number, before = number + 1, before - rows
        if before and number == len(self._files):
            check_take(position, 1, self.total)  # now that every count is known, this says how many there are
        return _Cursor(self._files[number:], before, position, pace)


def decode_kinds(column: pa.Array) -> pa.Int8Array:
    """Row kinds 0 to 3 of a column of words or numbers; null where a value is not a row kind.

    >>> decode_kinds(pa.array(["+I", "d", "what"])).to_pylist()
    [0, 3, None]
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        known = pc.and_(pc.greater_equal(column, INSERT), pc.less_equal(column, DELETE))
        return pc.if_else(known, column, pa.scalar(None, column.type)).cast(pa.int8())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _CODES.take(pc.index_in(column.cast(pa.string()), _WORDS))
    return pa.nulls(len(column), pa.int8())


# -- where a stream stands, and when its rows are due ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive rows of one file; `first` is the number of rows before them in that file."""

    file: _File
    first: int
    rows: pa.RecordBatch
    due_s: Seconds


class _Cursor:
    """Reads the files on from a position and holds the one block it stands in."""

    def __init__(self, files: list[_File], first: int, position: int, pace: _Pace) -> None:
        self.position = position
        self.at_s = pace.before_s
        self._blocks = self._read(files, first, pace)
        self._block: _Block | None = None

    def block(self) -> _Block | None:
        """The rows that come next, at least one, or None at the end."""
        if self._block is None:
            self._block = next(self._blocks, None)
        return self._block

    def advance(self, count: int) -> _Block:
        """Move over the first `count` rows of `block()` and return them."""
        block = self._block
        assert block is not None and 0 < count <= block.rows.num_rows
        taken = _Block(block.file, block.first, block.rows.slice(0, count), block.due_s[:count])
        left = _Block(block.file, block.first + count, block.rows.slice(count), block.due_s[count:])
        self._block = left if left.rows.num_rows else None
        self.position += count
        self.at_s = float(taken.due_s[-1])
        return taken

    @staticmethod
    def _read(files: list[_File], first: int, pace: _Pace) -> Iterator[_Block]:
        for file in files:
            for rows in file.read(first):
                yield _Block(file, first, rows, pace.due(rows))
                first += rows.num_rows
            file.rows = first
            first = 0


class _Pace:
    """Due seconds of consecutive rows: all zero, by their number, or by their time. They never go down."""

    def __init__(self, rate: float | None, time_column: str | None, speed: float) -> None:
        self.position = 0
        self._rate, self._time, self._speed = rate, time_column, speed
        self._origin: int | None = None
        self._latest = 0.0

    @property
    def before_s(self) -> float:
        """When the last row so far was due."""
        if self._rate is not None:
            return max(0, self.position - 1) / self._rate
        return self._latest

    def due(self, rows: pa.RecordBatch) -> Seconds:
        first, count = self.position, rows.num_rows
        self.position += count
        if self._rate is not None:
            return np.arange(first, first + count) / self._rate
        if self._time is not None:
            return self.see(rows[self._time])
        return np.zeros(count)

    def see(self, times: pa.Array) -> Seconds:
        if not pa.types.is_integer(times.type):
            # Microseconds hold every date; nanoseconds end in 2262.
            times = times.cast(pa.timestamp("us", getattr(times.type, "tz", None)), safe=False)
            unit = 1e6
        else:
            unit = 1e3
        known = times.is_valid().to_numpy(zero_copy_only=False)
        values = times.cast(pa.int64()).fill_null(0).to_numpy()
        if self._origin is None and known.any():
            self._origin = int(values[np.argmax(known)])
        due = np.full(len(values), self._latest)
        if self._origin is not None:
            due[known] = (values[known] - self._origin) / unit / self._speed
        due = np.maximum.accumulate(np.maximum(due, self._latest))
        if len(due):
            self._latest = float(due[-1])
        return due


def _check_pace(time_column: str | None, speed: float | None, rate: float | None) -> tuple[float, float | None]:
    if (time_column is None) != (speed is None):
        raise BadRequest("time_column and speed belong together", hint="speed=1.0 plays the rows at their real times")
    if time_column is not None and rate is not None:
        raise BadRequest("rows are due by time_column or by rows_per_second, not by both")
    for name, value in (("speed", speed), ("rows_per_second", rate)):
        if value is not None and not value > 0:
            raise BadRequest(f"{name} is {value}; it must be above 0")
    return speed if speed is not None else 1.0, rate


def _check_time_type(name: str, kind: pa.DataType) -> None:
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_integer(kind)):
        raise BadRequest(
            f"the time column {name!r} is {kind}", hint=f"it must be a timestamp, a date or epoch ms; {ASK_SCHEMA}"
        )


# -- files -------------------------------------------------------------------------------------------------------


class _File:
    """One file. `rows` is known at once for Parquet, and for text once it was read to its end."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows: int | None = None
        self.schema: pa.Schema = pa.schema([])
        with _reading(path):
            self.size = os.stat(path).st_size

    def look(self, like: pa.Schema | None) -> None:
        """Find the schema. Text has no types of its own: it takes those of `like` for the columns it shares."""
        raise NotImplementedError

    def batches(self, columns: pa.Schema, skip: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches in order, each with the number of rows before it; batches before row `skip` may be left out."""
        raise NotImplementedError

    def blame(self, types: pa.Schema) -> str | None:
        """The column that cannot be read, once reading has failed."""
        return None

    def read(self, first: int, stop: int | None = None, names: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows from `first` to before `stop` (None is the end), never an empty batch."""
        if stop is not None and first >= stop:
            return
        columns = self.schema if names is None else pa.schema([self.schema.field(name) for name in names])
        with _reading(self.path, lambda: self.blame(columns)):
            if os.stat(self.path).st_size != self.size:
                raise BadRequest(
                    f"{self.path} changed after the source was opened",
                    hint="positions hold for unchanged files only; put new rows into new files and start a new job",
                )
            for start, batch in self.batches(columns, first):
                low = max(0, first - start)
                high = batch.num_rows if stop is None else min(batch.num_rows, stop - start)
                if low < high:
                    yield batch.slice(low, high - low)
                if stop is not None and start + batch.num_rows >= stop:
                    return

    def count(self) -> int:
        """Read one column to the end to learn how many rows there are."""
        self.rows = sum(batch.num_rows for batch in self.read(0, names=self.schema.names[:1]))
        return self.rows


class _Parquet(_File):
    def look(self, like: pa.Schema | None) -> None:
        with _reading(self.path), pq.ParquetFile(self.path) as file:
            self.rows = file.metadata.num_rows
            self.schema = file.schema_arrow

    def batches(self, columns: pa.Schema, skip: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        # Buffered reading takes pages as they are needed; the default loads a whole row group first.
        with pq.ParquetFile(self.path, pre_buffer=False, buffer_size=PAGE_BYTES) as file:
            start = 0
            for group in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if start + size <= skip:
                    start += size
                    continue
                for batch in file.iter_batches(
                    PARQUET_ROWS, row_groups=[group], columns=columns.names, use_threads=False
                ):
                    yield start, batch
                    start += batch.num_rows


class _Text(_File):
    """CSV or JSON lines: parsed from the start every time, in blocks."""

    def stream(self, types: pa.Schema, *, only: bool) -> Iterator[pa.RecordBatch]:
        """Batches with the columns and types of `types`; with `only`, other columns are passed over."""
        raise NotImplementedError

    def batches(self, columns: pa.Schema, skip: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        start = 0
        for batch in self.stream(columns, only=columns.names != self.schema.names):
            yield start, batch
            start += batch.num_rows

    def blame(self, types: pa.Schema) -> str | None:
        # Arrow names no column for JSON, and a number for CSV: the one that fails alone is the one.
        for field in types:
            try:
                for _ in self.stream(pa.schema([field]), only=True):
                    pass
            except pa.ArrowException:
                return str(field.name)
        return None


class _Csv(_Text):
    def look(self, like: pa.Schema | None) -> None:
        types = like if like is not None else pa.schema([])
        with _reading(self.path, lambda: self.blame(types)), self._open(types) as reader:
            self.schema = _no_null_types(reader.schema)

    def stream(self, types: pa.Schema, *, only: bool) -> Iterator[pa.RecordBatch]:
        with self._open(types, types.names if only else None) as reader:
            yield from reader

    def _open(self, types: pa.Schema, names: list[str] | None = None) -> pacsv.CSVStreamingReader:
        # Nothing between two commas is null; "" is an empty text. Words like NA stay words.
        convert = pacsv.ConvertOptions(
            column_types=types,
            include_columns=names,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        read = pacsv.ReadOptions(use_threads=False, block_size=TEXT_BYTES)
        return pacsv.open_csv(self.path, read_options=read, convert_options=convert)


class _Json(_Text):
    def look(self, like: pa.Schema | None) -> None:
        """A key that a whole file leaves out is null there: that is how JSON lines say it."""
        if self.size == 0:
            self.rows = 0
            self.schema = like if like is not None else pa.schema([])
            return
        blame_in = like if like is not None else pa.schema([])
        with _reading(self.path, lambda: self.blame(blame_in)), self._open(like, "infer") as reader:
            self.schema = _no_null_types(reader.schema)

    def stream(self, types: pa.Schema, *, only: bool) -> Iterator[pa.RecordBatch]:
        if self.size == 0:
            return
        # Past its first block Arrow would drop keys it has not seen; "error" refuses them instead.
        with self._open(types, "ignore" if only else "error") as reader:
            yield from reader

    def blame(self, types: pa.Schema) -> str | None:
        return super().blame(types) or self._new_key(types)

    def _new_key(self, types: pa.Schema) -> str | None:
        # Line by line, because Arrow does not say which key it did not expect; it runs once, for the message.
        with open(self.path, encoding="utf-8") as lines:
            for line in lines:
                new = [key for key in json.loads(line.strip() or "{}") if key not in types.names]
                if new:
                    return str(new[0])
        return None

    def _open(self, types: pa.Schema | None, unexpected: str) -> pajson.JSONStreamingReader:
        return pajson.open_json(
            self.path,
            read_options=pajson.ReadOptions(use_threads=False, block_size=TEXT_BYTES),
            parse_options=pajson.ParseOptions(explicit_schema=types, unexpected_field_behavior=unexpected),
        )


FORMATS: dict[str, type[_File]] = {".parquet": _Parquet, ".csv": _Csv, ".jsonl": _Json, ".ndjson": _Json}


def _find(paths: Paths) -> list[str]:
    """Every path as it was given, with globs replaced by the files they match."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise BadRequest("no files were given")
    found: list[str] = []
    for item in given:
        path = os.fspath(item)
        if os.path.isdir(path):
            raise BadRequest(f"{path} is a directory", hint=f"give a glob, as in {os.path.join(path, '*.parquet')}")
        if not os.path.exists(path) and glob.has_magic(path):
            matched = sorted(name for name in glob.glob(path, recursive=True) if not os.path.isdir(name))
            if not matched:
                raise NotFound(f"no file matches {path}", hint="quote the glob and check the folder")
            found += matched
        elif not os.path.exists(path):
            folder = os.path.dirname(path) or "."
            around = os.listdir(folder) if os.path.isdir(folder) else []
            raise NotFound(f"there is no file {path}", hint=near(os.path.basename(path), around))
        else:
            found.append(path)
    return found


def _open_all(paths: list[str], schema: pa.Schema | None) -> tuple[list[_File], pa.Schema]:
    """The files and the schema they share: the one given, or that of the first file that has columns."""
    files = []
    first: str | None = None
    for path in paths:
        extension = os.path.splitext(path)[1].lower()
        if extension not in FORMATS:
            raise BadRequest(f"{path} is not a kind of file shoal streams", hint=f"endings are {', '.join(FORMATS)}")
        file = FORMATS[extension](path)
        file.look(schema)
        if schema is None and file.schema.names:
            schema, first = file.schema, path
        if schema is not None:
            _check_same(file, schema, first)
            file.schema = schema
        files.append(file)
    if schema is None:
        raise BadRequest(f"{paths[0]} is empty and gives no columns", hint=ASK_SCHEMA)
    for file in files:
        file.schema = schema  # also of an empty file before the first one with columns
    # Nullable, because a later file may have nulls where the first one promises none.
    return files, pa.schema([pa.field(field.name, field.type) for field in schema])


def _check_same(file: _File, schema: pa.Schema, first: str | None) -> None:
    """Same columns with the same types, in any order."""
    names = file.schema.names
    other = f"as in {first}" if first is not None else "as in the schema given"
    for name in names:
        if names.count(name) > 1:
            raise BadRequest(f"{file.path} has the column {name!r} twice")
        if name not in schema.names:
            raise BadRequest(f"{file.path} has a column {name!r} that is not expected, {other}", hint=ASK_SCHEMA)
    for field in schema:
        if field.name not in names:
            raise BadRequest(f"{file.path} has no column {field.name!r}, {other}", hint=near(field.name, names))
        found = file.schema.field(field.name).type
        if found != field.type:
            raise BadRequest(f"{file.path} column {field.name!r} is {found}, not {field.type} {other}", hint=ASK_SCHEMA)


def _no_null_types(schema: pa.Schema) -> pa.Schema:
    """A column that is empty so far could become anything; text can hold it."""
    return pa.schema([pa.field(f.name, pa.string() if pa.types.is_null(f.type) else f.type) for f in schema])


@contextmanager
def _reading(path: str, blame: Callable[[], str | None] = lambda: None) -> Iterator[None]:
    """Say in shoal's words what went wrong with a file; `blame` finds the column when a value has another type."""
    try:
        yield
    except FileNotFoundError as err:
        raise NotFound(f"there is no file {path}") from err
    except (pa.ArrowException, OSError) as err:
        if isinstance(err, OSError) and err.errno is not None:
            raise StorageFailed(f"cannot read {path}: {os.strerror(err.errno)}") from err
        said = str(err).splitlines()[0]
        if re.search("conversion error|Failed to convert|changed from|unexpected field", said):
            column = blame()
            raise BadRequest(
                f"{path} column {column!r}: {said}" if column else f"{path}: {said}", hint=ASK_SCHEMA
            ) from err
        raise Corrupt(
            f"{path} cannot be read: {said}", hint="the file may be cut short or have another format"
        ) from err
