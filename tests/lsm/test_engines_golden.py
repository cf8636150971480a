# SPDX-License-Identifier: Apache-2.0
"""The model of the engines against Java's own tables, so that what the other tests compare with is right.

The files are read with PyArrow alone; that shoal reads the same tables is in tests/golden.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import engine_model as model
import pyarrow.parquet as pq
import pytest

TABLES = [
    "ag_complex",
    "ag_default",
    "ag_listagg",
    "ag_map_keytime_parquet",
    "ag_remove",
    "ag_retract",
    "ag_scalar",
    "ag_seq",
    "pu_agg",
    "pu_basic",
    "pu_default_agg",
    "pu_groups",
    "pu_groups2",
    "pu_ignore_delete",
    "pu_no_delete",
    "pu_remove",
    "pu_remove_group",
    "pu_seq",
]
Golden = Callable[[str], Path]
Expected = Callable[[str], tuple[list[tuple[str, str]], list[dict[str, Any]]]]

REFUSED = ["ag_map_keytime_bigint", "ag_overflow"]
BYTES = ("hll", "theta", "rbm32", "rbm64")  # the model has no sketches


def versions(folder: Path) -> tuple[model.Table, dict[Any, list[model.Version]]]:
    """The table and the versions of each key in order, from all files: nothing was compacted."""
    schema = json.loads((folder / "schema" / "schema-0").read_text())
    kinds = {json.loads(s.read_text())["commitKind"] for s in (folder / "snapshot").glob("snapshot-*")}
    assert kinds == {"APPEND"}
    fields = [(f["name"], f["type"]) for f in schema["fields"] if f["name"] not in BYTES]
    table = model.Table(
        [(n, t.removesuffix(" NOT NULL") if isinstance(t, str) else text(t)) for n, t in fields],
        schema["primaryKeys"],
        schema["options"],
    )
    rows = [r for f in folder.glob("bucket-0/*.parquet") for r in pq.ParquetFile(f).read().to_pylist()]
    sequence = [s for s in schema["options"].get("sequence.field", "").split(",") if s]
    rows.sort(key=lambda r: ([(r[s] is not None, r[s] or 0) for s in sequence], r["_SEQUENCE_NUMBER"]))
    found: dict[Any, list[model.Version]] = defaultdict(list)
    for r in rows:
        kind = ["+I", "-U", "+U", "-D"][r["_VALUE_KIND"]]
        found[r["id"]].append((kind, {n: r[n] for n, _ in fields}))
    return table, found


def text(t: dict[str, Any]) -> str:
    return "ARRAY<ROW>" if t["type"] == "ARRAY" and isinstance(t["element"], dict) else str(t["type"])


def plain(v: Any) -> Any:
    """A value as Java's dump has it; arrays and maps without their order."""
    if isinstance(v, Decimal):
        return str(v)
    if isinstance(v, datetime):
        whole, _, fraction = v.isoformat().partition(".")
        return whole + ("." + fraction.rstrip("0") if fraction else "")
    if isinstance(v, list):
        return sorted(json.dumps(plain(list(e) if isinstance(e, tuple) else e)) for e in v)
    return v


@pytest.mark.parametrize("name", TABLES)
def test_the_model_is_java(name: str, golden: Golden, expected: Expected) -> None:
    table, keys = versions(golden("engines") / "engines.db" / name)
    left = [model.merge(table, keys[k]) for k in sorted(keys)]
    got = [{n: plain(v) for n, v in r[1].items()} for r in left if r is not None and r[0] in ("+I", "+U")]
    _, rows = expected(f"engines.{name}")
    want = [{n: plain(v) for n, v in r.items() if n not in BYTES} for r in rows]
    assert sorted(map(json.dumps, got)) == sorted(map(json.dumps, want))


@pytest.mark.parametrize("name", REFUSED)
def test_the_model_refuses_what_java_refuses(name: str, golden: Golden) -> None:
    table, keys = versions(golden("engines") / "engines.db" / name)
    with pytest.raises((model.Refused, AttributeError)):  # a number has no text to compare
        for k in keys:
            model.merge(table, keys[k])
