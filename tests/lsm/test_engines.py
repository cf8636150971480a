# SPDX-License-Identifier: Apache-2.0
"""What engines refuse, what they read, and cases that the random tests meet too seldom."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shoal.errors import BadRequest, Unsupported
from shoal.format.schema import Schema
from shoal.format.types import Field, parse, to_arrow
from shoal.lsm.engines import engine_of
from shoal.lsm.versions import Engine, Folded, Versions
from shoal.options import Options

PARTIAL, AGGREGATION = {"merge-engine": "partial-update"}, {"merge-engine": "aggregation"}
KINDS = ["+I", "-U", "+U", "-D"]


def schema_of(options: dict[str, str], **columns: Any) -> Schema:
    fields = [Field(i, n, parse(t)) for i, (n, t) in enumerate({"id": "INT NOT NULL", **columns}.items())]
    return Schema(0, tuple(fields), len(fields), (), ("id",), options)


def engine(options: dict[str, str], **columns: Any) -> Engine:
    made = engine_of(schema_of(options, **columns), Options(options, strict=False))
    assert made is not None
    return made


def fold(
    options: dict[str, str],
    columns: dict[str, Any],
    versions: Sequence[tuple[str, Any]],
    read: list[str] | None = None,
) -> Folded:
    """Versions of one key, in order."""
    schema = schema_of(options, **columns)
    arrays = [pa.array([1] * len(versions), pa.int32())]
    arrays += [pa.array([v[i] for _, v in versions], to_arrow(f.type)) for i, f in enumerate(schema.fields[1:])]
    n = len(versions)
    kinds = np.array([KINDS.index(k) for k, _ in versions], np.int8)
    block = Versions(pa.table(arrays, schema.names), np.arange(n), np.arange(n) == 0, kinds)
    return engine(options, **columns).fold(block, list(columns) if read is None else read)


def values(folded: Folded) -> list[Any]:
    return [c[0].as_py() for c in folded.columns]


def test_deduplicate_has_no_engine() -> None:
    options = {"merge-engine": "deduplicate"}
    assert engine_of(schema_of(options), Options(options, strict=False)) is None


GROUPS = {"a": "INT", "b": "INT", "s": "INT", "t": "INT", "v": "STRING"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fields.a.aggregate-function": "summ"}, "'fields.a.aggregate-function' = 'summ': no such aggregate function"),
        ({"fields.default-aggregate-function": "mean"}, "'fields.default-aggregate-function' = 'mean'"),
        ({"fields.s.sequence-group": "x"}, "'fields.s.sequence-group': the table has no column 'x'"),
        ({"fields.s,x.sequence-group": "a"}, "the table has no column 'x'"),
        ({"fields.s.sequence-group": "id"}, "'id' is a key column"),
        ({"fields.s.sequence-group": "a", "fields.t.sequence-group": "a"}, "column 'a' is in two sequence groups"),
        ({"fields.a.aggregate-function": "sum"}, "column 'a': aggregate function 'sum' needs a sequence group"),
        ({"ignore-delete": "true", "partial-update.remove-record-on-delete": "true"}, "exclude each other"),
        (
            {"fields.s.sequence-group": "a", "partial-update.remove-record-on-delete": "true"},
            "'fields.<columns>.sequence-group' and 'partial-update.remove-record-on-delete'",
        ),
        (
            {"fields.s.sequence-group": "a", "partial-update.remove-record-on-sequence-group": "t"},
            "'t' orders no sequence group",
        ),
    ],
)
def test_partial_update_refuses_options(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        engine(PARTIAL | options, **GROUPS)
    assert says in refused.value.message
    assert refused.value.hint


def test_a_sequence_column_in_two_groups_is_not_done() -> None:
    with pytest.raises(Unsupported, match="column 's' orders one sequence group and is in another"):
        engine(PARTIAL | {"fields.s.sequence-group": "a", "fields.t.sequence-group": "s"}, **GROUPS)


@pytest.mark.parametrize(
    ("type_", "function", "more", "says"),
    [
        ("STRING", "sum", {}, "needs a number, not STRING"),
        ("INT", "listagg", {}, "needs STRING, not INT"),
        ("VARCHAR(5)", "listagg", {}, "needs STRING, not VARCHAR(5)"),
        ("INT", "bool_or", {}, "needs BOOLEAN, not INT"),
        ("INT", "collect", {}, "needs ARRAY, not INT"),
        ("INT", "merge_map", {}, "needs MAP, not INT"),
        ({"type": "ARRAY", "element": "INT"}, "nested_update", {}, "needs ARRAY of ROW"),
        ("BINARY(4)", "rbm32", {}, "needs BYTES, not BINARY(4)"),
        (
            {"type": "ARRAY", "element": {"type": "ROW", "fields": [{"id": 9, "name": "k", "type": "INT"}]}},
            "nested_update", {"nested-key": "kk"}, "no member 'kk'",
        ),
        (
            {"type": "ARRAY", "element": {"type": "ROW", "fields": [{"id": 9, "name": "k", "type": "INT"}]}},
            "nested_update", {"nested-sequence-field": "k"}, "needs 'fields.v.nested-key'",
        ),
        (
            {"type": "ARRAY", "element": {"type": "ROW", "fields": [{"id": 9, "name": "k", "type": "INT"}]}},
            "nested_partial_update", {}, "needs 'fields.v.nested-key'",
        ),
        ("INT", "max", {"ignore-retract": "true"}, "exclude each other"),
    ],
)  # fmt: skip
def test_a_function_refuses_a_column_only_when_it_is_read(
    type_: Any, function: str, more: dict[str, str], says: str
) -> None:
    options = AGGREGATION | {"fields.v.aggregate-function": function, "aggregation.remove-record-on-delete": "true"}
    made = engine(options | {f"fields.v.{k}": v for k, v in more.items()}, v=type_, w="INT")
    assert made.needs(["id", "w"]) == ("id", "w")
    with pytest.raises(BadRequest) as refused:
        made.needs(["v"])
    assert says in refused.value.message


def test_a_group_needs_its_sequence_columns_and_a_sequence_field_wakes_its_group() -> None:
    groups = PARTIAL | {"fields.s,t.sequence-group": "a,v"}
    assert engine(groups, **GROUPS).needs(["id", "b"]) == ("id", "b")
    assert engine(groups, **GROUPS).needs(["v"]) == ("v", "s", "t")
    assert engine(groups | {"sequence.field": "a"}, **GROUPS).needs(["b"]) == ("b", "s", "t")


def test_a_group_removes_its_rows_whatever_is_read() -> None:
    """Java's projection leaves the group's sequence out, so that `SELECT id` shows a row that `SELECT *` does not."""
    options = PARTIAL | {
        "fields.s.sequence-group": "a", "partial-update.remove-record-on-sequence-group": "s",
    }  # fmt: skip
    rows = [("+I", [1, 1]), ("-D", [None, 2])]
    assert list(fold(options, {"a": "INT", "s": "INT"}, rows).kinds) == [3]
    assert list(fold(options, {"a": "INT", "s": "INT"}, rows, ["id"]).kinds) == [3]


@pytest.mark.parametrize(
    ("options", "columns", "says"),
    [
        (PARTIAL, {"a": "INT"}, "merge-engine 'partial-update' takes no row of kind -U or -D"),
        ({"merge-engine": "first-row"}, {"a": "INT"}, "merge-engine 'first-row' takes no row"),
        (
            AGGREGATION | {"fields.a.aggregate-function": "max"}, {"a": "INT"},
            "column 'a': aggregate function 'max' cannot take back a value",
        ),
    ],
)  # fmt: skip
def test_retractions_are_refused_but_not_alone(options: dict[str, str], columns: dict[str, Any], says: str) -> None:
    assert list(fold(options, columns, [("-D", [1])]).kinds) == [3]
    with pytest.raises(BadRequest) as refused:
        fold(options, columns, [("+I", [1]), ("-D", [1])])
    assert says in refused.value.message
    assert refused.value.hint


def test_ignored_deletions_still_give_the_first_row_its_values() -> None:
    """As Java: a row that begins with a retraction begins with what it takes back."""
    folded = fold(PARTIAL | {"ignore-delete": "true"}, {"a": "INT", "b": "INT"}, [("-D", [1, 2]), ("+I", [None, 3])])
    assert values(folded) == [1, 3]
    assert list(folded.kinds) == [0]
    folded = fold(PARTIAL | {"ignore-delete": "true"}, {"a": "INT"}, [("+I", [1]), ("-D", [1]), ("-D", [1])])
    assert list(folded.rows) == [0], "the newest version that counts"


def test_null_in_a_column_that_allows_none_is_refused() -> None:
    with pytest.raises(BadRequest, match="column 'a': NOT NULL"):
        fold(PARTIAL, {"a": "INT NOT NULL"}, [("+I", [1]), ("+I", [None])])
    assert values(fold(PARTIAL, {"a": "INT NOT NULL"}, [("+I", [None])])) == [None]


def test_sequences_far_apart_and_of_text_keep_their_order() -> None:
    for type_, low, high in (
        ("BIGINT", -(2**63), 2**63 - 1),
        ("STRING", "a", "ab"),
        ("DECIMAL(30, 2)", *map(Decimal, "12")),
    ):
        folded = fold(
            PARTIAL | {"fields.s.sequence-group": "a"}, {"a": "INT", "s": type_}, [("+I", [1, high]), ("+I", [2, low])]
        )
        assert values(folded)[0] == 1


def test_floats_are_added_in_the_order_of_versions() -> None:
    parts = [0.1, 0.2, 0.3, 1e16, -1e16, 0.7]
    total = 0.0
    for p in parts:
        total += p
    options = AGGREGATION | {"fields.a.aggregate-function": "sum"}
    assert values(fold(options, {"a": "DOUBLE"}, [("+I", [p]) for p in parts])) == [total]


def test_sums_that_leave_their_range_for_a_moment_are_refused() -> None:
    options = AGGREGATION | {"fields.a.aggregate-function": "sum"}
    for type_, most in (("TINYINT", 127), ("INT", 2**31 - 1), ("BIGINT", 2**63 - 1)):
        assert values(fold(options, {"a": type_}, [("+I", [most]), ("-D", [1]), ("+I", [1])])) == [most]
        with pytest.raises(BadRequest, match=f"column 'a': sum outgrows {type_}"):
            fold(options, {"a": type_}, [("+I", [most]), ("+I", [1]), ("-D", [1])])


def test_decimals_outgrow_their_type_as_in_java() -> None:
    options = AGGREGATION | {"fields.a.aggregate-function": "sum"}
    # up to 18 digits live in a long, which takes more than the type has
    made = fold(options, {"a": "DECIMAL(3, 1)"}, [("+I", [Decimal("99.9")]), ("+I", [Decimal("0.2")])])
    assert values(made) == [Decimal("100.1")]
    wide = Decimal(10**20 - 1)
    assert values(fold(options, {"a": "DECIMAL(20, 0)"}, [("+I", [wide]), ("+I", [wide])])) == [None]
    more = [("+I", [wide]), ("+I", [wide]), ("+I", [Decimal(5)])]
    assert values(fold(options, {"a": "DECIMAL(20, 0)"}, more)) == [Decimal(5)], "nothing begins anew"
    options = AGGREGATION | {"fields.a.aggregate-function": "product"}
    parts = [("+I", [Decimal("1.10")]), ("+I", [Decimal("1.15")])]
    assert values(fold(options, {"a": "DECIMAL(10, 2)"}, parts)) == [Decimal("1.27")], "half up"


def test_values_without_an_order_are_refused_when_two_meet() -> None:
    options = AGGREGATION | {"fields.a.aggregate-function": "max"}
    assert values(fold(options, {"a": "BOOLEAN"}, [("+I", [True]), ("+I", [None])])) == [True]
    with pytest.raises(BadRequest, match="cannot be compared by 'max'"):
        fold(options, {"a": "BOOLEAN"}, [("+I", [True]), ("+I", [False])])


def test_an_empty_block_folds_to_nothing() -> None:
    for options in (PARTIAL, AGGREGATION, {"merge-engine": "first-row"}):
        table = pa.table({"id": pa.array([], pa.int32()), "a": pa.array([], pa.int32())})
        block = Versions(table, np.zeros(0, np.int64), np.zeros(0, bool), None)
        folded = engine(options, a="INT").fold(block, ["id", "a"])
        assert [len(c) for c in folded.columns] == [0, 0]
