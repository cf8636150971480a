# SPDX-License-Identifier: Apache-2.0
"""Format tables: a folder of plain Parquet, ORC, CSV, JSON or text files, with partitions as Hive lays them out.

Agrees with: FormatTable, FormatTableScan, FileSystemSplitEnumerator, PartitionPathUtils, FormatReadBuilder (2.0.0).
Invariant: there is no metadata but the folder: hidden names (`_` or `.` in front) hold no rows, columns are matched by
name, partition columns come from folder names, and the filter is applied exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from shoal.errors import BadRequest, Corrupt, Unsupported, near
from shoal.format.schema import Schema
from shoal.format.text_formats import TextOptions, read_text
from shoal.format.text_values import parsed
from shoal.format.types import Field, arrow_schema, to_arrow
from shoal.store.base import Store
from shoal.table.frames import Frames
from shoal.table.partition_pruning import keep_partitions

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

FORMATS = ("parquet", "orc", "csv", "json", "text")
_ROWS = 65_536
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")


def is_format_table(schema: Schema) -> bool:
    return schema.options.get("type", "").lower() == "format-table"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition's folder (with a final slash) and its values as one-element Arrow columns, in key order."""

    folder: str
    values: tuple[pa.Array, ...]


class FormatTable:
    """One format table: it can be scanned, and nothing else."""

    def __init__(self, name: str, store: Store, schema: Schema) -> None:
        self.name = name
        self.store = store
        self.schema = schema
        options = schema.options
        self.format = options.get("file.format", "parquet").lower()
        if self.format not in FORMATS:
            raise Unsupported(
                f"{name}: format tables of '{self.format}' files cannot be read", hint=f"known: {', '.join(FORMATS)}"
            )
        self.default_name = options.get("partition.default-name", "__DEFAULT_PARTITION__")
        self.values_only = options.get("format-table.partition-path-only-value", "false").lower() == "true"
        self.text = TextOptions.of(self.format, options) if self.format in ("csv", "json", "text") else TextOptions()

    def __repr__(self) -> str:
        return f"<FormatTable {self.name} at {self.store.uri}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Unsupported(
            f"{self.name} is a format table and has no {name}", hint="it is plain files in folders: only scan reads it"
        )

    @property
    def primary_key(self) -> tuple[str, ...]:
        return ()

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return arrow_schema(self.schema.fields)

    def scan(
        self,
        where: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        **travel: object,
    ) -> FormatScan:
        """Rows of the files that are there now. The arguments are those of `Table.scan`."""
        asked = [name for name, value in travel.items() if value is not None]
        if asked:
            raise BadRequest(
                f"{self.name} is a format table and has no {asked[0]}", hint="it has no snapshots: read it as it is now"
            )
        return FormatScan(self, where, columns, limit)

    def write(self, commit_user: str | None = None) -> NoReturn:
        raise Unsupported(
            f"{self.name} is a format table and cannot be written", hint="write its files with Flink or Spark"
        )

    # ---- folders and files

    def partitions(self) -> Iterator[Partition]:
        """Partitions by the names of their folders; a folder that is no partition is passed over."""
        keys = self.schema.partition_fields
        folders: list[tuple[str, tuple[str, ...]]] = [("", ())]
        for f in keys:
            folders = [
                (f"{folder}{name}/", (*values, text))
                for folder, values in folders
                for name in self.store.list_dir(folder.rstrip("/"))[0]
                if (text := self._value(name, f)) is not None and not (folder == "" and self._is_schema(name))
            ]
        for folder, texts in folders:
            yield Partition(folder, tuple(self._typed(t, f, folder) for t, f in zip(texts, keys)))

    def _value(self, name: str, f: Field) -> str | None:
        """The text of a partition value that a folder's name holds, or None when it is no partition of this key."""
        if self.values_only:
            return unescape(name) if name == self.default_name or not is_hidden(name) else None
        key, equals, value = name.rpartition("=")
        good = equals and key and value and not is_hidden(name) and unescape(key) == f.name
        return unescape(value) if good else None

    def _typed(self, text: str, f: Field, folder: str) -> pa.Array:
        import pyarrow as pa

        if text == self.default_name:
            return pa.nulls(1, to_arrow(f.type))
        values, bad = parsed(pa.array([text], pa.string()), f.type)
        if bad.any():
            raise Corrupt(
                f"{self.name}: folder '{folder}' holds no value of {f.name} {f.type}",
                hint="rename or remove the folder, or give it a name that begins with _ to hide it",
            )
        return values

    def files(self, folder: str) -> list[str]:
        """Data files below a folder, sorted; whole hidden folders are left out."""
        found, left = [], [folder]
        while left:
            at = left.pop()
            folders, names = self.store.list_dir(at.rstrip("/"))
            found += [at + n for n in names if not is_hidden(n)]
            left += [f"{at}{n}/" for n in folders if not is_hidden(n) and not (at == "" and self._is_schema(n))]
        return sorted(found)

    def _is_schema(self, name: str) -> bool:
        """The schema folder of a warehouse table is not data."""
        return name == "schema" and any(n.startswith("schema-") for n in self.store.list_dir("schema")[1])


def is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def unescape(name: str) -> str:
    """A folder name as the text it stands for.

    >>> unescape("a%3Ab%zz")
    'a:b%zz'
    """
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)), name)


