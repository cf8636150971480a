# SPDX-License-Identifier: Apache-2.0
"""Flink's configuration as settings with their places: flink-conf.yaml (flat) and config.yaml (nested).

Agrees with: GlobalConfiguration (Flink 2.0): keys of nested mappings are joined by dots, a list is one value.
Invariants: a nested key and a flat one give the same setting; a text that is no YAML is `Corrupt` with its file and
line, and nothing is said of the rest: Flink 2 doesn't start with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from shoal.doctor.lint.subject import Place, Setting
from shoal.errors import Corrupt

# A flat line whose value is neither quoted nor begins a list or a mapping.
_FLAT = re.compile(r"""(?P<key>[\w.\-]+): +(?P<value>[^\s"'\[{#][^#]*?)\s*(?:#.*)?$""")


def settings_in(text: str, file: str) -> dict[str, Setting]:
    """Settings by their full key."""
    import yaml

    if os.path.basename(file) == "flink-conf.yaml":
        text = "\n".join(map(_as_flink_1_reads, text.splitlines()))
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as err:
        raise _broken(err, file) from err
    except (yaml.YAMLError, RecursionError) as err:
        at = getattr(err, "position", 0)
        why = getattr(err, "reason", None) or "it is nested too deeply"
        raise Corrupt(f"{file}:{text.count(chr(10), 0, at) + 1}: this is no YAML: {why}") from err
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise Corrupt(f"{file}:{root.start_mark.line + 1}: this is no 'key: value'", hint="a blank stands after ':'")
    return {s.key: s for s in _settings(root, "", text, file)}


def _as_flink_1_reads(line: str) -> str:
    """Flink 1 cuts a line at its first ': ' and takes any text behind it; YAML wants quotes around some of them."""
    flat = _FLAT.fullmatch(line)
    if flat is None or (": " not in flat["value"] and flat["value"][0] not in "@`%*&!,]}"):
        return line
    value = flat["value"].replace("'", "''")
    return f"{flat['key']}: '{value}'"


def _broken(err: Any, file: str) -> Corrupt:  # a MarkedYAMLError
    """What is wrong, and where: what is never closed is wrong where it begins."""
    context = err.context or ""
    begins = err.context_mark if re.search("flow|quoted|simple key", context) else None
    mark = begins or err.problem_mark or err.context_mark
    where = file if mark is None else f"{file}:{mark.line + 1}:{mark.column + 1}"
    return Corrupt(
        f"{where}: this is no YAML: {' '.join(t for t in (err.problem, context) if t)}",
        hint="mend that line, then lint again",
    )


def _settings(mapping: Any, above: str, text: str, file: str) -> Iterator[Setting]:  # a MappingNode
    import yaml

    for name, value in mapping.value:
        key = f"{above}{name.value}" if isinstance(name, yaml.ScalarNode) else f"{above}{_text_of(name, text)}"
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _settings(value, f"{key}.", text, file)
            continue
        items = value.value if isinstance(value, yaml.SequenceNode) else [value]
        place = Place(file, name.start_mark.line + 1, name.start_mark.column + 1)
        yield Setting(key, ";".join(_text_of(item, text) for item in items), place)


def _text_of(node: Any, text: str) -> str:  # a Node
    """A scalar's value; anything else as it is written."""
    return node.value if isinstance(node.value, str) else text[node.start_mark.index : node.end_mark.index].strip()
