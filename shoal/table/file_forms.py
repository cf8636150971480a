# SPDX-License-Identifier: Apache-2.0
"""How a table's new files are written: format, compression, names and bounds, by level or for changelogs.

Agrees with: KeyValueFileWriterFactory, DataFilePathFactory, StatsCollectorFactories, BaseAppendFileStoreWrite (2.0.0).
Invariant: levels matter to tables with a primary key only; what a changelog option leaves out, the level decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from shoal.budget import DEFAULT_BYTES
from shoal.errors import Unsupported
from shoal.format import stats
from shoal.format.data_writer import DataWriter, FileForm
from shoal.format.schema import SEQUENCE_NUMBER, VALUE_KIND, Schema
from shoal.format.types import Field

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.options import Options
    from shoal.store.base import Sink

# What file names say of a codec, where that is not its own name.
_EXTENSIONS = {"none": None, "gzip": "gz", "bzip2": "bz2", "zstd": "zst"}
_TEXT = ("csv", "json")
# Parts of the memory that a row group may take while it waits: it is encoded beside itself. Readers take whole stripes
# of ORC, decoded twice while they become Arrow's, and a merge has many files open.
_GROUP_SHARE = 16
_STRIPE_SHARE = 64


class FileForms:
    """The forms of one writer's files, each made once."""

    def __init__(self, schema: Schema, options: Options, memory: int = DEFAULT_BYTES) -> None:
        """`memory` is what the writer may use in all."""
        self._schema = schema
        self._options = options
        self._memory = memory
        self._forms: dict[tuple[int, bool], FileForm] = {}

    def of(self, level: int, changelog: bool = False, columns: Sequence[Field] | None = None) -> FileForm:
        """The form of data files of this level, or of changelog files; of whole rows, or of some `columns`."""
        if columns is not None:
            return self._made(level, changelog, tuple(columns))
        key = level if self._schema.primary_keys else 0, changelog
        if key not in self._forms:
            self._forms[key] = self._made(*key, None)
        return self._forms[key]

    def _made(self, level: int, changelog: bool, columns: tuple[Field, ...] | None) -> FileForm:
        o, schema = self._options, self._schema
        form = self._choice("file.format", level, changelog).lower()
        compression = self._choice("file.compression", level, changelog)
        thin = columns is None and bool(schema.primary_keys) and bool(o.get("data-file.thin-mode"))
        fields = columns or ((SEQUENCE_NUMBER, VALUE_KIND, *schema.fields) if thin else schema.file_fields)
        kept = stats.limits(
            [f.name for f in fields],
            self._choice("metadata.stats-mode", level, changelog),
            o.column_stats_mode,
            first=cast(int, o.get("metadata.stats-keep-first-n-columns")),
            keys=schema.trimmed_keys if thin else (),
            plain=form == "avro",
        )
        prefix = o.get("changelog-file.prefix" if changelog else "data-file.prefix")
        opener = writer_of(form, fields, compression, kept, o, self._memory)
        return FileForm(form, str(prefix), self._suffix(form), fields, thin, kept, opener)

    def _choice(self, key: str, level: int, changelog: bool) -> str:
        """The value of an option that has forms per level and for changelogs."""
        o = self._options
        own = o.get("changelog-file." + key.rpartition(".")[2]) if changelog else None
        if own is not None:
            return str(own)
        levels = cast("Mapping[str, str]", o.get(key + ".per.level")) if self._schema.primary_keys else {}
        return {int(k): v for k, v in levels.items()}.get(level) or str(o.get(key))

    def _suffix(self, form: str) -> str:
        """Java names the codec of `file.compression` here, whatever the level has."""
        codec = self._options.file_compression.lower()
        extension = _EXTENSIONS.get(codec, self._options.file_compression)
        if extension and form in _TEXT:
            return f".{form}.{extension}"
        if extension and self._options.get("file.suffix.include.compression"):
            return f".{extension}.{form}"
        return f".{form}"


def writer_of(
    form: str,
    fields: tuple[Field, ...],
    compression: str,
    limits: Mapping[str, int | None],
    options: Options,
    memory: int = DEFAULT_BYTES,
) -> Callable[[Sink | pa.NativeFile], DataWriter]:
    """What opens files of this format; what waits in one follows the `memory` there is."""
    if form == "parquet":
        from shoal.format.data import ParquetWriter, parquet_schema
        from shoal.format.parquet_options import parquet_options

        schema = parquet_schema(fields)
        how = parquet_options(options.raw, compression, options.zstd_level, options.file_block_size)
        return lambda sink: ParquetWriter(sink, fields, options=how, schema=schema, most_bytes=memory // _GROUP_SHARE)
    if form == "avro":
        from shoal.format.avro_writer import AvroWriter, avro_codec

        codec = avro_codec(options.raw.get("avro.codec", compression))
        return lambda sink: AvroWriter(sink, fields, compression=codec, level=options.zstd_level, limits=limits)
    if form == "orc":
        from shoal.format.data import GROUP_BYTES
        from shoal.format.orc_writer import OrcWriter, orc_codec

        codec = orc_codec(options.raw.get("orc.compress", compression))
        stripe = min(options.file_block_size or GROUP_BYTES, memory // _STRIPE_SHARE)
        return lambda sink: OrcWriter(
            sink, fields, compression=codec, level=options.zstd_level, limits=limits, stripe_bytes=stripe
        )
    raise Unsupported(f"data files in '{form}' format cannot be written", hint="set 'file.format' to 'parquet'")
