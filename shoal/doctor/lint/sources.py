# SPDX-License-Identifier: Apache-2.0
"""From a text or a table to findings: what kind of text it is, and the subject that it makes.

Invariants: a text is read as one kind only; one that is none of them is a BadRequest that says which there are, and one
that breaks the rules of its kind is `Corrupt` with its line.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from shoal.doctor.finding import Finding, worst_first
from shoal.doctor.lint.conf import settings_in
from shoal.doctor.lint.rules import ALL, Choice, lint
from shoal.doctor.lint.seen import Seen
from shoal.doctor.lint.sql import lint_sql
from shoal.doctor.lint.subject import Around, Place, Setting, Subject, scheme_of, settings_of
from shoal.errors import BadRequest, Corrupt
from shoal.format import schema as schemas

if TYPE_CHECKING:
    from shoal.doctor.window import Window
    from shoal.table.table import Table

Language = Literal["sql", "conf", "json"]
_SQL = re.compile(
    r"^\s*(create|alter|set|reset|call|insert|select|use|drop|show|describe|explain|with|optimize|analyze|execute|begin)\b",
    re.IGNORECASE | re.MULTILINE,
)


def language(text: str, name: str) -> Language:
    """What a text is written in: by the name of its file, else by how it begins."""
    base = os.path.basename(name).lower()
    if base.endswith((".sql", ".ddl", ".hql")):
        return "sql"
    if base.endswith((".yaml", ".yml")):
        return "conf"
    if base.endswith(".json") or text.lstrip()[:1] == "{":
        return "json"
    code = re.sub(r"--[^\n]*|/\*(?!\+).*?\*/", "", text, flags=re.DOTALL)
    if _SQL.search(code):
        return "sql"
    if re.search(r"^[\w.\-]+\s*:(\s|$)", text, re.MULTILINE):
        return "conf"
    raise BadRequest(
        f"{name}: neither SQL, a Flink configuration nor JSON",
        hint="name the file .sql, .yaml or .json, or check its first lines",
    )


def lint_text(
    text: str, name: str, *, around: Around, job: Mapping[str, Setting] | None = None, choice: Choice = ALL
) -> list[Finding]:
    """What the rules say of a text. `job`: the configuration that its jobs run with."""
    match language(text, name):
        case "sql":
            return lint_sql(text, name, around=around, job=job, choice=choice)
        case "conf":
            return _conf(text, name, around, choice)
        case "json":
            subject = _json(text, name, around, job or {})
            return lint(subject, choice)


def lint_table(
    table: Table,
    *,
    around: Around,
    window: Window | None = None,
    job: Mapping[str, Setting] | None = None,
    choice: Choice = ALL,
) -> list[Finding]:
    """What the rules say of a table: its newest schema, and what snapshots show where there is a window."""
    return lint(subject_of(table, around=around, window=window, job=job), choice)


def subject_of(
    table: Table, *, around: Around, window: Window | None = None, job: Mapping[str, Setting] | None = None
) -> Subject:
    """A table as rules look at it."""
    around = Around(around.slo_ms, around.store or scheme_of(table.store.uri), around.cdc, around.streaming)
    return Subject(
        "table",
        table.name,
        settings_of(table.schema.options),
        schema=table.schema,
        job=dict(job or {}),
        around=around,
        seen=None if window is None else Seen(window),
    )


def job_settings(text: str, name: str) -> dict[str, Setting]:
    """The settings of a Flink configuration."""
    return settings_in(text, name)


def _conf(text: str, name: str, around: Around, choice: Choice) -> list[Finding]:
    settings = settings_in(text, name)
    out = lint(Subject("job", name, settings, job=settings, around=around), choice)
    tables = {k: s for k, s in settings.items() if k.startswith("paimon.") and k.count(".") > 3}
    for key, setting in tables.items():
        option = key.split(".", 4)[4]
        hint = Subject(
            "hint", key, {option: Setting(option, setting.value, setting.place)}, job=settings, around=around
        )
        out += lint(hint, choice)
    return worst_first(out)


def _json(text: str, name: str, around: Around, job: Mapping[str, Setting]) -> Subject:
    """Options as one JSON object, or a schema file of a table."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as err:
        raise Corrupt(f"{name}:{err.lineno}:{err.colno}: this is no JSON: {err.msg}") from err
    if not isinstance(value, dict):
        raise BadRequest(f"{name}: not a JSON object", hint='write options as {"key": "value"}')
    schema = None
    options = value
    if isinstance(value.get("options"), dict):
        options = value["options"]
        if "fields" in value:
            schema = schemas.decode(text.encode(), name)
    settings = {}
    for key, one in options.items():
        if isinstance(one, dict | list) or one is None:
            raise BadRequest(f"{name}: '{key}' has no plain value", hint='write options as {"key": "value"}')
        plain = str(one).lower() if isinstance(one, bool) else str(one)
        settings[key] = Setting(key, plain, _place_of(text, name, key))
    return Subject("table", name, settings, schema=schema, job=dict(job), around=around, place=Place(name, 1, 1))


def _place_of(text: str, name: str, key: str) -> Place | None:
    match = re.search(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", text)
    if match is None:
        return None
    before = text[: match.start()]
    return Place(name, before.count("\n") + 1, match.start() - (before.rfind("\n") + 1) + 1)
