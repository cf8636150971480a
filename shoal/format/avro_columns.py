# SPDX-License-Identifier: Apache-2.0
"""From an Avro schema and the asked columns: code that reads a block into lists, and Arrow columns of the lists.

The code runs once a record, in Python because records have no fixed length, and does as little as it can: it notes
where each value lies and goes on to the next (a table of the block's bytes below 128 says where a varint ends). Then
`avro_values` decodes all values of a column in the block at once. Invariant: a list grows by at most the items that a
block's bytes can hold; whatever does not fit is `Damaged` while reading, `Corrupt` afterwards.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import Corrupt, ShoalError, Unsupported
from shoal.format.avro_values import Damaged, Leaf, ends_of, values_at
from shoal.format.shape import as_stored, checked, map_parts
from shoal.format.types import DataType, Field, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

_Lists = list[list[Any]]
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
# Bytes of the plain types; 0 where they vary.
_WIDTHS = {"boolean": 1, "int": 0, "long": 0, "float": 4, "double": 8, "bytes": 0, "string": 0, "decimal": 0}
_PLAIN = frozenset({"null", *_WIDTHS} - {"decimal"})


class Misfit(Exception):
    """The file's schema is none, or not one of these columns; the reader adds the file's name."""

    def __init__(self, message: str, *, unsupported: bool = False) -> None:
        super().__init__(message)
        self._unsupported = unsupported

    def of(self, path: str) -> ShoalError:
        text = f"{path}: {self}"
        if self._unsupported:
            return Unsupported(text, hint="Paimon writes no such Avro schema; another tool wrote this file")
        return Corrupt(text, hint="the file is damaged, or not one of this table")


@dataclass(slots=True)
class _Column:
    """What one value becomes: a kind, the list it is collected in, and the columns below it (None: not in the file)."""

    kind: str
    at: int
    type: DataType
    logical: str = ""
    below: list[_Column | None] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """What was collected for a batch, by list: positions in the block being read, or counts; and decoded values."""

    lists: _Lists
    arrays: list[list[pa.Array]]


@dataclass(slots=True)
class Columns:
    """A decoder of blocks into columns. `leaves`: the lists that hold positions, and what lies there."""

    run: Callable[[bytes, Any, int, _Lists], int]
    lists: int
    leaves: dict[int, Leaf]
    fields: tuple[Field, ...]
    columns: list[_Column]

    def empty(self) -> Found:
        """Nothing collected yet."""
        return Found([[] for _ in range(self.lists)], [[] for _ in range(self.lists)])

    def block(self, raw: bytes, count: int, found: Found) -> int:
        """Adds the records of a block; where the last one ended, the block's size if all is well."""
        ends = ends_of(raw)
        end = self.run(raw, array("i", ends.tobytes()), count, found.lists)
        if end == len(raw):
            for at, leaf in self.leaves.items():
                found.arrays[at].append(values_at(leaf, raw, ends, found.lists[at]))
                found.lists[at].clear()
        return end

    def batch(self, found: Found, path: str) -> pa.RecordBatch:
        """What was collected, as Arrow columns."""
        import pyarrow as pa

        if not self.columns:
            # a list of nothing but the row count
            rows = len(found.lists[0])
            return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
        arrays = [_array(c, found, path, f.name) for c, f in zip(self.columns, self.fields)]
        return pa.RecordBatch.from_arrays(arrays, names=[f.name for f in self.fields])


def names_of(schema: str) -> tuple[str, ...]:
    """The names of a file's columns."""
    return tuple(f["name"] for f in _record(_parsed(schema))["fields"])


def _parsed(schema: str) -> Any:
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as err:
        raise Misfit("the Avro schema in its header is no JSON") from err


def _record(root: Any) -> dict[str, Any]:
    """The record that rows are, which may stand in a union with null."""
    if isinstance(root, list):
        root = next((r for r in root if isinstance(r, dict)), None)
    fields = root.get("fields") if isinstance(root, dict) else None
    if not isinstance(fields, list) or not all(isinstance(f, dict) and isinstance(f.get("name"), str) for f in fields):
        raise Misfit("the Avro schema in its header is no record")
    return root


