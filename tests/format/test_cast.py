# SPDX-License-Identifier: Apache-2.0
"""Type changes of a column: every pair of plain types that Java's CastExecutors has, value by value.

`data/casts.jsonl` is what Paimon 2.0.0 gave (CastExecutors.resolve(from, to).cast(value), UTC, JDK 17): a line for a
source type with its values, then for each target [what ALTER asks for, results]; results in an object leave out the
values that Java failed on. Dates are days, times milliseconds, timestamps [milliseconds, nanoseconds below],
bytes hexadecimal, floats Java's text.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadRequest
from shoal.format.cast import alter_allows, default_value, monotone
from shoal.format.evolve import converter
from shoal.format.float_text import java_text
from shoal.format.types import DataType, Field, parse_atomic, to_arrow, widened

TRUTH = [json.loads(line) for line in (Path(__file__).parent / "data" / "casts.jsonl").read_text().splitlines()]
WIDE = pa.decimal128(21, 9)
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def column(values: list[Any], t: DataType) -> pa.Array:
    """Values of the truth file as an Arrow column."""
    kind = to_arrow(t)
    match t.root:
        case "FLOAT" | "DOUBLE":
            return pa.array([None if v is None else float(v.replace("Infinity", "inf")) for v in values], kind)
        case "DECIMAL":
            return pa.array([None if v is None else Decimal(v) for v in values], kind)
        case "BINARY" | "VARBINARY":
            return pa.array([None if v is None else bytes.fromhex(v) for v in values], kind)
        case "DATE" | "TIME":
            return pa.array(values, pa.int32()).view(kind)
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            nanos = [None if v is None else v[0] * 1_000_000 + v[1] for v in values]
            if kind == WIDE:
                return pa.array([None if n is None else Decimal(n).scaleb(-9, Context(30)) for n in nanos], kind)
            step = 1_000_000_000 // PER_SECOND[kind.unit]
            return pa.array([None if n is None else n // step for n in nanos], pa.int64()).view(kind)
    return pa.array(values, kind)


def plain(a: pa.Array, t: DataType) -> list[Any]:
    """The inverse: an Arrow column in the form of the truth file."""
    assert a.type == to_arrow(t)
    a.validate(full=True)
    match t.root:
        case "FLOAT" | "DOUBLE":
            return [None if v is None else repr(v) for v in a.to_pylist()]
        case "DECIMAL":
            return [None if v is None else f"{v:f}" for v in a.to_pylist()]
        case "BINARY" | "VARBINARY":
            return [None if v is None else v.hex() for v in a.to_pylist()]
        case "DATE" | "TIME":
            return a.view(pa.int32()).to_pylist()
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            if a.type == WIDE:
                nanos = [None if v is None else int(v.scaleb(9, Context(40))) for v in a.to_pylist()]
            else:
                step = 1_000_000_000 // PER_SECOND[a.type.unit]
                nanos = [None if v is None else v * step for v in a.view(pa.int64()).to_pylist()]
            return [None if n is None else [n // 1_000_000, n % 1_000_000] for n in nanos]
    return a.to_pylist()


def wanted(value: Any, t: DataType) -> Any:
    """Java's result, as `plain` shows it."""
    if value is None:
        return None
    if t.root in ("FLOAT", "DOUBLE"):
        number = float(value.replace("Infinity", "inf"))
        return repr(float(np.float32(number)) if t.root == "FLOAT" else number)
    if t.is_timestamp and not t.precision:
        return [value[0] // 1000 * 1000, 0]  # Arrow's unit is the second; Java keeps a TIME's milliseconds
    return value


def fits(value: Any, t: DataType) -> bool:
    """Whether the Arrow type can hold a value of Java's."""
    if value is None:
        return True
    if t.root == "TIME":
        return bool(0 <= value < 86_400_000)
    if t.is_timestamp:
        end = 10**12 if to_arrow(t) == WIDE else 2**63 // PER_SECOND[to_arrow(t).unit]
        return bool(1 - end <= value[0] // 1000 < end - 1)
    return True


def pairs() -> Iterator[tuple[str, str]]:
    for line in TRUTH:
        for target in line["to"]:
            yield line["from"], target


def cast(a: pa.Array, source: DataType, target: DataType) -> pa.Array:
    convert = converter(source, target, "c")
    return a if convert is None else convert(a)


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("line", TRUTH, ids=[line["from"] for line in TRUTH])
def test_every_value_is_cast_as_java_casts_it(line: dict[str, Any], wide: bool) -> None:
    shape: Callable[[DataType], DataType] = widened if wide else lambda t: t
    source = shape(parse_atomic(line["from"]))
    held = {n: v for n, v in enumerate(line["in"]) if fits(v, source)}
    for name, (_, results) in line["to"].items():
        target = shape(parse_atomic(name))
        results = dict(enumerate(results)) if isinstance(results, list) else {int(n): v for n, v in results.items()}
        good = {n: results[n] for n in held if n in results and fits(results[n], target)}
        made = plain(cast(column([held[n] for n in good], source), source, target), target)
        assert dict(zip(good, made)) == {n: wanted(v, target) for n, v in good.items()}, (line["from"], name)
        for n in held.keys() - good.keys():
            with pytest.raises(BadRequest, match="column 'c'"):
                cast(column([held[n]], source), source, target)


def test_alter_allows_what_java_allows() -> None:
    for line in TRUTH:
        source = parse_atomic(line["from"])
        for name, (asks, _) in line["to"].items():
            target = parse_atomic(name)
            assert alter_allows(source, target) and alter_allows(source, target, explicit=False) == (asks == "implicit")
        for name in line["none"]:
            assert not alter_allows(source, parse_atomic(name)), (line["from"], name)
            with pytest.raises(BadRequest, match="no cast"):
                converter(source, parse_atomic(name), "c")


def test_monotone_casts_keep_order_and_make_no_null() -> None:
    seen = 0
    for line in TRUTH:
        source = widened(parse_atomic(line["from"]))
        values = [v for v in line["in"] if v not in (None, "NaN")]
        for name in line["to"]:
            target = widened(parse_atomic(name))
            if not monotone(source, target):
                continue
            seen += 1
            rows = column(values, source)
            made = cast(rows.take(pc.sort_indices(rows)), source, target)
            assert made.null_count == 0, (line["from"], name)
            assert made.equals(made.take(pc.sort_indices(made))), (line["from"], name)
    assert seen > 80


def test_narrowing_and_parsing_are_not_monotone() -> None:
    for source, target in (("INT", "SMALLINT"), ("DOUBLE", "INT"), ("STRING", "INT"), ("INT", "STRING")):
        assert not monotone(parse_atomic(source), parse_atomic(target))
    assert monotone(parse_atomic("DECIMAL(10, 2)"), parse_atomic("DECIMAL(10, 1)"))
    assert not monotone(parse_atomic("DECIMAL(10, 2)"), parse_atomic("DECIMAL(9, 1)"))  # 99999999.99 has no room


@pytest.mark.parametrize(("kind", "bits", "shape"), [("d", np.uint64, np.float64), ("f", np.uint32, np.float32)])
def test_floats_as_text_are_what_java_prints(kind: str, bits: Any, shape: Any) -> None:
    """`data/java_floats.txt`: bits and text of Double.toString and Float.toString of JDK 17.

    Random values, and many whose text is not the shortest one: powers of two, noise digits, overflows of the JDK.
    """
    lines = (Path(__file__).parent / "data" / "java_floats.txt").read_text().splitlines()
    truth = [(int(b, 16), text) for k, b, text in map(str.split, lines) if k == kind]
    assert len(truth) > 100
    texts = java_text(np.array([b for b, _ in truth], bits).view(shape)).to_pylist()
    assert texts == [text for _, text in truth]
    assert java_text(np.array([0.0, -0.0, np.nan, -np.inf], shape)).to_pylist() == ["0.0", "-0.0", "NaN", "-Infinity"]


def test_text_to_float_rounds_once() -> None:
    """The double nearest to each of these lies in the middle of two floats; expected values are Java's parseFloat."""
    texts = {
        "1.00000005960464477539062500000000000000001": 1.0000001192092896,
        "1.000000059604644775390625": 1.0,
        "3.4028235677973366e38": 3.4028234663852886e38,
        "-3.4028235677973366e38": -3.4028234663852886e38,
        "3.4028236e38": math.inf,
        "1e400": math.inf,
        "1e-400": 0.0,
    }
    made = cast(pa.array(list(texts)), parse_atomic("STRING"), parse_atomic("FLOAT"))
    assert made.to_pylist() == list(texts.values())


def test_hexadecimal_floats_are_numbers_as_in_java() -> None:
    texts = {" 0x1p3f ": 8.0, "-0X.8P1": -1.0, "0x1p2000": math.inf, "-0x1.8p9999D": -math.inf, "+0x1p-9999": 0.0}
    made = cast(pa.array(list(texts)), parse_atomic("STRING"), parse_atomic("DOUBLE"))
    assert made.to_pylist() == list(texts.values())


def test_a_zone_moves_timestamps_with_local_time_zone() -> None:
    """With the JVM's zone Europe/Berlin, in winter, summer, the skipped and the doubled hour of 2024."""
    walls = ["2024-01-15 12:00:00", "2024-07-15 12:00:00", "2024-03-31 02:30:00", "2024-10-27 02:30:00"]
    string, ltz = parse_atomic("STRING"), parse_atomic("TIMESTAMP(3) WITH LOCAL TIME ZONE")
    read = converter(string, ltz, "c", zone="Europe/Berlin")
    shown = converter(ltz, string, "c", zone="Europe/Berlin")
    assert read is not None and shown is not None
    made = read(pa.array(walls))
    assert made.cast(pa.timestamp("s", "UTC")).view(pa.int64()).to_pylist() == [
        1705316400, 1721037600, 1711848600, 1729989000,
    ]  # fmt: skip
    assert shown(made).to_pylist() == [
        "2024-01-15 12:00:00.000", "2024-07-15 12:00:00.000", "2024-03-31 03:30:00.000", "2024-10-27 02:30:00.000",
    ]  # fmt: skip


def test_nulls_and_slices_are_cast_like_the_whole_column() -> None:
    for line in TRUTH:
        source = widened(parse_atomic(line["from"]))
        for name, (_, results) in line["to"].items():
            target = widened(parse_atomic(name))
            if isinstance(results, dict) or not all(fits(v, target) for v in results):
                continue
            whole = column(line["in"], source)
            parts = cast(whole.slice(1), source, target), cast(whole, source, target).slice(1)
            assert plain(parts[0], target) == plain(parts[1], target), (line["from"], name)
            assert cast(whole.slice(0, 0), source, target).equals(pa.array([], to_arrow(target)))
            nothing = cast(pa.nulls(3, whole.type), source, target)
            assert nothing.type == to_arrow(target) and nothing.null_count == 3


def test_defaults_of_nested_columns_are_split_as_java_splits_them() -> None:
    """`data/nested_texts.jsonl`: a text, then what each of the types below makes of it, as text again; null: refused."""
    number, string = parse_atomic("INT"), parse_atomic("STRING")
    kinds = [
        DataType("ARRAY", element=string),
        DataType("ARRAY", element=number),
        DataType("MAP", key=string, value=number),
        DataType("MAP", key=string, value=string),
        DataType("ROW", fields=(Field(0, "a", number), Field(1, "b", string))),
        DataType("ARRAY", element=DataType("ARRAY", element=number)),
    ]
    for line in (Path(__file__).parent / "data" / "nested_texts.jsonl").read_text().splitlines():
        text, *results = json.loads(line)
        for kind, result in zip(kinds, results):
            if result is None:
                with pytest.raises(BadRequest, match="column 'c'"):
                    default_value(text, kind, "c")
                continue
            value = default_value(text, kind, "c")
            value.validate(full=True)
            shown = cast(value, kind, string)[0].as_py()
            # Java's HashMap has an order of its own
            assert sorted((shown or "NULL").strip("{}").split(", ")) == sorted(result.strip("{}").split(", ")), text


def test_a_default_may_be_quoted() -> None:
    assert default_value("'5'", parse_atomic("INT"), "c").to_pylist() == [5]
    assert default_value("it's", parse_atomic("STRING"), "c").to_pylist() == ["it's"]
    with pytest.raises(BadRequest, match="cannot have a default"):
        default_value("1", DataType("MULTISET", element=parse_atomic("INT")), "c")


# A model of the decimal and integer casts in Python's own numbers.

decimal_types = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))
CONTEXT = Context(prec=100, rounding=ROUND_HALF_UP)


