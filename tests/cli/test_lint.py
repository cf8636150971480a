# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor lint`: its sources, its outputs, its exit codes."""

from __future__ import annotations

import io
import json

import pytest


@pytest.fixture
def ddl(tmp_path):
    path = tmp_path / "ddl.sql"
    path.write_text("CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED) WITH (\n 'num-levels'='3'\n);\n")
    return str(path)


def test_a_file_gives_a_line_a_finding_and_the_exit_code_of_the_bar(run, ddl):
    ran = run("doctor", "lint", ddl)
    assert ran.code == 0 and ran.err == "1 warn\n"
    assert ran.out.startswith(f"{ddl}:2:2: warn L-16 'num-levels' = '3'") and ran.out.count("\n") == 1
    assert run("doctor", "lint", ddl, "--fail-on", "warn").code == 1
    assert run("doctor", "lint", ddl, "--ignore", "l16").out == ""
    assert run("doctor", "lint", ddl, "--rule", "L-17,L-18").out == ""


def test_a_table_is_looked_at_with_its_snapshots(run, warehouse):
    ran = run("doctor", "lint", "-w", warehouse, "shop.orders", "-o", "json")
    told = json.loads(ran.out)
    assert told["sources"] == ["shop.orders"] and ran.code == 0
    assert run("doctor", "lint", "-w", warehouse, "shop.orders", "--no-samples").err == "nothing to say\n"


def test_several_sources_and_the_configuration_of_their_jobs(run, ddl, warehouse, tmp_path):
    conf = tmp_path / "config.yaml"
    conf.write_text("execution:\n  checkpointing:\n    interval: 5 s\n    min-pause: 10 s\n")
    ran = run("doctor", "lint", "-w", warehouse, ddl, str(conf), "shop.items", "--flink-conf", str(conf), "-o", "json")
    told = json.loads(ran.out)
    assert {f["id"] for f in told["findings"]} >= {"L-16", "L-40", "L-56"}
    assert len(told["sources"]) == 3


def test_stdin(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("ALTER TABLE t SET ('format' = 'orc')"))
    ran = run("doctor", "lint", "-")
    assert ran.code == 1 and ran.out.startswith("stdin:1:20: error L-01 ")


def test_sarif(run, ddl):
    log = json.loads(run("doctor", "lint", ddl, "-o", "sarif").out)
    assert log["version"] == "2.1.0" and log["runs"][0]["results"][0]["ruleId"] == "L-16"


def test_one_name(run):
    assert run("doctor", "lint", "--name", "write-only").out == "write-only: real (option)\n"
    ran = run("doctor", "lint", "--name", "compaction.file-size")
    assert ran.code == 1 and "target-file-size" in ran.out
    assert json.loads(run("doctor", "lint", "--name", "lookup-wait", "-o", "json").out)["verdict"] == "real"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["nothing.sql"], "no file nothing.sql"),
        (["shop.orders"], "no file shop.orders"),
        ([], "needs a table, a file or -"),
        (["x/y.sql"], "no file x/y.sql"),
        (["a.sql", "--rule", "L-99"], "no rule 'L-99'"),
        (["a.sql", "--fail-on", "bad"], "not a severity"),
        (["a.sql", "--flink-conf", "none.yaml"], "no file none.yaml"),
    ],
)
def test_what_is_not_there_is_one_line_and_a_hint(run, line, says):
    ran = run("doctor", "lint", *line)
    assert ran.code == 2 and ran.out == "" and says in ran.err.splitlines()[0]


def test_a_near_file_is_named(run, ddl):
    assert "ddl.sql" in run("doctor", "lint", ddl.replace("ddl.sql", "dll.sql")).err


def test_a_file_that_is_no_text_is_refused(run, tmp_path):
    path = tmp_path / "x.sql"
    path.write_bytes(b"\xff\xfe\x00\x01")
    ran = run("doctor", "lint", str(path))
    assert ran.code == 3 and "is no text" in ran.err


@pytest.mark.parametrize("line", [["{}"], ["ddl.sql", "--flink-conf", "{}"]])
def test_a_configuration_that_is_no_yaml_is_one_line_and_cannot_be_read(run, ddl, tmp_path, line):
    conf = tmp_path / "flink-conf.yaml"
    conf.write_text("execution.checkpointing.interval: 10 s\nstate.backend: [rocksdb\n")
    ran = run("doctor", "lint", *(str(conf) if t == "{}" else ddl if t == "ddl.sql" else t for t in line))
    assert ran.code == 3 and ran.out == ""
    first, hint = ran.err.splitlines()
    assert first.startswith(f"shoal: error: {conf}:2:16: this is no YAML: ") and first.endswith("[SH-CORRUPT]")
    assert hint.startswith("hint: ")
