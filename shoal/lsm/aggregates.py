# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions of plain values: each folds a whole column of versions at once.

A function that only chooses among the versions gives positions and one `take` makes the column; one that computes does
so with `reduceat`, or one pass for each version rank where the order of operations shows in the result.
Agrees with: FieldAggregator and its subclasses, FieldAggregatorFactory (2.0.0). Invariant: nulls, retractions, late
versions and overflow give what Java gives when it takes the versions one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from shoal.errors import BadRequest
from shoal.format.hashing import byte_buffers
from shoal.format.types import MAX_LENGTH, Field
from shoal.lsm.keys import column_words
from shoal.lsm.versions import ADD, OLDER, RESET, RESET_RETRACT, RETRACT, Array, Steps, taken, validity

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.options import Options

NUMERIC = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
_INCOMPARABLE = ("BOOLEAN", "ARRAY", "MAP", "MULTISET", "ROW", "VARIANT", "VECTOR", "BLOB")


class Aggregate(ABC):
    """One function on one column. `apply` is what engines call; subclasses say how to `fold`."""

    retracts: ClassVar[bool] = False  # whether it can take values back
    roots: ClassVar[tuple[str, ...]] = ()  # the types it accepts; none: all
    wants: ClassVar[str] = ""

    def __init__(self, function: str, field: Field, options: Options) -> None:
        if self.roots and field.type.root not in self.roots:
            raise BadRequest(
                f"column '{field.name}': aggregate function '{function}' needs {self.wants}, not {field.type}",
                hint=f"change 'fields.{field.name}.aggregate-function' or the column's type",
            )
        self.function = function
        self.column = field.name
        self.type = field.type
        self.ignores_retracts = bool(options.get(f"fields.{field.name}.ignore-retract"))

    def apply(self, values: pa.Array, steps: Steps) -> pa.Array:
        """The column's value for every key."""
        steps = steps.for_aggregate
        if self.ignores_retracts:
            steps = steps.without_retracts
        elif not self.retracts and steps.has(RETRACT, RESET_RETRACT):
            raise BadRequest(
                f"column '{self.column}': aggregate function '{self.function}' cannot take back a value, "
                "and a row of kind -U or -D is to be merged",
                hint=f"set 'fields.{self.column}.ignore-retract' = 'true' to pass over such rows",
            )
        return self.fold(values, steps)

    @abstractmethod
    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        """The value for every key; where the function cannot take back, no step asks for it."""

    def overflow(self, what: str) -> BadRequest:
        return BadRequest(
            f"column '{self.column}': {self.function} {what} {self.type.with_nullable(True)}",
            hint="Paimon gives up on such a table too; give the column a wider type",
        )


# ---- functions that choose a version ---------------------------------------------------------------------


def plain_value(values: pa.Array, steps: Steps) -> pa.Array:
    """A column of a sequence group without an aggregate: the newest value, null after a retraction."""
    return taken(values, steps.for_plain.value_rows)


def newest(values: pa.Array, steps: Steps) -> pa.Array:
    """A sequence column: the newest value, of a retraction too."""
    return taken(values, steps.for_plain.newest_rows)


def last_non_null(values: pa.Array, steps: Steps) -> pa.Array:
    """The last value that is not null; a retraction of a value that is not null leaves null."""
    valid = validity(values)
    if steps.ops is None:
        if valid is None:
            return taken(values, steps.newest_rows)
        return taken(values, steps.spread_rows(_last_valid(valid, steps)))
    steps = steps.split
    assert steps.ops is not None
    if not len(steps.rows):
        return taken(values, np.full(steps.size, -1, np.int64))
    ok = np.ones(len(steps.rows), bool) if valid is None else valid[steps.rows]
    late = (steps.ops == OLDER) & ok
    at = steps.last((ok & (steps.ops != OLDER)) | (steps.ops == RESET))
    at = np.where(steps.ops[at] == RETRACT, -1, at)
    if late.any():
        # a late version counts only where there is nothing; of several, the first to come
        empty = (at < 0) | ~ok[at]
        last = steps.last((ok & (steps.ops != OLDER)) | (steps.ops == RESET))
        place = np.arange(len(ok))
        late &= place > np.repeat(last, steps.counts)
        came = np.minimum.reduceat(np.where(late, place, len(ok)), steps.starts)
        at = np.where(empty & (came < len(ok)), came, at)
    return taken(values, steps.spread(at))


