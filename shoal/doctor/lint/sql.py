# SPDX-License-Identifier: Apache-2.0
"""SQL files as subjects: the tables, catalogs and hints that their statements make, in order.

Reads CREATE TABLE, ALTER TABLE, CREATE CATALOG, SET, RESET, CALL, hints and names of system tables, in the dialects of
Flink and Spark; everything else passes by. Invariants: a table that is altered is judged as it then is, and only what
is new is told; a table of another connector is left alone; settings act on the statements after them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from shoal.doctor.finding import Finding
from shoal.doctor.lint import statements as said
from shoal.doctor.lint.keys import NOTHING_NEAR, hint, status
from shoal.doctor.lint.rules import ALL, Choice, Rule, Say, finding, lint
from shoal.doctor.lint.subject import Around, Kind, Place, Setting, Subject, scheme_of
from shoal.doctor.lint.tokens import Comment, Token, groups, statements, tokenize
from shoal.errors import BadRequest
from shoal.format.schema import Schema
from shoal.format.types import DataType, Field, parse_atomic
from shoal.option_table import lookup

_SPARK_TYPES = {"LONG": "BIGINT", "SHORT": "SMALLINT", "BYTE": "TINYINT", "REAL": "FLOAT", "TIMESTAMP_NTZ": "TIMESTAMP"}
_IGNORE = re.compile(r"shoal:\s*ignore\b(.*)", re.IGNORECASE | re.DOTALL)
_TAKES_TABLE_OPTIONS = frozenset(
    {"compact", "compact_database", "compact_manifest", "expire_snapshots", "expire_partitions"}
)
_FOREIGN_SOURCES = ("parquet", "orc", "csv", "json", "delta", "iceberg", "hudi", "jdbc", "hive", "avro", "text")


@dataclass
class _Reader:
    """What is known while a file is read from top to bottom."""

    file: str
    around: Around
    choice: Choice
    tables: dict[str, Subject] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)  # tables of other systems
    job: dict[str, Setting] = field(default_factory=dict)
    engine: str | None = None  # what the dialect of statements so far shows
    found: list[Finding] = field(default_factory=list)

    # ---- what is told

    def judge(self, subject: Subject, before: Subject | None = None) -> None:
        """Findings of a subject; with `before` those that it had already are left out."""
        old = {_same(f) for f in lint(before, self.choice)} if before is not None else set()
        self.found += [f for f in lint(subject, self.choice) if _same(f) not in old]

    def tell(self, one: Rule, says: Iterator[Say]) -> None:
        if self.choice.takes(one.id):
            self.found += [finding(one, say) for say in says]

    def subject(
        self, kind: Kind, name: str, settings: Mapping[str, Setting], at: Token, schema: Schema | None
    ) -> Subject:
        around = self.around
        address = next((settings[k].value for k in ("path", "warehouse", "location") if k in settings), None)
        if address is not None:
            around = replace(around, store=scheme_of(address))
        return Subject(
            kind,
            name,
            settings,
            schema=schema,
            job=dict(self.job),
            around=replace(around, streaming=self._streaming()),
            place=said.place_of(self.file, at),
        )

    def _streaming(self) -> bool | None:
        mode = self.job.get("execution.runtime-mode")
        return self.around.streaming if mode is None else mode.value.strip().lower() == "streaming"


def lint_sql(
    text: str, file: str, *, around: Around, job: Mapping[str, Setting] | None = None, choice: Choice = ALL
) -> list[Finding]:
    """What the rules say of a file of SQL, in the order of its lines. `job`: settings from elsewhere."""
    tokens, comments, unclosed = tokenize(text)
    reader = _Reader(file, around, choice, job=dict(job or {}))
    reader.tell(
        said.UNREADABLE,
        (
            Say(
                f"{u.what} is never closed: the rest may be misread",
                change=("close it",),
                place=Place(file, u.line, u.column),
            )
            for u in unclosed
        ),
    )
    for statement in statements(tokens):
        _read(reader, statement)
    if reader.job and any(s.place is not None and s.place.file == file for s in reader.job.values()):
        own = {k: s for k, s in reader.job.items() if s.place is not None and s.place.file == file}
        reader.judge(Subject("job", file, own, job=own, around=around))
    return sorted(
        _not_ignored(reader.found, comments), key=lambda f: (f.scope.get("line", 0), f.scope.get("column", 0))
    )


def _same(one: Finding) -> tuple[str, object, str]:
    return one.id, one.scope.get("option"), one.says


def _not_ignored(found: Sequence[Finding], comments: Sequence[Comment]) -> Iterator[Finding]:
    """`-- shoal: ignore L-17` at the end of a line, or alone on the line before; without ids it ignores all."""
    by_line: dict[int, set[str] | None] = {}
    for comment in comments:
        if match := _IGNORE.match(comment.text):
            ids = {f"L-{n.zfill(2)}" for n in re.findall(r"[Ll]-?(\d+)", match[1])}
            for line in (comment.line, comment.line + 1):
                by_line[line] = ids or None
    for one in found:
        line = int(one.scope.get("line", 0))
        if line in by_line and (by_line[line] is None or one.id in (by_line[line] or ())):
            continue
        yield one


# ---- statements


def _read(reader: _Reader, tokens: list[Token]) -> None:
    plain = [t for t in tokens if t.kind != "hint"]
    if not plain:
        return
    reader.tell(said.NOT_PAIMON, said.foreign(reader.file, plain))
    first = plain[0].text.upper() if plain[0].kind == "word" else ""
    handler = _HANDLERS.get(first)
    if handler is not None:
        handler(reader, plain)
    reader.tell(said.SYSTEM_TABLE, said.system_tables(reader.file, plain))
    _hints(reader, tokens)


def _create(reader: _Reader, tokens: list[Token]) -> None:
    words = [t.text.upper() if t.kind == "word" else "" for t in tokens]
    if "CATALOG" in words[:3]:
        _create_catalog(reader, tokens, words.index("CATALOG"))
    elif "TABLE" in words[:5]:
        _create_table(reader, tokens, words.index("TABLE"))


def _create_catalog(reader: _Reader, tokens: list[Token], at: int) -> None:
    name, at = _name(tokens, _skip_if(tokens, at + 1))
    settings, _ = _options(reader, tokens, at, "WITH")
    kind = settings.get("type")
    if kind is not None and not kind.value.lower().startswith("paimon"):
        return
    reader.judge(reader.subject("catalog", name, settings, tokens[0], None))
    defaults = {
        k.removeprefix("table-default."): replace(s, key=k.removeprefix("table-default."))
        for k, s in settings.items()
        if k.startswith("table-default.")
    }
    if defaults:
        reader.judge(reader.subject("table", f"{name}.*", defaults, tokens[0], None))


def _create_table(reader: _Reader, tokens: list[Token], at: int) -> None:
    name, at = _name(tokens, _skip_if(tokens, at + 1))
    columns: list[list[Token]] = []
    if at < len(tokens) and tokens[at].is_sign("("):
        columns, at = groups(tokens, at)
    using = next(
        (tokens[i + 1].text.lower() for i in range(at, len(tokens) - 1) if tokens[i].is_word("USING")), "paimon"
    )
    settings, engine = _options(reader, tokens, at, "WITH", "TBLPROPERTIES", "OPTIONS")
    connector = settings.get("connector")
    plain = any(
        t.is_word("WITH") and tokens[i + 1].is_sign("(") and tokens[i + 2].kind == "word"
        for i, t in enumerate(tokens[:-2])
    )
    if plain or using in _FOREIGN_SOURCES or (connector is not None and connector.value.lower() != "paimon"):
        reader.foreign.add(_key(name))  # a table of another system, or a statement of Trino, whose keys have no quotes
        return
    reader.engine = engine or reader.engine
    schema = _schema(columns, _partitions(tokens, at), settings)
    subject = reader.subject("table", name, settings, tokens[0], schema)
    subject = replace(subject, exact=schema is None or not any(f.type.is_nested for f in schema.fields))
    reader.tables[_key(name)] = subject
    reader.judge(subject)


def _alter(reader: _Reader, tokens: list[Token]) -> None:
    if len(tokens) < 4 or not tokens[1].is_word("TABLE"):
        return
    name, at = _name(tokens, _skip_if(tokens, 2))
    if at >= len(tokens):
        return
    known = reader.tables.get(_key(name))
    now = dict(known.settings) if known is not None else {}
    if tokens[at].is_word("SET"):
        changed, _ = _options(reader, tokens, at, "SET", "TBLPROPERTIES")
        now |= changed
    elif tokens[at].is_word("RESET", "UNSET"):
        changed = {}
        for key in _listed(tokens, at):
            now.pop(key.text, None)
    else:
        return
    before = None if known is None else {k: s.value for k, s in known.settings.items()}
    subject = reader.subject("table", name, now, tokens[0], None if known is None else _with(known, now))
    subject = replace(subject, exact=known is None or known.exact)
    if known is None:
        reader.judge(subject)
    else:
        reader.judge(replace(subject, before=before), before=known)
        reader.tables[_key(name)] = subject


def _call(reader: _Reader, tokens: list[Token]) -> None:
    reader.tell(said.PROCEDURE, said.call(reader.file, tokens, reader.engine))
    at = next((i for i, t in enumerate(tokens) if t.is_sign("(")), None)
    if at is None:
        return
    if not _TAKES_TABLE_OPTIONS & {t.text.lower() for t in tokens[:at]}:
        return  # options of an index, a function or a search
    for part in groups(tokens, at)[0]:
        if len(part) == 3 and part[0].text in ("options", "table_options") and part[2].kind == "string":
            settings = {}
            for pair in part[2].text.split(","):
                key, equals, value = pair.partition("=")
                if equals:
                    place = said.place_of(reader.file, part[2])
                    settings[key.strip()] = Setting(key.strip(), value.strip(), place)
            reader.judge(reader.subject("hint", "options", settings, part[2], None))


def _set(reader: _Reader, tokens: list[Token]) -> None:
    """SET 'key' = 'value' of Flink, SET key=value of Spark."""
    at = next((i for i, t in enumerate(tokens) if t.is_sign("=")), None)
    if at is None or at < 2:
        return
    key = "".join(t.text for t in tokens[1:at])
    value = "".join(t.text for t in tokens[at + 1 :])
    if len(tokens) > at + 2 and tokens[at + 1].kind != "string":
        value = " ".join(t.text for t in tokens[at + 1 :]) if tokens[at + 1].kind == "number" else value
    place = said.place_of(reader.file, tokens[1])
    if key.startswith("spark."):
        reader.engine = "spark"
        option = key.removeprefix("spark.paimon.")
        if option != key:
            option = option if lookup(option) is not None or option.count(".") < 3 else option.split(".", 3)[3]
            reader.judge(reader.subject("hint", key, {option: Setting(option, value, place)}, tokens[0], None))
        return
    reader.engine = "flink"
    if match := re.fullmatch(r"paimon\.([^.]+)\.([^.]+)\.([^.]+)\.(.+)", key):
        known = reader.tables.get(match[3].lower())
        settings = {match[4]: Setting(match[4], value, place)}
        reader.judge(reader.subject("hint", match[3], settings, tokens[0], None if known is None else known.schema))
        return
    if "." in key or tokens[1].kind == "string":
        reader.job[key] = Setting(key, value, place)
        if lookup(key) is not None:
            reader.judge(reader.subject("hint", "the job", {key: reader.job[key]}, tokens[0], None))


def _reset(reader: _Reader, tokens: list[Token]) -> None:
    if len(tokens) == 1:
        reader.job.clear()
    else:
        reader.job.pop("".join(t.text for t in tokens[1:]), None)


_HANDLERS: dict[str, Callable[[_Reader, list[Token]], None]] = {
    "CREATE": _create, "ALTER": _alter, "CALL": _call, "SET": _set, "RESET": _reset, "REPLACE": _create,
}  # fmt: skip


def _hints(reader: _Reader, tokens: list[Token]) -> None:
    """`t /*+ OPTIONS('key' = 'value') */`: options of one read or write, on top of the table's own."""
    for position, token in enumerate(tokens):
        if token.kind != "hint":
            continue
        inner, _, _ = tokenize(token.text, token.line, token.column)
        at = next((i for i, t in enumerate(inner) if t.is_word("OPTIONS")), None)
        if at is None:
            continue
        settings, _ = _options(reader, inner, at, "OPTIONS")
        before = [t for t in tokens[:position] if t.is_name]
        name = before[-1].text if before else "hint"
        known = reader.tables.get(name.lower())
        if name.lower() in reader.foreign:
            continue
        if known is None:  # it may be a table of another system: only what is nearly Paimon's is told
            settings = {k: s for k, s in settings.items() if status(k) != "unknown" or hint(k) != NOTHING_NEAR}
            settings = {k: s for k, s in settings.items() if status(k) not in ("other", "job")}
        subject = reader.subject("hint", name, settings, token, None if known is None else known.schema)
        if known is not None:
            # what the table says counts where the hint says nothing, but is not told again
            whole = replace(subject, settings={**known.settings, **settings})
            own = [f for f in lint(whole, reader.choice) if f.scope.get("option") in settings]
            reader.found += own
        else:
            reader.judge(subject)


