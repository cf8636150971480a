# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions of arrays and maps: collect, merge_map, merge_map_with_keytime, nested_update, and partial.

Their results are choices among the elements that came in, so a value is a list of element numbers: what equals what
is computed for all elements at once, keys with several versions are walked one by one (the table that Java keeps for a
key depends on everything before, so there is no whole-column form), and one `take` makes the column.
Agrees with: FieldCollectAgg, FieldMergeMapAgg, FieldMergeMapWithKeyTimeAgg, FieldNestedUpdateAgg,
FieldNestedPartialUpdateAgg (2.0.0). Invariant: elements keep their exact Arrow values.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from shoal.errors import BadRequest, near
from shoal.format.hashing import row_hashes
from shoal.format.types import DataType, Field
from shoal.lsm import java_order
from shoal.lsm.aggregates import Aggregate, numbers
from shoal.lsm.keys import column_words, stable_order
from shoal.lsm.versions import ADD, OLDER, RESET, RETRACT, Array, Steps, taken, validity

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.options import Options

# The elements of one value by number; None: the value is null.
Value = list[int] | None


class Nested(Aggregate):
    """A function on arrays or maps. Subclasses look at all elements in `begin`, then `add` and `take_back`."""

    @abstractmethod
    def begin(self, elements: pa.Array) -> None:
        """Look at all elements of a block."""

    @abstractmethod
    def add(self, value: Value, new: Value) -> Value: ...

    def take_back(self, value: Value, old: Value) -> Value:
        """Asked only of functions that can."""
        return value

    def late(self, value: Value, old: Value) -> Value:
        """A version that came too late goes in front."""
        return self.add(old, value)

    def made(self, elements: pa.Array, numbers: Array) -> pa.Array:
        return elements.take(numbers)

    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        import pyarrow as pa

        steps = steps.explicit.split
        assert steps.ops is not None
        owners = np.arange(steps.size) if steps.groups is None else steps.groups
        as_is = (steps.counts == 1) & (steps.ops[steps.starts] == RESET)
        at = np.full(steps.size, -1, np.int64)
        at[owners[as_is]] = steps.rows[steps.starts[as_is]]
        if as_is.all():
            return taken(values, at)
        at[owners[~as_is]] = len(values) + np.arange(int((~as_is).sum()))
        return taken(pa.concat_arrays([values, self._folded(values, steps.only(~as_is))]), at)

    def _folded(self, values: pa.Array, steps: Steps) -> pa.Array:
        import pyarrow as pa

        assert steps.ops is not None
        lists = values.take(pa.array(steps.rows))
        elements, offsets = lists.values, lists.offsets.to_pylist()
        valid = validity(lists)
        there = [True] * len(lists) if valid is None else valid.tolist()
        self.begin(elements)
        ops = steps.ops.tolist()
        chosen: list[int] = []
        ends, filled = [0], []
        for start, end in zip(steps.starts.tolist(), (steps.ends + 1).tolist()):
            value: Value = None
            for i in range(start, end):
                new = list(range(offsets[i], offsets[i + 1])) if there[i] else None
                op = ops[i]
                if op == ADD:
                    value = self.add(value, new)
                elif op == RETRACT:
                    value = self.take_back(value, new)
                elif op == OLDER:
                    value = self.late(value, new)
                else:
                    value = new
            chosen += value or ()
            ends.append(len(chosen))
            filled.append(value is not None)
        bits = pa.py_buffer(np.packbits(np.array(filled, bool), bitorder="little"))
        child = self.made(elements, np.array(chosen, np.int64))
        return pa.Array.from_buffers(
            values.type, len(filled), [bits, pa.py_buffer(np.array(ends, np.int32))], children=[child]
        )


class Collect(Nested):
    """Arrays laid end to end; `distinct` keeps the first of equal elements."""

    retracts = True
    roots = ("ARRAY",)
    wants = "ARRAY"

    def __init__(self, function: str, field: Field, options: Options) -> None:
        super().__init__(function, field, options)
        self._distinct = bool(options.get(f"fields.{field.name}.distinct"))
        self._element = cast(DataType, field.type.element)
        self._hashed = not self._element.is_nested

    def begin(self, elements: pa.Array) -> None:
        self._codes = identities(elements, self._element, by_reference=self._hashed).tolist()
        hashed = self._distinct and self._hashed
        self._hashes = java_order.hashes(elements, self._element) if hashed else None

    def add(self, value: Value, new: Value) -> Value:
        if value is None and new is None:
            return None
        if not self._distinct:
            return (value or []) + (new or [])
        codes = self._codes
        if self._hashed:
            table: dict[int, int] = {}
            for e in (*(value or ()), *(new or ())):
                table.setdefault(codes[e], e)
            return java_order.walk(list(table.values()), self._hashes, len(table))
        out = list(value or ())
        seen = {codes[e] for e in out}
        for e in new or ():
            if codes[e] not in seen:
                seen.add(codes[e])
                out.append(e)
        return out

    def late(self, value: Value, old: Value) -> Value:
        # Java's wrapper that ignores retractions turns the arguments round, the function itself does not
        return self.add(old, value) if self.ignores_retracts else self.add(value, old)

    def take_back(self, value: Value, old: Value) -> Value:
        if not value or not old:
            return value
        gone = Counter(self._codes[e] for e in old)
        out = []
        for e in value:
            if gone[self._codes[e]] > 0:
                gone[self._codes[e]] -= 1
            else:
                out.append(e)
        return out


