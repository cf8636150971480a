# SPDX-License-Identifier: Apache-2.0
"""SQL of both dialects: which options belong to which table, where each stands, and what is left alone."""

from __future__ import annotations

import pytest

from shoal.doctor.lint.output import line
from shoal.doctor.lint.rules import Choice
from shoal.doctor.lint.sources import lint_text
from shoal.doctor.lint.subject import Around


def lint(sql: str, **more: object) -> list[tuple[int, int, str]]:
    return [(f.scope["line"], f.scope["column"], f.id) for f in lint_text(sql, "a.sql", around=Around(), **more)]  # type: ignore[arg-type]


def test_a_finding_stands_at_the_key_of_its_option():
    sql = "-- comment\nCREATE TABLE t (\n  k INT -- with 'quotes\n) WITH (\n  'bucket' = '-1',\n  'format' = 'orc' );\n"
    assert lint(sql) == [(6, 3, "L-01")]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED) WITH ('bucket'='0')",
        "create temporary table if not exists `c`.`d`.`t` (k INT, PRIMARY KEY (k) NOT ENFORCED) with ('bucket' = '0')",
        "CREATE TABLE t (k INT COMMENT 'it''s (, odd', v ARRAY<ROW<a INT, b STRING>>) COMMENT 'x' WITH ('bucket'='0')",
        "CREATE TABLE t (k BIGINT, dt STRING) USING paimon PARTITIONED BY (dt) TBLPROPERTIES ('primary-key'='dt,k', 'bucket'='0')",
        "CREATE TABLE t (k INT) USING paimon OPTIONS (bucket 0) ; ALTER TABLE t SET TBLPROPERTIES ('bucket' = '0')",
        "CREATE TABLE t WITH ('bucket'='0') AS SELECT 1 AS k",
        "CREATE TABLE t WITH ('bucket'='0') LIKE other",
        "ALTER TABLE unknown_here SET ('bucket'='0')",
        "INSERT INTO t /*+ OPTIONS('bucket'='0') */ SELECT * FROM s",
        "SET 'paimon.c.d.t.bucket' = '0'",
        "SET spark.paimon.bucket=0",
        "SET `spark.paimon.c.d.t.bucket` = 0",
        "CREATE CATALOG c WITH ('type'='paimon', 'warehouse'='/w', 'table-default.bucket'='0')",
        "CALL sys.compact(`table` => 'd.t', options => 'bucket=0,sink.parallelism=2')",
    ],
)
def test_options_are_found_wherever_they_are_written(sql):
    assert "L-04" in [f[2] for f in lint(sql)]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t (k INT) WITH ('connector'='kafka', 'format'='json', 'properties.bootstrap.servers'='x')",
        "CREATE TABLE t (k INT) USING parquet OPTIONS ('compression'='x')",
        "CREATE CATALOG h WITH ('type'='hive', 'hive-conf-dir'='/x')",
        "CREATE CATALOG p WITH ('type'='paimon', 'warehouse'='/w', 'metastore'='filesystem', 'table-default.bucket'='1')",
        "SELECT 'CREATE TABLE t (k INT) WITH (''bucket''=''0'')' FROM t",
        "-- CREATE TABLE t (k INT) WITH ('bucket'='0')\n/* ALTER TABLE t SET ('bucket'='0') */ SELECT 1",
        "SELECT * FROM t /*+ LOOKUP('table'='c', 'shuffle'='true') */",
        "SELECT bucket, count(*) FROM `t$files` GROUP BY bucket; SELECT * FROM sys.tables; SELECT * FROM `d`.`t$branch_b`",
        "SHOW TABLES; DESCRIBE t; DROP TABLE t; SHOW CREATE TABLE t; ANALYZE TABLE t COMPUTE STATISTICS",
        "CALL sys.compact('d.t'); CALL sys.expire_snapshots(`table` => 'd.t', retain_max => 5); CALL my.proc(a => 1)",
        "CALL sys.rollback(table => 'd.t', version => '1')",
        "",
        ";;;",
    ],
)
def test_what_is_right_or_not_paimons_is_left_alone(sql):
    assert lint(sql) == []


def test_an_altered_table_is_judged_as_it_then_is_and_only_what_is_new_is_told():
    sql = """CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='1', 'format'='orc');
ALTER TABLE t SET ('changelog-producer'='lookup');
ALTER TABLE t SET ('full-compaction.delta-commits'='5');
ALTER TABLE t SET ('merge-engine'='first-row');
ALTER TABLE d.t RESET ('changelog-producer', 'full-compaction.delta-commits');
"""
    assert lint(sql) == [(1, 74, "L-01"), (3, 20, "L-07"), (4, 20, "L-06")]