# ---- parts of statements


def _key(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _skip_if(tokens: Sequence[Token], at: int) -> int:
    """Past IF NOT EXISTS or IF EXISTS."""
    if at < len(tokens) and tokens[at].is_word("IF"):
        while at < len(tokens) and not tokens[at].is_word("EXISTS"):
            at += 1
        return at + 1
    return at


def _name(tokens: Sequence[Token], at: int) -> tuple[str, int]:
    """A name with its dots, and the position after it."""
    parts = []
    while at < len(tokens) and tokens[at].is_name:
        parts.append(tokens[at].text)
        at += 1
        if at >= len(tokens) or not tokens[at].is_sign("."):
            break
        at += 1
    return ".".join(parts), at


def _options(reader: _Reader, tokens: Sequence[Token], at: int, *words: str) -> tuple[dict[str, Setting], str | None]:
    """Pairs in the brackets after one of the words, and the engine that the word belongs to."""
    out: dict[str, Setting] = {}
    engine = None
    for position in range(at, len(tokens)):
        token = tokens[position]
        if not token.is_word(*words) or position + 1 >= len(tokens) or not tokens[position + 1].is_sign("("):
            continue
        engine = "spark" if token.is_word("TBLPROPERTIES") else engine or ("flink" if token.is_word("WITH") else None)
        for part in groups(tokens, position + 1)[0]:
            equals = next((i for i, t in enumerate(part) if t.is_sign("=")), None)
            if equals is None:
                if len(part) == 2 and part[0].kind == "string":
                    equals = 0  # Spark also takes ('key' 'value')
                else:
                    continue
            key = "".join(t.text for t in part[: max(1, equals)])
            value = " ".join(t.text for t in part[equals + 1 :]).replace("- ", "-")
            out[key] = Setting(key, value, said.place_of(reader.file, part[0]))
    return out, engine


def _listed(tokens: Sequence[Token], at: int) -> list[Token]:
    """The keys in RESET ('a', 'b') and UNSET TBLPROPERTIES ('a')."""
    opens = next((i for i in range(at, len(tokens)) if tokens[i].is_sign("(")), None)
    return [] if opens is None else [part[0] for part in groups(tokens, opens)[0]]


def _partitions(tokens: Sequence[Token], at: int) -> list[list[Token]]:
    for position in range(at, len(tokens) - 2):
        if tokens[position].is_word("PARTITIONED") and tokens[position + 2].is_sign("("):
            return groups(tokens, position + 2)[0]
    return []


def _schema(
    columns: list[list[Token]], partitions: list[list[Token]], settings: Mapping[str, Setting]
) -> Schema | None:
    """The schema of a CREATE TABLE; None where it has no columns or one of a type that is not plain."""
    fields: list[Field] = []
    keys: list[str] = []
    for part in columns:
        head = part[0].text.upper() if part[0].kind == "word" else ""
        if head in ("PRIMARY", "CONSTRAINT", "UNIQUE"):
            opens = next((i for i, t in enumerate(part) if t.is_sign("(")), None)
            keys += [] if opens is None else [p[0].text for p in groups(part, opens)[0]]
            continue
        if head == "WATERMARK" or (len(part) > 1 and part[1].is_word("AS", "METADATA")):
            continue
        if any(t.is_word("PRIMARY") for t in part[2:]):
            keys.append(part[0].text)
        kind = _type(part[1:])
        if kind is None:
            return None
        fields.append(Field(len(fields), part[0].text, kind))
    names = [p[0].text for p in partitions]
    for part in partitions:
        if part[0].text not in {f.name for f in fields} and len(part) > 1:
            kind = _type(part[1:])  # Spark's and Hive's PARTITIONED BY (dt STRING)
            if kind is None:
                return None
            fields.append(Field(len(fields), part[0].text, kind))
    known = {f.name for f in fields}
    if not fields or not set(names) <= known or not set(keys) <= known:
        return None  # CREATE TABLE ... LIKE, AS SELECT, or a transform such as bucket(4, id)
    raw = {k: s.value for k, s in settings.items()}
    if (own := raw.get("primary-key")) and not keys:
        keys = [k.strip() for k in own.split(",")]
        raw.pop("primary-key")
    fields = [replace(f, type=f.type.with_nullable(f.type.nullable and f.name not in keys)) for f in fields]
    return Schema(0, tuple(fields), len(fields) - 1, tuple(names), tuple(keys), raw)


def _type(tokens: Sequence[Token]) -> DataType | None:
    """A plain type from the tokens after a column's name; nested ones as their outermost kind."""
    if not tokens:
        return None
    root = tokens[0].text.upper()
    text = _SPARK_TYPES.get(root, root)
    at = 1
    if root in ("ARRAY", "MAP", "ROW", "STRUCT", "MULTISET"):
        return _nested(root)
    if at < len(tokens) and tokens[at].is_word("PRECISION"):
        text, at = f"{text} PRECISION", at + 1
    if at < len(tokens) and tokens[at].is_sign("("):
        parts, at = groups(tokens, at)
        text += "(" + ", ".join(p[0].text for p in parts) + ")"
    words = [t.text.upper() for t in tokens[at:] if t.kind == "word"]
    if words[:2] in (["WITH", "LOCAL"], ["WITH", "TIME"]):
        text += " WITH LOCAL TIME ZONE"
    if any(a == "NOT" and b == "NULL" for a, b in pairwise(words)):
        text += " NOT NULL"
    try:
        return parse_atomic(text)
    except BadRequest:
        return None


def _nested(root: str) -> DataType:
    inner = DataType("VARCHAR", length=2**31 - 1)
    match root:
        case "MAP":
            return DataType("MAP", key=inner.with_nullable(False), value=inner)
        case "ROW" | "STRUCT":
            return DataType("ROW", fields=(Field(0, "member", inner),))
        case _:
            return DataType(root, element=inner)


def _with(known: Subject, now: Mapping[str, Setting]) -> Schema | None:
    if known.schema is None:
        return None
    return replace(known.schema, options={k: s.value for k, s in now.items() if k != "primary-key"})
