# SPDX-License-Identifier: Apache-2.0
"""How Parquet files are encoded: codecs and dictionaries, for all columns or single ones, and the sizes of pages.

Agrees with: RowDataParquetBuilder, ColumnConfigParser (2.0.0). Invariant: `parquet.compression` goes before
`file.compression`, what a column says before both; a codec that cannot be written is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import Unsupported
from shoal.option_values import parse_value

if TYPE_CHECKING:
    import pyarrow as pa

# Java's names of codecs and Arrow's. Its own writer of lz4 makes Hadoop's frames; readers take both.
COMPRESSIONS = {
    "zstd": "zstd",
    "snappy": "snappy",
    "gzip": "gzip",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "none": "none",
    "uncompressed": "none",
}
_CODEC, _DICTIONARY = "parquet.compression", "parquet.enable.dictionary"
# Small pages and dictionaries: half the CPU of a write, a quarter less bytes, and a reader that merges thirty files
# holds thirty times as many small things.
_PAGE, _DICTIONARY_PAGE = 1 << 16, 1 << 15


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """What a Parquet writer is told. Codecs are Arrow's names; columns are paths into the file."""

    codec: str = "zstd"
    level: int = 1
    column_codecs: Mapping[str, str] | None = None
    dictionary: bool = True
    column_dictionaries: Mapping[str, bool] | None = None
    page_bytes: int = _PAGE
    dictionary_bytes: int = _DICTIONARY_PAGE
    group_bytes: int | None = None
    version_2_pages: bool = False

    def compression(self, schema: pa.Schema) -> str | dict[str, str]:
        if not self.column_codecs:
            return self.codec
        return {p: self.column_codecs.get(p, self.codec) for p in leaf_paths(schema)}

    def levels(self, schema: pa.Schema) -> int | dict[str, int] | None:
        if not self.column_codecs:
            return self.level if self.codec == "zstd" else None
        codecs = self.compression(schema)
        assert isinstance(codecs, dict)
        return {p: self.level for p, c in codecs.items() if c == "zstd"} or None

    def dictionaries(self, schema: pa.Schema) -> bool | list[str]:
        if not self.column_dictionaries:
            return self.dictionary
        return [p for p in leaf_paths(schema) if self.column_dictionaries.get(p, self.dictionary)]


def parquet_options(raw: Mapping[str, str], compression: str, level: int, block_bytes: int | None) -> ParquetOptions:
    """From a table's options as text; `block_bytes` is `file.block-size`."""

    def number(name: str, default: int | None) -> int | None:
        text = raw.get(f"parquet.{name}")
        return default if text is None else int(str(parse_value("int", text, f"parquet.{name}")))

    def columns(key: str) -> Iterator[tuple[str, str]]:
        return ((k[len(key) + 1 :], v) for k, v in raw.items() if k.startswith(key + "#"))

    version = raw.get("parquet.writer.version", "v1").lower()
    return ParquetOptions(
        codec=arrow_codec(raw.get(_CODEC, compression), _CODEC if _CODEC in raw else "file.compression"),
        level=number("compression.codec.zstd.level", level) or 1,
        column_codecs={c: arrow_codec(v, f"{_CODEC}#{c}") for c, v in columns(_CODEC)} or None,
        dictionary=raw.get(_DICTIONARY, "true").strip().lower() != "false",
        column_dictionaries={c: v.strip().lower() == "true" for c, v in columns(_DICTIONARY)} or None,
        page_bytes=number("page.size", None) or _PAGE,
        dictionary_bytes=number("dictionary.page.size", None) or _DICTIONARY_PAGE,
        group_bytes=block_bytes or number("block.size", None),
        version_2_pages=version in ("v2", "parquet_2_0"),
    )


def arrow_codec(name: str, key: str = "file.compression") -> str:
    codec = COMPRESSIONS.get(name.lower())
    if codec is None:
        raise Unsupported(f"'{key}' = '{name}' is not a codec that Parquet files are written with here",
                          hint=f"use {', '.join(COMPRESSIONS)}")  # fmt: skip
    return codec


def leaf_paths(schema: pa.Schema) -> list[str]:
    """Paths of the columns of a Parquet file with this schema."""
    return [p for f in schema for p in _below(f.type, f.name)]


def _below(t: pa.DataType, path: str) -> Sequence[str]:
    import pyarrow as pa

    if pa.types.is_struct(t):
        return [p for f in t for p in _below(f.type, f"{path}.{f.name}")]
    if pa.types.is_list(t) or pa.types.is_fixed_size_list(t):
        return _below(t.value_type, f"{path}.list.element")
    if pa.types.is_map(t):
        return [
            *_below(t.key_type, f"{path}.key_value.key"), *_below(t.item_type, f"{path}.key_value.value")
        ]  # fmt: skip
    return [path]
