# SPDX-License-Identifier: Apache-2.0
"""Rules about statements: procedures and their arguments, system tables, statements that Paimon does not have.

Agrees with: the procedures of paimon-flink and paimon-spark, SystemTableLoader (2.0.0). Invariant: a statement that is
not about Paimon as far as its words show is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shoal.catalog.system import NAMES
from shoal.doctor.lint.rules import Say, statement_rule
from shoal.doctor.lint.subject import Place
from shoal.doctor.lint.tokens import Token, groups
from shoal.doctor.lint.words import ARGUMENTS, procedures
from shoal.errors import near
from shoal.table import system_columns
from shoal.table.inspect import NAMES as SYSTEM_TABLES

SYS_TABLES = (*NAMES, "catalog_options")
_PROCEDURES = "flink/procedures.md"
_TABLES = "concepts/system-tables.mdx"
PROCEDURE = statement_rule(
    "L-65", "error", "procedure or argument unknown", "CALL sys.… names no procedure, no argument, or leaves one out",
    page=_PROCEDURES,
)  # fmt: skip
NOT_PAIMON = statement_rule(
    "L-66", "error", "statement that Paimon does not have",
    "OPTIMIZE, VACUUM, SHOW SNAPSHOTS, ALTER TABLE … RESCALE BUCKETS and the like", page="flink/sql-alter.md",
)  # fmt: skip
SYSTEM_TABLE = statement_rule(
    "L-68", "error", "system table or column unknown", "t$name, sys.name or a column does not exist", page=_TABLES,
)  # fmt: skip
UNREADABLE = statement_rule(
    "L-69",
    "error",
    "text that cannot be read",
    "a quote or comment in SQL is never closed",
    page="flink/sql-ddl.md",
)

_COLUMNS = {
    "snapshots": system_columns.SNAPSHOTS, "files": system_columns.FILES, "manifests": system_columns.MANIFESTS,
    "partitions": system_columns.PARTITIONS, "buckets": system_columns.BUCKETS, "schemas": system_columns.SCHEMAS,
    "options": system_columns.OPTIONS, "tags": system_columns.TAGS, "branches": system_columns.BRANCHES,
    "consumers": system_columns.CONSUMERS,
}  # fmt: skip
_COLUMN_WORDS = {
    "file_size": "file_size_in_bytes",
    "size": "file_size_in_bytes",
    "path": "file_path",
    "kind": "commit_kind",
}
# the first words of a statement: what to write instead. None: it is right
_FOREIGN = (
    (r"SHOW SNAPSHOTS\b", "SELECT * FROM `t$snapshots`"),
    (r"SHOW (BRANCHES|CONSUMERS|FILES)\b", "SELECT from the system table of that name, such as `t$tags`"),
    (
        r"ALTER TABLE \S+ RESCALE\b",
        "ALTER TABLE t SET ('bucket' = 'N'), then INSERT OVERWRITE the partitions or CALL sys.rescale(`table` => "
        "'db.t', "
        "bucket_num => N)",
    ),
    (r"OPTIMIZE\b", "Delta Lake's: compaction takes deleted rows away, CALL sys.expire_snapshots frees old files"),
    (r"VACUUM\b", "Delta Lake's: CALL sys.expire_snapshots, sys.remove_orphan_files"),
    (r"DESCRIBE HISTORY\b|DESC HISTORY\b", "Delta Lake's: SELECT * FROM `t$snapshots`"),
    (r"RESTORE TABLE\b", "Delta Lake's: CALL sys.rollback_to(`table` => 'db.t', snapshot_id => N)"),
    (r"CALL \S+\.SYSTEM\.", "Iceberg's: Paimon's procedures are CALL sys.…"),
    (r"ALTER TABLE \S+ COMPACT\b", "Hive's: CALL sys.compact(`table` => 'db.t')"),
)


def place_of(file: str, token: Token) -> Place:
    return Place(file, token.line, token.column)


def foreign(file: str, tokens: Sequence[Token]) -> Iterator[Say]:
    """L-66: what begins like a statement of another system."""
    text = " ".join(t.text.upper() for t in tokens[:8]).replace(" . ", ".")
    for pattern, instead in _FOREIGN:
        if re.match(pattern, text):
            words = re.match(r"[A-Z]+( [A-Z]+)?", text)
            said = "RESCALE" if "RESCALE" in text else words[0] if words else text
            yield Say(f"Paimon has no {said}", change=(instead,), place=place_of(file, tokens[0]))
            return


def call(file: str, tokens: Sequence[Token], engine: str | None) -> Iterator[Say]:
    """L-65: CALL sys.name(argument => value, ...)."""
    at = next((i for i, t in enumerate(tokens) if t.is_sign("(")), None)
    names = [t for t in tokens[1:at] if t.is_name]
    if at is None or len(names) < 2 or names[-2].text.lower() != "sys":
        return
    name = names[-1].text.lower()
    known = {e: procedures(e) for e in ((engine,) if engine else ("flink", "spark"))}
    found = {e: p[name] for e, p in known.items() if name in p}
    here = place_of(file, names[-1])
    if not found:
        others = {n for p in known.values() for n in p}
        elsewhere = [e for e in ("flink", "spark") if e not in known and name in procedures(e)]
        change = near(name, others) or "see the page of procedures"
        why = (
            f"only {elsewhere[0].title()} has procedure sys.{name}"
            if elsewhere
            else f"there is no procedure sys.{name}"
        )
        yield Say(why, change=(change,), place=here)
        return
    parts, _ = groups(tokens, at)
    named = [p for p in parts if len(p) > 1 and p[0].is_name and p[1].is_sign("=>")]
    if len(named) < len(parts) or any(p.takes is None for p in found.values()):
        return  # by position: types decide, not names
    given = {p[0].text for p in named}
    for part in named:
        argument = part[0]
        if not any(argument.text in (p.takes or ()) for p in found.values()):
            takes = list(dict.fromkeys(t for p in found.values() for t in p.takes or ()))
            meant = ARGUMENTS.get((name, argument.text))
            change = (
                f"did you mean '{meant}'?" if meant else near(argument.text, takes) or f"it takes {', '.join(takes)}"
            )
            yield Say(
                f"sys.{name} has no argument '{argument.text}'",
                f"{name}.{argument.text}",
                (change,),
                "Flink ignores the argument and reports success, so the call does more than it says",
                place=place_of(file, argument),
            )
    for part in named:
        if part[0].kind == "word" and part[0].text.lower() == "table" and "flink" in found:
            yield Say(
                f"sys.{name}: the argument is written `table` in Flink, since TABLE is a word of its SQL",
                f"{name}.table",
                ("put it in back quotes",),
                severity="info",
                place=place_of(file, part[0]),
                confidence="supported",
            )
    for need in sorted(set.intersection(*(set(p.needs) for p in found.values())) - given):
        yield Say(f"sys.{name} needs '{need}'", f"{name}.{need}", (f"add {need} => …",), place=here)


def system_tables(file: str, tokens: Sequence[Token]) -> Iterator[Say]:
    """L-68: names such as `t$files`, sys.tables, and columns that are read from exactly one system table."""
    read: list[str] = []
    reading = False
    for position, token in enumerate(tokens):
        if token.kind == "word" and token.text.upper() in ("FROM", "JOIN"):
            reading = True
            continue
        if not reading or not token.is_name:
            reading = reading and (token.is_sign(".") or token.is_name)
            continue
        follows = tokens[position + 1] if position + 1 < len(tokens) else None
        if follows is not None and follows.is_sign("."):
            if token.text.lower() in ("system", "information_schema"):
                yield from global_table(file, tokens[position + 2] if position + 2 < len(tokens) else token, token.text)
                return
            continue
        reading = False
        previous = tokens[position - 2].text.lower() if position > 1 and tokens[position - 1].is_sign(".") else ""
        base, dollar, tail = token.text.partition("$")
        if previous == "sys" and not dollar and token.text.lower() not in SYS_TABLES:
            yield Say(
                f"there is no table 'sys.{token.text}'",
                change=(near(token.text, SYS_TABLES) or f"there are {', '.join(SYS_TABLES)}",),
                place=place_of(file, token),
            )
        if dollar and base:
            last = tail.split("$")[-1].lower()
            if tail.lower().startswith("branch_") and "$" not in tail:
                continue
            if last not in SYSTEM_TABLES:
                hint = near(last, SYSTEM_TABLES) or f"there are {', '.join(SYSTEM_TABLES)}"
                yield Say(f"there is no system table '{token.text}'", change=(hint,), place=place_of(file, token))
            else:
                read.append(last)
    if len(read) == 1 and read[0] in _COLUMNS:
        yield from _selected(file, tokens, read[0])


def global_table(file: str, token: Token, schema: str) -> Iterator[Say]:
    name = token.text.lower()
    change = (
        f"SELECT * FROM `db`.`table${name}`"
        if name in SYSTEM_TABLES
        else "sys.tables and sys.partitions are the global ones"
    )
    yield Say(f"Paimon has no {schema}.{token.text}", change=(change,), place=place_of(file, token))


def _selected(file: str, tokens: Sequence[Token], table: str) -> Iterator[Say]:
    """Plain names between SELECT and FROM that are no columns of the system table."""
    if not tokens[0].is_word("SELECT"):
        return
    end = next((i for i, t in enumerate(tokens) if t.is_word("FROM")), 0)
    columns = {part.split()[0] for part in _COLUMNS[table].split(", ")}
    depth = 0
    for position in range(1, end):
        token = tokens[position]
        depth += (token.text == "(") - (token.text == ")") if token.kind == "sign" else 0
        before, after = tokens[position - 1], tokens[position + 1]
        alone = depth == 0 and (before.is_word("SELECT") or before.is_sign(","))
        alone = alone and (after.is_sign(",") or after.is_word("FROM", "AS"))
        if token.is_name and alone and token.text not in columns and token.text.upper() not in ("DISTINCT", "NULL"):
            yield from column(table, token.text, place_of(file, token))


def column(table: str, name: str, place: Place | None = None) -> Iterator[Say]:
    """L-68: a column of a system table."""
    columns = [part.split()[0] for part in _COLUMNS.get(table, "").split(", ") if part]
    if name not in columns:
        meant = _COLUMN_WORDS.get(name)
        hint = f"use {meant}" if meant in columns else near(name, columns) or f"it has {', '.join(columns)}"
        yield Say(f"t${table} has no column '{name}'", change=(hint,), place=place)
