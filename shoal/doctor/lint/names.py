# SPDX-License-Identifier: Apache-2.0
"""What one name is that somebody wrote down: an option, a value, a procedure, a system table, a metric, a class.

Articles and tickets speak of names that never were; `judge` says which are real and what was meant. Invariant: "real"
is said only of what the release has; a form that looks right but was not looked up is "real, not checked".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shoal.doctor.lint import statements, words
from shoal.doctor.lint.keys import hint, meant, status
from shoal.doctor.lint.rules import RELEASE, Say
from shoal.doctor.lint.tokens import Token, tokenize
from shoal.errors import BadRequest, near
from shoal.option_table import lookup, nearest
from shoal.table.inspect import NAMES as SYSTEM_TABLES

Word = Literal[
    "real", "real, wrong value", "real, not checked", "deprecated", "removed", "wrong name", "wrong arguments",
    "other system", "unknown",
]  # fmt: skip
_COMMIT = "604e6d5e131c"  # what the tag of the release stands for
_STATEMENTS = ("SHOW", "OPTIMIZE", "VACUUM", "ALTER", "ANALYZE", "CREATE", "CALL", "PARTITIONED", "DESCRIBE", "RESTORE")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`use` is the right name or what to do instead; equal to the name where it is right."""

    name: str
    what: str  # option, value, procedure, statement, system table, column, metric, class, version, ...
    verdict: Word
    use: str


def judge(name: str) -> Verdict:
    """What a name is.

    >>> judge("compaction.file-size").use
    "use 'target-file-size'"
    >>> judge("metadata.stats-mode=truncate").verdict
    'real, wrong value'
    """
    text = name.strip()
    for ask in (_phrase, _statement, _system_table, _value, _option, _metric, _version, _class):
        if (verdict := ask(text)) is not None:
            return verdict
    key = re.fullmatch(r"[\w.\-]+", text)
    return Verdict(name, "name", "wrong name" if key else "unknown", "; ".join(hint(text)) if key else "no such thing")


def _phrase(text: str) -> Verdict | None:
    low = text.lower()
    for phrase, (verdict, use) in words.PHRASES.items():
        if phrase in low:
            return Verdict(text, "name", verdict, use)
    return None


def _statement(text: str) -> Verdict | None:
    if " " not in text or text.split()[0].upper() not in _STATEMENTS:
        return None
    tokens, _, _ = tokenize(text)
    for say in statements.foreign("", tokens):
        # OPTIMIZE and VACUUM are statements of another system; the others are wrong words for what Paimon has
        own = text.split()[0].upper() in ("OPTIMIZE", "VACUUM", "RESTORE")
        return Verdict(text, "statement", "other system" if own else "wrong name", "; ".join(say.change))
    if tokens[0].is_word("CALL"):
        says = [s for s in statements.call("", tokens, None) if s.severity != "info"]
        if says:
            wrong: Word = "wrong arguments" if any("argument" in s.says for s in says) else "wrong name"
            return Verdict(text, "procedure", wrong, "; ".join(f"{s.says}: {'; '.join(s.change)}" for s in says))
        return Verdict(text, "procedure", "real", text)
    return Verdict(text, "statement", "real", text)


def _system_table(text: str) -> Verdict | None:
    if re.fullmatch(r"(?:\w+\.)?\w+\$\w+", text):
        table = text.rpartition("$")[2].lower()
        if table in SYSTEM_TABLES:
            return Verdict(text, "system table", "real", f"t${table}")
        return Verdict(text, "system table", "wrong name", near(table, SYSTEM_TABLES) or ", ".join(SYSTEM_TABLES))
    if match := re.fullmatch(r"(system|sys)\.(\w+)(?:\.(\w+))?", text, re.IGNORECASE):
        database, table, column = match[1].lower(), match[2].lower(), match[3]
        if database == "sys" and table in statements.SYS_TABLES and column is None:
            return Verdict(text, "system table", "real", text)
        if column is not None and table in SYSTEM_TABLES:
            wrong = _first(statements.column(table, column))
            if wrong is None:
                return Verdict(text, "column", "wrong name", f"`db`.`table${table}`.{column}")
            return Verdict(text, "column", "wrong name", f"{wrong.says}: {'; '.join(wrong.change)}")
        token = Token("word", match[2], 1, 1)
        wrong = _first(statements.global_table("", token, match[1]))
        return Verdict(text, "system table", "wrong name", "" if wrong is None else "; ".join(wrong.change))
    return None


def _first(says: Iterator[Say]) -> Say | None:
    return next(says, None)


def _value(text: str) -> Verdict | None:
    key, equals, value = (part.strip().strip("'") for part in text.partition("="))
    spec = lookup(key) if equals and re.fullmatch(r"[\w.\-]+", key) else None
    if spec is None:
        return None
    try:
        spec.parse(value, key)
    except BadRequest as err:
        return Verdict(text, "option", "real, wrong value", meant(key, value) or err.hint or err.message)
    return Verdict(text, "option", "real", text)


def _option(text: str) -> Verdict | None:
    if not re.fullmatch(r"[\w.\-#]+", text):
        return None
    spec = lookup(text)
    if spec is not None:
        if not spec.patterned and text != spec.key and text in spec.old_keys:
            return Verdict(text, "option", "deprecated", spec.key)
        return Verdict(text, "option", "real", text)
    match status(text):
        case "known":
            return Verdict(text, "option", "real", text)
        case "removed":
            old = words.removed(text)
            return Verdict(text, "option", "removed", "" if old is None else f"{old.instead} (gone after {old.last})")
        case "job" | "other":
            owner = words.elsewhere(text)
            assert owner is not None
            use = f"{owner.owner}: {owner.use or nearest(text) or 'nothing like it here'}"
            return Verdict(text, "option", "other system" if owner.own else "wrong name", use)
        case _:
            return Verdict(text, "option", "wrong name", "; ".join(hint(text))) if nearest(text) else None


def _metric(text: str) -> Verdict | None:
    if text in words.metrics():
        return Verdict(text, "metric", "real", text)
    if text in words.METRICS_OF_FLINK:
        return Verdict(text, "metric", "other system", f"{text} of Flink")
    if text in words.METRIC_WORDS:
        return Verdict(text, "metric", "wrong name", words.METRIC_WORDS[text])
    return None


def _version(text: str) -> Verdict | None:
    if match := re.fullmatch(rf"release-{re.escape(RELEASE)}(?:/([0-9a-f]{{7,40}}))?", text):
        same = match[1] is None or _COMMIT.startswith(match[1]) or match[1].startswith(_COMMIT)
        return Verdict(
            text, "version", "real" if same else "wrong name", text if same else f"release-{RELEASE}/{_COMMIT}"
        )
    if re.fullmatch(r"(?:[\w.]+:)?paimon-[\w.\-]+:\d+\.\d+[\w.\-]*", text):
        return Verdict(text, "artifact", "real, not checked", text)
    return None


def _class(text: str) -> Verdict | None:
    if not re.fullmatch(r"(?:[a-z]\w*\.)*[A-Z]\w+(?:\.\w+)?", text):
        return None
    known = frozenset(words.classes())
    names = [part for part in text.split(".") if part[:1].isupper()]
    if names and names[0] in known:
        return Verdict(text, "class", "real", text)
    return None
