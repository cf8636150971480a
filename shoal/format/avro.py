# SPDX-License-Identifier: Apache-2.0
"""Avro container files, decoded to columns and encoded from columns.

The codec is straight-line Python generated from the writer's schema, once per schema: fields are resolved by
name as Java resolves them, unwanted ones are skipped. Invariant: damaged input ends in `Corrupt` that names the
file; it never loops, never allocates beyond `MAX_BLOCK`, never yields a record that was not wholly there.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from itertools import accumulate
from typing import Any

from shoal.errors import Corrupt, Unsupported
from shoal.format.codecs import codec as arrow_codec
from shoal.format.codecs import unpacked, zstd_size
from shoal.format.varint import read_long, varint

MAGIC = b"Obj\x01"
# A block larger than this is damage: Paimon rolls manifests at megabytes.
MAX_BLOCK = 1 << 30
# Codecs by Avro's names, and their names in `codecs`.
CODECS = {"deflate": "deflate", "snappy": "snappy", "zstandard": "zstd", "bzip2": "bzip2", "xz": "xz"}

Columns = dict[str, list[Any]]
# (bytes, records, columns, which values of the filter field to keep) to (where it ended, records kept)
_Decode = Callable[[bytes, int, Columns, Mapping[bytes, bool]], tuple[int, int]]
_EVERY: Mapping[bytes, bool] = {}


class _Damaged(Exception):
    """Raised inside generated code; the caller adds the file's name."""


class OtherColumns(Exception):
    """The file's schema has other columns than the ones collected so far: decode it apart."""


def decode(data: bytes, path: str, wanted: frozenset[str] | None = None) -> tuple[int, Columns]:
    """(record count, columns by dotted path). Strings come as bytes; absent columns are left out."""
    columns: Columns = {}
    return decode_onto(columns, [(data, path)], wanted)[0], columns


def decode_onto(
    columns: Columns,
    files: Sequence[tuple[bytes, str]],
    wanted: frozenset[str] | None = None,
    only: tuple[str, Mapping[bytes, bool]] | None = None,
) -> list[int]:
    """The record count of each file; the records' values are added to `columns`.

    With `only` (a top-level field of bytes, and for each of its values whether to keep it) other records are skipped,
    which takes a third of the time, and do not count. `OtherColumns` when the files do not all have the same columns.
    After an error `columns` holds parts of records.
    """
    parsed = [(*_parse(data, path), path) for data, path in files]
    raw = iter(_inflate([(block, codec, path) for _, codec, blocks, path in parsed for _, block in blocks]))
    return [
        _decode_blocks(columns, schema, [(n, next(raw)) for n, _ in blocks], path, wanted, only)
        for schema, _, blocks, path in parsed
    ]


def _decode_blocks(
    columns: Columns,
    schema: str,
    blocks: Sequence[tuple[int, bytes]],
    path: str,
    wanted: frozenset[str] | None,
    only: tuple[str, Mapping[bytes, bool]] | None = None,
) -> int:
    field, keep = only or (None, _EVERY)
    try:
        run, names = _decoder(schema, wanted, field)
    except Unsupported as err:
        raise Unsupported(f"{path}: {err.message}") from err
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as err:
        raise Corrupt(f"{path}: the Avro schema in its header makes no sense", hint="the file is damaged") from err
    if not columns:
        columns.update((n, []) for n in names)
    elif columns.keys() != names:
        raise OtherColumns
    total = 0
    for count, raw in blocks:
        if not 0 <= count <= len(raw):
            raise Corrupt(f"{path}: a block claims {count} records in {len(raw)} bytes")
        try:
            end, kept = run(raw, count, columns, keep)
        except (_Damaged, IndexError) as err:
            raise Corrupt(f"{path}: a record does not fit the file's schema", hint="the file is damaged") from err
        if end != len(raw):
            raise Corrupt(f"{path}: a block of {len(raw)} bytes ends at {end}", hint="the file is damaged")
        total += kept
    return total


