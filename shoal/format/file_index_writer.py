# SPDX-License-Identifier: Apache-2.0
"""File indexes of a new data file: all the indexes that a table's options name, over all its rows, in one container.

Agrees with: FileIndexOptions, DataFileIndexWriter, FileIndexFormat.Writer (2.0.0), to the byte where no slot of one of
Java's hash tables holds eight entries. Invariant: rows are counted in the order given, which is that of the file. An
index over one key of a map has a row for each row of the file; a key that no row has a value for has no bytes.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import BadRequest, near
from shoal.format import bitmap_index, bloom_index, bsi_index, java_table, range_bitmap_index
from shoal.format.index_values import LAYOUT
from shoal.format.indexed_column import Values, distinct, values
from shoal.format.types import DataType, Field
from shoal.option_values import parse_memory

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = 1493475289347502
_VERSION = 1
_NOTHING = -1
_PREFIX, _SUFFIX = "file-index.", ".columns"
_TEXT = ("CHAR", "VARCHAR")
_TAKES = {
    "bloom-filter": frozenset(bloom_index.HASHED),
    "bitmap": frozenset((*LAYOUT, *_TEXT)) - {"DECIMAL"},
    "bsi": frozenset(bsi_index.NUMBERS),
    "range-bitmap": frozenset((*LAYOUT, *_TEXT)),
}
# Types of so few values that Java keeps each in a chunk of its own.
_UNCHUNKED = ("BOOLEAN", "TINYINT", "SMALLINT")


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """One index: of which kind, over which column or key of a map, with which parameters."""

    kind: str
    column: str
    key: str | None
    type: DataType
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.column if self.key is None else f"{self.column}[{self.key}]"

    @property
    def option(self) -> str:
        return f"{_PREFIX}{self.kind}.{self.name}"


def specs(fields: Sequence[Field], options: Mapping[str, str]) -> tuple[IndexSpec, ...]:
    """The indexes that options name, checked against the columns and in the order Java writes them; often none."""
    types = {f.name: f.type for f in fields}
    # one table of columns, each with its kinds; then, as the walk over it goes, a table of kinds with their columns
    declared: dict[tuple[str, str | None], list[str]] = {}
    calls = []
    for option in java_table.names_put(k for k in options if k.startswith(_PREFIX) and k.endswith(_SUFFIX)):
        for given in options[option].rstrip(",").split(","):
            calls.append(_split(given.strip()))
            declared.setdefault(calls[-1], []).append(option[len(_PREFIX) : -len(_SUFFIX)])
    columns = list(declared)
    by_kind: list[tuple[str, tuple[str, str | None]]] = []
    used_later = bool(columns) and calls.index(columns[-1]) < len(calls) - 1
    for i in java_table.computed(np.array([_column_hash(*c) for c in columns], np.int64), used_later):
        by_kind += [(kind, columns[i]) for kind in java_table.names_computed(declared[columns[i]])]
    out = []
    for kind in java_table.names_computed([k for k, _ in by_kind]):
        mine = [c for k, c in by_kind if k == kind]
        for column in java_table.names_put(c for c, _ in mine):
            keys = {_name(c, k): k for c, k in mine if c == column}
            out += [_spec(kind, column, keys[name], types, options) for name in java_table.names_put(keys)]
    return tuple(out)


def _split(given: str) -> tuple[str, str | None]:
    at = given.find("[")
    return (given[:at], given[at + 1 : -1]) if at != -1 and given.endswith("]") else (given, None)


def _name(column: str, key: str | None) -> str:
    return column if key is None else f"{column}[{key}]"


def _column_hash(column: str, key: str | None) -> int:
    """FileIndexOptions.Column.hashCode."""
    nested = 1237 if key is None else 1231
    return ((31 + java_table.text_hash(column)) * 31 + java_table.text_hash(key or "")) * 31 + nested


def _spec(
    kind: str, column: str, key: str | None, types: Mapping[str, DataType], options: Mapping[str, str]
) -> IndexSpec:
    option = f"{_PREFIX}{kind}{_SUFFIX}"
    if column not in types:
        raise BadRequest(f"'{option}': column '{column}' does not exist", hint=near(column, types))
    t = types[column]
    if key is not None:
        if t.root != "MAP" or t.key is None or t.value is None or t.key.root not in _TEXT:
            raise BadRequest(f"'{option}': '{column}[{key}]' needs a MAP with text keys, and '{column}' is {t}")
        t = t.value
    if kind not in _TAKES:
        raise BadRequest(f"'{option}': no index '{kind}'", hint=near(kind, _TAKES))
    narrow = kind == "range-bitmap" and ((t.is_timestamp and (t.precision or 0) > 6) or (t.precision or 0) > 18)
    if t.root not in _TAKES[kind] or narrow:
        raise BadRequest(f"'{option}': index '{kind}' does not take '{_name(column, key)}', which is {t}")
    spec = IndexSpec(kind, column, key, t, _params(kind, column, key, options))
    _Part.of(spec)  # reads the parameters
    return spec


def _params(kind: str, column: str, key: str | None, options: Mapping[str, str]) -> dict[str, str]:
    """What options say of an index; of a map's key first what they say of the map."""
    out: dict[str, str] = {}
    for name in dict.fromkeys((column, _name(column, key))):
        for option, value in options.items():
            parts = option.removeprefix(_PREFIX).split(".")
            if option.startswith(_PREFIX) and len(parts) == 3 and parts[:2] == [kind, name]:
                out[parts[2]] = value
    return out


