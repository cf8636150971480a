# SPDX-License-Identifier: Apache-2.0
"""Casts among BOOLEAN, whole numbers, FLOAT, DOUBLE and DECIMAL.

Agrees with: NumericPrimitiveCastRule, DecimalToDecimalCastRule, DecimalToNumericPrimitiveCastRule,
NumericPrimitiveToDecimalCastRule, BooleanToNumericCastRule, NumericToBooleanCastRule (2.0.0). Whole numbers wrap when
they are narrowed, floats saturate and then wrap, decimals round half away from zero, and a decimal that does not fit
is null. Invariant: no value raises but NaN and the infinities as DECIMAL.
"""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.format.cast_change import Change, array_of, by_value, nulls_of, values_of, words_of
from shoal.format.float_text import java_text
from shoal.format.types import DataType

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Array = npt.NDArray[Any]

INTEGERS = {"TINYINT": np.int8, "SMALLINT": np.int16, "INT": np.int32, "BIGINT": np.int64}
FLOATS = {"FLOAT": np.float32, "DOUBLE": np.float64}
PRIMITIVES: dict[str, Any] = INTEGERS | FLOATS

_COMPACT = 18  # Java keeps decimals of so many digits in a long
_EXACT = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


def number_to_number(a: pa.Array, change: Change) -> pa.Array:
    """Java's primitive conversions."""
    values, wanted = values_of(a), PRIMITIVES[change.target.root]
    if change.source.root in FLOATS and change.target.root in INTEGERS:
        # to 64 bits for BIGINT, else by way of 32 bits: 300.7 is 44 as TINYINT, 1e10 is -1
        values = saturated(values, np.int64 if wanted is np.int64 else np.int32)
    with np.errstate(over="ignore"):  # a double too large is an infinite float
        return array_of(values.astype(wanted), a, change.arrow)


def saturated(values: Array, wanted: type[np.int32] | type[np.int64]) -> Array:
    """Floats cut towards zero; beyond the range its end, NaN 0."""
    low, high = np.iinfo(wanted).min, np.iinfo(wanted).max
    wide = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    # the lowest number is a float; the highest of 64 bits is not, so compare with the one above
    over, under = wide >= float(high) + (wanted is np.int32), wide <= float(low)
    whole = np.trunc(np.where(over | under, 0.0, wide)).astype(wanted)
    return np.where(over, wanted(high), np.where(under, wanted(low), whole))


def boolean_to_number(a: pa.Array, change: Change) -> pa.Array:
    import pyarrow as pa

    ones = array_of(values_of(a).astype(np.int64), a, pa.int64())
    if change.target.root == "DECIMAL":
        return integer_to_decimal(ones, change)
    return array_of(values_of(ones).astype(PRIMITIVES[change.target.root]), a, change.arrow)


def number_to_boolean(a: pa.Array, change: Change) -> pa.Array:
    return array_of(values_of(a) != 0, a, change.arrow)


def integer_to_decimal(a: pa.Array, change: Change) -> pa.Array:
    import pyarrow as pa

    return rescaled(a.cast(pa.int64()).cast(pa.decimal128(19, 0)), change.target)


def float_to_decimal(a: pa.Array, change: Change) -> pa.Array:
    """By way of the decimal text of the DOUBLE, as BigDecimal.valueOf does: 1.005 becomes 1.01, not 1.00."""
    import pyarrow as pa

    text = java_text(values_of(a).astype(np.float64))
    nulls = nulls_of(a)
    if nulls is not None:
        text = pa.compute.if_else(pa.array(nulls), None, text)

    def parse(value: str) -> decimal.Decimal | None:
        if value[-1] in "Ny":  # NaN, Infinity
            raise change.refuse(float(value), "it is not a finite number")
        return rounded(value, change.target)

    return by_value(text, parse, change.arrow)


def rounded(text: str, target: DataType) -> decimal.Decimal | None:
    """A decimal text at the scale of `target`, half away from zero; None when it has too many digits."""
    number, scale = decimal.Decimal(text), target.scale or 0
    if not number:
        return decimal.Decimal((0, (0,), -scale))
    if number.adjusted() > 40:  # also keeps 1E+1000000 from becoming a million digits
        return None
    if number.adjusted() < -40:
        return decimal.Decimal((0, (0,), -scale))
    number = number.quantize(decimal.Decimal((0, (1,), -scale)), context=_EXACT)
    return number if len(number.as_tuple().digits) <= (target.precision or 10) or not number else None


def decimal_to_decimal(a: pa.Array, change: Change) -> pa.Array:
    return rescaled(a, change.target)


def rescaled(a: pa.Array, target: DataType) -> pa.Array:
    """Decimals at another precision and scale; null where they do not fit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    precision, scale = target.precision or 10, target.scale or 0
    wanted = pa.decimal128(precision, scale)
    if scale >= a.type.scale and precision - scale >= a.type.precision - a.type.scale:
        return a.cast(wanted)  # every value fits, nothing is rounded
    # 38 digits moved by 38 places are 76 digits, which is what decimal256 holds
    wide = a.cast(pa.decimal256(76, a.type.scale))
    if scale < a.type.scale:
        wide = pc.round(wide, scale, "half_towards_infinity")
    wide = wide.cast(pa.decimal256(76, scale))
    most = pa.scalar(decimal.Decimal((0, (9,) * precision, -scale)), wide.type)
    least = pa.scalar(decimal.Decimal((1, (9,) * precision, -scale)), wide.type)
    fits = pc.and_(pc.less_equal(wide, most), pc.greater_equal(wide, least))
    return pc.if_else(fits, wide, pa.scalar(None, wide.type)).cast(wanted)


def decimal_to_number(a: pa.Array, change: Change) -> pa.Array:
    wanted = PRIMITIVES[change.target.root]
    if change.target.root in FLOATS:
        with np.errstate(over="ignore"):
            return array_of(doubles(a).astype(wanted), a, change.arrow)
    return array_of(_whole(a).astype(wanted), a, change.arrow)


def _whole(a: pa.Array) -> Array:
    """The part before the point, its low 64 bits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if a.type.scale:
        a = pc.round(a.cast(pa.decimal256(76, a.type.scale)), 0, "towards_zero").cast(pa.decimal256(76, 0))
    return words_of(a)[:, 0]


def doubles(a: pa.Array) -> Array:
    """Decimals as doubles. Java divides two doubles up to 18 digits, and is exact beyond."""
    words, scale = words_of(a), a.type.scale
    low, high = words[:, 0], words[:, 1]
    if a.type.precision <= _COMPACT:
        return np.asarray(low.astype(np.float64) / float(10**scale))
    small = (high == low >> 63) & (np.abs(low) < 1 << 53) & (scale <= 22)
    made = low.astype(np.float64) / float(10 ** min(scale, 22))
    nulls = nulls_of(a)
    rest = np.flatnonzero(~small if nulls is None else ~small & ~nulls)
    # one by one: the nearest double of a number of more than 53 bits
    unscaled = [(int(h) << 64) + (int(v) & 0xFFFFFFFFFFFFFFFF) for h, v in zip(high[rest], low[rest])]
    made[rest] = [v / 10**scale for v in unscaled]
    return made
