# SPDX-License-Identifier: Apache-2.0
"""CSV, JSON and text files as batches: lines, fields of lines, values.

Agrees with: AbstractTextFileReader, StandardLineReader, CsvParser, JsonFileReader, TextFileReader (2.0.0). Invariant:
a line is a record, whatever quotes are open at its end; memory follows the block that is read, not the file.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import BadRequest, Corrupt, Unsupported
from shoal.format.codecs import snappy_size
from shoal.format.json_values import JsonError, column, loads
from shoal.format.text_values import parsed
from shoal.format.types import Field, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.store.base import Store

_BLOCK = 4 << 20
_BOM = b"\xef\xbb\xbf"
# A file's codec is what its name ends with, as Hadoop has it.
_STREAMS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}
_BLOCKS = {"snappy": "snappy", "lz4": "lz4_raw"}
_PLAIN_ENDS = ("\n", "\r\n", "\r")


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How the lines of a format table's files are read. `nulls_on_error` of JSON, `mode` of CSV: what bad values do."""

    line: str = "\n"
    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    null: str = ""
    header: bool = False
    mode: str = "permissive"
    nulls_on_error: bool = False

    @classmethod
    def of(cls, kind: str, options: Mapping[str, str]) -> TextOptions:
        """The options of `csv`, `json` or `text`, with the names they had before."""

        def get(default: str, *keys: str) -> str:
            return next((options[k] for k in keys if k in options), default)

        def flag(*keys: str) -> bool:
            return get("false", *keys).strip().lower() == "true"

        if kind == "json":
            return cls(get("\n", "json.line-delimiter"), nulls_on_error=flag("json.ignore-parse-errors"))
        if kind == "text":
            return cls(get("\n", "text.line-delimiter", "lineSep"))
        made = cls(
            get("\n", "csv.line-delimiter", "lineSep"),
            get(",", "csv.field-delimiter", "field-delimiter", "seq")[:1],
            get('"', "csv.quote-character", "quote")[:1],
            get("\\", "csv.escape-character", "escape")[:1],
            get("", "csv.null-literal", "nullvalue"),
            flag("csv.include-header", "header"),
            get("permissive", "csv.mode", "mode").strip().lower(),
        )
        made._check()
        return made

    def _check(self) -> None:
        off = self.quote == self.escape == "\0"
        if not self.separator or self.separator == "\0" or not self.quote or not self.escape:
            raise BadRequest("CSV needs a field delimiter, a quote character and an escape character")
        if self.separator in (self.quote, self.escape) or (self.quote == self.escape and not off):
            raise BadRequest(
                f"CSV field delimiter {self.separator!r}, quote {self.quote!r} and escape {self.escape!r} must differ"
            )
        if self.mode not in ("permissive", "dropmalformed", "failfast"):
            raise BadRequest(f"csv.mode '{self.mode}'", hint="use permissive, dropmalformed or failfast")


def read_text(
    store: Store, path: str, kind: str, options: TextOptions, columns: Sequence[Field], wanted: Sequence[Field]
) -> Iterator[pa.RecordBatch]:
    """Rows of a file whose lines hold `columns`, with the columns `wanted`, in the file's order."""
    first = True
    for lines in _lines(store, path, options.line):
        if first and kind == "csv" and options.header:
            lines = lines.slice(1)
        first = False
        if not len(lines):
            continue
        if kind == "csv":
            yield _csv(lines, options, columns, wanted, path)
        elif kind == "json":
            yield _json(lines, options, wanted, path)
        else:
            yield _text(lines, wanted, path)


# ---- lines -----------------------------------------------------------------------------------------------


def _lines(store: Store, path: str, end: str) -> Iterator[pa.Array]:
    """Lines as string arrays, a block of the file at a time; bytes that are no UTF-8 become replacement characters."""
    import pyarrow as pa

    plain = end in _PLAIN_ENDS
    rest = b""
    fresh = True
    for block in _blocks(store, path):
        if fresh and plain and block.startswith(_BOM):
            block = block[3:]
        fresh = False
        data = rest + block
        if plain:
            # a carriage return at the end may be half of an end of line
            cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
            whole = data[:cut].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            parts = whole.split(b"\n")[:-1]
        else:
            cut = data.rfind(end.encode()) + len(end.encode()) if end.encode() in data else 0
            parts = data[:cut].split(end.encode())[:-1]
        rest = data[cut:]
        yield pa.array([p.decode("utf-8", "replace") for p in parts], pa.string())
    if plain:
        parts = rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        parts = parts[:-1] if not parts[-1] else parts
    else:
        parts = [rest] if rest else []
    if parts:
        yield pa.array([p.decode("utf-8", "replace") for p in parts], pa.string())