def _last_valid(valid: Array, steps: Steps) -> Array:
    """Row of the last value that is not null; where there is none, -1 or a row that holds null."""
    if np.count_nonzero(valid) * 5 > len(valid) * 3:
        return _backwards(valid, steps)
    here = valid[steps.rows]
    so_far = np.cumsum(here, dtype=np.int32)[steps.ends]  # how many values there are up to the end of each key
    before = np.append(0, so_far)[:-1]
    rows = np.append(steps.rows[here], -1)
    return np.where(so_far > before, rows[so_far - 1], -1)


def _backwards(valid: Array, steps: Steps) -> Array:
    """The same from the newest version on, for the keys still without: few rounds where few are null."""
    rows = steps.end_rows
    open_ = np.flatnonzero(~valid[rows])
    if not len(open_):
        return rows
    rows = rows.copy()
    at, starts = steps.ends[open_] - 1, steps.starts[open_]
    while len(open_):
        more = at >= starts
        open_, at, starts = open_[more], at[more], starts[more]
        here = steps.rows[at]
        found = valid[here]
        rows[open_[found]] = here[found]
        more = ~found
        open_, at, starts = open_[more], at[more] - 1, starts[more]
    return rows


class LastValue(Aggregate):
    """The newest value, null or not; a retraction leaves null."""

    retracts = True

    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        return taken(values, steps.value_rows)


class LastNonNull(Aggregate):
    retracts = True

    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        return last_non_null(values, steps)


class KeyValue(Aggregate):
    """`primary-key`: the newest value, of a retraction too."""

    retracts = True

    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        return newest(values, steps)


class FirstValue(Aggregate):
    """The value of the version that came first. What came first is remembered beyond a `RESET`, as in Java."""

    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        if steps.ops is None:
            return taken(values, steps.spread(steps.starts))
        place = np.arange(len(steps.ops))
        late = steps.ops == OLDER
        came = np.minimum.reduceat(np.where((steps.ops == ADD) | late, place, len(place)), steps.starts)
        came = np.repeat(came, steps.counts)
        event = ((place == came) & ~late) | (steps.ops == RESET) | (late & (place > came))
        return taken(values, steps.spread(steps.last(event)))


class FirstNonNull(Aggregate):
    """The first value that is not null."""

    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        valid = validity(values)
        ok = np.ones(len(steps.rows), bool) if valid is None else valid[steps.rows]
        if steps.has(OLDER):
            return taken(values, steps.spread(self._by_rank(ok, steps)))
        place = np.arange(len(ok))
        adds = ok if steps.ops is None else ok & (steps.ops == ADD)
        came = np.minimum.reduceat(np.where(adds, place, len(ok)), steps.starts)
        if steps.ops is None:
            return taken(values, steps.spread(np.where(came < len(ok), came, -1)))
        event = (place == np.repeat(came, steps.counts)) | (steps.ops == RESET)
        return taken(values, steps.spread(steps.last(event)))

    def _by_rank(self, ok: Array, steps: Steps) -> Array:
        """With late versions what is remembered depends on the value so far, so one pass for each version rank."""
        assert steps.ops is not None
        at = np.full(len(steps.starts), -1, np.int64)
        found = np.zeros(len(steps.starts), bool)
        for live, p in ranks(steps, 0):
            op, now = steps.ops[p], at[live]
            holds = (now >= 0) & ok[now]
            was = found[live]
            adds = (op == ADD) & ok[p] & ~was
            keeps = (op == OLDER) & ~was & holds
            at[live] = np.where(adds | (op == RESET) | ((op == OLDER) & ~keeps), p, now)
            found[live] = was | adds | keeps
        return at


# ---- functions that compare ------------------------------------------------------------------------------