class IndexWriter:
    """Takes the rows of one data file and makes the container of its indexes.

    `fields` are the columns of the table, `options` its options as text. A file that gets no index needs no writer:
    `specs` is empty then.
    """

    def __init__(self, fields: Sequence[Field], options: Mapping[str, str]) -> None:
        self.specs = specs(fields, options)
        self._parts = [_Part.of(s) for s in self.specs]

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """The next rows of the file."""
        import pyarrow as pa

        for part in self._parts:
            column = batch.column(part.spec.column)
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                part.add(chunk)

    def finish(self) -> bytes | None:
        """The container, None where the table has no indexes."""
        if not self._parts:
            return None
        found: dict[str, dict[str, bytes | None]] = {}
        for part in self._parts:
            found.setdefault(part.spec.name, {})[part.spec.kind] = part.encode()
        columns = java_table.names_computed([p.spec.name for p in self._parts])
        return container({n: {k: found[n][k] for k in java_table.names_put(found[n])} for n in columns})


class _Part(ABC):
    """One index in the making."""

    def __init__(self, spec: IndexSpec) -> None:
        self.spec = spec
        self._seen = False  # whether any row had a value
        self._parts: list[Values] = []

    @classmethod
    def of(cls, spec: IndexSpec) -> _Part:
        kinds: dict[str, Callable[[IndexSpec], _Part]] = {
            "bloom-filter": _Bloom, "bitmap": _Bitmap, "bsi": _Bsi, "range-bitmap": _Range,
        }  # fmt: skip
        return kinds[spec.kind](spec)

    def add(self, column: pa.Array) -> None:
        s = self.spec
        found = values(column if s.key is None else _of_key(column, s.key), s.type, s.name)
        self._seen |= len(found.at) > 0
        self.take(found)

    def take(self, found: Values) -> None:
        self._parts.append(found)

    def encode(self) -> bytes | None:
        return self.index() if self._seen or self.spec.key is None else None

    @abstractmethod
    def index(self) -> bytes:
        """The index of what was taken in."""

    def number(self, name: str, default: int, least: int, most: int = 2**31 - 1) -> int:
        given = self.spec.params.get(name, str(default)).strip()
        if not given.lstrip("-").isdigit() or not least <= int(given) <= most:
            raise BadRequest(f"'{self.spec.option}.{name}' = '{given}' is not a number from {least} to {most}")
        return int(given)

    def memory(self, name: str, default: str) -> int:
        return parse_memory(self.spec.params.get(name, default), f"{self.spec.option}.{name}")


