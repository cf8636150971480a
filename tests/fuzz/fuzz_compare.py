# SPDX-License-Identifier: Apache-2.0
"""Two dumps of one view, strictly compared: what shared/oracle/fuzz-compare --strict does, without the oracle.

Rows are multisets; in streams, the ordered changes of each key in each snapshot. Floats equal by their bits, arrays
of `unordered_columns` as multisets. Never compared: `op` of batch rows, sizes, times, file names, the view `files`.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_INSTANT = re.compile(r"\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")
_VARIES = ("file_size_in_bytes", "last_update_time", "created_at", "created_by", "updated_by", "options")

# Faults of Java 2.0.0 that shared/oracle/fuzz.md says not to copy: (kind of view, text of Java's error)
NOT_COPIED = [("partitions", "DateTimeParseException: Text ")]


def difference(expected: Path, actual: Path, history: Mapping[str, Any]) -> str | None:
    """What differs, in one line, or None."""
    want_head, want = _load(expected)
    got_head, got = _load(actual)
    view = want_head["view"]
    if view == "files" or any(view == v and text in want_head.get("error", "") for v, text in NOT_COPIED):
        return None
    if "error" in want_head or "error" in got_head:
        same = ("error" in want_head) == ("error" in got_head)
        return None if same else f"Java: {want_head.get('error')}, shoal: {got_head.get('error')}"
    if view != "partitions" and want_head.get("columns") != got_head.get("columns"):
        return f"columns {got_head.get('columns')} are not {want_head.get('columns')}"
    unordered = history.get("unordered_columns", [])
    # between partitions Java has no order: plans over its manifest cache go by hash
    keys = history["schema"]["primary_keys"] and list(
        dict.fromkeys(history["schema"]["primary_keys"] + history["schema"]["partition_keys"])
    )
    if view in ("stream", "audit_stream"):
        return _first(*(_by_snapshot(x, keys, unordered) for x in (want, got)))
    skip = _skipped(history) if view == "partitions" else ()
    a, b = (Counter(_text(r["row"], unordered, skip) for r in x) for x in (want, got))
    return None if a == b else f"missing {list((a - b).elements())[:2]}, too many {list((b - a).elements())[:2]}"


def order_of_maps(expected: Path, actual: Path) -> bool:
    """Whether Java's diff tells more rows than ours, each of them the same at both ends of the range.

    Java compares the bytes of rows, so entries of a map in another order make a change of what is none.
    """
    head, want = _load(expected)
    got_head, got = _load(actual)
    if head.get("mode") != "diff" or "error" in head or "error" in got_head:
        return False
    names = [n for n, t in head["columns"] if "MAP<" in t or "MULTISET<" in t]
    a, b = (Counter(_text(r["row"], []) for r in x) for x in (want, got))
    more = [json.loads(x) for x in (a - b).elements()]
    if not names or not more or b - a:
        return False
    table = expected.name.split(".")[0]
    for end in ("from_snapshot", "to_snapshot"):
        at = expected.parent / f"{table}.snapshot-{head[end]}.jsonl"
        rows = _load(at)[1] if at.exists() else []
        there = [json.loads(_text(r["row"], [])) for r in rows]
        if not all(any(all(m[n] == r[n] for n in m.keys() & r.keys()) for r in there) for m in more):
            return False
    return True


def _load(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    head, *rows = path.read_text(encoding="utf-8", errors="surrogatepass").split("\n")
    return json.loads(head), [json.loads(r) for r in rows if r]


def _skipped(history: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns of $partitions that vary in Java itself: buckets after a rescale, files of unaware compaction."""
    rescaled = any(o["op"] == "rescale" for o in history["ops"])
    unaware = history["schema"]["options"].get("bucket") == "-1" and not history["schema"]["primary_keys"]
    return _VARIES + ("total_buckets",) * rescaled + ("file_count",) * unaware


def _text(row: Mapping[str, Any], unordered: list[str], skip: tuple[str, ...] = ()) -> str:
    values = {n: _plain(v) for n, v in row.items() if n not in skip}
    for n in unordered:
        if isinstance(values.get(n), list):
            values[n] = sorted(values[n], key=repr)
    return json.dumps(values, sort_keys=True, ensure_ascii=False)


def _plain(v: Any) -> Any:
    """Instants without the zeros that Java adds in threes."""
    if isinstance(v, str):
        return v.removesuffix("Z").rstrip("0").rstrip(".") + "Z" if _INSTANT.fullmatch(v) else v
    if isinstance(v, list):
        return [_plain(x) for x in v]
    return {k: _plain(x) for k, x in v.items()} if isinstance(v, dict) else v


def _by_snapshot(rows: list[dict[str, Any]], keys: list[str], unordered: list[str]) -> dict[str, list[str]]:
    """Snapshot and key -> its changes in order. Rows without a key have no order."""
    keyed = bool(keys) and bool(rows) and all(k in rows[0]["row"] for k in keys)
    out = defaultdict(list)
    for r in rows:
        key = json.dumps([_plain(r["row"][k]) for k in keys]) if keyed else ""
        out[f"{r['snapshot']} {key}"].append(f"{r['op']} {_text(r['row'], unordered)}")
    return dict(out) if keyed else {k: sorted(v) for k, v in out.items()}


def _first(want: dict[str, list[str]], got: dict[str, list[str]]) -> str | None:
    for k in sorted(want.keys() | got.keys()):
        if want.get(k) != got.get(k):
            return f"snapshot and key {k}: {got.get(k)} is not {want.get(k)}"
    return None
