# SPDX-License-Identifier: Apache-2.0
"""Tables of special kinds that Java wrote (tests/golden/kinds.tar.xz), and what Java reads from them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from oracle_values import multiset, rows_of


def java_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a dump of the archive unpacked at `folder`."""
    _, *rows = (folder / "expected" / f"kinds.{name}.jsonl").read_text().splitlines()
    return [json.loads(r)["row"] for r in rows]


def java_columns(folder: Path, name: str) -> list[str]:
    head = (folder / "expected" / f"kinds.{name}.jsonl").read_text().splitlines()[0]
    return [c[0] for c in json.loads(head)["columns"]]


def same_rows(found: pa.Table, java: Sequence[dict[str, Any]]) -> tuple[Counter[str], Counter[str]]:
    """Both as multisets, to be compared."""
    return multiset(rows_of(found), found.schema), multiset([_sorted(r, found.schema) for r in java], found.schema)


def _sorted(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Maps of these dumps keep their order; the model sorts its pairs."""
    maps = {f.name for f in schema if pa.types.is_map(f.type)}
    return {n: sorted(v, key=_text) if n in maps and v else v for n, v in row.items()}


def _text(pair: object) -> str:
    return json.dumps(pair, ensure_ascii=False)