def _inflate(blocks: Sequence[tuple[bytes, str, str]]) -> list[bytes]:
    """Blocks of (bytes, codec, path), decompressed. Many small zstd frames go through the decoder in one call."""
    import pyarrow as pa

    sizes = [zstd_size(raw) if codec == "zstandard" else None for raw, codec, _ in blocks]
    known = [s for s in sizes if s is not None]
    if len(blocks) > 1 and len(known) == len(blocks) and sum(known) < MAX_BLOCK:
        try:
            whole: bytes = arrow_codec("zstd").decompress(
                b"".join(raw for raw, _, _ in blocks), sum(known), asbytes=True
            )
        except (OSError, pa.ArrowException):
            pass  # one of them is damaged: each by itself says which
        else:
            ends = list(accumulate(known))
            return [whole[end - size : end] for end, size in zip(ends, known)]
    return [decompress(raw, codec, path) for raw, codec, path in blocks]


def container(data: bytes, path: str) -> tuple[str, list[tuple[int, bytes]]]:
    """(writer schema as JSON text, [(record count, decompressed block)])."""
    schema, codec, blocks = _parse(data, path)
    return schema, [(n, decompress(raw, codec, path)) for n, raw in blocks]


def _parse(data: bytes, path: str) -> tuple[str, str, list[tuple[int, bytes]]]:
    """(schema, codec, [(record count, compressed block)])."""
    try:
        schema, codec, p = _header(data, path)
        sync = _slice(data, p, 16)
        p += 16
        blocks = []
        while p < len(data):
            count, p = read_long(data, p)
            raw, p = _bytes(data, p)
            if _slice(data, p, 16) != sync:
                raise Corrupt(f"{path}: block marker at byte {p} does not match", hint="the file is damaged")
            p += 16
            blocks.append((count, raw))
    except IndexError as err:
        raise Corrupt(
            f"{path}: the file ends in the middle of a block ({len(data)} bytes)", hint="it is cut off"
        ) from err
    return schema, codec, blocks


# The last header read: the files of a table have the same one, byte for byte, up to its sync marker.
_last_header: tuple[bytes, str, str] = (b"\0", "", "")


def _header(data: bytes, path: str) -> tuple[str, str, int]:
    """(schema, codec, where the header's sync marker is)."""
    global _last_header
    same, schema, codec = _last_header
    if data.startswith(same):
        return schema, codec, len(same)
    if data[:4] != MAGIC:
        raise Corrupt(f"{path}: not an Avro file (first bytes {data[:4]!r})")
    p, meta = 4, {}
    while True:
        n, p = read_long(data, p)
        if n == 0:
            break
        if n < 0:
            n = -n
            _, p = read_long(data, p)
        if n > len(data):
            raise IndexError
        for _ in range(n):
            key, p = _bytes(data, p)
            meta[key], p = _bytes(data, p)
    codec = meta.get(b"avro.codec", b"null").decode("ascii", "replace")
    raw_schema = meta.get(b"avro.schema")
    if raw_schema is None:
        raise Corrupt(f"{path}: the Avro header has no schema")
    schema = raw_schema.decode("utf-8", "replace")
    _last_header = data[:p], schema, codec
    return schema, codec, p


def _slice(b: bytes, p: int, n: int) -> bytes:
    if n < 0 or p + n > len(b):
        raise IndexError
    return b[p : p + n]


def _bytes(b: bytes, p: int) -> tuple[bytes, int]:
    n, p = read_long(b, p)
    return _slice(b, p, n), p + n