@lru_cache(maxsize=64)
def decoder(schema: str, fields: tuple[Field, ...]) -> Columns:
    """A decoder of these columns out of files with this schema."""
    root = _parsed(schema)
    _record(root)
    source = _Source()
    try:
        return source.compiled(root, fields)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as err:
        raise Misfit("the Avro schema in its header makes no sense") from err


# ---- generated code --------------------------------------------------------------------------------------


def _long(b: bytes, p: int, x: int, shift: int) -> tuple[int, int]:
    """The rest of a long varint."""
    while True:
        y = b[p]
        p += 1
        x += (y & 127) << shift
        if y < 128:
            return x, p
        shift += 7
        if shift > 63:
            raise Damaged


class _Source:
    """Lines of the generated function. Field and type names never get into it: it has numbers only."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 2
        self._lists = 0
        self._vars = 0
        self._leaves: dict[int, Leaf] = {}
        self._named: dict[str, Any] = {}

    def compiled(self, root: Any, fields: tuple[Field, ...]) -> Columns:
        row = DataType("ROW", fields=fields)
        if not fields:
            self._add(f"a{self._list()}(None)")
        if isinstance(root, list):
            self._add("if b[p] == " + str(2 * root.index("null")) + ": raise Damaged", "p += 1")
            root = _record(root)
        found = self._members(root, row, "")
        if None in found:
            raise Misfit(f"it has no column '{fields[found.index(None)].name}'")
        head = ["def run(b, ends, count, lists):", "    p = 0", "    size = len(b)"]
        head += [f"    a{i} = lists[{i}].append" for i in range(self._lists)]
        text = "\n".join([*head, "    for _ in range(count):", *self._lines, "        pass", "    return p"])
        space: dict[str, Any] = {"Damaged": Damaged, "long": _long}
        exec(text, space)
        return Columns(space["run"], self._lists, self._leaves, fields, [c for c in found if c is not None])

    def _add(self, *lines: str) -> None:
        self._lines += ["    " * self._depth + line for line in lines]

    def _list(self) -> int:
        self._lists += 1
        return self._lists - 1

    def _resolved(self, schema: Any, space: str) -> tuple[Any, str]:
        """(the schema behind a name or a `{"type": {...}}`, the namespace inside it)."""
        while isinstance(schema, dict) and isinstance(schema.get("type"), (dict, list)):
            schema = schema["type"]
        if isinstance(schema, str) and schema not in _PLAIN:
            found = self._named.get(schema) or self._named.get(f"{space}.{schema}")
            if found is None:
                raise Misfit(f"its schema names an unknown type '{schema}'")
            return found
        if isinstance(schema, dict) and "name" in schema:
            own = schema.get("namespace", space)
            name = schema["name"] if "." in schema["name"] or not own else f"{own}.{schema['name']}"
            self._named[name] = schema, name.rpartition(".")[0]
            return self._named[name]
        return schema, space

    def _members(self, record: Any, t: DataType, space: str) -> list[_Column | None]:
        """Code for the fields of a record; the columns of the type's members, in their order."""
        record, space = self._resolved(record, space)
        wanted = {f.name: i for i, f in enumerate(t.fields)}
        out: list[_Column | None] = [None] * len(t.fields)
        for f in record["fields"]:
            at = wanted.get(f["name"])
            if at is None:
                self._skip(f["type"], space)
            else:
                out[at] = self._value(f["type"], t.fields[at].type, space, self._list())
        return out

    def _value(self, schema: Any, t: DataType, space: str, into: int) -> _Column:
        """Code that notes one value in the list `into` and goes past it."""
        schema, space = self._resolved(schema, space)
        null = None
        if isinstance(schema, list):
            branch, other = self._branches(schema)
            null = 2 * branch
            schema, space = self._resolved(schema[other], space)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in _WIDTHS:
            logical = str(schema.get("logicalType", "")) if isinstance(schema, dict) else ""
            if kind in ("string", "bytes"):
                kind = "decimal" if logical == "decimal" else "bytes"
            elif kind == "int":
                kind = "long"
            self._leaves[into] = Leaf(kind, null, int(schema.get("scale", 0)) if kind == "decimal" else 0)
            self._add(f"a{into}(p)")
            self._past(kind, null)
            return _Column("leaf", into, t, logical)
        if null is None:
            return self._nested(kind, schema, t, space, into)
        self._add("u = b[p]; p += 1", f"if u == {2 - null}:")
        self._depth += 1
        column = self._nested(kind, schema, t, space, into)
        self._depth -= 1
        self._add(f"elif u == {null}: a{into}(None)", "else: raise Damaged")
        return column

    def _past(self, kind: str, null: int | None) -> None:
        """Code that goes past a plain value, behind its union's byte where there is a `null`."""
        size = 0 if null is None else 1
        width = _WIDTHS[kind]
        if width or kind in ("int", "long"):
            step = f"p + {width + size}" if width else f"ends[p + {size}] + 1"
            self._add(f"p = {step}" if null is None else f"p = {step} if b[p] != {null} else p + 1")
            return
        if null is not None:
            self._add(f"if b[p] == {null}: p += 1", "else:")
            self._depth += 1
        # an odd number would be a negative length
        self._add(
            f"x = b[p + {size}]",
            f"if x < 128: p += (x >> 1) + {size + 1}",
            "else:",
            f"    x, p = long(b, p + {size + 1}, x - 128, 7)",
            "    p += x >> 1",
        )
        if null is not None:
            self._depth -= 1

    def _nested(self, kind: Any, schema: Any, t: DataType, space: str, into: int) -> _Column:
        if kind == "record" and t.root == "ROW":
            self._add(f"a{into}(1)")
            return _Column(kind, into, t, below=self._members(schema, t, space))
        if kind == "array" and t.root in ("ARRAY", "VECTOR"):
            assert t.element is not None
            count = self._items(schema["items"], space)
            below: list[_Column | None] = [self._value(schema["items"], t.element, space, self._list())]
            self._end_items(count, into)
            return _Column(kind, into, t, below=below)
        if kind in ("array", "map") and t.root in ("MAP", "MULTISET"):
            key, value = map_parts(t)
            if kind == "array":
                entry = DataType("ROW", fields=(Field(0, "key", key), Field(1, "value", value)))
                count = self._items(schema["items"], space)
                below = self._members(schema["items"], entry, space)
            else:
                count = self._items("string", space)
                below = [self._value("string", key, space, self._list())]
                below.append(self._value(schema["values"], value, space, self._list()))
            if None in below:
                raise Misfit("a map in it has no keys or no values")
            self._end_items(count, into)
            return _Column("map", into, t, below=below)
        if kind in ("record", "array", "map", *_PLAIN):
            raise Misfit(f"it holds the Avro type '{kind}' where the schema says {t}")
        raise Misfit(f"its schema has the Avro type '{kind}'", unsupported=True)

    def _branches(self, union: list[Any]) -> tuple[int, int]:
        if len(union) != 2 or "null" not in union:
            raise Misfit(f"its schema has a union of {len(union)} types", unsupported=True)
        null = union.index("null")
        return null, 1 - null

    def _varint(self) -> None:
        """A varint into x, zigzag and all; most have up to three bytes."""
        self._add(
            "x = b[p]; p += 1",
            "if x > 127:",
            "    y = b[p]; p += 1; x += (y << 7) - 128",
            "    if y > 127:",
            "        y = b[p]; p += 1; x += (y << 14) - 16384",
            "        if y > 127: x, p = long(b, p, x - 2097152, 21)",
        )

    def _items(self, items: Any, space: str) -> str:
        """Code before an item of an array or map; ends inside its loops."""
        if not self._takes_bytes(items, space, 0):
            raise Misfit("its schema has an array of values without bytes", unsupported=True)
        self._vars += 1
        n = f"n{self._vars}"
        self._add(f"m{n} = 0", "while True:")
        self._depth += 1
        self._varint()
        # a negative count has the size of the block's bytes behind it
        self._add(f"{n} = (x >> 1) ^ -(x & 1)", f"if {n} == 0: break", f"if {n} < 0:", f"    {n} = -{n}")
        self._add("    p = ends[p] + 1")
        self._add(f"m{n} += {n}", f"if m{n} > size: raise Damaged", f"for _ in range({n}):")
        self._depth += 1
        return n

    def _end_items(self, n: str, into: int | None) -> None:
        self._add("pass")
        self._depth -= 2
        if into is not None:
            self._add(f"a{into}(m{n})")

    def _takes_bytes(self, schema: Any, space: str, depth: int) -> bool:
        schema, space = self._resolved(schema, space)
        if isinstance(schema, dict) and schema["type"] == "record":
            return depth < 16 and any(self._takes_bytes(f["type"], space, depth + 1) for f in schema["fields"])
        return bool(schema != "null")

    def _skip(self, schema: Any, space: str) -> None:
        """Code that goes past one value."""
        schema, space = self._resolved(schema, space)
        if isinstance(schema, list):
            null, other = self._branches(schema)
            inner, _ = self._resolved(schema[other], space)
            kind = inner["type"] if isinstance(inner, dict) else inner
            if kind in _WIDTHS:
                self._past(kind, 2 * null)
                return
            self._add("u = b[p]; p += 1", f"if u == {2 - 2 * null}:")
            self._depth += 1
            self._skip(schema[other], space)
            self._add("pass")
            self._depth -= 1
            self._add(f"elif u != {2 * null}: raise Damaged")
            return
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in _WIDTHS:
            self._past(kind, None)
        elif kind == "record":
            for f in schema["fields"]:
                self._skip(f["type"], space)
        elif kind in ("array", "map"):
            n = self._items(schema["items"] if kind == "array" else "string", space)
            if kind == "map":
                self._skip("string", space)
            self._skip(schema["items" if kind == "array" else "values"], space)
            self._end_items(n, None)
        elif kind == "fixed":
            self._add(f"p += {int(schema['size'])}")
        elif kind == "enum":
            self._skip("int", space)
        elif kind != "null":
            raise Misfit(f"its schema has the Avro type '{kind}'", unsupported=True)