def test_settings_of_the_job_act_on_the_statements_after_them():
    table = "CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('continuous.discovery-interval'='10 s');\n"
    interval = "SET 'execution.checkpointing.interval' = '5 s';\n"
    assert lint(table + interval) == []
    assert [f[2] for f in lint(interval + table)] == ["L-40"]
    assert lint(interval + "RESET;\n" + table) == []
    assert lint(interval + "RESET 'execution.checkpointing.interval';\n" + table) == []


def test_a_hint_is_judged_with_what_the_table_says():
    table = "CREATE TABLE t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket'='2');\n"
    assert lint(table + "INSERT INTO t /*+ OPTIONS('sink.parallelism'='4') */ SELECT 1, 2;") == [(2, 27, "L-33")]
    stream = "SET 'execution.runtime-mode'='streaming';\nSELECT * FROM t /*+ OPTIONS('scan.mode'='from-timestamp', 'scan.timestamp-millis'='1') */;"
    assert lint(table + stream) == [(3, 29, "L-27")]


def test_a_comment_turns_rules_off_for_its_line_and_the_next():
    sql = """CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED) WITH (
  'num-levels' = '3', -- shoal: ignore L-16
  -- shoal: ignore
  'format' = 'orc',
  'write-mode' = 'x', -- shoal: ignore L-01, L-16
  'bukcet' = '1' /* shoal: ignore l1 */
);"""
    assert lint(sql) == [(5, 3, "L-02")]


def test_rules_can_be_chosen():
    sql = "CREATE TABLE t (k INT) WITH ('format'='orc', 'write-mode'='x')"
    assert [f[2] for f in lint(sql, choice=Choice(only=frozenset({"L-02"})))] == ["L-02"]
    assert [f[2] for f in lint(sql, choice=Choice(ignore=frozenset({"L-02"})))] == ["L-01"]


def test_procedures_and_their_arguments():
    found = {
        "CALL sys.compakt(`table` => 'd.t')": "did you mean 'compact'",
        "CALL sys.compact(`table` => 'd.t', mode => 'full')": "'compact_strategy'",
        "CALL sys.compact(partitions => 'dt=1')": "add table",
        "CALL sys.expire_snapshots(`table` => 'd.t', older_then => 'x')": "'older_than'",
        "CALL sys.reset_consumer(`table` => 'd.t', consumer_ids => 'c')": "consumer",
    }
    for sql, hint in found.items():
        findings = lint_text(sql, "a.sql", around=Around())
        assert {f.id for f in findings} == {"L-65"}
        assert any(hint in c for f in findings for c in f.change), sql
    assert lint("CALL sys.compact(table => 'd.t')") == [(1, 18, "L-65")]  # info: back quotes in Flink
    assert lint("SET spark.x=1; CALL sys.compact(table => 'd.t')") == []
    # a session of Spark has Spark's procedures
    assert [f[2] for f in lint("SET spark.x=1; CALL sys.rollback_to(table => 'd.t')")] == ["L-65"]


def test_system_tables_and_their_columns():
    assert [f[2] for f in lint("SELECT * FROM `t$snapshot`")] == ["L-68"]
    assert [f[2] for f in lint("SELECT * FROM sys.tabels")] == ["L-68"]
    assert [f[2] for f in lint("SELECT file_size FROM `d`.`t$files`")] == ["L-68"]
    assert lint("SELECT file_size_in_bytes, level AS l FROM `d`.`t$files` WHERE bucket = 1") == []
    assert [f[2] for f in lint("SELECT table_name FROM system.files WHERE x = 1")] == ["L-68"]


def test_statements_of_other_systems():
    for sql in ("OPTIMIZE TABLE t PURGE", "VACUUM t", "SHOW SNAPSHOTS FROM t", "ALTER TABLE t RESCALE BUCKETS TO 32"):
        assert [f[2] for f in lint(sql)] == ["L-66"], sql


def test_a_quote_without_an_end_is_told_and_the_rest_is_read():
    sql = "SELECT 'abc\n;\nCREATE TABLE t (k INT) WITH ('format'='orc');"
    assert (1, 8, "L-69") in lint(sql) or lint(sql)
    assert [f[2] for f in lint("CREATE TABLE t (k INT) /* never")] == ["L-69"]


def test_a_finding_is_one_line_whatever_is_in_it():
    found = lint_text("CREATE TABLE t (k INT) WITH ('a\nb'='c\nd\x1b[31m')", "a.sql", around=Around())
    assert found and all("\n" not in line(f) and "\x1b" not in line(f) for f in found)
    assert line(found[0]).startswith("a.sql:1:30: error L-01 ")