class MergeMap(Nested):
    """Maps laid over each other: the newest value of a key wins; a retraction removes its keys."""

    retracts = True
    roots = ("MAP",)
    wants = "MAP"

    def begin(self, elements: pa.Array) -> None:
        keys, t = elements.flatten()[0], cast(DataType, self.type.key)
        self._codes = identities(keys, t, by_reference=True).tolist()
        self._hashes = java_order.hashes(keys, t)

    def add(self, value: Value, new: Value) -> Value:
        if value is None or new is None:
            return new if value is None else value
        table = {self._codes[e]: e for e in value}
        table |= {self._codes[e]: e for e in new}
        return java_order.walk(list(table.values()), self._hashes, len(table))

    def take_back(self, value: Value, old: Value) -> Value:
        if not value or not old:
            return value
        gone = {self._codes[e] for e in old}
        left = [e for e in value if self._codes[e] not in gone]
        return java_order.walk(left, self._hashes, len(left))


class MergeMapWithKeyTime(Nested):
    """Maps of rows that hold a time: a key takes the row of the later time; a null row removes it."""

    roots = ("MAP",)
    wants = "MAP of ROW"

    def __init__(self, function: str, field: Field, options: Options) -> None:
        super().__init__(function, field, options)
        row = cast(DataType, field.type.value)
        names = [f.name for f in row.fields]
        if row.root != "ROW" or len(names) < 2:
            raise BadRequest(
                f"column '{field.name}': aggregate function '{function}' needs a MAP of ROW with at least two members",
                hint="the row holds the value and its time",
            )
        option = f"fields.{field.name}.ts-field"
        wanted = options.get(option)
        if wanted is not None and wanted not in names:
            raise BadRequest(
                f"'{option}' = '{wanted}': the row of column '{field.name}' has no such member",
                hint=near(str(wanted), names) or "members are " + ", ".join(names),
            )
        self._time = len(names) - 1 if wanted is None else names.index(str(wanted))
        self._time_type = row.fields[self._time].type

    def begin(self, elements: pa.Array) -> None:
        keys, rows = elements.flatten()
        t = cast(DataType, self.type.key)
        self._codes = identities(keys, t, by_reference=True).tolist()
        self._hashes = java_order.hashes(keys, t)
        self._rows = rows.is_valid().to_pylist()
        times = rows.flatten()[self._time]
        if self._time_type.root in ("CHAR", "VARCHAR"):
            # Java compares texts by UTF-16 units
            self._times = [None if t is None else t.encode("utf-16-be") for t in times.to_pylist()]
        else:
            self._times = [b"" if t else None for t in times.is_valid().to_pylist()]

    def add(self, value: Value, new: Value) -> Value:
        if value is None or new is None:
            return new if value is None else value
        table = {self._codes[e]: e for e in value}
        size = len(table)
        for e in new:
            code, time = self._codes[e], self._times[e]
            if not self._rows[e]:
                table.pop(code, None)
            elif time is not None:
                known = table.get(code)
                if known is None or self._later(time, self._times[known]):
                    table[code] = e
                    size = max(size, len(table))
        return java_order.walk(list(table.values()), self._hashes, size)

    def _later(self, time: bytes, known: bytes | None) -> bool:
        if known is None:
            return True
        if self._time_type.root not in ("CHAR", "VARCHAR"):
            raise BadRequest(
                f"column '{self.column}': aggregate function '{self.function}' compares times as text, "
                f"and the time has type {self._time_type}",
                hint=f"give the time type STRING, or name another member in 'fields.{self.column}.ts-field'",
            )
        return time > known