# ---- lists to Arrow --------------------------------------------------------------------------------------


def _array(c: _Column, found: Found, path: str, name: str) -> pa.Array:
    """The Arrow array of a column, in the Arrow type of its Paimon type."""
    import pyarrow as pa

    values = found.lists[c.at]
    try:
        if c.kind == "record":
            return _struct(c, values, found, path, name)
        if c.kind in ("array", "map"):
            return _lists_of(c, values, found, path, name)
        return checked(as_stored(_flat(c, found), c.type, path, name), c.type, path, name)
    except (pa.ArrowException, OverflowError, ValueError) as err:
        raise Corrupt(
            f"{path}: column '{name}' holds a value that is no {c.type} ({str(err)[:200]})", hint="the file is damaged"
        ) from err


def _flat(c: _Column, found: Found) -> pa.Array:
    import pyarrow as pa

    a = pa.concat_arrays(found.arrays[c.at])
    if pa.types.is_int64(a.type):
        unit = c.logical.rpartition("-")[2] if "timestamp" in c.logical else ""
        if unit in _UNITS:
            return a.view(pa.timestamp(_UNITS[unit]))
        # days and milliseconds are 32-bit numbers to Arrow, as in the file
        return a.cast(pa.int32()) if c.type.root in ("DATE", "TIME") else a
    return a


