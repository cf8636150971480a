# SPDX-License-Identifier: Apache-2.0
"""Flink's configuration as settings with their places: flink-conf.yaml (flat) and config.yaml (nested).

The part of YAML that these files use: mappings by indentation, plain and quoted scalars, comments, lists as one value.
Invariant: a nested key and a flat one give the same setting; a line that is none of this is told, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from shoal.doctor.lint.subject import Place, Setting

_LINE = re.compile(r"""(?P<indent>[ ]*)(?P<key>"[^"]*"|'[^']*'|[^\s:#'"\-][^:#]*?)\s*:(?:\s+(?P<value>.*)|\s*)$""")


def settings_in(text: str, file: str) -> tuple[dict[str, Setting], list[Place]]:
    """Settings by their full key, and the places of lines that cannot be read."""
    out: dict[str, Setting] = {}
    unread: list[Place] = []
    above: list[tuple[int, str]] = []  # indentation and key of the mappings that are open
    last: str | None = None  # the key that list items belong to
    for number, indent, body in _lines(text):
        if body.startswith("- "):
            if last is not None:
                before = out[last].value
                out[last] = Setting(last, f"{before};{_scalar(body[2:])}".lstrip(";"), out[last].place)
            continue
        match = _LINE.fullmatch(" " * indent + body)
        if match is None:
            unread.append(Place(file, number, indent + 1))
            continue
        while above and above[-1][0] >= indent:
            above.pop()
        key = ".".join([*(k for _, k in above), match["key"].strip("\"'")])
        value = (match["value"] or "").strip()
        last = key
        out[key] = Setting(key, _scalar(value), Place(file, number, indent + 1))
        if not value:
            above.append((indent, match["key"].strip("\"'")))
    # a mapping's own line is no setting once something stands below it
    inner = {key for key in out if any(other.startswith(key + ".") for other in out) and not out[key].value}
    return {k: s for k, s in out.items() if k not in inner}, unread


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        body = _without_comment(line.expandtabs(2)).rstrip()
        if body.strip() and body.strip() not in ("---", "..."):
            yield number, len(body) - len(body.lstrip()), body.lstrip()


def _without_comment(line: str) -> str:
    """A `#` begins a comment at the start of a line or after a blank, outside quotes."""
    quote = ""
    for at, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'" and (at == 0 or line[at - 1] in " :"):
            quote = char
        elif char == "#" and (at == 0 or line[at - 1] == " "):
            return line[:at]
    return line


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text