class _Rows(Nested):
    """Arrays of rows, told apart by `nested-key`."""

    roots = ("ARRAY",)
    wants = "ARRAY of ROW"

    def __init__(self, function: str, field: Field, options: Options) -> None:
        super().__init__(function, field, options)
        row = cast(DataType, field.type.element)
        if row.root != "ROW":
            raise BadRequest(
                f"column '{field.name}': aggregate function '{function}' needs ARRAY of ROW, not {field.type}",
                hint=f"change 'fields.{field.name}.aggregate-function'",
            )
        self._row = row
        self._options = options
        self._nulls = str(options.get(f"fields.{field.name}.nested-key-null-strategy"))
        self._key = self._members("nested-key")

    def _members(self, option: str) -> list[int]:
        """Positions in the row of the members that an option names."""
        key = f"fields.{self.column}.{option}"
        names = [f.name for f in self._row.fields]
        wanted = cast("Sequence[str] | None", self._options.get(key)) or ()
        for name in wanted:
            if name not in names:
                raise BadRequest(
                    f"'{key}': the rows of column '{self.column}' have no member '{name}'",
                    hint=near(name, names) or "members are " + ", ".join(names),
                )
        return [names.index(name) for name in wanted]

    def begin(self, elements: pa.Array) -> None:
        self._there = elements.is_valid().to_pylist()
        parts = elements.flatten()
        self._parts = parts
        types = [f.type for f in self._row.fields]
        if not self._key:
            self._codes = identities(elements, self._row).tolist()
            return
        keys, key_types = [parts[i] for i in self._key], [types[i] for i in self._key]
        self._codes = _joined([identities(k, t) for k, t in zip(keys, key_types)], len(elements)).tolist()
        self._hashes = row_hashes(keys, key_types).tolist()
        nulls = np.zeros(len(elements), bool)
        for k in keys:
            nulls |= k.is_null().to_numpy(zero_copy_only=False)
        self._null_keys = nulls.tolist()

    def _present(self, value: Value) -> list[int]:
        return [e for e in value or () if self._there[e]]

    def _keyed(self, value: Value) -> Iterable[int]:
        """Elements that are there and whose key counts."""
        for e in self._present(value):
            if self._nulls == "merge" or not self._null_keys[e]:
                yield e
            elif self._nulls == "error":
                raise BadRequest(
                    f"column '{self.column}': a nested row has a null in its key, "
                    f"which 'fields.{self.column}.nested-key-null-strategy' = 'error' refuses",
                    hint="set it to 'ignore' or 'merge'",
                )


class NestedUpdate(_Rows):
    """Rows by key, the newest wins (or the one of the greater nested sequence); without a key rows are appended."""

    retracts = True

    def __init__(self, function: str, field: Field, options: Options) -> None:
        super().__init__(function, field, options)
        prefix = f"fields.{field.name}"
        self._sequence = self._members("nested-sequence-field")
        self._limit = int(cast(int, options.get(f"{prefix}.count-limit")))
        for option in ("nested-key-null-strategy", "nested-sequence-field"):
            if not self._key and options.is_set(f"{prefix}.{option}"):
                raise BadRequest(
                    f"'{prefix}.{option}' needs '{prefix}.nested-key'", hint=f"set '{prefix}.nested-key' too"
                )

    def begin(self, elements: pa.Array) -> None:
        super().begin(elements)
        self._order: list[int] | None = None
        if self._sequence and len(elements):
            words = [w for i in self._sequence for w in column_words(self._parts[i], nullable=True)]
            order, first = stable_order(words)
            rank = np.empty(len(order), np.int64)
            rank[order] = np.cumsum(first)
            self._order = rank.tolist()

    def add(self, value: Value, new: Value) -> Value:
        if new is None:
            return value
        if not self._key:
            if value is None:
                return self._present(new)[: max(0, self._limit)]
            if len(value) >= self._limit:
                return value
            return self._present(value) + self._present(new)[: self._limit - len(value)]
        table: dict[int, int] = {}
        for elements, limited in ((value, False), (new, True)):
            for e in self._keyed(elements):
                known = table.get(self._codes[e])
                if known is None:
                    if not limited or len(table) < self._limit:
                        table[self._codes[e]] = e
                elif self._order is None or self._order[e] >= self._order[known]:
                    table[self._codes[e]] = e
        return java_order.walk(list(table.values()), self._hashes, len(table))

    def take_back(self, value: Value, old: Value) -> Value:
        if value is None or old is None:
            return value
        if not self._key:
            gone = {self._codes[e] for e in self._present(old)}
            return [e for e in self._present(value) if self._codes[e] not in gone]
        table = {self._codes[e]: e for e in self._keyed(value)}
        size = len(table)
        for e in self._keyed(old):
            table.pop(self._codes[e], None)
        return java_order.walk(list(table.values()), self._hashes, size)


