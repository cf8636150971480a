# SPDX-License-Identifier: Apache-2.0
"""SQL as tokens with their lines and columns, for Flink's and Spark's dialect alike.

A tokenizer of its own: parsers for these dialects refuse what the linter has to look into (hints, `RESCALE BUCKETS`,
half a script) and keep no column of an option. Invariant: nothing is refused; a quote that never closes is told once
(`Unclosed`) and ends with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["word", "string", "name", "number", "sign", "hint"]


@dataclass(frozen=True, slots=True)
class Token:
    """`text` is the value: a string without its quotes, a hint without its stars."""

    kind: Kind
    text: str
    line: int
    column: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words

    def is_sign(self, sign: str) -> bool:
        return self.kind == "sign" and self.text == sign

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "name")


@dataclass(frozen=True, slots=True)
class Unclosed:
    """A quote or comment that never ends."""

    what: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment, for what it may say to the linter."""

    text: str
    line: int


_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<comment>--[^\n]*)
    |(?P<hint>/\*\+.*?\*/)
    |(?P<block>/\*.*?\*/)
    |(?P<string>'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*")
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<number>[0-9]+(?:\.[0-9]+)?)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<sign>=>|<>|<=|>=|!=|\|\||.)""",
    re.VERBOSE | re.DOTALL,
)


def tokenize(text: str, line: int = 1, column: int = 1) -> tuple[list[Token], list[Comment], list[Unclosed]]:
    """Tokens, comments and what never closes. `line` and `column` are those of the first character."""
    tokens: list[Token] = []
    comments: list[Comment] = []
    unclosed: list[Unclosed] = []
    starts = [0, *(m.end() for m in re.finditer("\n", text))]
    row = 0
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # the last branch takes any character
        kind, value = match.lastgroup, match[0]
        while row + 1 < len(starts) and starts[row + 1] <= at:
            row += 1
        here = (line + row, at - starts[row] + (column if row == 0 else 1))
        at = match.end()
        if kind in ("comment", "block"):
            comments.append(Comment(value.strip("-#/* \n"), here[0] + (value.count("\n") if kind == "block" else 0)))
        elif kind == "sign" and (value in "'\"`" or text.startswith("/*", match.start())):
            unclosed.append(Unclosed("comment" if value == "/" else f"quote {value}", *here))
            end = text.find("\n", at)
            at = len(text) if end < 0 or value == "/" else end
        elif kind == "string":
            tokens.append(Token("string", _unquoted(value), *here))
        elif kind == "name":
            tokens.append(Token("name", value[1:-1].replace("``", "`"), *here))
        elif kind == "hint":
            tokens.append(Token("hint", value[3:-2], here[0], here[1] + 3))
        elif kind in ("word", "number", "sign"):
            tokens.append(Token(kind, value, *here))  # type: ignore[arg-type]
    return tokens, comments, unclosed


def _unquoted(text: str) -> str:
    quote, body = text[0], text[1:-1].replace(text[0] * 2, text[0])
    return re.sub(rf"\\([\\{quote}])", r"\1", body)


def statements(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Tokens between semicolons; empty ones are left out. BEGIN STATEMENT SET and END stand alone."""
    found: list[Token] = []
    for token in tokens:
        if token.is_sign(";"):
            if found:
                yield found
            found = []
        else:
            found.append(token)
    if found:
        yield found


def groups(tokens: Sequence[Token], at: int) -> tuple[list[list[Token]], int]:
    """The parts between commas of the brackets that open at `at`, and the position after them."""
    assert tokens[at].is_sign("(")
    parts: list[list[Token]] = [[]]
    depth = 1
    for position in range(at + 1, len(tokens)):
        token = tokens[position]
        if token.kind == "sign":
            depth += (token.text in "([<{") - (token.text in ")]>}")
            if depth == 0:
                return [p for p in parts if p], position + 1
            if token.text == "," and depth == 1:
                parts.append([])
                continue
        parts[-1].append(token)
    return [p for p in parts if p], len(tokens)