class Extreme(Aggregate):
    """`min` and `max`: nulls do not count."""

    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        if self.type.root in _INCOMPARABLE and bool((contributions(values, steps.pieces[0]).counts > 1).any()):
            raise BadRequest(
                f"column '{self.column}': values of type {self.type} cannot be compared by '{self.function}'",
                hint=f"change 'fields.{self.column}.aggregate-function'",
            )
        greatest = self.function == "max"
        best = np.maximum if greatest else np.minimum
        valid = validity(values)
        if _fixed(values) and valid is not None and steps.ops is None and steps.groups is None:
            here = valid[steps.rows]
            v = _ordered_bits(numbers(values)[steps.rows])
            v = np.where(here, v, np.iinfo(v.dtype).min if greatest else np.iinfo(v.dtype).max)
            made = _plain_bits(steps.extreme(v, best), values.type)
            return rebuilt(made, values.type, with_any(here, steps))
        steps = contributions(values, steps.current)
        if not len(steps.rows) or self.type.root in _INCOMPARABLE:
            return taken(values, steps.spread(steps.starts))
        if _fixed(values):
            v = _ordered_bits(numbers(values)[steps.rows])
            made = _plain_bits(steps.extreme(v, best), values.type)
            return steps.spread_values(rebuilt(made, values.type))
        return taken(values, steps.spread(self._ranked(values, steps, greatest)))

    def _ranked(self, values: pa.Array, steps: Steps, greatest: bool) -> Array:
        """Position of the extreme of values that are several words: word by word, among those still in question."""
        import pyarrow as pa

        words = column_words(values.take(pa.array(steps.rows)))
        best, out = (np.maximum, np.uint64(0)) if greatest else (np.minimum, np.uint64(2**64 - 1))
        open_ = np.ones(len(steps.rows), bool)
        for word in words:
            word = np.where(open_, word, out)
            open_ &= word == np.repeat(best.reduceat(word, steps.starts), steps.counts)
        return steps.last(open_)


class Bool(Aggregate):
    """`bool_and`, `bool_or`: nulls do not count."""

    roots = ("BOOLEAN",)
    wants = "BOOLEAN"

    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        import pyarrow as pa

        steps = contributions(values, steps.current)
        v = numbers(values)[steps.rows]
        fold = np.logical_and if self.function == "bool_and" else np.logical_or
        return steps.spread_values(pa.array(fold.reduceat(v, steps.starts) if len(v) else v))


# ---- text ------------------------------------------------------------------------------------------------

# Character.isWhitespace of Java: no-break spaces are none
_BLANK = "[\\x09-\\x0d\\x1c-\\x20\\x{1680}\\x{2000}-\\x{2006}\\x{2008}-\\x{200a}\\x{2028}\\x{2029}\\x{205f}\\x{3000}]*"
_WHITE = frozenset("\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \u1680\u2028\u2029\u205f\u3000") | {
    chr(c) for c in range(0x2000, 0x200B) if c != 0x2007
}


def _blanks(values: pa.Array) -> Array:
    """Which texts are null or blank. Few need a closer look: those that begin with a blank or beyond ASCII."""
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets, data = byte_buffers(values)
    begins, ends = offsets[:-1], offsets[1:]
    blank: Array = begins == ends
    if len(data):
        head = data[np.minimum(begins, len(data) - 1)]
        near = np.flatnonzero(~blank & ((head <= 0x20) | (head >= 0x80)))
        if len(near):
            match = pc.match_substring_regex(values.take(pa.array(near)), f"^{_BLANK}$").fill_null(True)
            blank[near] = match.to_numpy(zero_copy_only=False)
    valid = validity(values)
    return blank if valid is None else blank | ~valid


