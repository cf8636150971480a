"""BinaryRow bytes and bucket hashes against values that Java 2.0.0 produced, and against a plain model."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.format.hashing import buckets, row_hashes
from shoal.format.row import arrow_column, decode, encode, order_key, stored_values
from shoal.format.types import DataType, parse_atomic

DEC38 = 12345678901234567890123456789012345678
MS = 1_000_000

# types, stored values, bytes with arity prefix, hash, default bucket of 7, hive bucket of 7 (None: Java does not hash it)
JAVA = [
    (["INT"], [1], "0000000100000000000000000100000000000000", 1465514398, 5, 1),
    (["INT"], [-1], "000000010000000000000000ffffffff00000000", 1133687267, 6, 1),
    (["BIGINT"], [-5], "000000010000000000000000fbffffffffffffff", -716660054, 5, 4),
    (["STRING"], [b"abc"], "0000000100000000000000006162630000000083", -101922419, 4, 6),
    (["STRING"], [b"1234567"], "0000000100000000000000003132333435363787", 199144172, 3, 6),
    (["STRING"], [b"12345678"], "00000001000000000000000008000000100000003132333435363738", -391021801, 2, 2),
    (["STRING"], [b"hello paimon world"],
     "000000010000000000000000120000001000000068656c6c6f207061696d6f6e20776f726c64000000000000", 314798453, 4, 5),
    (["STRING"], [None], "0000000100010000000000000000000000000000", -1748325344, 3, 0),
    (["STRING"], [b""], "0000000100000000000000000000000000000080", 302122119, 5, 0),
    (["BOOLEAN", "TINYINT", "SMALLINT"], [True, -2, 300],
     "0000000300000000000000000100000000000000fe000000000000002c01000000000000", 1690093483, 1, 2),
    (["FLOAT", "DOUBLE"], [1.5, -2.25], "0000000200000000000000000000c03f0000000000000000000002c0", -1321928621, 6, 0),
    (["DATE", "TIME"], [19000, 3661000], "000000020000000000000000384a000000000000c8dc370000000000", -601541461, 3, 6),
    (["DECIMAL(10,2)"], [-1234], "0000000100000000000000002efbffffffffffff", 808378434, 3, 5),
    (["DECIMAL(18,2)"], [1234], "000000010000000000000000d204000000000000", -1096042293, 3, 1),
    (["DECIMAL(20,3)"], [-12340], "0000000100000000000000000200000010000000cfcc0000000000000000000000000000", -1447954847, 3, 5),
    (["DECIMAL(38,0)"], [DEC38], "0000000100000000000000001000000010000000" + "0949b0f6f0023313c4499050de38f34e", 496617349, 4, 3),
    (["DECIMAL(20,3)", "INT"], [None, 5],
     "0000000200010000000000000000000018000000050000000000000000000000000000000000000000000000", 265042173, 4, 5),
    (["TIMESTAMP(3)"], [1700000000123 * MS], "0000000100000000000000007b68e5cf8b010000", -1285420957, 2, None),
    (["TIMESTAMP(6)"], [1700000000123 * MS + 456000],
     "00000001000000000000000040f50600100000007b68e5cf8b010000", 1196670069, 0, None),
    (["TIMESTAMP(6)", "INT"], [None, 5], "000000020001000000000000000000001800000005000000000000000000000000000000", 355866870, 2, None),
    (["TIMESTAMP(9)"], [-MS + 999999], "0000000100000000000000003f420f0010000000ffffffffffffffff", 61627685, 0, None),
    (["BYTES"], [bytes.fromhex("010203")], "0000000100000000000000000102030000000083", 1066645297, 4, 4),
    (["BYTES"], [bytes.fromhex("010203040506070809")],
     "000000010000000000000000090000001000000001020304050607080900000000000000", -171399545, 2, 0),
    (["STRING", "STRING", "INT"], [b"20240101x", b"hh", 7],
     "00000003000000000000000009000000200000006868000000000082070000000000000032303234303130317800000000000000",
     -1579384179, 2, 5),
]  # fmt: skip


def types_of(names: list[str]) -> list[DataType]:
    return [parse_atomic(n) for n in names]


@pytest.mark.parametrize("names, values, data, hashed, default, hive", JAVA)
def test_rows_and_hashes_equal_java(
    names: list[str], values: list[object], data: str, hashed: int, default: int, hive: int | None
) -> None:
    types = types_of(names)
    assert encode(types, values).hex() == data  # type: ignore[arg-type]
    assert decode(types, bytes.fromhex(data)) == values
    columns = [arrow_column([v], t) for v, t in zip(values, types)]  # type: ignore[list-item]
    assert row_hashes(columns, types).tolist() == [hashed]
    assert buckets(columns, types, 7).tolist() == [default]
    if hive is not None:
        assert buckets(columns, types, 7, "hive").tolist() == [hive]


def test_an_empty_row_is_twelve_zero_bytes() -> None:
    assert encode([], []) == bytes(12)


def test_fifty_seven_fields_need_sixteen_bytes_of_null_bits() -> None:
    types = types_of(["INT"] * 57)
    data = encode(types, [*range(56), None])
    assert data[:20].hex() == "00000039" + "00000000000000000100000000000000"
    assert decode(types, data) == [*range(56), None]


def test_mod_buckets_floor() -> None:
    types = types_of(["BIGINT"])
    assert buckets([pa.array([-1, -7, 0, 8])], types, 7, "mod").tolist() == [6, 0, 0, 1]


SCALARS = {
    "BOOLEAN": st.booleans(),
    "TINYINT": st.integers(-128, 127),
    "SMALLINT": st.integers(-(2**15), 2**15 - 1),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "FLOAT": st.floats(width=32, allow_nan=False),
    "DOUBLE": st.floats(allow_nan=False),
    "STRING": st.text(st.characters(exclude_categories=("Cs",)), max_size=40).map(str.encode),
    "BYTES": st.binary(max_size=40),
    "DATE": st.integers(-700_000, 2_900_000),
    "TIME(3)": st.integers(0, 86_399_999),
    "DECIMAL(9, 2)": st.integers(-(10**9) + 1, 10**9 - 1),
    "DECIMAL(38, 10)": st.integers(-(10**38) + 1, 10**38 - 1),
    "TIMESTAMP(3)": st.integers(-(10**12), 10**13).map(lambda v: v * MS),
    "TIMESTAMP(6)": st.integers(-(10**15), 10**16).map(lambda v: v * 1000),
    "TIMESTAMP(9)": st.integers(-(2**62), 2**62),
    "TIMESTAMP(6) WITH LOCAL TIME ZONE": st.integers(-(10**15), 10**16).map(lambda v: v * 1000),
}


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[DataType], list[list[object]]]:
    names = draw(st.lists(st.sampled_from(sorted(SCALARS)), min_size=1, max_size=5))
    one = st.tuples(*(st.none() | SCALARS[n] for n in names)).map(list)
    return types_of(names), draw(st.lists(one, min_size=1, max_size=12))


def murmur(data: bytes) -> int:
    """The hash of one row, word by word, from the description of the format."""
    h, m = 42, 0xFFFFFFFF
    for i in range(0, len(data), 4):
        k = int.from_bytes(data[i : i + 4], "little") * 0xCC9E2D51 & m
        k = ((k << 15 | k >> 17) & m) * 0x1B873593 & m
        h ^= k
        h = ((h << 13 | h >> 19) & m) * 5 + 0xE6546B64 & m
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & m
    h = (h ^ h >> 13) * 0xC2B2AE35 & m
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


@settings(max_examples=150, deadline=None)
@given(rows())
def test_column_hashes_equal_hashing_each_row(case: tuple[list[DataType], list[list[object]]]) -> None:
    types, values = case
    columns = [arrow_column([r[i] for r in values], t) for i, t in enumerate(types)]  # type: ignore[misc]
    expected = [murmur(encode(types, r)[4:]) for r in values]  # type: ignore[arg-type]
    assert row_hashes(columns, types).tolist() == expected
    # a slice has an offset into its buffers
    sliced = [c.slice(1) for c in columns]
    assert row_hashes(sliced, types).tolist() == expected[1:]


@settings(max_examples=150, deadline=None)
@given(rows())
def test_rows_survive_bytes_and_arrow(case: tuple[list[DataType], list[list[object]]]) -> None:
    types, values = case
    for r in values:
        assert decode(types, encode(types, r)) == r  # type: ignore[arg-type]
    for i, t in enumerate(types):
        column = [r[i] for r in values]
        assert stored_values(arrow_column(column, t), t) == column  # type: ignore[arg-type]


def test_doubles_order_as_java_compares_them() -> None:
    t = parse_atomic("DOUBLE")
    ascending = [float("-inf"), -1.5, -0.0, 0.0, 5e-324, 2.0, float("inf"), float("nan")]
    keys = [order_key(t, v) for v in ascending]
    assert keys == sorted(keys) and len(set(keys)) == len(keys)


def test_large_decimals_keep_every_digit() -> None:
    t = parse_atomic("DECIMAL(38, 0)")
    assert arrow_column([DEC38], t)[0].as_py() == Decimal(DEC38)
    assert stored_values(pa.array([Decimal(DEC38)], pa.decimal128(38, 0)), t) == [DEC38]


def test_a_million_hashes_fall_evenly_into_buckets() -> None:
    counts = np.bincount(buckets([pa.array(np.arange(100_000))], types_of(["BIGINT"]), 8))
    assert counts.min() > 11_500 and counts.max() < 13_500
