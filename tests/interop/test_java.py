# SPDX-License-Identifier: Apache-2.0
"""Java reads what shoal wrote, compacts it, inserts on top; shoal reads the result. One warehouse, three JVM runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from histories import History, histories
from oracle_values import multiset, rows_of

import shoal

pytestmark = pytest.mark.java

HISTORIES = {h.name: h for h in histories()}
# Golden tables whose rows shoal writes anew into an empty table of the same schema: every type, key type, partition
# type, bucket function, codec and statistics mode.
REWRITTEN = [
    *(f"types.bkey_{t}" for t in (
        "bigint", "binary", "bool", "char", "date", "dec_big", "dec_small", "double", "float", "int", "ltz3", "ltz6",
        "smallint", "string", "time", "tinyint", "ts0", "ts3", "ts6", "ts9", "varbinary", "varchar")),
    *(f"types.key_{t}" for t in ("bigint", "bool", "bytes", "date", "dec", "double", "int", "string", "ts9")),
    "types.append_parquet", "types.pk_parquet", "types.pk_wide", "types.multiset_parquet", "types.part_default_name",
    "types.part_legacy_off", "types.part_legacy_on", "types.part_multi", "types.part_pk", "bucket_modes.ap_fixed",
    "bucket_modes.ap_fixed_2key", "bucket_modes.ap_unaware_part", "bucket_modes.pk_bucket_key",
    "bucket_modes.pk_fixed_4_part", "bucket_modes.pk_hive", "bucket_modes.pk_hive_string", "bucket_modes.pk_mod",
    "bucket_modes.pk_mod_bigint", "engines.dd_seq_desc", "formats.append_parquet_gzip", "formats.append_parquet_lz4",
    "formats.append_parquet_none", "formats.append_parquet_snappy", "formats.append_parquet_zstd",
    "formats.append_manifest_deflate", "formats.append_manifest_null", "formats.append_manifest_snappy",
    "formats.append_stats_counts", "formats.append_stats_full", "formats.append_stats_none",
    "formats.append_stats_per_field", "formats.append_stats_truncate3",
]  # fmt: skip
COMPACTED = [
    *(n for n in HISTORIES if n != "d.appended_bucketed"), "types.pk_parquet", "types.pk_wide", "types.part_pk",
    "bucket_modes.pk_hive_string", "bucket_modes.pk_mod",
]  # fmt: skip
# Java inserts the rows of the first snapshot once more.
INSERTED = [
    "d.composite",
    "d.compacted_by_shoal",
    "d.sequenced",
    "d.partitioned",
    "d.appended",
    "types.pk_parquet",
    "types.part_multi",
]


@dataclass
class Stages:
    """Rows by stage and table, as Java and as shoal read them."""

    java: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    shoal: dict[tuple[str, str], pa.Table] = field(default_factory=dict)
    kinds: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # of the snapshots

    def assert_same(self, stage: str, table: str) -> None:
        ours = self.shoal[stage, table]
        assert multiset(rows_of(ours), ours.schema) == multiset(self.java[stage, table], ours.schema)


@pytest.fixture(scope="module")
def stages(java, golden, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    warehouse = tmp_path_factory.mktemp("warehouse")
    lake = shoal.open(f"file:{warehouse}")
    for h in HISTORIES.values():
        h.write(lake)
    for name in REWRITTEN:
        rewrite(golden, name, warehouse)
    out = Stages()
    every = [*HISTORIES, *REWRITTEN]

    def run(before: str, stage: str, tables: list[str], statements: list[str]) -> None:
        """Java runs the statements; then both read the tables."""
        reads = [f"SELECT * FROM {quoted(t)}" for t in tables]
        first = [f"SELECT * FROM {quoted(t)}" for t in every] if before else []
        files = [f"SELECT * FROM {quoted(t + '$files')}" for t in HISTORIES] if before else []
        results = java(warehouse, [*first, *files, *statements, *reads])
        for t, r in zip(every, results[: len(first)]):
            out.java[before, t] = r.rows
        for t, r in zip(HISTORIES, results[len(first) : len(first) + len(files)]):
            out.java["files", t] = r.rows
        for t, r in zip(tables, results[len(results) - len(reads) :]):
            out.java[stage, t] = r.rows
            out.shoal[stage, t] = lake.table(t).scan().to_arrow()
            out.kinds[stage, t] = lake.table(t).inspect.snapshots()["commit_kind"].to_pylist()

    for t in every:
        out.shoal["written", t] = lake.table(t).scan().to_arrow()
        out.shoal["files", t] = lake.table(t).inspect.files()
    compacts = [f"CALL sys.compact(`table` => '{t}')" for t in COMPACTED]
    run("written", "compacted", COMPACTED, compacts)
    again = "OPTIONS('scan.snapshot-id' = '1')"
    inserts = [f"INSERT INTO {quoted(t)} SELECT * FROM {quoted(t)} /*+ {again} */" for t in INSERTED]
    run("", "inserted", INSERTED, ["EXECUTE STATEMENT SET BEGIN " + "; ".join(inserts) + "; END"])
    keyed = [t for t in INSERTED if lake.table(t).primary_key]
    for t in keyed:
        table = lake.table(t)
        with table.write() as w:
            w.upsert(table.scan(snapshot=1, limit=3).to_arrow())
            w.commit()
        table.maintain.compact(full=True)
    run("", "on top", keyed, [])
    yield out


def quoted(table: str) -> str:
    return ".".join(f"`{part}`" for part in table.split("."))


def rewrite(golden, name: str, warehouse: Path) -> None:
    """A table with the golden one's schema file, into which shoal writes the golden one's rows."""
    database, short = name.split(".")
    target = warehouse / f"{database}.db" / short / "schema"
    target.mkdir(parents=True)
    shutil.copy(golden(database) / f"{database}.db" / short / "schema" / "schema-0", target)
    rows = shoal.open(str(golden(database))).table(name).scan().to_arrow()
    with shoal.open(str(warehouse)).table(name).write() as w:
        w.append(rows)
        w.commit()


@pytest.mark.parametrize("name", HISTORIES)
def test_java_reads_the_history_that_shoal_wrote(name: str, stages: Stages) -> None:
    history = HISTORIES[name]
    assert multiset(stages.java["written", name], history.schema) == model(history, history.rows())
    stages.assert_same("written", name)


@pytest.mark.parametrize("name", HISTORIES)
def test_java_sees_the_same_files_keys_and_statistics(name: str, stages: Stages) -> None:
    stages.assert_same("files", name)


@pytest.mark.parametrize("name", REWRITTEN)
def test_java_reads_its_own_rows_back_from_files_that_shoal_wrote(name: str, stages: Stages, expected) -> None:
    schema = stages.shoal["written", name].schema
    _, rows = expected(name)
    assert multiset(stages.java["written", name], schema) == multiset(rows, schema)
    stages.assert_same("written", name)


@pytest.mark.parametrize("name", COMPACTED)
def test_a_compaction_by_java_keeps_the_rows(name: str, stages: Stages) -> None:
    schema = stages.shoal["written", name].schema
    assert stages.kinds["compacted", name][-1] == "COMPACT"
    assert multiset(stages.java["compacted", name], schema) == multiset(stages.java["written", name], schema)
    stages.assert_same("compacted", name)


@pytest.mark.parametrize("name", INSERTED)
def test_shoal_reads_what_java_inserted_on_top(name: str, stages: Stages) -> None:
    assert "APPEND" in stages.kinds["inserted", name][-2:]
    stages.assert_same("inserted", name)
    if name in HISTORIES and "sequence.field" not in HISTORIES[name].options:
        history = HISTORIES[name]
        first = [("+", row) for row in history.rows(history.commits[:1])]
        assert multiset(stages.java["inserted", name], history.schema) == model(
            history, history.rows([*history.commits, first])
        )


@pytest.mark.parametrize("name", [n for n in INSERTED if n not in ("d.appended", "types.part_multi")])
def test_java_reads_what_shoal_wrote_and_compacted_after_it(name: str, stages: Stages) -> None:
    stages.assert_same("on top", name)
    assert stages.shoal["on top", name].num_rows == stages.shoal["inserted", name].num_rows


def model(history: History, rows: list[dict[str, Any]]) -> Any:
    return multiset(rows_of(pa.Table.from_pylist(rows, schema=history.schema)), history.schema)