class _Bloom(_Part):
    def __init__(self, spec: IndexSpec) -> None:
        super().__init__(spec)
        items, fpp = self.number("items", 1_000_000, 1), self._fpp()
        self._filter = bloom_index.Filter(spec.type, items, fpp)

    def _fpp(self) -> float:
        given = self.spec.params.get("fpp", "0.1")
        try:
            fpp = float(given)
        except ValueError:
            fpp = 0.0
        if not 0 < fpp <= 1:
            raise BadRequest(f"'{self.spec.option}.fpp' = '{given}' is not a share above 0 and up to 1")
        return fpp

    def take(self, found: Values) -> None:
        self._filter.add(found)

    def index(self) -> bytes:
        return self._filter.encode()


class _Bitmap(_Part):
    def __init__(self, spec: IndexSpec) -> None:
        super().__init__(spec)
        self._version = self.number("version", 2, 1, 2)
        self._block_size = self.memory("index-block-size", "16kb")

    def index(self) -> bytes:
        return bitmap_index.encode(distinct(self._parts, self.spec.type), self._version, self._block_size)


class _Bsi(_Part):
    def index(self) -> bytes:
        return bsi_index.encode(self._parts, self.spec.name)


class _Range(_Part):
    def __init__(self, spec: IndexSpec) -> None:
        super().__init__(spec)
        self._chunk_size = self.memory("chunk-size", "0b" if spec.type.root in _UNCHUNKED else "16kb")

    def index(self) -> bytes:
        return range_bitmap_index.encode(distinct(self._parts, self.spec.type), self._chunk_size)


def _of_key(column: pa.Array, key: str) -> pa.Array:
    """The value that each map has for a key, null where it has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = column.offsets.to_numpy().astype(np.int64)
    keys, items = column.keys, column.items
    at = np.flatnonzero(pc.equal(keys, key).to_numpy(zero_copy_only=False).astype(bool))
    row = np.searchsorted(offsets, at, side="right") - 1
    inside = (row >= 0) & (row < len(column))
    place = np.full(len(column), -1, np.int64)
    place[row[inside]] = at[inside]
    valid = place >= 0
    if column.null_count:
        valid &= column.is_valid().to_numpy(zero_copy_only=False)
    return items.take(pa.array(place, mask=~valid))


# ---- the container ---------------------------------------------------------------------------------------


def container(indexes: Mapping[str, Mapping[str, bytes | None]]) -> bytes:
    """A container of indexes by column and kind; None stands for a column that had no value to index."""
    heads = sum(4 + len(_utf(c)) + sum(len(_utf(k)) + 8 for k in kinds) for c, kinds in indexes.items())
    size = 8 + 4 + 4 + 4 + heads + 4
    head = [struct.pack(">qiii", _MAGIC, _VERSION, size, len(indexes))]
    body: list[bytes] = []
    at = size
    for column, kinds in indexes.items():
        head += [_utf(column), struct.pack(">i", len(kinds))]
        for kind, data in kinds.items():
            head += [_utf(kind), struct.pack(">ii", _NOTHING if data is None else at, len(data or b""))]
            body.append(data or b"")
            at += len(body[-1])
    return b"".join((*head, bytes(4), *body))


def _utf(text: str) -> bytes:
    """Java's modified UTF-8 with its length: a zero takes two bytes, what lies beyond 16 bits two surrogates."""
    raw = b"".join(_units(text))
    if len(raw) > 0xFFFF:
        raise BadRequest(f"the name '{text[:40]}...' is too long for a file index", hint="shorten the map key")
    return len(raw).to_bytes(2, "big") + raw


def _units(text: str) -> Iterator[bytes]:
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        yield b"\xc0\x80" if unit == 0 else chr(unit).encode("utf-8", "surrogatepass")
