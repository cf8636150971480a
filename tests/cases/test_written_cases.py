# SPDX-License-Identifier: Apache-2.0
"""The R-* cases with tables that shoal writes: each `input.sql` as calls of the API, every check at its place.

An INSERT is a batch commit, `CALL sys.compact` is `maintain.compact`. Snapshots are counted too: where a check looks at
`$snapshots`, or reads between two of them by number, the history has Java's shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from case_checks import DATA, EVERY, assert_check, put

import shoal
from shoal.table import consumers

INT, LONG, TEXT = pa.int32(), pa.int64(), pa.string()


class Made:
    """The tables of one case: made with `create`, opened anew by each call, as each statement of a SQL client does."""

    def __init__(self, lake: shoal.Lake, database: str) -> None:
        self.lake, self.database = lake, database

    def __call__(self, name: str) -> Any:
        return self.lake.table(f"{self.database}.{name}")

    def create(self, name: str, columns: dict[str, pa.DataType], key: str = "", by: str = "", **options: str) -> None:
        self.lake.create_table(
            f"{self.database}.{name}",
            pa.schema(list(columns.items())),
            primary_key=key.split(",") if key else (),
            partition_by=by.split(",") if by else (),
            options={k.replace("__", ".").replace("_", "-"): v for k, v in options.items()},
        )

    def insert(self, name: str, *values: tuple[Any, ...]) -> None:
        put(self(name), list(values))


def r001(t: Made) -> Iterator[str]:
    t.create(
        "shop_clicks", {"shop": INT, "dd": INT, "clicks": LONG}, "shop,dd", "dd", bucket="1",
        merge_engine="aggregation", fields__clicks__aggregate_function="sum", write_only="true",
    )  # fmt: skip
    t.insert("shop_clicks", (7, 1, 10), (8, 1, 4))
    t.insert("shop_clicks", (7, 1, 25))
    yield "q1 q2 q3 q4"


def r003(t: Made) -> Iterator[str]:
    t.create("lim", {"pt": TEXT, "id": INT, "v": INT}, "pt,id", "pt", bucket="1", write_only="true")
    t.insert("lim", ("p1", 1, 10), ("p1", 2, 20), ("p2", 7, 70), ("p2", 8, 80))
    t.insert("lim", ("p1", 1, 11))
    yield "q1 q2 q3 q4"


def r005(t: Made) -> Iterator[str]:
    columns = {"warehouse": LONG, "sku": LONG, "qty": INT}
    t.create("stock", columns, "sku,warehouse", bucket="1", write_only="true")
    t.insert("stock", (9, 1, 10), (1, 2, 20), (5, 1, 30), (3, 3, 40))
    t.insert("stock", (5, 1, 31))
    yield "q1 q2"


def r010(t: Made) -> Iterator[str]:
    t.create(
        "wide", {"k": INT, "a": TEXT, "sa": INT, "b": TEXT, "sb": INT}, "k", bucket="1", merge_engine="partial-update",
        fields__sa__sequence_group="a", fields__sb__sequence_group="b", write_only="true",
    )  # fmt: skip
    t.insert("wide", (1, "a1", 1, "b1", 1))
    t.insert("wide", (1, "a2", None, "b2", 2))
    t.insert("wide", (1, None, 3, "b0", 1))
    t.insert("wide", (2, "p", 5, None, None), (2, None, None, "q", 1))
    yield "q1"


def r012(t: Made) -> Iterator[str]:
    t.create(
        "prof", {"id": INT, "a": TEXT, "b": TEXT, "rk": TEXT}, "id", bucket="1", merge_engine="partial-update",
        partial_update__remove_record_on_delete="true", write_only="true", rowkind__field="rk",
    )  # fmt: skip
    t.insert("prof", (1, "a1", "b1", "+I"), (2, "c1", "d1", "+I"))
    t.insert("prof", (1, None, None, "-D"))
    yield "q1"
    t.insert("prof", (1, None, "b9", "+I"))
    yield "q2"


def r016(t: Made, between: Callable[[], object] = lambda: None) -> Iterator[str]:
    t.create(
        "tot", {"k": INT, "s": INT, "rk": TEXT}, "k", bucket="1", merge_engine="aggregation",
        fields__s__aggregate_function="sum", fields__rk__aggregate_function="last_value",
        fields__rk__ignore_retract="true", rowkind__field="rk", write_only="true",
    )  # fmt: skip
    for values in (
        [(1, 100, "+I"), (2, 5, "+I")],
        [(1, 30, "-U")],
        [(1, 40, "+U")],
        [(2, 5, "-U"), (2, 8, "+U")],
        [(3, 7, "-U")],
        [(3, 10, "+I")],
    ):
        t.insert("tot", *values)
        between()
    yield "q1"


def r018(t: Made) -> Iterator[str]:
    t.create("fr", {"k": INT, "v": TEXT}, "k", bucket="1", merge_engine="first-row", changelog_producer="lookup")
    t.insert("fr", (1, "first"), (2, "two"))
    t.insert("fr", (1, "second"), (3, "three"))
    t.insert("fr", (1, "third"), (2, "two-b"))
    yield "q1 q2 q3"
    t.create("fr2", {"k": INT, "v": TEXT}, "k", bucket="1", merge_engine="first-row", write_only="true")
    t.insert("fr2", (1, "first"), (2, "two"))
    yield "q4"
    t("fr2").maintain.compact(full=True)
    yield "q5"


def r023(t: Made) -> Iterator[str]:
    t.create("wo", {"k": INT, "v": TEXT}, "k", bucket="1", changelog_producer="lookup", write_only="true")
    t.insert("wo", (1, "one"))
    t.insert("wo", (1, "uno"))
    yield "q1"
    t("wo").maintain.compact(full=True)
    yield "q2 q3"


def r025(t: Made) -> Iterator[str]:
    t.create("inc", {"id": INT, "v": TEXT}, "id", bucket="1", changelog_producer="lookup")
    t.insert("inc", (1, "A"))
    t.insert("inc", (2, "B"))
    t("inc").delete("id = 2")
    t.insert("inc", (3, "C"))
    yield "q1 q2 q3"


def r030(t: Made) -> Iterator[str]:
    t.create("tt", {"k": INT, "v": TEXT}, bucket="-1")
    t.insert("tt", (1, "a"))
    t.insert("tt", (2, "b"))
    yield "q1 q2 q3 q4 q5"


def r034(t: Made) -> Iterator[str]:
    t.create("keep", {"k": INT, "v": INT}, "k", bucket="1", write_only="true")
    for v in range(1, 7):
        t.insert("keep", (1, v))
    keep = t("keep")
    consumers.reset(keep.store, "c1", 3)
    keep.tags.create("20260101", snapshot=2)
    keep.maintain.expire(retain_max=1, retain_min=1)
    yield "q1 q2 q3"
    t("keep").rollback(tag="20260101")
    yield "q4 q5"


def r046(t: Made) -> Iterator[str]:
    t.create("resc", {"k": INT, "v": INT}, "k", bucket="2")
    t.insert("resc", (1, 1), (2, 2), (3, 3), (4, 4))
    t("resc").alter(options={"bucket": 4})
    yield "q1 q2"
    t("resc").overwrite(t("resc").scan().to_arrow())
    t.insert("resc", (1, 11))
    yield "q3"


def r056(t: Made) -> Iterator[str]:
    t.create("pnull", {"id": INT, "pt": TEXT}, by="pt", bucket="-1")
    t.insert("pnull", (1, "x"), (2, None), (3, ""), (4, "  "))
    yield "q1 q2 q3 q4 q5"


def r062(t: Made) -> Iterator[str]:
    t.create("s2i", {"id": INT, "a": TEXT}, bucket="-1")
    t.insert("s2i", (1, "9"), (2, "10"), (3, "11"))
    t("s2i").alter(types={"a": "INT"})
    yield "q1 q2 q3"
    t.insert("s2i", (4, 12))
    yield "q4"


CASES: dict[str, Callable[[Made], Iterator[str]]] = {
    "R-001": r001, "R-003": r003, "R-005": r005, "R-010": r010, "R-012": r012, "R-016": r016, "R-018": r018,
    "R-023": r023, "R-025": r025, "R-030": r030, "R-034": r034, "R-046": r046, "R-056": r056, "R-062": r062,
}  # fmt: skip
STATES = {(case, check): state for case, state, check in EVERY}


def made(folder: Path, case: str) -> Made:
    return Made(shoal.open(str(folder)), case.lower().replace("-", ""))


@pytest.mark.parametrize("case", CASES)
def test_a_case_written_here_comes_out_as_java_says(case: str, tmp_path: Path) -> None:
    tables = made(tmp_path, case)
    seen = []
    for checks in CASES[case](tables):
        for check in checks.split():
            assert_check(case, STATES[case, check], check, tables)
            seen.append(check)
    assert sorted(seen) == sorted(json.loads((DATA / case / "expected.json").read_text())["checks"])


def test_every_case_is_written() -> None:
    assert set(CASES) == {p.name for p in DATA.glob("R-*")}


@pytest.mark.parametrize("full", [False, True])
def test_a_compaction_between_the_commits_keeps_retractions(full: bool, tmp_path: Path) -> None:
    """R-016's note, as Java 2.0.0 answers it (run with `CALL sys.compact` after each INSERT).

    A retraction over older data of its key in a lower level is not dropped. One over nothing at all, of key 3, is: the
    highest level holds no retractions, so the 7 that were taken away early are forgotten, and 10 stay 10.
    """
    tables = made(tmp_path, "R-016")

    def compact() -> None:
        # as few runs as may be, so that retractions go down as soon as they can
        tables("tot").with_options({"num-sorted-run.compaction-trigger": 2}).maintain.compact(full=full)

    for _ in r016(tables, compact):
        found = tables("tot").scan(columns=["k", "s"]).to_arrow().to_pylist()
        assert sorted(list(r.values()) for r in found) == [[1, 110], [2, 8], [3, 10]]
    assert "COMPACT" in tables("tot").inspect.snapshots()["commit_kind"].to_pylist()
