# SPDX-License-Identifier: Apache-2.0
"""Flink configurations, JSON, and texts that are neither."""

from __future__ import annotations

import pytest

from shoal.doctor.lint.conf import settings_in
from shoal.doctor.lint.sources import job_settings, language, lint_text
from shoal.doctor.lint.subject import Around
from shoal.errors import BadRequest

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
    flat, nested = ({k: s.value for k, s in settings_in(t, "f")[0].items()} for t in (FLAT, NESTED))
    assert flat == nested
    assert flat["env.java.opts.all"] == "-Dx=1 # no comment"
    places = {k: (s.place.line, s.place.column) for k, s in settings_in(NESTED, "f")[0].items() if s.place}
    assert places["execution.checkpointing.min-pause"] == (5, 5)


def test_lists_and_empty_values_are_kept():
    found, unread = settings_in("a:\n  - x\n  - y\nb:\nc: {k: v}\n: broken\n", "f")
    assert {k: s.value for k, s in found.items()} == {"a": "x;y", "b": "", "c": "{k: v}"}
    assert [(p.line, p.column) for p in unread] == [(6, 1)]


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


@pytest.mark.parametrize("text", ["{", '["a"]', '{"a": {"b": 1}}'])
def test_json_that_is_no_set_of_options_is_refused(text):
    with pytest.raises(BadRequest):
        lint_text(text, "o.json", around=Around())
