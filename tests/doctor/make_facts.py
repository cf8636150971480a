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

from shoal.doctor.window import Count, IndexFacts, SchemaFacts, SnapshotFacts, Stock, Window, flow_fields, state_fields

FLOW = ("snapshot", "class", "change", "bucket", "level", "files", "bytes", "rows")
STEP = ("id", "user", "identifier", "kind", "time_ms", "live_files", "entries", "dead_entries")


def write(window: Window, java: dict[str, Any], path: Path) -> None:
    steps = [
        [*(getattr(s, n) for n in STEP), [s.manifests.files, s.manifests.bytes],
         {k: [c.files, c.bytes] for k, c in s.wrote.items() if c.files}]
        for s in window.steps
    ]  # fmt: skip
    columns = zip(*(window.flows.column(n).to_pylist() for n in FLOW))
    assert window.schema is not None and window.start is not None and not window.start.num_rows
    facts = {
        "options": dict(window.schema.options), "primary_keys": window.schema.primary_keys, "java": java,
        "steps": steps, "flows": [list(row) for row in columns],
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
    rows = [dict(zip(FLOW, row)) | {"partition": ""} for row in facts["flows"]]
    schema = SchemaFacts(0, 0, facts["options"], (), tuple(facts["primary_keys"]), ())
    stock = Stock(steps[-1].time_ms, 1, steps[-1].id, (), IndexFacts({}, 0, 0), 0, 0)
    flows = pa.Table.from_pylist(rows, schema=flow_fields())
    window = Window("file:facts", path.stem, tuple(steps), flows, state_fields().empty_table(), (schema,), stock)
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