def decimal_type(precision: int, scale: int) -> DataType:
    return DataType("DECIMAL", precision=precision, scale=scale)


def model_decimal(value: Decimal, precision: int, scale: int) -> Decimal | None:
    made = value.quantize(Decimal(1).scaleb(-scale), context=CONTEXT)
    return made if made.copy_abs() < Decimal(10) ** (precision - scale) else None


@settings(deadline=None)
@given(st.data(), decimal_types, decimal_types)
def test_decimals_round_half_up_or_become_null(data: st.DataObject, old: tuple[int, int], new: tuple[int, int]) -> None:
    unscaled = data.draw(st.lists(st.integers(1 - 10 ** old[0], 10 ** old[0] - 1), max_size=5))
    values = [Decimal(u).scaleb(-old[1], CONTEXT) for u in unscaled]
    source, target = decimal_type(*old), decimal_type(*new)
    made = cast(pa.array(values, to_arrow(source)), source, target)
    assert made.to_pylist() == [model_decimal(v, *new) for v in values]
    if monotone(source, target):
        assert made.null_count == 0


@settings(deadline=None)
@given(st.data(), decimal_types, st.sampled_from(["TINYINT", "SMALLINT", "INT", "BIGINT"]))
def test_decimals_lose_their_fraction_and_wrap(data: st.DataObject, old: tuple[int, int], name: str) -> None:
    unscaled = data.draw(st.lists(st.integers(1 - 10 ** old[0], 10 ** old[0] - 1), max_size=5))
    values = [Decimal(u).scaleb(-old[1], CONTEXT) for u in unscaled]
    bits = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}[name]
    source, target = decimal_type(*old), parse_atomic(name)
    made = cast(pa.array(values, to_arrow(source)), source, target)
    assert made.to_pylist() == [(int(v) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for v in values]


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), decimal_types)
def test_whole_numbers_become_decimals_where_they_fit(values: list[int], new: tuple[int, int]) -> None:
    made = cast(pa.array(values, pa.int64()), parse_atomic("BIGINT"), decimal_type(*new))
    assert made.to_pylist() == [model_decimal(Decimal(v), *new) for v in values]


@settings(deadline=None)
@given(st.data(), decimal_types)
def test_decimals_become_the_nearest_double(data: st.DataObject, old: tuple[int, int]) -> None:
    unscaled = data.draw(st.lists(st.integers(1 - 10 ** old[0], 10 ** old[0] - 1), max_size=5))
    source = decimal_type(*old)
    column = pa.array([Decimal(u).scaleb(-old[1], CONTEXT) for u in unscaled], to_arrow(source))
    exact = [float(u) / 10 ** old[1] if old[0] <= 18 else u / 10 ** old[1] for u in unscaled]
    assert cast(column, source, parse_atomic("DOUBLE")).to_pylist() == exact


@settings(deadline=None)
@given(st.lists(st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)), max_size=5))
def test_timestamps_come_back_from_their_text(values: list[datetime.datetime]) -> None:
    source, string = parse_atomic("TIMESTAMP(6)"), parse_atomic("STRING")
    texts = cast(pa.array(values, pa.timestamp("us")), source, string)
    assert texts.to_pylist() == [f"{v:%H:%M:%S.%f}".join([f"{v.year:04}-{v:%m-%d} ", ""]) for v in values]
    assert cast(texts, string, source).to_pylist() == values
