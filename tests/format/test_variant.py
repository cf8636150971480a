# SPDX-License-Identifier: Apache-2.0
"""VARIANT: files that Java wrote plain and shredded, and the JSON that it prints of each value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.errors import Corrupt, Unsupported
from shoal.format.variant import arrow_type, json_of, to_json, unshredded

Golden = Callable[[str], Path]
KINDS = ("variant_plain", "variant_shredded", "variant_inferred")


def truth(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(r)["row"] for r in (folder / "expected" / f"kinds.{name}.jsonl").read_text().splitlines()[1:]]


@pytest.mark.parametrize("name", KINDS)
def test_values_are_byte_for_byte_those_of_java(golden: Golden, name: str) -> None:
    folder = golden("kinds")
    found = shoal.open(folder).table(f"kinds.{name}").scan().to_arrow()
    assert found.schema.field("v").type == arrow_type()
    rows = truth(folder, name)
    assert len(rows) > 30
    for mine, text, java in zip(found.to_pylist(), to_json(found.column("v")).to_pylist(), rows, strict=True):
        assert mine["id"] == java["id"]
        if java["v"] is None:
            assert mine["v"] is None and text is None
            continue
        assert text == java["v"]["json"]
        assert mine["v"]["value"].hex() == java["v"]["value"]
        assert mine["v"]["metadata"].hex() == java["v"]["metadata"]


def test_the_shredded_file_is_shredded(golden: Golden) -> None:
    """Else the test above tells nothing."""
    file = next((golden("kinds") / "kinds.db" / "variant_shredded" / "bucket-0").glob("*.parquet"))
    column = pq.read_table(file).column("v").combine_chunks()
    typed = column.type.field("typed_value").type
    assert [f.name for f in typed] == ["a", "b", "c", "dec", "bool", "f"]
    assert unshredded(column.slice(5, 3)).to_pylist() == unshredded(column).to_pylist()[5:8]


def scalar(info: int, content: str) -> bytes:
    return bytes([info << 2]) + bytes.fromhex(content)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (scalar(11, "00000000"), '"1970-01-01"'),
        (scalar(11, "ffffff7f"), '"+5881580-07-11"'),  # LocalDate.ofEpochDay(Integer.MAX_VALUE)
        (scalar(11, "00000080"), '"-5877641-06-23"'),  # LocalDate.ofEpochDay(Integer.MIN_VALUE)
        (scalar(13, "20a1070000000000"), '"1970-01-01 00:00:00.5"'),
        (scalar(12, "0000000000000000"), '"1970-01-01 00:00:00+00:00"'),
        (scalar(8, "0200000000"), "0"),
        (scalar(8, "03e8030000"), "1"),
        (scalar(8, "02ffffffff"), "-0.01"),
        (scalar(7, "000000000000f0ff"), '"-Infinity"'),
        (scalar(14, "0000c07f"), '"NaN"'),
        (scalar(16, "02000000" + b'"\n'.hex()), '"\\"\\n"'),
        (bytes([1 << 2 | 1]) + b"\x1f", '"\\u001F"'),
    ],
)
def test_scalars_print_as_in_java(value: bytes, text: str) -> None:
    assert json_of(value, bytes.fromhex("010000")) == text


@pytest.mark.parametrize(
    "value",
    [
        b"",
        scalar(3, ""),
        scalar(8, "2600000000"),
        scalar(16, "ff0000007a"),
        bytes.fromhex("020100"),
        bytes([2, 1, 5, 0, 1, 0]),
    ],
)
def test_a_malformed_value_is_an_error(value: bytes) -> None:
    with pytest.raises(Corrupt, match="malformed"):
        json_of(value, bytes.fromhex("010000"))
    with pytest.raises(Corrupt, match="malformed"):
        json_of(b"\0", b"\2")  # metadata of another version


def test_an_unknown_primitive_is_named() -> None:
    with pytest.raises(Unsupported, match="primitive type 17"):
        json_of(bytes([17 << 2]), bytes.fromhex("010000"))


def test_a_shredded_field_may_not_be_in_the_rest_too() -> None:
    member = pa.struct([("value", pa.binary()), ("typed_value", pa.int32())])
    t = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.struct([("a", member)]))])
    metadata = bytes.fromhex("0101000161")
    rest = bytes.fromhex("02010000020c07")
    row = {"metadata": metadata, "value": rest, "typed_value": {"a": {"value": None, "typed_value": 1}}}
    with pytest.raises(Corrupt, match="malformed"):
        unshredded(pa.array([row], t))
    missing = {"metadata": metadata, "value": None, "typed_value": None}
    with pytest.raises(Corrupt, match="malformed"):
        unshredded(pa.array([missing], t))
    good = {**row, "value": None}
    assert to_json(unshredded(pa.array([good, None], t))).to_pylist() == ['{"a":1}', None]
    plain = {**row, "typed_value": None}
    assert to_json(unshredded(pa.array([plain], t))).to_pylist() == ['{"a":7}']
