"""The public names, so that a change to them is a visible diff."""

from __future__ import annotations

import shoal
from shoal.catalog.filesystem import Lake
from shoal.table.scan import Scan
from shoal.table.table import Table
from shoal.table.write import Write

PUBLIC = [
    "BadRequest", "Changes", "Clock", "CommitUnknown", "Committed", "Conflict", "Corrupt", "Fenced", "Follow", "Lake", "ManualClock",
    "ManualScheduler", "MissingExtra", "NotFound", "Scan", "Scheduler", "ShoalError", "StorageFailed", "SystemClock",
    "Table", "ThreadScheduler", "Unsupported", "Write", "open",
]  # fmt: skip


def public(kind: type) -> set[str]:
    return {n for n in dir(kind) if not n.startswith("_")}


def test_the_package_exports_these_names_and_no_others() -> None:
    assert sorted(shoal.__all__) == sorted(PUBLIC)
    assert all(getattr(shoal, name) is not None for name in PUBLIC)


def test_a_lake_has_these_calls() -> None:
    assert public(Lake) == {"create_table", "databases", "system", "table", "tables"}


def test_a_scan_ends_in_every_frame() -> None:
    ends = {"to_arrow", "to_batches", "to_pandas", "to_polars", "to_duckdb", "to_reader", "explain"}
    assert ends <= public(Scan)


def test_a_table_and_a_writer_have_the_contract_calls() -> None:
    assert {"scan", "changes", "follow", "follow_async", "write", "alter", "inspect", "system", "maintain"} <= public(
        Table
    )
    assert {"branch", "branches", "tags", "rollback", "with_options", "dataset", "lazy"} <= public(Table)
    assert {"upsert", "append", "delete", "write", "commit", "flush", "close"} <= public(Write)


def test_every_error_has_a_code_of_its_own() -> None:
    errors = [
        getattr(shoal, n)
        for n in PUBLIC
        if isinstance(getattr(shoal, n), type) and issubclass(getattr(shoal, n), Exception)
    ]
    codes = [e.code for e in errors]
    assert len(set(codes)) == len(codes)
    assert {e.exit_code for e in errors} == {2, 3, 4}
