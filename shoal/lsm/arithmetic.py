# SPDX-License-Identifier: Apache-2.0
"""`sum` and `product`, in Java's arithmetic.

Agrees with: FieldSumAgg, FieldProductAgg, DecimalUtils, Decimal.fromBigDecimal (2.0.0). Invariant: every step of Java
that overflows is an error here, even if later steps come back into range; floats are added in the order of versions;
decimals keep their type and become null where they outgrow it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from shoal.lsm.aggregates import NUMERIC, Aggregate, contributions, numbers, ranks, rebuilt, with_any
from shoal.lsm.versions import RESET, Array, Steps, taken, validity

if TYPE_CHECKING:
    import pyarrow as pa

_LONG = 2**63 - 1
# Decimals up to this precision live in a Java long.
_COMPACT = 18


class Arithmetic(Aggregate):
    """Takes numbers, subtracts or divides by what is taken back, and refuses what does not fit."""

    retracts = True
    roots = NUMERIC
    wants = "a number"

    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        if not steps.has(RESET):
            return self.total(values, steps.split)
        pieces, last = steps.pieces
        return taken(self.total(values, pieces), last)

    @abstractmethod
    def total(self, values: pa.Array, steps: Steps) -> pa.Array:
        """The value for every key, where a `RESET` is the first step of its key."""


class Sum(Arithmetic):
    """Nulls do not count; a retraction is subtracted, from nothing too."""

    def total(self, values: pa.Array, steps: Steps) -> pa.Array:
        valid = validity(values)
        some = None
        if valid is not None and steps.ops is None and steps.groups is None and self.type.root != "DECIMAL":
            # adding nothing is cheaper than leaving nulls out; -0.0 is what changes no float
            here = valid[steps.rows]
            v = numbers(values)[steps.rows]
            v = np.where(here, v, np.array(-0.0 if v.dtype.kind == "f" else 0, v.dtype))
            some = with_any(here, steps)
        else:
            steps = contributions(values, steps)
            if not len(steps.rows):
                return steps.spread_values(values.slice(0, 0))
            if self.type.root == "DECIMAL":
                return steps.spread_values(self._decimals(values, steps))
            v = numbers(values)[steps.rows]
        total = self._floats(v, steps) if v.dtype.kind == "f" else self._integers(v, steps)
        return steps.spread_values(rebuilt(total, values.type, some))

    def _floats(self, v: Array, steps: Steps) -> Array:
        # reduceat adds a0 + (a1 + a2), which differs from Java in the last bit: one pass for each version rank
        if steps.taken_back is not None:
            v = np.where(steps.taken_back, -v, v)
        total: Array = v[steps.starts]
        with np.errstate(all="ignore"):
            for live, p in ranks(steps):
                total[live] += v[p]
        return total

    def _integers(self, v: Array, steps: Steps) -> Array:
        dtype = v.dtype
        limits = np.iinfo(dtype)
        back = steps.taken_back
        largest = max(-int(v.min()), int(v.max()))
        if largest * int(steps.counts.max()) <= limits.max:
            signed = v if back is None else np.where(back, -v, v)  # in its own width: nothing reaches its limits
            return steps.total(signed).astype(dtype, copy=False)
        if dtype.itemsize < 8:
            signed = v.astype(np.int64)
            if back is not None:
                signed = np.where(back, -signed, signed)
            run = np.cumsum(signed)
            run -= np.repeat(run[steps.starts] - signed[steps.starts], steps.counts)
            if int(run.min()) < limits.min or int(run.max()) > limits.max:
                raise self.overflow("outgrows")
            return run[steps.ends].astype(dtype)
        return self._longs(v, back, steps)

    def _longs(self, v: Array, back: Array | None, steps: Steps) -> Array:
        total = v[steps.starts].copy()
        lowest = np.iinfo(np.int64).min
        with np.errstate(over="ignore"):
            if back is not None:
                first = back[steps.starts]
                if bool((first & (total == lowest)).any()):
                    raise self.overflow("outgrows")
                total = np.where(first, -total, total)
            for live, p in ranks(steps):
                a, b = total[live], v[p]
                minus = np.zeros(len(p), bool) if back is None else back[p]
                r = np.where(minus, a - b, a + b)
                wrong = np.where(minus, (a ^ b) & (a ^ r), (a ^ r) & (b ^ r)) < 0
                if wrong.any():
                    raise self.overflow("outgrows")
                total[live] = r
        return total

    def _decimals(self, values: pa.Array, steps: Steps) -> pa.Array:
        v, fits = unscaled(values, steps.rows)
        if fits and max(-int(v.min()), int(v.max())) * int(steps.counts.max()) <= _LONG:
            if steps.taken_back is not None:
                v = np.where(steps.taken_back, -v, v)
            return _from_long(steps.total(v), values.type)
        limit = 10 ** (self.type.precision or 10)
        compact = (self.type.precision or 10) <= _COMPACT

        def add(total: int | None, value: int, back: bool) -> int | None:
            if total is None:
                return None if back and abs(value) >= limit else -value if back else value
            r = total - value if back else total + value
            # a long takes more digits than the type has, and only what leaves the long is null
            over = not -_LONG - 1 <= r <= _LONG if compact else abs(r) >= limit
            return None if over else r

        return _key_by_key(values, steps, add)


class Product(Arithmetic):
    """Nulls do not count; a retraction divides, and does nothing to nothing."""

    def total(self, values: pa.Array, steps: Steps) -> pa.Array:
        steps = contributions(values, steps)
        if steps.taken_back is not None:
            place = np.arange(len(steps.rows))
            began = np.minimum.reduceat(np.where(steps.taken_back, len(place), place), steps.starts)
            steps = steps.where(place >= np.repeat(began, steps.counts))
        if not len(steps.rows):
            return steps.spread_values(values.slice(0, 0))
        if self.type.root == "DECIMAL":
            return steps.spread_values(_key_by_key(values, steps, self._decimal))
        v = numbers(values)[steps.rows]
        back = steps.taken_back
        total = self._floats(v, back, steps) if v.dtype.kind == "f" else self._integers(v, back, steps)
        return steps.spread_values(rebuilt(total, values.type))

    def _floats(self, v: Array, back: Array | None, steps: Steps) -> Array:
        total: Array = v[steps.starts]
        with np.errstate(all="ignore"):
            for live, p in ranks(steps):
                a, b = total[live], v[p]
                total[live] = a * b if back is None else np.where(back[p], a / b, a * b)
        return total

    def _integers(self, v: Array, back: Array | None, steps: Steps) -> Array:
        least, most = int(np.iinfo(v.dtype).min), int(np.iinfo(v.dtype).max)
        total = v[steps.starts].astype(np.int64)
        for live, p in ranks(steps):
            a, b = total[live], v[p].astype(np.int64)
            if back is None:
                total[live] = self._multiplied(a, b, least, most)
                continue
            minus = back[p]
            r = np.empty_like(a)
            r[~minus] = self._multiplied(a[~minus], b[~minus], least, most)
            r[minus] = self._divided(a[minus], b[minus], least)
            total[live] = r
        return total.astype(v.dtype)

    def _multiplied(self, a: Array, b: Array, least: int, most: int) -> Array:
        with np.errstate(over="ignore"):
            r: Array = a * b
        if most < _LONG:
            over = bool(((r < least) | (r > most)).any())
        else:
            # floats find the few that come near; whether they overflow is a matter of whole numbers
            near = np.flatnonzero(np.abs(a.astype(np.float64) * b.astype(np.float64)) >= 2.0**62)
            over = any(not least <= int(x) * int(y) <= most for x, y in zip(a[near], b[near]))
        if over:
            raise self.overflow("outgrows")
        return r

    def _divided(self, a: Array, b: Array, least: int) -> Array:
        if bool((b == 0).any()):
            raise self.overflow("divides by zero in")
        if bool(((a == least) & (b == -1)).any()):
            raise self.overflow("outgrows")
        r: Array = a // b
        r += (a % b != 0) & ((a < 0) != (b < 0))  # Java cuts towards zero
        return r

    def _decimal(self, total: int | None, value: int, back: bool) -> int | None:
        scale = self.type.scale or 0
        if total is None:
            return None if back else value
        if not back:
            r = _half_up(total * value, 10**scale)
        else:
            if value == 0:
                raise self.overflow("divides by zero in")
            if not _terminates(total, value):
                raise self.overflow(f"divides {total} by {value}, which has no end, in")
            r = _half_up(total * 10**scale, value)
        return None if abs(r) >= 10 ** (self.type.precision or 10) else r


def unscaled(values: pa.Array, rows: Array) -> tuple[Array, bool]:
    """Unscaled values of decimals as 64-bit integers, and whether all of them fit."""
    pair = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)[values.offset : values.offset + len(values)]
    low, high = pair[:, 0], pair[:, 1]
    v = low[rows]
    return v, values.type.precision <= _COMPACT or bool((high[rows] == v >> 63).all())


def _from_long(low: Array, t: pa.DataType) -> pa.Array:
    import pyarrow as pa

    pair = np.empty((len(low), 2), np.int64)
    pair[:, 0] = low
    pair[:, 1] = low >> 63
    return pa.Array.from_buffers(t, len(low), [None, pa.py_buffer(pair)])


def _from_ints(numbers: list[int | None], t: pa.DataType) -> pa.Array:
    import pyarrow as pa

    data = b"".join((n or 0).to_bytes(16, "little", signed=True) for n in numbers)
    valid = np.packbits(np.array([n is not None for n in numbers]), bitorder="little")
    return pa.Array.from_buffers(t, len(numbers), [pa.py_buffer(valid), pa.py_buffer(data)])


def _key_by_key(values: pa.Array, steps: Steps, add: Callable[[int | None, int, bool], int | None]) -> pa.Array:
    """Decimals beyond 64 bits, one key after the other: numpy has no wider integers, and a null in between counts."""
    raw = values.buffers()[1].to_pybytes()
    at = (16 * (values.offset + steps.rows)).tolist()
    v = [int.from_bytes(raw[i : i + 16], "little", signed=True) for i in at]
    back = [False] * len(v) if steps.taken_back is None else steps.taken_back.tolist()
    out: list[int | None] = []
    for start, end in zip(steps.starts.tolist(), (steps.ends + 1).tolist()):
        total: int | None = None
        for i in range(start, end):
            total = add(total, v[i], back[i])
        out.append(total)
    return _from_ints(out, values.type)


def _half_up(a: int, b: int) -> int:
    """a / b, rounded half away from zero."""
    q, r = divmod(abs(a), abs(b))
    q += 2 * r >= abs(b)
    return -q if (a < 0) != (b < 0) else q


def _terminates(a: int, b: int) -> bool:
    """Whether a / b has an end in decimals: Java refuses to divide otherwise."""
    from math import gcd

    b = abs(b) // (gcd(a, b) or 1)
    for prime in (2, 5):
        while b % prime == 0:
            b //= prime
    return b == 1