class ListAgg(Aggregate):
    """Texts joined by a delimiter; null and blank ones do not count."""

    roots = ("VARCHAR",)
    wants = "STRING"

    def __init__(self, function: str, field: Field, options: Options) -> None:
        super().__init__(function, field, options)
        if field.type.length != MAX_LENGTH:
            raise BadRequest(
                f"column '{field.name}': aggregate function 'listagg' needs STRING, not {field.type}",
                hint="a VARCHAR of limited length may not hold the joined text",
            )
        self._delimiter = str(options.get(f"fields.{field.name}.list-agg-delimiter"))
        self._distinct = bool(options.get(f"fields.{field.name}.distinct"))

    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        lone = steps.counts == 1
        if steps.ops is not None:  # a text that is added to nothing is looked at, one that is the row passes
            lone &= steps.ops[steps.starts] == RESET
        blank = _blanks(values)
        simple = lone | np.full(len(lone), not self._distinct)
        if steps.ops is not None:
            simple &= lone | (np.add.reduceat(steps.ops != ADD, steps.starts, dtype=np.int64) == 0)
        at = np.full(steps.size, -1, np.int64)
        owners = np.arange(steps.size) if steps.groups is None else steps.groups
        at[owners[lone]] = steps.rows[steps.starts[lone]]
        if lone.all():
            return taken(values, at)
        joined = steps.only(simple & ~lone)
        joined = joined.where(~blank[joined.rows])
        parts: list[pa.Array] = [values]
        if len(joined.rows):
            lists = pa.ListArray.from_arrays(
                pa.array(np.append(joined.starts, len(joined.rows)), pa.int32()), values.take(pa.array(joined.rows))
            )
            parts.append(pc.binary_join(lists, self._delimiter))
            at[joined.groups if joined.groups is not None else owners] = len(values) + np.arange(len(joined.starts))
        if not simple.all():
            some = steps.only(~simple)
            at[some.groups if some.groups is not None else owners] = sum(map(len, parts)) + np.arange(len(some.starts))
            parts.append(pa.array(self._one_by_one(values, some), values.type))
        return taken(pa.concat_arrays(parts) if len(parts) > 1 else values, at)

    def _one_by_one(self, values: pa.Array, steps: Steps) -> list[str | None]:
        """Keys with late versions, resets or `distinct`: what is joined depends on the text so far, key by key."""
        import pyarrow as pa

        texts = values.take(pa.array(steps.rows)).to_pylist()
        ops = [ADD] * len(texts) if steps.ops is None else steps.ops.tolist()
        out: list[str | None] = []
        for start, end in zip(steps.starts.tolist(), (steps.ends + 1).tolist()):
            value: str | None = None
            for op, text in zip(ops[start:end], texts[start:end]):
                if op == ADD:
                    value = self._joined(value, text)
                elif op == OLDER:
                    value = self._joined(text, value)
                elif op == RESET:
                    value = text
            out.append(value)
        return out

    def _joined(self, value: str | None, text: str | None) -> str | None:
        if text is None or _WHITE.issuperset(text):
            return value
        if value is None or _WHITE.issuperset(value):
            return text
        if not self._distinct:
            return value + self._delimiter + text
        known = set(self._tokens(value))
        new = []
        for token in self._tokens(text):
            if token not in known and not _WHITE.issuperset(token):
                known.add(token)
                new.append(token)
        return self._delimiter.join([value, *new])

    def _tokens(self, text: str) -> list[str]:
        """Java splits at blanks where the delimiter is empty, and gives no token after a delimiter at the end."""
        tokens = text.split(self._delimiter or " ")
        return tokens[:-1] if not tokens[-1] else tokens


# ---- shared ----------------------------------------------------------------------------------------------


def contributions(values: pa.Array, steps: Steps) -> Steps:
    """Only the versions with a value."""
    valid = validity(values)
    return steps if valid is None else steps.where(valid[steps.rows])


def ranks(steps: Steps, first: int = 1) -> Iterator[tuple[Array, Array]]:
    """For each version rank: the starts that have one, and where it is."""
    if first == 0 and len(steps.starts):
        yield np.arange(len(steps.starts)), steps.starts
    yield from steps.ranks


def with_any(here: Array, steps: Steps) -> Array | None:
    """Which keys have a position that is `here`; None when all have."""
    so_far = np.cumsum(here, dtype=np.int32)[steps.ends]
    some = np.diff(so_far, prepend=np.int32(0)) > 0
    return None if some.all() else some


def _fixed(values: pa.Array) -> bool:
    """Whether values are numbers or times as wide as a word at most."""
    import pyarrow as pa

    p, t = pa.types, values.type
    return bool(p.is_integer(t) or p.is_floating(t) or p.is_date(t) or p.is_time(t) or p.is_timestamp(t))


def numbers(values: pa.Array) -> Array:
    """Values of a fixed-width column as they lie in memory (times as integers), undefined where null."""
    import pyarrow as pa

    if pa.types.is_boolean(values.type):
        bits: Array = values.fill_null(False).to_numpy(zero_copy_only=False)
        return bits
    kind = "f" if pa.types.is_floating(values.type) else "i"
    raw = np.frombuffer(values.buffers()[1], np.dtype(f"{kind}{values.type.bit_width // 8}"))
    return raw[values.offset : values.offset + len(values)]


def rebuilt(v: Array, t: pa.DataType, valid: Array | None = None) -> pa.Array:
    """A column of fixed-width values from how they lie in memory."""
    import pyarrow as pa

    v = np.ascontiguousarray(v)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(t, len(v), [bits, pa.py_buffer(v)])


def _ordered_bits(v: Array) -> Array:
    """Floats as integers in the order of Float.compare: -0.0 below 0.0, every NaN above all. Integers as they are."""
    if v.dtype.kind != "f":
        return v
    width = v.dtype.itemsize
    bits = np.where(np.isnan(v), np.array(np.nan, v.dtype), v).view(f"i{width}")
    return bits ^ ((bits >> (8 * width - 1)) & np.iinfo(bits.dtype).max)


def _plain_bits(v: Array, t: pa.DataType) -> Array:
    import pyarrow as pa

    if not pa.types.is_floating(t):
        return v
    return v ^ ((v >> (8 * v.dtype.itemsize - 1)) & np.iinfo(v.dtype).max)
