# SPDX-License-Identifier: Apache-2.0
"""Tables for options that change reads (tests/golden/options.tar.xz, made by data/options.sql), and what Java read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import shoal
from shoal.table.table import Table


def java(folder: Path, name: str) -> Counter[str]:
    """The rows of a dump as a multiset."""
    _, *rows = (folder / "expected" / f"{name}.jsonl").read_text().splitlines()
    return multiset(json.loads(r)["row"] for r in rows)


def opened(folder: Path, name: str, options: Mapping[str, object] | None = None, **how: Any) -> Table:
    table = shoal.open(str(folder / "warehouse"), **how).table(name)
    return table.with_options(options) if options else table


def rows(table: Table, **what: Any) -> Counter[str]:
    return multiset(table.scan(**what).to_arrow().to_pylist())


def multiset(found: Iterable[Mapping[str, Any]]) -> Counter[str]:
    return Counter(json.dumps({k: _plain(v) for k, v in row.items()}, sort_keys=True) for row in found)


def _plain(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(v, (tuple, list)) and len(v) == 2 for v in value):
        return sorted([k, _plain(v)] for k, v in value)  # a map: its order means nothing
    return value.isoformat() if hasattr(value, "isoformat") else value