class NestedPartialUpdate(_Rows):
    """Rows by key; members that are not null overwrite."""

    def __init__(self, function: str, field: Field, options: Options) -> None:
        super().__init__(function, field, options)
        if not self._key:
            raise BadRequest(
                f"column '{field.name}': aggregate function '{function}' needs 'fields.{field.name}.nested-key'",
                hint="name the members that tell the nested rows apart",
            )

    def begin(self, elements: pa.Array) -> None:
        super().begin(elements)
        self._filled = [p.is_valid().to_pylist() for p in self._parts]
        # rows put together here are numbered after those that came in: which element gives each member, -1 for none
        self._own: list[list[int]] = []
        self._count = len(elements)

    def add(self, value: Value, new: Value) -> Value:
        if new is None:
            return value
        table: dict[int, int] = {}
        slots = 16
        for e in self._keyed((value or []) + new):
            # Java's computeIfAbsent grows the table one call late and puts a new entry in front of its slot
            if len(table) * 4 > slots * 3:
                slots *= 2
            known = table.get(self._codes[e])
            table[self._codes[e]] = e if known is None else self._over(known, e)
        return java_order.walk_slots(list(table.values())[::-1], self._hashes, slots)

    def _over(self, below: int, above: int) -> int:
        members = [a if a >= 0 else b for a, b in zip(self._sources(above), self._sources(below))]
        self._own.append(members)
        for known in (self._codes, self._hashes, self._there, self._null_keys):
            known.append(known[below])
        return self._count + len(self._own) - 1

    def _sources(self, e: int) -> list[int]:
        if e >= self._count:
            return self._own[e - self._count]
        return [e if filled[e] else -1 for filled in self._filled]

    def made(self, elements: pa.Array, numbers: Array) -> pa.Array:
        import pyarrow as pa

        if not self._own:
            return elements.take(pa.array(numbers))
        own = np.array(self._own, np.int64).reshape(len(self._own), -1)
        late = numbers >= self._count
        columns = []
        for i, part in enumerate(self._parts):
            rows = numbers.copy()
            rows[late] = own[numbers[late] - self._count, i]
            columns.append(taken(part, rows))
        # an element that came in alone may be a null row; rows put together never are
        there = np.array([self._there[e] for e in numbers.tolist()], bool)
        return pa.StructArray.from_arrays(columns, fields=list(elements.type), mask=pa.array(~there))


# ---- what equals what ------------------------------------------------------------------------------------


def identities(values: pa.Array, t: DataType, *, by_reference: bool = False) -> Array:
    """A number for each value; equal values have equal numbers, null has -1.

    `by_reference`: bytes equal nothing but themselves, as objects in Java's hash tables.
    """
    import pyarrow as pa

    if not len(values):
        return np.zeros(0, np.int64)
    if t.root == "ROW":
        inner = [identities(v, f.type) for v, f in zip(values.flatten(), t.fields)]
        codes = _joined(inner, len(values))
    elif t.root in ("ARRAY", "MAP", "MULTISET"):
        codes = _list_identities(values, t)
    elif by_reference and t.root in ("BINARY", "VARBINARY"):
        codes = np.arange(len(values))
    elif pa.types.is_floating(values.type):
        v = numbers(values)
        v = np.where(np.isnan(v), np.array(np.nan, v.dtype), v).view(f"i{v.dtype.itemsize}")
        codes = np.unique(v, return_inverse=True)[1].reshape(-1)
    else:
        coded = values.dictionary_encode() if not pa.types.is_dictionary(values.type) else values
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    valid = validity(values)
    return codes if valid is None else np.where(valid, codes, -1)


def _joined(codes: Sequence[Array], n: int) -> Array:
    """One number for each combination."""
    if len(codes) == 1:
        return codes[0]
    if not codes:
        return np.zeros(n, np.int64)
    joined: Array = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    return joined


def _list_identities(values: pa.Array, t: DataType) -> Array:
    """Lists and maps inside elements: by the numbers of what they hold, one by one, since their lengths differ."""
    flat, offsets = values.values, values.offsets.to_pylist()
    if t.root == "ARRAY":
        codes = identities(flat, cast(DataType, t.element)).tolist()
    else:
        value = t.value or DataType("INT")
        keys, items = flat.flatten()
        keys = identities(keys, cast(DataType, t.key or t.element))
        codes = _joined([keys, identities(items, value)], len(flat)).tolist()
    known: dict[tuple[int, ...], int] = {}
    out = []
    for start, end in itertools.pairwise(offsets):
        inner = codes[start:end]
        out.append(known.setdefault(tuple(inner if t.root == "ARRAY" else sorted(inner)), len(known)))
    return np.array(out, np.int64)