def _struct(c: _Column, valid: list[Any], found: Found, path: str, name: str) -> pa.Array:
    import pyarrow as pa

    present = np.array([v is not None for v in valid], bool)
    members = []
    for member, f in zip(c.below, c.type.fields):
        if member is None:
            members.append(pa.nulls(len(valid), to_arrow(f.type)))
            continue
        a = _array(member, found, path, name)
        members.append(a if present.all() else a.take(pa.array(np.cumsum(present) - 1, mask=~present)))
    target = to_arrow(c.type)
    if not members:
        return pa.array([None if v is None else {} for v in valid], target)
    mask = None if present.all() else pa.array(~present)
    return pa.StructArray.from_arrays(members, fields=list(target), mask=mask)


def _lists_of(c: _Column, counts: list[Any], found: Found, path: str, name: str) -> pa.Array:
    import pyarrow as pa

    lengths = pa.array(counts, pa.int32())
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(lengths.fill_null(0).to_numpy(), out=offsets[1:])
    mask = lengths.is_null() if lengths.null_count else None
    below = [_array(b, found, path, name) for b in c.below if b is not None]
    target = to_arrow(c.type)
    if c.kind == "map":
        return pa.MapArray.from_arrays(pa.array(offsets), *below, type=target, mask=mask)
    variable = pa.list_(target.value_field)
    made = pa.ListArray.from_arrays(pa.array(offsets), below[0], type=variable, mask=mask)
    return made if target == variable else made.cast(target)
