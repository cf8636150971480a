# SPDX-License-Identifier: Apache-2.0
"""Nested columns of old files as the schema of now has them: by field id, at every depth."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shoal import BadRequest
from shoal.format.evolve import converter
from shoal.format.types import DataType, Field, parse_atomic, parse_field, to_arrow, widened

INT, STRING = parse_atomic("INT"), parse_atomic("STRING")


def row(*fields: tuple[int, str, DataType], nullable: bool = True) -> DataType:
    return DataType("ROW", nullable, fields=tuple(Field(*f) for f in fields))


def array(t: DataType) -> DataType:
    return DataType("ARRAY", element=t)


def mapping(key: DataType, value: DataType) -> DataType:
    return DataType("MAP", key=key, value=value)


def multiset(t: DataType) -> DataType:
    return DataType("MULTISET", element=t)


def moved(values: list[Any], source: DataType, target: DataType) -> list[Any]:
    """The values read back, from a whole column and from slices of it."""
    convert = converter(source, target, "c")
    assert convert is not None
    # a row before and one behind that must not be looked at
    column = pa.concat_arrays([pa.array([v], to_arrow(source)) for v in (values[-1], *values, values[0])])
    made = convert(column.slice(1, len(values)))
    assert made.type == to_arrow(target)
    made.validate(full=True)
    half = len(values) // 2
    parts = [convert(column.slice(1, half)), convert(column.slice(1 + half, len(values) - half))]
    assert pa.chunked_array(parts).combine_chunks().to_pylist() == made.to_pylist()
    result: list[Any] = made.to_pylist()
    return result


def test_equal_types_need_no_converter() -> None:
    nested = mapping(STRING.with_nullable(False), array(row((1, "a", INT), (2, "b", STRING))))
    for t in (INT, STRING, nested, DataType("MULTISET", element=STRING), parse_atomic("TIMESTAMP(9)")):
        assert converter(t, t, "c") is None
        assert converter(t, t.with_nullable(False), "c") is None


@pytest.mark.parametrize(
    ("source", "target"),
    [("VARCHAR(5)", "STRING"), ("CHAR(5)", "STRING"), ("BINARY(2)", "BYTES"), ("TIMESTAMP(4)", "TIMESTAMP(6)")],
)
def test_changes_that_move_no_value_need_no_converter(source: str, target: str) -> None:
    assert converter(parse_atomic(source), parse_atomic(target), "c") is None


def test_members_are_matched_by_id_and_not_by_name() -> None:
    source = row((1, "a", INT), (2, "b", STRING), (3, "c", INT))
    # c is gone, a was renamed and moved behind b, c came back under another id
    target = row((2, "b", STRING), (1, "a2", parse_atomic("BIGINT")), (7, "c", INT))
    values = [{"a": 1, "b": "x", "c": 3}, None, {"a": None, "b": None, "c": 4}]
    wanted = [{"b": "x", "a2": 1, "c": None}, None, {"b": None, "a2": None, "c": None}]
    assert moved(values, source, target) == wanted


def test_a_row_without_a_member_in_common_is_null() -> None:
    old, new = row((1, "a", INT)), row((2, "b", INT))
    assert moved([{"a": 1}, None], old, new) == [None, None]
    assert moved([[{"a": 1}], []], array(old), array(new)) == [None, None]
    source, target = row((5, "x", INT), (6, "r", old)), row((5, "x", INT), (6, "r", new))
    assert moved([{"x": 1, "r": {"a": 1}}, None], source, target) == [{"x": 1, "r": None}, None]


def test_a_renamed_member_is_the_new_name_at_every_depth() -> None:
    source = array(mapping(STRING.with_nullable(False), row((1, "a", row((2, "x", INT))))))
    target = array(mapping(STRING.with_nullable(False), row((1, "b", row((2, "y", INT))))))
    values = [[[("k", {"a": {"x": 1}}), ("l", None)], None], None, [], [[("m", {"a": None})]]]
    wanted = [[[("k", {"b": {"y": 1}}), ("l", None)], None], None, [], [[("m", {"b": None})]]]
    assert moved(values, source, target) == wanted


def test_text_under_a_null_row_is_not_parsed() -> None:
    source, target = row((1, "a", STRING)), row((1, "a", INT))
    text = pa.StructArray.from_arrays(
        [pa.array(["1", "broken"])], fields=list(to_arrow(source)), mask=pa.array([False, True])
    )
    convert = converter(source, target, "c")
    assert convert is not None and convert(text).to_pylist() == [{"a": 1}, None]
    offsets, nulls = pa.array([0, 1, 2], pa.int32()), pa.array([False, True])
    texts = pa.ListArray.from_arrays(offsets, pa.array(["1", "broken"]), type=to_arrow(array(STRING)), mask=nulls)
    convert = converter(array(STRING), array(INT), "c")
    assert convert is not None and convert(texts).to_pylist() == [[1], None]


def test_an_error_names_the_member() -> None:
    source = row((1, "a", array(STRING)))
    convert = converter(source, row((1, "a", array(INT))), "c")
    assert convert is not None
    with pytest.raises(BadRequest, match=r"column 'c\.a\.element': the value 'x' of type STRING"):
        convert(pa.array([{"a": ["1", "x"]}], to_arrow(source)))


def test_keys_of_maps_do_not_change() -> None:
    big = parse_atomic("BIGINT")
    for old, new in ((mapping(INT, INT), mapping(big, INT)), (multiset(INT), multiset(big))):
        with pytest.raises(BadRequest, match="keys of maps cannot change"):
            converter(old, new, "c")


def test_nullability_below_the_top_is_that_of_the_target() -> None:
    assert moved([[1, 2], None], array(INT), array(INT.with_nullable(False))) == [[1, 2], None]
    source, target = row((1, "a", INT.with_nullable(False))), row((1, "a", INT))
    assert moved([{"a": 1}, None], source, target) == [{"a": 1}, None]


def test_wide_timestamps_in_keys_and_values() -> None:
    source = mapping(parse_atomic("TIMESTAMP(9) NOT NULL"), parse_atomic("TIMESTAMP(3)"))
    target = widened(mapping(parse_atomic("TIMESTAMP(9) NOT NULL"), parse_atomic("TIMESTAMP(9)")))
    column = pa.array([[(1, 1500), (-1, None)], None], pa.map_(pa.int64(), pa.int64())).cast(to_arrow(source))
    convert = converter(source, target, "c")
    assert convert is not None
    wanted = [[(Decimal("0.000000001"), Decimal("1.500000000")), (Decimal("-0.000000001"), None)], None]
    assert convert(column).to_pylist() == wanted
    stamp = parse_atomic("TIMESTAMP(9)")
    convert = converter(multiset(stamp), multiset(widened(stamp)), "c")
    assert convert is not None
    counts = convert(pa.array([[(1, 2)], None], pa.map_(pa.int64(), pa.int32())).cast(to_arrow(multiset(stamp))))
    assert counts.type == to_arrow(multiset(widened(stamp)))
    assert counts.to_pylist() == [[(Decimal("0.000000001"), 2)], None]


def test_nested_values_as_text() -> None:
    """Texts that ArrayToString, MapToString and RowToStringCastRule of 2.0.0 gave."""
    source = row(
        (0, "a", INT), (1, "b", STRING), (2, "c", parse_atomic("DOUBLE")), (3, "d", array(parse_atomic("DATE")))
    )
    values: list[Any] = [{"a": 1, "b": "x, y", "c": 1.1e10, "d": [0, None]}, dict.fromkeys("abcd"), None]
    texts = ["{1, x, y, 1.1E10, [1970-01-01, null]}", "{null, null, null, null}", None]
    assert moved(values, source, STRING) == texts
    assert moved(values, source, parse_atomic("CHAR(3)")) == texts
    assert moved([[True, None], [], None], array(parse_atomic("BOOLEAN")), STRING) == ["[true, null]", "[]", None]
    source = mapping(STRING.with_nullable(False), parse_atomic("DECIMAL(10, 2)"))
    values = [[("k", Decimal("1.20")), ("l", None)], [], None]
    assert moved(values, source, STRING) == ["{k -> 1.20, l -> null}", "{}", None]
    with pytest.raises(BadRequest, match="no cast"):
        converter(DataType("MULTISET", element=INT), STRING, "c")


def test_nested_columns_become_what_java_read() -> None:
    """`data/nested_evolution.json`: rows before, and what Java 2.0.0 read after the ALTERs, the same from Parquet, ORC
    and Avro. Members dropped, added in the middle, cast; one dropped and added again; a row that lost all members."""
    truth = json.loads((Path(__file__).parent / "data" / "nested_evolution.json").read_text())
    for old, new in zip(truth["source"], truth["target"]):
        source, target = parse_field(old), parse_field(new)
        assert source.name == target.name
        column = pa.array([arrow_value(r[old["name"]], source.type) for r in truth["in"]], to_arrow(source.type))
        convert = converter(source.type, target.type, source.name)
        made = column if convert is None else convert(column)
        made.validate(full=True)
        wanted = [arrow_value(r[old["name"]], target.type) for r in truth["out"]]
        assert made.equals(pa.array(wanted, to_arrow(target.type))), source.name


def arrow_value(value: Any, t: DataType | None) -> Any:
    """A value of a dump as pa.array takes it: decimals are texts there, NaN too, map entries lists."""
    if value is None or t is None:
        return None
    if t.root == "ARRAY":
        return [arrow_value(v, t.element) for v in value]
    if t.root == "MAP":
        return [(arrow_value(k, t.key), arrow_value(v, t.value)) for k, v in value]
    if t.root == "ROW":
        return {f.name: arrow_value(value[f.name], f.type) for f in t.fields}
    return Decimal(value) if t.root == "DECIMAL" else float(value) if t.root == "DOUBLE" else value
