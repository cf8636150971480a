# SPDX-License-Identifier: Apache-2.0
"""Turn a table into a small file of facts that tests take for a window: python make_facts.py TABLE_DIR FILE.json.gz.

`data/virtual-writer-none-10s.json.gz` and `-write-only-10s.json.gz` are of tables that Paimon 2.0.0's Java writer wrote
on a virtual checkpoint clock: 100 rows a second over 50,000 uniform keys, 4 buckets, Avro, a checkpoint every 10
seconds, seed 42; 30 minutes, and 15 with compaction off. `java` holds what the writer itself counted.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from shoal.doctor.window import (
    Count,
    Holder,
    IndexFacts,
    SchemaFacts,
    SnapshotFacts,
    Stock,
    Window,
    flow_fields,
    state_fields,
)

# What flows have in files without a list of their own.
FLOW = ("snapshot", "class", "change", "bucket", "level", "files", "bytes", "rows")
MORE = ("partition", "total_buckets", "min_sequence", "max_sequence", "small")
STEP = ("id", "user", "identifier", "kind", "time_ms", "live_files", "entries", "dead_entries")


def write(window: Window, java: dict[str, Any], path: Path) -> None:
    steps = [
        [*(getattr(s, n) for n in STEP), [s.manifests.files, s.manifests.bytes],
         {k: [c.files, c.bytes] for k, c in s.wrote.items() if c.files}]
        for s in window.steps
    ]  # fmt: skip
    columns = zip(*(window.flows.column(n).to_pylist() for n in (*FLOW, *MORE)))
    assert window.schema is not None and window.start is not None
    facts = {
        "options": dict(window.schema.options), "primary_keys": window.schema.primary_keys, "java": java,
        "partition_keys": window.schema.partition_keys, "steps": steps, "columns": [*FLOW, *MORE],
        "flows": [list(row) for row in columns], "start": window.start.to_pylist(), "earliest": window.stock.earliest,
        "holders": [[h.kind, h.name, h.snapshot, h.time_ms] for h in window.stock.holders],
    }  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps(facts, separators=(",", ":")).encode(), mtime=0))


def read(path: Path) -> tuple[Window, dict[str, Any]]:
    """The window, and what Java counted."""
    facts = json.loads(gzip.decompress(path.read_bytes()))
    steps = []
    for *values, manifests, wrote in facts["steps"]:
        named = dict(zip(STEP, values))
        steps.append(
            SnapshotFacts(
                **named, schema_id=0, total_records=None, delta_records=None, changelog_records=None, watermark=None,
                operation=None, lists=("", ""), wrote={k: Count(*c) for k, c in wrote.items()}, manifests=Count(*manifests),
                identity_holds=True,
            )
        )  # fmt: skip
    rows = [
        {"partition": "", "extras": 0, "small": 0} | dict(zip(facts.get("columns", FLOW), r)) for r in facts["flows"]
    ]
    keys = tuple(facts.get("partition_keys", ())), tuple(facts["primary_keys"])
    schema = SchemaFacts(0, 0, facts["options"], *keys, ())
    holders = tuple(Holder(*row) for row in facts.get("holders", ()))
    stock = Stock(
        steps[-1].time_ms, facts.get("earliest", 1), steps[-1].id, holders, IndexFacts({}, 0, 0), 0, 0
    )  # fmt: skip
    flows = pa.Table.from_pylist(rows, schema=flow_fields())
    start = pa.Table.from_pylist(facts.get("start", []), schema=state_fields())
    window = Window("file:facts", path.stem, tuple(steps), flows, start, (schema,), stock)
    return window, facts["java"]


def main(table: str, path: str, java: str) -> None:
    from shoal.doctor.take import take
    from shoal.store import LocalStore
    from shoal.store.cache import Cache
    from shoal.table.metadata import Metadata

    metadata = Metadata(LocalStore(Path(table)), Cache())
    write(take(metadata), json.loads(java), Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
