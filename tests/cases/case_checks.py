# SPDX-License-Identifier: Apache-2.0
"""The checks of the R-* cases as calls of shoal's API: what `input.sql` asks, and what `expected.json` says of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shoal

DATA = Path(__file__).parent / "data"
KINDS = ("+I", "-U", "+U", "-D")

Rows = list[list[Any]]
Tables = Callable[[str], Any]


def rows(table: pa.Table) -> Rows:
    """Rows of a batch query: [+I, values...]."""
    return [["+I", *r.values()] for r in table.to_pylist()]


def audit(table: pa.Table) -> Rows:
    """Rows of `$audit_log`: the kind is a value of the row."""
    return [["+I", KINDS[kind], *values] for kind, *values in (r.values() for r in table.to_pylist())]


def read(
    name: str, where: str | None = None, columns: list[str] | None = None, **wanted: Any
) -> Callable[[Tables], Rows]:
    return lambda t: rows(t(name).scan(where, columns, **wanted).to_arrow())


def count(name: str, limit: int) -> Callable[[Tables], Rows]:
    return lambda t: [["+I", t(name).scan(limit=limit).to_arrow().num_rows]]


def changes(name: str, start: int, end: int, mode: str) -> Callable[[Tables], Rows]:
    return lambda t: audit(t(name).changes(start, end, mode=mode).to_arrow())


def inspected(name: str, what: str, *columns: str) -> Callable[[Tables], Rows]:
    return lambda t: rows(getattr(t(name).inspect, what)().select(columns))


# (case, state of the tables, check) -> the query of input.sql through shoal's API
QUERIES: dict[tuple[str, str, str], Callable[[Tables], Rows]] = {
    ("R-001", "q4", "q1"): read("shop_clicks", "clicks = 35"),
    ("R-001", "q4", "q2"): read("shop_clicks", "clicks = 10"),
    ("R-001", "q4", "q3"): read("shop_clicks", "clicks > 30"),
    ("R-001", "q4", "q4"): read("shop_clicks"),
    ("R-003", "q4", "q1"): count("lim", 3),
    ("R-003", "q4", "q2"): read("lim", "v = 80", ["id"], limit=1),
    ("R-003", "q4", "q3"): read("lim", "v = 10", ["id"], limit=1),
    ("R-003", "q4", "q4"): count("lim", 100),
    ("R-005", "q2", "q1"): read("stock"),
    ("R-005", "q2", "q2"): read("stock", None, ["qty"]),
    ("R-010", "q1", "q1"): read("wide"),
    ("R-012", "q1", "q1"): read("prof", None, ["id", "a", "b"]),
    ("R-012", "q2", "q2"): read("prof", None, ["id", "a", "b"]),
    ("R-016", "q1", "q1"): read("tot", None, ["k", "s"]),
    ("R-018", "q4", "q1"): read("fr"),
    ("R-018", "q4", "q2"): changes("fr", 0, 6, "changelog"),
    ("R-018", "q4", "q4"): read("fr2"),
    ("R-018", "q5", "q5"): read("fr2"),
    ("R-023", "q1", "q1"): changes("wo", 0, 2, "changelog"),
    ("R-023", "q3", "q2"): inspected("wo", "snapshots", "snapshot_id", "commit_kind", "changelog_record_count"),
    ("R-023", "q3", "q3"): changes("wo", 0, 3, "changelog"),
    ("R-025", "q3", "q1"): inspected("inc", "snapshots", "snapshot_id", "commit_kind", "changelog_record_count"),
    ("R-025", "q3", "q2"): changes("inc", 0, 8, "changelog"),
    ("R-025", "q3", "q3"): changes("inc", 4, 8, "diff"),
    ("R-030", "q5", "q1"): read("tt", snapshot=1),
    ("R-034", "q3", "q1"): inspected("keep", "snapshots", "snapshot_id"),
    ("R-034", "q3", "q2"): read("keep", tag="20260101"),
    ("R-034", "q5", "q4"): read("keep"),
    ("R-034", "q5", "q5"): inspected("keep", "snapshots", "snapshot_id"),
    ("R-046", "q1", "q1"): read("resc"),
    ("R-046", "q3", "q3"): read("resc"),
    ("R-056", "q5", "q1"): read("pnull"),
    ("R-056", "q5", "q2"): read("pnull", "pt IS NULL", ["id"]),
    ("R-056", "q5", "q3"): read("pnull", "pt = ''", ["id"]),
    ("R-056", "q5", "q4"): read("pnull", "pt <> 'x'", ["id"]),
    ("R-056", "q5", "q5"): inspected("pnull", "partitions", "partition", "record_count"),
    ("R-062", "q3", "q1"): read("s2i"),
    ("R-062", "q3", "q2"): read("s2i", "a > 9", ["id"]),
    ("R-062", "q3", "q3"): read("s2i", "a = 10", ["id"]),
    ("R-062", "q4", "q4"): read("s2i", "a > 9", ["id"]),
}

# (case, state, check) -> a read that must be refused
REFUSED: dict[tuple[str, str, str], Callable[[Tables], Any]] = {
    ("R-030", "q5", "q2"): read("tt", timestamp=1000),
    ("R-030", "q5", "q3"): read("tt", snapshot=99),
    ("R-030", "q5", "q4"): lambda t: t("tt").with_options({"scan.snapshot-id": "LATEST"}).scan().to_arrow(),
    ("R-030", "q5", "q5"): read("tt", tag="nope"),
    ("R-034", "q3", "q3"): read("keep", snapshot=2),
}

# a write that must be refused
REFUSED_WRITES: dict[tuple[str, str, str], Callable[[Tables], Any]] = {
    ("R-018", "q4", "q3"): lambda t: t("fr").delete("k = 1"),
    ("R-046", "q1", "q2"): lambda t: put(t("resc"), [(5, 5)]),
}
EVERY = {**QUERIES, **REFUSED, **REFUSED_WRITES}

# the class of a fault -> what shoal raises
_FAULTS: dict[str, tuple[type[shoal.ShoalError], ...]] = {
    "argument": (shoal.BadRequest, shoal.NotFound),
    "unsupported": (shoal.Unsupported,),
    "state": (shoal.BadRequest,),
}


def put(table: Any, values: list[tuple[Any, ...]], **commit: Any) -> Any:
    """One commit of these rows, their values in the order of the columns."""
    names = table.arrow_schema.names
    with table.write() as w:
        w.append([dict(zip(names, v)) for v in values])
        return w.commit(**commit)


def expected(case: str, check: str) -> dict[str, Any]:
    return json.loads((DATA / case / "expected.json").read_text())["checks"][check]


def assert_check(case: str, state: str, check: str, tables: Tables) -> None:
    """What a check of a case asks of these tables comes out as the case says, or is refused as it says."""
    wanted = expected(case, check)
    call = EVERY[case, state, check]
    if "rows" in wanted:
        assert Counter(map(repr, call(tables))) == Counter(map(repr, wanted["rows"])), (case, check)
        return
    with pytest.raises(_FAULTS[wanted["error"]]) as caught:
        call(tables)
    said = f"{caught.value.message} ({caught.value.hint})"
    for part in wanted["contains"]:
        assert _names(said, part), f"{case} {check}: {said} does not name {part}"


def _names(said: str, part: str) -> bool:
    """Whether a message says what Java's does: `[3, 6]` is our `3 to 6`; of a bucket count, the number counts."""
    if "bucket num" in part:
        (count,) = re.findall(r"\d+", part)
        return re.search(rf"\b{count}\b", said) is not None
    return part in said or part.strip("[]").replace(", ", " to ") in said