def decompress(raw: bytes, codec: str, path: str) -> bytes:
    """A block of a container file whose header names this codec."""
    if codec == "null":
        return raw
    if codec not in CODECS:
        raise Unsupported(f"{path}: Avro codec '{codec}' is not known", hint=f"known are null, {', '.join(CODECS)}")
    import pyarrow as pa

    snappy = codec == "snappy"  # with a checksum behind it
    try:
        out = unpacked(CODECS[codec], raw[:-4] if snappy else raw, MAX_BLOCK)
    except (OSError, ValueError, pa.ArrowException) as err:
        raise Corrupt(f"{path}: a block does not decompress ({str(err)[:200]})", hint="the file is damaged") from err
    if snappy and zlib.crc32(out) != int.from_bytes(raw[-4:], "big"):
        raise Corrupt(f"{path}: a block's checksum does not match", hint="the file is damaged")
    return out


def write_container(schema: str, records: Sequence[bytes], codec: str) -> bytes:
    """A container file of encoded records in one block; `codec` is Avro's name for it."""
    head = bytearray(MAGIC)
    sync = os.urandom(16)
    head += (
        b"\x04"
        + _varbytes(b"avro.schema")
        + _varbytes(schema.encode())
        + _varbytes(b"avro.codec")
        + _varbytes(codec.encode())
    )
    head += b"\x00" + sync
    if records:
        raw = b"".join(records)
        head += varint(len(records)) + _varbytes(_compress(raw, codec)) + sync
    return bytes(head)


def _compress(raw: bytes, codec: str) -> bytes:
    if codec == "null":
        return raw
    if codec == "deflate":
        c = zlib.compressobj(wbits=-15)
        return c.compress(raw) + c.flush()

    if codec == "zstandard":
        out: bytes = arrow_codec("zstd").compress(raw, asbytes=True)
        return out
    if codec == "snappy":
        packed: bytes = arrow_codec("snappy").compress(raw, asbytes=True)
        return packed + zlib.crc32(raw).to_bytes(4, "big")
    if codec == "bzip2":
        import bz2

        return bz2.compress(raw)
    if codec == "xz":
        import lzma

        return lzma.compress(raw)
    raise Unsupported(f"manifest.compression '{codec}' cannot be written", hint="use zstd, snappy, deflate or null")


def _varbytes(b: bytes) -> bytes:
    return varint(len(b)) + b


# ---- generated decoder -----------------------------------------------------------------------------------


class _Source:
    """Lines of a generated function; `at` is the indentation of the next line."""

    def __init__(self, at: int) -> None:
        self.lines: list[str] = []
        self.at = at
        self.columns: dict[str, str] = {}
        self.count = 0

    def add(self, *lines: str) -> None:
        self.lines += ["    " * self.at + line for line in lines]

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def column(self, path: str) -> str:
        return self.columns.setdefault(path, f"c{len(self.columns)}")


# Stats keep their null counts as the array's own bytes: planning rarely looks at them.
_RAW_ARRAYS = "_NULL_COUNTS"


@lru_cache(maxsize=64)
def _decoder(schema: str, wanted: frozenset[str] | None, only: str | None = None) -> tuple[_Decode, Set[str]]:
    src, parsed = _Source(2), json.loads(schema)
    if only is not None:
        _look_ahead(src, parsed, only)
    _read(src, parsed, "", wanted)
    body = src.lines or ["        pass"]
    head = ["def decode(b, count, columns, keep):", "    p = skipped = 0", "    size = len(b)"]
    head += [f"    {v} = columns[{path!r}].append" for path, v in src.columns.items()]
    text = "\n".join([*head, "    for _ in range(count):", *body, "    return p, count - skipped"])
    space: dict[str, Any] = {"Damaged": _Damaged}
    exec(text, space)
    return space["decode"], dict.fromkeys(src.columns).keys()


def _read_long(src: _Source, var: str) -> None:
    src.add(
        "x = b[p]; p += 1",
        "if x > 127:",
        "    r = x & 127; s = 7",
        "    while True:",
        "        x = b[p]; p += 1; r |= (x & 127) << s; s += 7",
        "        if x < 128: break",
        "        if s > 63: raise Damaged",
        "    x = r",
        f"{var} = (x >> 1) ^ -(x & 1)",
    )