def _blocks(store: Store, path: str) -> Iterator[bytes]:
    """The file's bytes, decompressed as its name says."""
    import pyarrow as pa

    codec = path.rsplit("/", 1)[-1].rsplit(".", 1)[-1].lower()
    try:
        if codec == "deflate":
            yield from _inflated(store.open(path))
        elif codec in _BLOCKS:
            yield from _hadoop(store.read(path), _BLOCKS[codec], path)
        else:
            source: pa.NativeFile = store.open(path)
            if codec in _STREAMS:
                source = pa.CompressedInputStream(source, _STREAMS[codec])
            elif codec == "lzo":
                raise Unsupported(f"{path}: LZO files cannot be read", hint="write them with gzip, zstd or no codec")
            with source:
                while block := source.read(_BLOCK):
                    yield block
    except (pa.ArrowException, OSError, ValueError, zlib.error) as err:
        raise Corrupt(f"{path}: cannot be decompressed ({str(err)[:200]})", hint="it is damaged or cut off") from err


def _inflated(source: pa.NativeFile) -> Iterator[bytes]:
    with source:
        stream = zlib.decompressobj()
        while block := source.read(_BLOCK):
            yield stream.decompress(block)
        yield stream.flush()


def _hadoop(data: bytes, codec: str, path: str) -> Iterator[bytes]:
    """Hadoop's block codecs: the length of a block, then pieces of it, each with its compressed length in front."""
    import pyarrow as pa

    decompress = pa.Codec(codec).decompress
    at = 0
    while at < len(data):
        left = int.from_bytes(data[at : at + 4], "big")
        at += 4
        while left:
            n = int.from_bytes(data[at : at + 4], "big")
            piece = data[at + 4 : at + 4 + n]
            if not n or len(piece) < n:
                raise Corrupt(f"{path}: a compressed block is cut off", hint="restore the file")
            size = snappy_size(piece) if codec == "snappy" else left
            block = decompress(piece, min(size, left) if codec == "snappy" else left, asbytes=True)
            yield block
            left -= len(block)
            at += 4 + n


# ---- CSV -------------------------------------------------------------------------------------------------


def _csv(
    lines: pa.Array, o: TextOptions, columns: Sequence[Field], wanted: Sequence[Field], path: str
) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [f.name for f in columns]
    places = [names.index(f.name) for f in wanted]
    texts = _split(lines, o, 1 + max(places, default=-1))
    # after the first bad value of a row Java leaves the rest of it null
    dropped = np.zeros(len(lines), bool)
    arrays = []
    for f, place in zip(wanted, places):
        text = texts[place]
        values, bad = parsed(pc.if_else(pc.equal(text, o.null), pa.scalar(None, pa.string()), text), f.type)
        if bad.any() and o.mode == "failfast":
            raise Corrupt(
                f"{path}: column '{f.name}' ({f.type}) holds '{text[int(np.argmax(bad & ~dropped))]}'",
                hint="set 'csv.mode' to permissive to read it as null",
            )
        dropped |= bad
        arrays.append(pc.if_else(pa.array(dropped), pa.scalar(None, values.type), values) if dropped.any() else values)
    batch = pa.RecordBatch.from_arrays(arrays, schema=_nullable(wanted))
    return batch.filter(pa.array(~dropped)) if o.mode == "dropmalformed" and dropped.any() else batch


