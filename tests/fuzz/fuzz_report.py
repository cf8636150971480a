# SPDX-License-Identifier: Apache-2.0
"""What fuzz-compare found, grouped by cause: our refusals by their text, differences by kind of view and table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fuzz_compare import NOT_COPIED, difference, order_of_maps

ROOT = Path(__file__).resolve().parents[2]


def oracle() -> Path:
    return Path(os.environ.get("SHOAL_ORACLE", ROOT.parent / "shared" / "oracle"))


def compare(made: Path, dumps: Path, expected: Path) -> str:
    """The output of fuzz-compare, which says what differs and where."""
    call = [
        sys.executable,
        oracle() / "fuzz-compare",
        expected,
        dumps,
        "--history",
        made / "history",
        "--strict",
    ]
    return subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False).stdout


def failures(output: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """(state, table, view, lines) of each view that is not equal."""
    head, lines = None, []
    for line in output.splitlines():
        m = re.match(r"(different|soft-different|missing): (\w+)\.(\S+)$", line)
        if m or line.startswith("{"):
            if head:
                yield (*head, lines)
            head, lines = m and (m[1], m[2], m[3]), []
        else:
            lines.append(line)


def triage(made: Path, dumps: Path, *, full: bool = False, expected: Path | None = None) -> tuple[dict[str, Any], str]:
    """(counts, the report in text). `expected` is what Java read, unless it is what `make` dumped."""
    expected = expected or made / "expected"
    output = compare(made, dumps, expected)
    counts = json.loads(output.splitlines()[-1])
    groups: dict[str, list[tuple[str, str, list[str]]]] = defaultdict(list)
    crashes = crashed(dumps)
    not_copied = order = maps = 0
    for state, table, view, lines in failures(output):
        java = " ".join(x for x in lines if "- expected error" in x)
        if any(view.split("-")[0] == kind and text in java for kind, text in NOT_COPIED):
            not_copied += 1
            continue
        history = json.loads((made / "history" / f"{table}.json").read_text(encoding="utf-8"))
        pair = [folder / f"{table}.{view}.jsonl" for folder in (expected, dumps)]
        if state == "different" and view.endswith("stream") and not difference(*pair, history):
            order += 1  # only between partitions, where Java has none
            continue
        if state == "different" and view.endswith("-diff") and order_of_maps(*pair):
            maps += 1
            continue
        groups[cause(state, view, lines, crashes.get((table, view)))].append((table, view, lines))
    counts["not_copied"], counts["order_of_partitions"], counts["order_of_maps"] = not_copied, order, maps
    counts["left"] = sum(map(len, groups.values()))
    text = []
    for why, found in sorted(groups.items(), key=lambda g: -len(g[1])):
        text.append(f"== {len(found)} views of {len({t for t, _, _ in found})} tables: {why}")
        for table, view, lines in found if full else found[:3]:
            text.append(f"  {table}.{view}  {about(made, table)}")
            text += lines[:6] if not why.startswith(("refused", "CRASH")) else []
        if not full and len(found) > 3:
            names = Counter(t for t, _, _ in found[3:])
            text.append("  also " + " ".join(f"{t}({n})" if n > 1 else t for t, n in names.items()))
    return counts, "\n".join(text)


def crash_texts(dumps: Path) -> list[str]:
    """`table view` and the traceback of each crash."""
    path = dumps / "crashes.txt"
    return [part.strip() for part in path.read_text().split("CRASH ")[1:]] if path.exists() else []


def crashed(dumps: Path) -> dict[tuple[str, str], str]:
    """(table, view) -> the last lines of the traceback."""
    out = {}
    for part in crash_texts(dumps):
        head, *trace = part.splitlines()
        table, view = head.split()
        places = [x.strip() for x in trace if re.match(r' *File ".*/(shoal|tests)/', x)]
        place = re.sub(r'File ".*/(shoal|tests)/', r'"\1/', places[-1]) if places else ""
        says = next(
            (x for x in reversed(trace) if re.match(r"[\w.]*(Error|Exception|Invalid|Iteration)\w*(:|$)", x)), trace[-1]
        )
        out[table, view] = f"{says[:200]} at {place}"
    return out


def cause(state: str, view: str, lines: list[str], crash: str | None) -> str:
    kind = view.split("-")[0] if not view.startswith("between") else "between-" + view.rsplit("-", 1)[1]
    if crash:
        return f"CRASH {re.sub(r'[0-9]+', 'N', crash)}"
    for line in lines:
        if "+ actual error" in line and not line.endswith("error None"):
            return "refused: " + plain(line.split("actual error ", 1)[1])
        if "- expected error" in line and not line.endswith("error None"):
            return f"{kind}: Java refuses: " + plain(line.split("expected error ", 1)[1])
    return f"{kind} {state}"


def plain(text: str) -> str:
    """An error's text without what differs from file to file."""
    text = re.sub(r"\b[\w./=%+-]*\b[0-9a-f]{8}-[0-9a-f-]{27}[\w.-]*", "FILE", text)
    text = re.sub(r"/work/\S+|fuzz\.t\d+|\bt\d{4}\b", "TABLE", text)
    return re.sub(r"'[kvp]\d+'", "'COLUMN'", re.sub(r"\b\d+\b", "N", text))[:200]


def about(made: Path, table: str) -> str:
    """Kind and options of a table, and what was done to it."""
    h: Mapping[str, Any] = json.loads((made / "history" / f"{table}.json").read_text())
    s = h["schema"]
    ops = Counter(o["op"] for o in h["ops"])
    skip = ("manifest.", "metadata.stats", "file.compression", "partition.default")
    options = {k: v for k, v in s["options"].items() if not k.startswith(skip)}
    keys = f"pk={','.join(s['primary_keys'])}" if s["primary_keys"] else "append"
    by = f" by={','.join(s['partition_keys'])}" if s["partition_keys"] else ""
    return f"[{keys}{by} {options} ops={dict(ops)}]"[:500]