def _read(src: _Source, schema: Any, path: str, wanted: frozenset[str] | None, out: str | None = None) -> None:
    """Code that reads one value; it is appended to the column of `path`, or to the list variable `out`."""
    t = schema["type"] if isinstance(schema, dict) and isinstance(schema.get("type"), (dict, list)) else schema
    kind = t["type"] if isinstance(t, dict) else t
    keep = out is not None or wanted is None or path in wanted

    def emit(value: str) -> str:
        if not keep:
            return "pass"
        return f"{out}.append({value})" if out else f"{src.column(path)}({value})"

    if isinstance(kind, list):
        if len(kind) != 2 or "null" not in kind:
            raise Unsupported(f"Avro union {kind} in field {path}")
        null = kind.index("null")
        src.add("u = b[p]; p += 1", f"if u == {2 * null}:", "    " + emit("None"), f"elif u == {2 - 2 * null}:")
        src.at += 1
        _read(src, kind[1 - null], path, wanted, out)
        src.at -= 1
        src.add("else: raise Damaged")
    elif kind == "record":
        for f in t["fields"]:
            _read(src, f["type"], f"{path}.{f['name']}" if path else f["name"], wanted)
        src.add("pass")
    elif kind in ("int", "long"):
        _read_long(src, "v")
        src.add(emit("v"))
    elif kind in ("bytes", "string"):
        _read_long(src, "v")
        src.add("q = p + v", "if not p <= q <= size: raise Damaged", emit("b[p:q]"), "p = q")
    elif kind == "boolean":
        src.add("v = b[p]; p += 1", emit("v == 1"))
    elif kind == "array":
        raw = path.endswith(_RAW_ARRAYS)
        items, n, mark = src.name(), src.name(), src.name()
        src.add(f"{mark} = p" if raw else f"{items} = []", "while True:")
        src.at += 1
        _read_long(src, n)
        src.add(f"if {n} == 0: break", f"if {n} < 0:", f"    {n} = -{n}")
        src.at += 1
        _read_long(src, "v")
        src.at -= 1
        src.add(f"if {n} > size: raise Damaged", f"for _{n} in range({n}):")
        src.at += 1
        if raw:
            _skip(src, t["items"])
        else:
            _read(src, t["items"], path, wanted, items)
        src.at -= 2
        # an empty list would be one more object for the garbage collector to visit
        src.add(emit(f"b[{mark}:p]" if raw else f"{items} or ()"))
    else:
        raise Unsupported(f"Avro type {kind} in field {path}")


def _look_ahead(src: _Source, schema: Any, field: str) -> None:
    """Code at the start of a record: where its value of `field` is not wanted, the record is skipped."""
    fields = schema["fields"]
    at = [f["name"] for f in fields].index(field)
    src.add("begin = p")
    for f in fields[:at]:
        _skip(src, f["type"])
    _read_long(src, "v")
    src.add("q = p + v", "if not p <= q <= size: raise Damaged", "if not keep[b[p:q]]:")
    src.at += 1
    src.add("p = q")
    for f in fields[at + 1 :]:
        _skip(src, f["type"])
    src.add("if p > size: raise Damaged", "skipped += 1", "continue")
    src.at -= 1
    src.add("p = begin")


def _skip(src: _Source, schema: Any) -> None:
    """Code that goes past one value."""
    t = schema["type"] if isinstance(schema, dict) and isinstance(schema.get("type"), (dict, list)) else schema
    kind = t["type"] if isinstance(t, dict) else t
    if isinstance(kind, list):
        if len(kind) != 2 or "null" not in kind:
            raise Unsupported(f"Avro union {kind}")
        null = kind.index("null")
        src.add("u = b[p]; p += 1", f"if u == {2 - 2 * null}:")
        src.at += 1
        _skip(src, kind[1 - null])
        src.at -= 1
        src.add(f"elif u != {2 * null}: raise Damaged")
    elif kind == "record":
        for f in t["fields"]:
            _skip(src, f["type"])
        src.add("pass")
    elif kind in ("int", "long"):
        src.add("while b[p] > 127: p += 1", "p += 1")
    elif kind in ("bytes", "string"):
        _read_long(src, "v")
        src.add("if v < 0: raise Damaged", "p += v")
    elif kind == "boolean":
        src.add("p += 1")
    elif kind == "array":
        n = src.name()
        src.add("while True:")
        src.at += 1
        _read_long(src, n)
        src.add(f"if {n} == 0: break", f"if {n} < 0:", f"    {n} = -{n}")
        src.at += 1
        _read_long(src, "v")
        src.at -= 1
        src.add(f"if {n} > size: raise Damaged", f"for _{n} in range({n}):")
        src.at += 1
        _skip(src, t["items"])
        src.at -= 2
    else:
        raise Unsupported(f"Avro type {kind}")