def _nullable(fields: Sequence[Field]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([f.with_nullable(True) for f in arrow_schema(fields)])


def _split(lines: pa.Array, o: TextOptions, count: int) -> list[pa.Array]:
    """The first `count` fields of each line, null where a line has fewer; a blank line has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not count:
        return []
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(lines)), 0)
    parts = pc.split_pattern(lines, o.separator)
    starts = parts.offsets.to_numpy()[:-1]
    lengths = np.where(blank.to_numpy(zero_copy_only=False), 0, np.diff(parts.offsets.to_numpy()))
    values = parts.values
    out = [values.take(pa.array(starts + i, mask=lengths <= i)) for i in range(count)]
    special = f"[{re.escape(o.quote)}{re.escape(o.escape)}]"
    rows = np.flatnonzero(pc.match_substring_regex(lines, special).to_numpy(zero_copy_only=False))
    if not len(rows):
        return out
    # lines with quotes or escapes, one by one: where all quotes enclose whole fields, they need no walk
    q, e, d = (re.escape(c) for c in (o.quote, o.escape, o.separator))
    field = f"{q}([^{q}{e}]*){q}|([^{q}{e}{d}]*)"
    simple = re.compile(f"(?:{field})(?:{d}(?:{field}))*")
    each = re.compile(f"(?:^|{d})(?:{field})")
    walked = [
        _padded([a or b for a, b in each.findall(line)], count) if simple.fullmatch(line) else _fields(line, o, count)
        for line in lines.take(pa.array(rows)).to_pylist()
    ]
    mask = np.zeros(len(lines), bool)
    mask[rows] = True
    return [
        pc.replace_with_mask(column, pa.array(mask), pa.array([w[i] for w in walked], pa.string()))
        for i, column in enumerate(out)
    ]


def _fields(line: str, o: TextOptions, count: int) -> list[str | None]:
    """Fields of a line by Java's rules: a doubled quote and an escaped one are the quote, other escapes vanish."""
    out: list[str | None] = []
    text: list[str] = []
    quoted = inside = False
    at = 0
    while at < len(line) and len(out) < count:
        c, after = line[at], line[at + 1 : at + 2]
        if c == o.escape:
            if (quoted or inside) and after and after in (o.quote, o.escape):
                text.append(after)
                at += 1
        elif c == o.quote:
            if (quoted or inside) and after == o.quote:
                text.append(after)
                at += 1
            else:
                if at > 2 and line[at - 1] != o.separator and after and after != o.separator:
                    # a quote in the middle of a field is a character, after blanks it begins the field
                    if text and "".join(text).isspace():
                        text.clear()
                    else:
                        text.append(c)
                quoted = not quoted
            inside = not inside
        elif c == o.separator and not quoted:
            out.append("".join(text))
            text.clear()
            inside = False
        else:
            text.append(c)
            inside = True
        at += 1
    if len(out) < count and not quoted:
        out.append("".join(text))
    return _padded(out, count)


def _padded(fields: Sequence[str | None], count: int) -> list[str | None]:
    return [*fields[:count], *[None] * (count - len(fields))]


# ---- JSON and text ---------------------------------------------------------------------------------------


def _json(lines: pa.Array, o: TextOptions, wanted: Sequence[Field], path: str) -> pa.RecordBatch:
    import pyarrow as pa

    rows: list[Mapping[str, Any]] = []
    for line in lines.to_pylist():  # each line is a document of its own
        try:
            node = loads(line)
            if node is not None and not isinstance(node, dict):
                raise JsonError("not an object")
        except (JsonError, ValueError, RecursionError) as err:
            if o.nulls_on_error:
                continue
            raise Corrupt(
                f"{path}: the line '{line[:80]}' is no JSON object ({err})",
                hint="set 'json.ignore-parse-errors' to skip such lines",
            ) from err
        if node is not None:
            rows.append(node)
    arrays = []
    for f in wanted:
        try:
            arrays.append(column([r.get(f.name) for r in rows], f.type, strict=not o.nulls_on_error))
        except JsonError as err:
            raise Corrupt(
                f"{path}: column '{f.name}' ({f.type}) holds {err}",
                hint="set 'json.ignore-parse-errors' to read it as null",
            ) from err
    return pa.RecordBatch.from_arrays(arrays, schema=_nullable(wanted))


def _text(lines: pa.Array, wanted: Sequence[Field], path: str) -> pa.RecordBatch:
    import pyarrow as pa

    if [f.type.root for f in wanted] != ["VARCHAR"]:
        raise BadRequest(f"{path}: a text table has one STRING column", hint="use csv for several columns")
    return pa.RecordBatch.from_arrays([lines], schema=_nullable(wanted))
