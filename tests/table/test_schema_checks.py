"""Tables that may not be made: what Java refuses, and what it takes and then cannot write."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from schema_truth import cases, created, digest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import BadRequest, Corrupt, ShoalError, Unsupported
from shoal.format.schema import decode
from shoal.format.types import DataType, Field, parse_atomic
from shoal.store.memory import MemoryStore
from shoal.table.create import schema_of

KV = pa.schema([("k", pa.int32()), ("v", pa.string())])


def test_java_and_shoal_refuse_the_same_tables() -> None:
    wrong, seen = [], {"refused": 0, "made": 0, "fails later": 0}
    for case in cases()["creates"]:
        try:
            made, why = digest(created(case)), None
        except ShoalError as err:
            made, why = None, err
        must_refuse = "java" in case or ("write" in case and "taken" not in case) or "refused" in case
        seen["refused" if "java" in case else "fails later" if "write" in case else "made"] += 1
        if (why is not None) != must_refuse:
            wrong.append((case["name"], case.get("java") or case.get("write"), str(why)))
        elif made is not None and made != case["schema"]:
            wrong.append((case["name"], "another schema file", ""))
    assert wrong == []
    assert seen == {"refused": 327, "made": 345, "fails later": 309}


def test_a_refusal_names_the_table_or_the_option_and_a_way_out() -> None:
    mute = []
    for case in cases()["creates"]:
        try:
            created(case)
        except Corrupt:
            assert case["name"].startswith("type ")  # the text of a type in this test's own file
        except ShoalError as err:
            assert isinstance(err, BadRequest | Unsupported)
            if "t: " not in err.message and "'" not in err.message:
                mute.append(err.message)
    assert mute == []


def lake() -> Lake:
    return Lake(MemoryStore(), clock=ManualClock(), scheduler=ManualScheduler)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bucket": 2, "bucket-key": "v"}, "not part of the primary key"),
        ({"bucket": 2, "sequence.field": "w"}, "'sequence.field': column 'w' does not exist"),
        ({"bucket": 2, "scan.snapshot-id": 1, "scan.timestamp-millis": 1}, "'scan.snapshot-id' does not go with"),
        ({"bucket": 2, "manifest.compression": "lz4"}, "avro has no such compression"),
        ({"bucket": 2, "path": "/elsewhere"}, "'path'"),
        ({"bucket": 2, "scan.fallback-branch": "b"}, "a new table has no branches"),
    ],
)
def test_create_table_asks_the_checks(options: dict[str, Any], says: str) -> None:
    empty = lake()
    with pytest.raises(BadRequest, match=says.replace("(", "\\(")):
        empty.create_table("d.t", KV, primary_key=["k"], options=options)
    assert list(empty.store.list("d.db")) == []


def test_keys_given_as_options_become_keys() -> None:
    t = lake().create_table("d.t", KV, options={"primary-key": "k, v", "partition": "v", "bucket": 2})
    assert (t.schema.primary_keys, t.schema.partition_keys) == (("k", "v"), ("v",))
    assert dict(t.schema.options) == {"bucket": "2"}
    assert not any(f.type.nullable for f in t.schema.fields)


def test_a_key_may_leave_out_partition_columns_with_fixed_buckets() -> None:
    """Java 2.0.0 writes such tables: a key is unique in its partition only."""
    t = lake().create_table("d.t", KV, primary_key=["k"], partition_by=["v"], options={"bucket": 2})
    with t.write() as w:
        w.upsert([{"k": 1, "v": "a"}, {"k": 1, "v": "b"}, {"k": 1, "v": "a"}])
        w.commit()
    assert sorted(r["v"] for r in t.scan().to_arrow().to_pylist()) == ["a", "b"]


def test_members_of_inner_rows_get_their_ids_first() -> None:
    inner = DataType("ROW", fields=(Field(7, "x", parse_atomic("INT")),))
    outer = DataType("ROW", fields=(Field(9, "a", inner), Field(9, "b", parse_atomic("INT"))))
    made = schema_of("t", [Field(3, "c", outer), Field(3, "d", parse_atomic("INT"))], [], [], {}, None, 0)
    c, d = made.fields
    assert (c.id, [f.id for f in c.type.fields], c.type.fields[0].type.fields[0].id) == (0, [2, 3], 1)
    assert (d.id, made.highest_field_id) == (4, 4)
    assert decode(made.encode(), "schema-0") == made
