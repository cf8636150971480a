# SPDX-License-Identifier: Apache-2.0
"""Flink configurations, JSON, and texts that are neither."""

from __future__ import annotations

import pytest

from shoal.doctor.lint.conf import settings_in
from shoal.doctor.lint.sources import job_settings, language, lint_text
from shoal.doctor.lint.subject import Around, Place
from shoal.errors import BadRequest, Corrupt

FLAT = """# Flink 1.x
execution.checkpointing.interval: 10 s   # every ten seconds
execution.checkpointing.min-pause: 30 s
env.java.opts.all: "-Dx=1 # no comment"
taskmanager.numberOfTaskSlots: 4
"""
NESTED = """---
execution:
  checkpointing:
    interval: '10 s'
    min-pause: 30 s
env:
  java.opts.all: "-Dx=1 # no comment"
taskmanager:
    numberOfTaskSlots: 4
"""


def test_flat_and_nested_files_say_the_same():
    flat, nested = ({k: s.value for k, s in settings_in(t, "f").items()} for t in (FLAT, NESTED))
    assert flat == nested
    assert flat["env.java.opts.all"] == "-Dx=1 # no comment"
    places = {k: (s.place.line, s.place.column) for k, s in settings_in(NESTED, "f").items() if s.place}
    assert places["execution.checkpointing.min-pause"] == (5, 5)


def test_lists_blocks_and_empty_values_are_kept():
    text = "a:\n  - x\n  - y\nb:\nc: {k: v}\nd: [1, 'z']\ne: |\n  one\n  : two\nf: {}\n'g.h': w # no\n"
    found = settings_in(text, "f")
    assert {k: s.value for k, s in found.items()} == {
        "a": "x;y", "b": "", "c.k": "v", "d": "1;z", "e": "one\n: two\n", "f": "{}", "g.h": "w",
    }  # fmt: skip
    assert found["g.h"].place == Place("f", 11, 1) and settings_in("# nothing\n", "f") == {}


def test_flink_1_takes_values_in_its_flat_file_that_yaml_does_not():
    text = "a.filter: *:job: x\nb: @y's # why\nc: 1\n"
    found = settings_in(text, "conf/flink-conf.yaml")
    assert {k: s.value for k, s in found.items()} == {"a.filter": "*:job: x", "b": "@y's", "c": "1"}
    with pytest.raises(Corrupt, match=r"config\.yaml:1:12: "):
        settings_in(text, "config.yaml")


BROKEN = (  # and the line that is wrong
    ("a: 1\n: b\n", 2), ("a: 1\nfoo\nb: 2\n", 2), ("a: 1\nfoo", 2), ("a: [1, 2\nb: 3\n", 1), ("a:\n  b: {x: 1\n", 2),
    ('a: "x\nb: y\n', 1), ("a: 'x\nb: y\n", 1), ("a: 1\n  b: 2\n", 2), ("a:\n    b: 1\n  c: 2\n", 3), ("a:\n\tb: 1\n", 2),
    ("a: b: c\n", 1), ("a: 1\nb: @c\n", 2), ("- a\n- b\n", 1), ("hello\n", 1), ("a: 1\n---\nb: 2\n", 2), ("a: 1\nb: \x01\n", 2),
    ("a: 'x' y\n", 1), ("a: *b\n", 1), ("a:\n  - 1\n - 2\n", 3), ("a: " + "[" * 1200, 1),
)  # fmt: skip


@pytest.mark.parametrize(("text", "line"), BROKEN, ids=[ascii(t[:20]) for t, _ in BROKEN])
def test_what_is_no_yaml_is_one_error_that_names_the_line(text, line):
    for read in (
        lambda: lint_text(text, "x/config.yaml", around=Around()),
        lambda: job_settings(text, "x/config.yaml"),
    ):
        with pytest.raises(Corrupt, match=rf"^x/config\.yaml:{line}:"):
            read()


@pytest.mark.parametrize("text", [FLAT, NESTED])
def test_a_job_is_judged(text):
    found = lint_text(text, "config.yaml", around=Around())
    assert [(f.id, f.scope["option"]) for f in found] == [("L-56", "execution.checkpointing.min-pause")]


def test_keys_that_flink_does_not_have_and_options_of_tables():
    text = "execution.checkpointing.intervall: 10 s\nexecution.checkpointing.timeout: soon\nwrite-only: true\n"
    text += "paimon.c.d.t.bucket: 0\nheartbeat.timeout: 1\n"
    found = lint_text(text, "flink-conf.yaml", around=Around())
    assert [(f.id, f.severity, f.scope["line"]) for f in found] == [
        ("L-64", "error", 1), ("L-64", "error", 2), ("L-04", "error", 4), ("L-64", "info", 3),
    ]  # fmt: skip


def test_a_configuration_and_a_table_are_judged_together():
    table = "CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('changelog-producer'='lookup');"
    found = lint_text(table, "a.sql", around=Around(), job=job_settings(FLAT, "flink-conf.yaml"))
    assert [f.id for f in found if f.severity == "warn"] == ["L-56"]


def test_options_as_json_stand_where_they_are_written():
    found = lint_text('{\n  "bucket": 4,\n  "format": "orc", "write-only": true\n}', "o.json", around=Around())
    assert [(f.id, f.scope["line"], f.scope["column"]) for f in found] == [("L-01", 3, 3)]


def test_a_schema_file_has_columns_and_keys():
    text = """{"version": 3, "id": 0, "fields": [{"id": 0, "name": "k", "type": "INT NOT NULL"}], "highestFieldId": 0,
 "partitionKeys": [], "primaryKeys": [], "options": {"changelog-producer": "input"}, "timeMillis": 1}"""
    assert [f.id for f in lint_text(text, "schema-0", around=Around())] == ["L-08"]


def test_the_kind_of_a_text_is_seen_from_its_beginning():
    assert language("-- x: y\nSET 'a' = 'b';", "stdin") == "sql"
    assert language(FLAT, "stdin") == language(NESTED, "x") == "conf"
    assert language(' {"a": "b"}', "stdin") == "json"
    with pytest.raises(BadRequest, match="neither SQL"):
        language("hello", "stdin")


def test_what_is_no_json_is_one_error_that_names_the_line():
    with pytest.raises(Corrupt, match=r"^o\.json:2:7: "):
        lint_text('{\n "a": }', "o.json", around=Around())


@pytest.mark.parametrize("text", ['["a"]', '{"a": {"b": 1}}'])
def test_json_that_is_no_set_of_options_is_refused(text):
    with pytest.raises(BadRequest):
        lint_text(text, "o.json", around=Around())