# ---- generated encoder -----------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _encoder(schema: str) -> tuple[Callable[[Iterable[tuple[Any, ...]]], list[bytes]], tuple[str, ...]]:
    src = _Source(2)
    leaves: list[str] = []
    _write(src, json.loads(schema), "", leaves, None)
    args = ", ".join(f"a{i}" for i in range(len(leaves)))
    head = ["def encode(rows):", "    done = []", f"    for {args}, in rows:", "        o = bytearray()"]
    text = "\n".join([*head, *src.lines, "        done.append(bytes(o))", "    return done"])
    space: dict[str, Any] = {}
    exec(text, space)
    return space["encode"], tuple(leaves)


def encode(schema: str, rows: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Each record's bytes. Rows map dotted paths to values (strings as str, null counts in their Avro form)."""
    run, leaves = _encoder(schema)
    return run([tuple(r[n] for n in leaves) for r in rows])


def leaves(schema: str) -> tuple[str, ...]:
    """Dotted paths of the leaf fields of a schema, in writing order."""
    return _encoder(schema)[1]


def encode_tuples(schema: str, rows: Iterable[tuple[Any, ...]]) -> list[bytes]:
    """Each record's bytes, from tuples in the order of `leaves(schema)`."""
    return _encoder(schema)[0](rows)


def _write_long(src: _Source, value: str) -> None:
    src.add(
        f"v = {value}",
        "v = (v << 1) ^ (v >> 63)",
        "while v > 127:",
        "    o.append(v & 127 | 128); v >>= 7",
        "o.append(v)",
    )


def _write(src: _Source, schema: Any, path: str, leaves: list[str], var: str | None) -> None:
    t = schema["type"] if isinstance(schema, dict) and isinstance(schema.get("type"), (dict, list)) else schema
    kind = t["type"] if isinstance(t, dict) else t
    if kind == "record":
        for f in t["fields"]:
            _write(src, f["type"], f"{path}.{f['name']}" if path else f["name"], leaves, None)
        return
    if var is None:
        var = f"a{len(leaves)}"
        leaves.append(path)
    if isinstance(kind, list):
        null = kind.index("null")
        src.add(f"if {var} is None: o.append({2 * null})", "else:")
        src.at += 1
        src.add(f"o.append({2 - 2 * null})")
        _write(src, kind[1 - null], path, leaves, var)
        src.at -= 1
    elif kind in ("int", "long"):
        _write_long(src, var)
    elif kind == "string":
        src.add(f"w = {var}.encode()")
        _write_long(src, "len(w)")
        src.add("o += w")
    elif kind == "bytes":
        _write_long(src, f"len({var})")
        src.add(f"o += {var}")
    elif kind == "array" and path.endswith(_RAW_ARRAYS):
        src.add(f"o += {var}")
    elif kind == "array":
        item = src.name()
        src.add(f"if {var}:")
        src.at += 1
        _write_long(src, f"len({var})")
        src.add(f"for {item} in {var}:")
        src.at += 1
        _write(src, t["items"], path, leaves, item)
        src.at -= 2
        src.add("o.append(0)")
    else:
        raise Unsupported(f"Avro type {kind} in field {path}")