class FormatScan(Frames):
    """A query over a format table. Nothing is listed or read before the rows are asked for."""

    def __init__(
        self,
        table: FormatTable,
        where: str | pc.Expression | None,
        columns: Sequence[str] | None,
        limit: int | None,
    ) -> None:
        names = table.schema.names
        self.table = table
        self.columns = tuple(names if columns is None else columns)
        for c in self.columns:
            if c not in names:
                raise BadRequest(
                    f"{table.name} has no column '{c}'", hint=near(c, names) or f"it has {', '.join(names)}"
                )
        if limit is not None and limit < 0:
            raise BadRequest(f"limit {limit} is negative")
        self.limit = limit
        self.where, self._asked = _condition(where, table.arrow_schema)

    def again(self, where: str | pc.Expression | None, columns: Sequence[str] | None = None) -> FormatScan:
        """The same table with another filter and other columns."""
        return FormatScan(self.table, where, columns, self.limit)

    @property
    def snapshot(self) -> None:
        """There are no snapshots."""
        return None

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the result: what a file lacks is null, whatever the table declares."""
        import pyarrow as pa

        fields = arrow_schema([self.table.schema.field(c) for c in self.columns])
        return pa.schema([f.with_nullable(True) for f in fields])

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, streamed: partitions in the order of their folders, files by name."""
        import pyarrow as pa

        left = self.limit
        for batch in self._rows() if left != 0 else ():
            if self.where is not None:
                table = pa.Table.from_batches([batch]).filter(self.where).combine_chunks()
                batch = table.to_batches()[0] if table.num_rows else batch.slice(0, 0)
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.select(list(self.columns)).columns, schema=self.schema)
            if left == 0:
                return

    # ---- rows

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Rows with the wanted columns and those of the filter."""
        import pyarrow as pa

        schema = self.table.schema
        names = dict.fromkeys((*self.columns, *self._asked))
        data = [f for f in schema.fields if f.name not in schema.partition_keys]
        wanted = [f for f in data if f.name in names] or data[:1]  # one column at least: rows must be counted
        for partition in self._partitions():
            fixed = dict(zip(schema.partition_keys, partition.values))
            for path in self.table.files(partition.folder):
                for batch in self._file(path, data, wanted):
                    columns = {f.name: batch.column(f.name) for f in wanted}
                    for name, value in fixed.items():
                        columns[name] = pa.repeat(value[0], batch.num_rows)
                    yield pa.RecordBatch.from_arrays([columns[n] for n in names], list(names))

    def _partitions(self) -> list[Partition]:
        """Partitions that may hold a row the filter wants."""
        schema = self.table.schema
        found = list(self.table.partitions())
        if self.where is None or not set(schema.partition_keys) & set(self._asked):
            return found
        kept = keep_partitions(
            schema.partition_keys, [[v[0] for v in p.values] for p in found], self.where, schema.fields
        )
        return [p for p, k in zip(found, kept) if k]

    def _file(self, path: str, data: Sequence[Field], wanted: Sequence[Field]) -> Iterator[pa.RecordBatch]:
        table = self.table
        if table.format in ("csv", "json", "text"):
            yield from read_text(table.store, path, table.format, table.text, data, wanted)
        else:
            yield from _columnar(table, path, data, wanted)


def _condition(where: str | pc.Expression | None, schema: pa.Schema) -> tuple[pc.Expression | None, list[str]]:
    """The filter, and the columns it names."""
    if where is None:
        return None, []
    from shoal.table.where import columns_of, parse

    expression = parse(where, schema) if isinstance(where, str) else where
    return expression, columns_of(expression, schema)


def _columnar(
    table: FormatTable, path: str, data: Sequence[Field], wanted: Sequence[Field]
) -> Iterator[pa.RecordBatch]:
    """Rows of a Parquet or ORC file, whatever its name ends with; its columns are found by name."""
    import pyarrow as pa

    reader: Any
    try:
        if table.format == "orc":
            from shoal.format.orc import OrcReader

            reader = OrcReader(table.store.open(path), data, path)
        else:
            from shoal.format.parquet_reader import ParquetReader

            reader = ParquetReader(table.store.open(path), data, path)
    except (pa.ArrowException, OSError) as err:
        raise _damaged(table, path, err) from err
    have = [f.name for f in wanted if f.name in reader.names]
    schema = pa.schema([pa.field(f.name, to_arrow(f.type)) for f in wanted])
    try:
        if not have:
            for at in range(0, reader.rows, _ROWS):
                n = min(_ROWS, reader.rows - at)
                yield pa.RecordBatch.from_arrays([pa.nulls(n, t) for t in schema.types], schema=schema)
            return
        for batch in reader.batches(have, _ROWS):
            arrays = [
                batch.column(f.name) if f.name in have else pa.nulls(batch.num_rows, schema.field(f.name).type)
                for f in wanted
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (pa.ArrowException, OSError) as err:
        raise _damaged(table, path, err) from err
    finally:
        reader.close()


def _damaged(table: FormatTable, path: str, err: BaseException) -> Corrupt:
    return Corrupt(
        f"{table.name}: {path} cannot be read as {table.format} ({str(err)[:200]})",
        hint="it is damaged, or of another format; hide it with a name that begins with _",
    )
