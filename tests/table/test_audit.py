# SPDX-License-Identifier: Apache-2.0
"""The audit log, the binlog, the read-optimized and the row-tracking table, beside what Java read and beside a model.

Java's answers lie in `data/system_tables.jsonl`; the golden tables with dumps of their own are in tests/golden.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from test_inspect_system import dumps, iso, opened, texts

import shoal
from shoal import BadRequest, ManualClock
from shoal.table import audit
from shoal.table.stream import Changes

KINDS = ("+I", "-U", "+U", "-D")


def plain(rows: list[dict[str, Any]]) -> list[str]:
    return texts([{k: iso(v) for k, v in r.items()} for r in rows])


def java(dump: str) -> list[str]:
    return texts([line["row"] for line in dumps()[dump][1]])


STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "dv.pk_dv.ro": ("ro", {}),
    "engines.dd_many.ro": ("ro", {}),
    "dv.pk_dv.audit_log": ("audit_log", {}),
    "dv.pk_dv_mor.audit_log": ("audit_log", {}),
    "dv.ap_dv.audit_log": ("audit_log", {}),
    "engines.dd_rowkind.audit_log": ("audit_log", {}),
    "engines.fr_lookup.audit_log": ("audit_log", {}),
    "changelog.dd_none.audit_log_2": ("audit_log", {"snapshot": 2}),
    "changelog.dd_none.audit_log_d": ("audit_log", {"where": "rowkind = '-D'", "columns": ["id", "rowkind"]}),
    "bucket_modes.pk_postpone_part.audit_log": ("audit_log", {}),
    "tracking.rt.audit_log": ("audit_log", {}),
    "tracking.rt.row_tracking_1": ("row_tracking", {"snapshot": 1}),
}


@pytest.mark.parametrize("dump", STATES)
def test_rows_equal_javas(dump: str, golden: Callable[[str], Path]) -> None:
    view, asked = STATES[dump]
    got = opened(golden, dump).system(view, **asked)
    assert got.column_names == [n for n, _ in dumps()[dump][0]]
    assert plain(got.to_pylist()) == java(dump)


def test_the_audit_log_of_a_branch_equals_javas(golden: Callable[[str], Path]) -> None:
    got = opened(golden, "maint.branched").branch("from_tag").system("audit_log")
    assert plain(got.to_pylist()) == java("maint.branched.branch_from_tag.audit_log")


@pytest.mark.parametrize("mode", ["auto", "delta"])
def test_the_binlog_of_a_range_packs_updates_as_java_does(mode: str, golden: Callable[[str], Path]) -> None:
    options = {"incremental-between": "2,5", "incremental-between-scan-mode": mode}
    got = opened(golden, "changelog.dd_input").with_options(options).system("binlog")
    dump = "binlog_incremental_2_5" if mode == "auto" else "binlog_delta_2_5"
    assert plain(got.to_pylist()) == java(f"changelog.dd_input.{dump}")


@pytest.mark.parametrize("table", ["dd_lookup", "dd_none", "pu_full"])
def test_the_stream_of_the_binlog_equals_javas(table: str, golden: Callable[[str], Path]) -> None:
    dump = f"changelog.{table}.stream_binlog"
    opened_at = opened(golden, dump).with_options({"scan.mode": "from-snapshot", "scan.snapshot-id": 1})
    stream = opened_at.inspect.binlog().follow(until="latest")
    got = [(c.snapshot, row) for c in stream for row in plain(c.rows.to_pylist())]
    assert sorted(got) == sorted((line["snapshot"], texts([line["row"]])[0]) for line in dumps()[dump][1])


SEQUENCES = ("dd_none.audit_log", "dd_none.binlog", "dd_lookup.audit_log", "pu_lookup.audit_log")


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequence_numbers_are_shown_where_the_table_wants_them(name: str, golden: Callable[[str], Path]) -> None:
    table = opened(golden, f"changelog.{name}").with_options({"table-read.sequence-number.enabled": "true"})
    got = table.system(name.split(".")[1])
    assert got.column_names[:2] == ["rowkind", "_SEQUENCE_NUMBER"]
    assert not got.schema.field("_SEQUENCE_NUMBER").nullable
    assert plain(got.to_pylist()) == java(f"changelog.{name}_seq")


def test_a_filter_on_the_tables_columns_reaches_the_files_and_one_on_the_kind_does_not(
    golden: Callable[[str], Path],
) -> None:
    table = opened(golden, "changelog.dd_none")
    whole = table.system("audit_log").to_pylist()
    for where, keep in {
        "id > 2": lambda r: r["id"] > 2,
        "rowkind = '-D' and id < 4": lambda r: r["rowkind"] == "-D" and r["id"] < 4,
        "rowkind <> '+I'": lambda r: r["rowkind"] != "+I",
    }.items():
        got = table.system("audit_log", where=where, columns=["v", "rowkind"])
        assert plain(got.to_pylist()) == plain([{"v": r["v"], "rowkind": r["rowkind"]} for r in whole if keep(r)])
        assert len(table.system("audit_log", where=where, limit=1)) == min(1, len(got))
    assert table.system("binlog", where=pc.field("rowkind") == "-D").num_rows == sum(
        r["rowkind"] == "-D" for r in whole
    )


def test_only_the_kind_can_be_asked_for(golden: Callable[[str], Path]) -> None:
    table = opened(golden, "changelog.dd_none")
    whole = table.system("audit_log")
    for view in ("audit_log", "binlog"):
        got = table.system(view, columns=["rowkind"])
        assert sorted(got["rowkind"].to_pylist()) == sorted(whole["rowkind"].to_pylist())


def test_mistakes_are_told(golden: Callable[[str], Path]) -> None:
    table = opened(golden, "changelog.dd_none")
    with pytest.raises(BadRequest, match="rowkid") as err:
        table.system("audit_log", columns=["rowkid"])
    assert "rowkind" in str(err.value.hint)
    with pytest.raises(BadRequest, match="does not track rows"):
        table.system("row_tracking")


# ---- against a model


def packed(kinds: list[int], values: list[int]) -> list[tuple[str, list[int]]]:
    """The binlog of one split as PackChangelogReader makes it: row by row, a -U takes the next row along."""
    out, at = [], 0
    while at < len(kinds):
        take = 2 if kinds[at] == 1 and at + 1 < len(kinds) else 1
        out.append((KINDS[kinds[at + take - 1]], values[at : at + take]))
        at += take
    return out


def test_updates_are_packed_like_in_java_wherever_batches_end() -> None:
    rng = random.Random(7)
    store = shoal.open("memory:audit-pack", clock=ManualClock())
    columns = pa.schema([pa.field("v", pa.int32(), False)])
    table = store.create_table("d.t", columns, primary_key=["v"], options={"bucket": 1})
    for _ in range(200):
        n = rng.randrange(12)
        kinds = [rng.choice((0, 1, 1, 2, 2, 3)) for _ in range(n)]
        changes, at = [], 0
        while at < n:
            size = rng.randrange(1, 4)
            part = slice(at, min(n, at + size))
            rows = pa.record_batch([pa.array(range(n)[part], pa.int32())], schema=columns)
            changes.append(Changes(1, rows, pa.array(kinds[part], pa.int8())))
            at += size
        whole = audit._whole_updates(iter(changes))
        log = audit.audit_log(table, packed=True)
        got = []
        for c in whole:
            batch = log._shaped(c.rows, c.kinds, log.schema, pack=True)
            got += [(r["rowkind"], r["v"]) for r in batch.to_pylist()]
        assert got == packed(kinds, list(range(n)))


def test_an_audit_log_streams_in_small_batches_however_many_rows_there_are() -> None:
    lake = shoal.open("memory:audit-stream", clock=ManualClock(), memory=8 << 20)
    schema = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.string())])
    table = lake.create_table("d.t", schema, primary_key=["k"], options={"bucket": 1})
    rows = 200_000
    with table.write(commit_user="a") as w:
        w.upsert(pa.table({"k": range(rows), "v": ["x" * 20] * rows}, schema=schema))
        w.commit(1)
    seen = 0
    for batch in table.inspect.audit_log().to_batches():
        assert batch.num_rows <= 131_072
        seen += batch.num_rows
    assert seen == rows
    assert table.inspect.audit_log(limit=10).to_arrow().num_rows == 10


def test_the_log_keeps_deletes_that_a_read_does_not_show() -> None:
    lake = shoal.open("memory:audit-deletes", clock=ManualClock())
    schema = pa.schema([pa.field("k", pa.int32(), False), ("v", pa.string())])
    table = lake.create_table("d.t", schema, primary_key=["k"], options={"bucket": 1, "write-only": "true"})
    with table.write(commit_user="a") as w:
        w.upsert(pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]}, schema=schema))
        w.commit(1)
        w.delete(pa.table({"k": [2], "v": ["b"]}, schema=schema))
        w.commit(2)
    got = table.system("audit_log").to_pylist()
    assert sorted((r["rowkind"], r["k"]) for r in got) == [("+U", 1), ("+U", 3), ("-D", 2)]
    assert sorted(table.scan().to_arrow()["k"].to_pylist()) == [1, 3]
    binlog = table.system("binlog")
    assert binlog.schema.field("k").type == pa.list_(pa.int32())
    assert json.dumps(sorted(binlog["k"].to_pylist())) == "[[1], [2], [3]]"
