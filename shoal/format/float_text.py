# SPDX-License-Identifier: Apache-2.0
"""FLOAT and DOUBLE as the text Java gives them: `1.1E10`, `-0.0`, `NaN`, `1.15292150460684698E18`.

Agrees with: Double.toString and Float.toString of JDK 17 and older, which the oracle runs on. Those are not always
the shortest text that reads back (JDK 19 changed that), so a value whose shortest text may differ is worked out digit
by digit in whole numbers. Invariant: the text reads back as the same value.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Floats = npt.NDArray[np.floating[Any]]

# Java prints 1e-3 <= |v| < 1e7 without an exponent.
_PLAIN_LOW, _PLAIN_HIGH = 1e-3, 1e7
_EXPLICIT = 1 << 52
# Bits that the JDK reckons for 5^n where it decides between long and big arithmetic.
_FIVE_BITS = (0, *((5**n).bit_length() for n in range(1, 27)))


def java_text(values: Floats) -> pa.Array:
    """One text for each value of a float32 or float64 array; there are no nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # So few digits are always the shortest text and Java's: 15 of a double, 6 of a float, and a point.
    length = 16 if values.dtype == np.float64 else 7
    text = pc.cast(pa.array(values), pa.string())
    size = np.abs(values)
    plain = pa.array(((size >= _PLAIN_LOW) & (size < _PLAIN_HIGH)) | (size == 0))
    plain = pc.and_(plain, pc.less_equal(pc.utf8_length(pc.utf8_ltrim(text, "-")), length))
    text = pc.if_else(pc.match_substring(text, "."), text, pc.binary_join_element_wise(text, ".0", ""))
    rest = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
    if not len(rest):
        return text
    # one by one: exponents, or more digits than the fast form is sure of
    bits, where = np.unique(_bits(values[rest]), return_inverse=True)
    made = pa.array([one_text(v) for v in bits.view(values.dtype)], pa.string()).take(pa.array(where))
    return pc.replace_with_mask(text, pc.invert(plain), made)


def one_text(value: np.floating[Any]) -> str:
    """The text of one float32 or float64."""
    double, number = value.dtype == np.float64, float(value)
    if math.isnan(number):
        return "NaN"
    sign = "-" if math.copysign(1, number) < 0 else ""
    if math.isinf(number):
        return sign + "Infinity"
    if number == 0:
        return sign + "0.0"
    size = abs(number)
    digits, point = _shortest(repr(size) if double else np.format_float_scientific(abs(value), trim="-"))
    # Whole numbers from 2^53 (2^24) on, tiny ones, and long texts are where Java departs from the shortest text.
    sure = size < (1 << 53) and size > 1e-300 if double else size < (1 << 24) and size > 1e-36
    # A power of two has a neighbour at half the distance below, which Java's test is too strict about.
    if not sure or len(digits) > (15 if double else 6) or math.frexp(size)[0] == 0.5:
        digits, point = _digits(*_parts(value))
    return sign + _layout(digits, point)


def _bits(values: Floats) -> Any:
    return values.view(np.int64 if values.dtype == np.float64 else np.int32)


def _shortest(text: str) -> tuple[str, int]:
    """Digits without outer zeros, and how many of them stand before the point."""
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    return digits.rstrip("0"), point


def _layout(digits: str, point: int) -> str:
    if 0 < point < 8:
        whole = digits[:point].ljust(point, "0")
        return f"{whole}.{digits[point:] or '0'}"
    if -3 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    return f"{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def _parts(value: np.floating[Any]) -> tuple[int, int, int]:
    """(mantissa with bit 52 set, exponent of its first bit, bits that count) of a positive or negative number."""
    if value.dtype == np.float64:
        raw, width, bias = int(value.view(np.uint64)), 52, 1023
    else:
        raw, width, bias = int(value.view(np.uint32)), 23, 127
    fraction, exponent = raw & ((1 << width) - 1), (raw >> width) & (2 * bias + 1)
    if exponent:
        fraction, bits = fraction | 1 << width, width + 1
    else:
        bits = fraction.bit_length()
        exponent, fraction = 1 - (width + 1 - bits), fraction << (width + 1 - bits)
    return fraction << (52 - width), exponent - bias, bits


def _digits(mantissa: int, exponent: int, bits: int) -> tuple[str, int]:
    """The digits the JDK stops at, and how many stand before the point."""
    counted = 53 - ((mantissa & -mantissa).bit_length() - 1)
    behind = max(0, counted - exponent - 1)
    if behind == 0 and exponent <= 62:
        return _whole(mantissa << exponent >> 52, exponent - bits - 1 if exponent > bits else 0)
    # The value is b / s * 10^tens, and half a unit of its last bit is m / s.
    tens = math.floor((mantissa / _EXPLICIT - 1.5) * 0.289529654 + 0.176091259 + exponent * 0.301029995663981)
    fives, under = max(0, -tens), max(0, tens)
    two_b, two_s = fives + behind + exponent - (counted - 1), under + behind
    two_m = fives + behind + exponent - bits
    common = min(two_b, two_s)
    two_b, two_s, two_m = two_b - common, two_s - common, two_m - common - (counted == 1)
    if two_m < 0:
        two_b, two_s, two_m = two_b - two_m, two_s - two_m, 0
    size = max(counted + two_b + _five_bits(fives), two_s + 1 + _five_bits(under + 1))
    width = next((w for w in (32, 64) if size < w), 0)
    b = (mantissa >> (53 - counted)) * 5**fives << two_b
    return _generate(b, 5**under << two_s, 5**fives << two_m, tens, width)


def _generate(b: int, s: int, m: int, tens: int, width: int) -> tuple[str, int]:
    """Digit after digit until what is left is less than half a unit, from below or from above.

    The JDK does this in int, long or big numbers (`width` 32, 64, 0). Its int and long overflow, and show it:
    2^83 as a float is 9.6714065E24 there. The big numbers test >= where the others test >.
    """
    ten_s, digits, first = 10 * s, [], True
    low = high = False
    while first or not (low or high):
        digit, rest = divmod(b, s)
        b, m = 10 * rest, _wrapped(10 * m, width)
        over = _wrapped(b + m, width) - ten_s
        low, high = b < m, over > 0 or (width == 0 and over == 0)
        if m <= 0 and not first:
            low = high = True
        if first and digit == 0 and not high:
            tens -= 1
        else:
            digits.append(digit)
        if first and not -3 <= tens < 8:
            low = high = False  # a text with an exponent has two digits at least
        first = False
    number = int("".join(map(str, digits)))
    half = _wrapped(2 * b - ten_s, width)
    text = str(number + (high and (not low or half > 0 or (half == 0 and number % 2 == 1)))).rjust(len(digits), "0")
    if len(text) > len(digits):  # 99 became 100
        return text[:-1], tens + 2
    return text, tens + 1


def _wrapped(number: int, width: int) -> int:
    """As a signed number of so many bits; 0 is any number of bits."""
    if not width:
        return number
    return (number + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))


def _whole(number: int, power: int) -> tuple[str, int]:
    """A whole number; its digits below 2^power are noise and rounded away."""
    drop = math.floor(power * math.log10(2)) if power > 1 else 0
    if drop:
        number = (number + 10**drop // 2) // 10**drop
    text = str(number)
    return text.rstrip("0"), len(text) + drop


def _five_bits(n: int) -> int:
    return _FIVE_BITS[n] if n < len(_FIVE_BITS) else 3 * n
