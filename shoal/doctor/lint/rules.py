# SPDX-License-Identifier: Apache-2.0
"""What a rule is, all of them in order, and how their words become findings.

Each rule is a pure function of a `Subject` that yields what it has to `Say`; `rule` registers it with what documents
it. Modules of rules are read on first use. Invariants: ids are unique and stay; a rule that needs samples says nothing
without them; every message names the key and the value it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from shoal.doctor.finding import Confidence, Evidence, Finding, Severity, worst_first
from shoal.doctor.lint.subject import Kind, Place, Subject
from shoal.errors import BadRequest, near
from shoal.option_values import shown

RELEASE = "2.0.0"
Scope = Literal["options", "statement"]


@dataclass(frozen=True, slots=True)
class Say:
    """What a rule says of one subject. `key` is the option it is about: the place of the finding."""

    says: str
    key: str | None = None
    change: tuple[str, ...] = ()
    effect: str = ""
    severity: Severity | None = None  # where it differs from the rule's
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    confidence: Confidence | None = None
    place: Place | None = None


Check = Callable[[Subject], Iterator[Say]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what it looks for, how bad that is, and what of Paimon says so."""

    id: str
    severity: Severity
    name: str
    when: str  # the condition, for the table of rules
    source: str  # path of the class in Paimon's repository, or ""
    page: str  # path of the page of its documentation, or ""
    samples: bool  # whether it needs snapshots
    kinds: tuple[Kind, ...]
    check: Check | None  # None: it speaks of statements, not of options

    @property
    def uri(self) -> str:
        """Where to read more: the page or the class, in the release that the rule was checked against."""
        return f"https://github.com/apache/paimon/blob/release-{RELEASE}/{self.page or self.source}"


_RULES: dict[str, Rule] = {}


def rule(
    id: str,  # noqa: A002 - what a rule is called everywhere
    severity: Severity,
    name: str,
    when: str,
    *,
    source: str = "",
    page: str = "",
    samples: bool = False,
    kinds: tuple[Kind, ...] = ("table",),
) -> Callable[[Check], Check]:
    """Register a check."""

    def register(check: Check) -> Check:
        _add(Rule(id, severity, name, when, source, page and f"docs/docs/{page}", samples, kinds, check))
        return check

    return register


def statement_rule(id: str, severity: Severity, name: str, when: str, *, source: str = "", page: str = "") -> Rule:  # noqa: A002
    """Register a rule whose check is done where statements are read."""
    made = Rule(id, severity, name, when, source, page and f"docs/docs/{page}", False, (), None)
    _add(made)
    return made


def _add(made: Rule) -> None:
    if made.id in _RULES:
        raise AssertionError(f"two rules {made.id}")
    _RULES[made.id] = made


@cache
def _loaded() -> Mapping[str, Rule]:
    from shoal.doctor.lint import buckets, changelog, compaction, files, flink, keys, retention, statements

    # ruff does not know that importing a module of rules registers them
    assert all((buckets, changelog, compaction, files, flink, keys, retention, statements))
    return dict(sorted(_RULES.items()))


def all_rules() -> list[Rule]:
    """Every rule, by id."""
    return list(_loaded().values())


def find(text: str) -> Rule:
    """The rule of an id, also in lower case or without its dash; an unknown one is a BadRequest."""
    known = _loaded()
    tail = text.upper().removeprefix("L").lstrip("-")
    found = known.get(f"L-{tail.zfill(2)}") if tail.isdecimal() else None
    if found is None:
        raise BadRequest(f"no rule '{text}'", hint=near(text.upper(), known) or f"rules are L-01 to {list(known)[-1]}")
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rules may speak: all, or `only` some, and never those that are ignored."""

    only: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()

    def takes(self, id: str) -> bool:  # noqa: A002
        return id not in self.ignore and (not self.only or id in self.only)


ALL = Choice()


def lint(subject: Subject, choice: Choice = ALL) -> list[Finding]:
    """What the rules have to say of one subject, the worst first."""
    out: list[Finding] = []
    for one in all_rules():
        if one.check is None or subject.kind not in one.kinds or not choice.takes(one.id):
            continue
        if one.samples and subject.seen is None:
            continue
        out.extend(finding(one, say, subject) for say in one.check(subject))
    return worst_first(_agreed(out))


def finding(one: Rule, say: Say, subject: Subject | None = None) -> Finding:
    """The finding that a rule's words make."""
    scope: dict[str, str | int] = {}
    evidence: dict[str, Evidence] = {}
    place = say.place
    if subject is not None:
        scope[subject.kind] = subject.name
        place = place or subject.place
    if say.key is not None:
        scope["option"] = say.key
        setting = None
        if subject is not None:
            setting = subject.settings.get(say.key) or subject.setting(say.key) or subject.job.get(say.key)
        if setting is not None:
            evidence["value"] = shown(say.key, setting.value).strip("'")
            place = say.place or setting.place or place
    if place is not None:
        scope |= {"file": place.file, "line": place.line, "column": place.column}
    refused = one.severity == "error" and not one.samples
    return Finding(
        id=one.id,
        name=one.name,
        severity=say.severity or one.severity,
        confidence=say.confidence or ("proven" if refused else "supported"),
        scope=scope,
        evidence={**evidence, **say.evidence},
        says=say.says,
        change=say.change,
        effect=say.effect,
    )


# When the first speaks of an option, what the others say of it adds nothing.
_SETTLED = {"L-14": ("L-15",)}


def _agreed(findings: Iterable[Finding]) -> list[Finding]:
    """Without findings that another one settles, and without L-61 where another error says more."""
    out = list(findings)
    settled = {(later, f.scope.get("option")) for f in out for later in _SETTLED.get(f.id, ())}
    refused = any(f.severity == "error" and f.id != "L-61" for f in out)
    return [f for f in out if (f.id, f.scope.get("option")) not in settled and not (refused and f.id == "L-61")]
