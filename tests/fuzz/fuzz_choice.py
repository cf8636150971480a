# SPDX-License-Identifier: Apache-2.0
"""Which tables of made sets to keep as test data: few and small, chosen so that every feature is there.

`python fuzz_choice.py COUNT SET... > chosen`, then `dev/fuzz keep`. A feature is an option with its value, a column
type, an operation, a kind of view.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from pathlib import Path
from typing import Any


def features(made: Path, history: dict[str, Any]) -> set[str]:
    s = history["schema"]
    numbers = (
        "target",
        "trigger",
        "min-count",
        "size",
        "bucket",
        "num-levels",
        "row-num",
        "max-buckets",
        "compression",
    )
    out = {
        f"{k}={'' if any(n in k for n in numbers) else v}".replace("k0", "c").replace("v0", "c")
        for k, v in s["options"].items()
    }
    out.add(f"bucket={s['options'].get('bucket')}"[:9])
    for f in s["fields"]:
        text = f["type"] if isinstance(f["type"], str) else json.dumps(f["type"])
        where = "key " if f["name"] in s["primary_keys"] else "part " if f["name"] in s["partition_keys"] else ""
        out |= {where + t for t in re.findall(r"[A-Z][A-Z_]+(?:\(\d+(?:, ?\d+)?\))?", text) if t != "NULL"}
    for o in history["ops"]:
        out.add(f"op {o['op']} {o.get('compact', '')} {bool(o.get('branch'))}")
        out |= {f"change {c['change']}" for c in o.get("changes", [])}
    out |= {f"filter {c[1]}" for f in history["views"]["filters"] for c in f["filter"]}
    names = [p.name.split(".")[1] for p in (made / "expected").glob(f"{history['table']}.*")]
    producer, engine = (s["options"].get(k, "") for k in ("changelog-producer", "merge-engine"))
    out |= {f"view {re.sub('[0-9]+', 'N', n)}" for n in names} | {f"pair {producer} {engine} {bool(s['primary_keys'])}"}
    return {f"{s['options'].get('file.format')} {x}" if "TIMESTAMP" in x or "DECIMAL" in x else x for x in out}


def weight(made: Path, table: str) -> int:
    """Bytes after compression, about."""
    paths = [*(made / "expected").glob(f"{table}.*"), *(made / "warehouse" / "fuzz.db" / table).rglob("*")]
    paths.append(made / "history" / f"{table}.json")
    return len(lzma.compress(b"".join(p.read_bytes() for p in sorted(paths) if p.is_file()), preset=1))


def main() -> None:
    count, sets = int(sys.argv[1]), [Path(p) for p in sys.argv[2:]]
    found = {}
    for made in sets:
        for path in sorted((made / "history").glob("*.json")):
            history = json.loads(path.read_text())
            if not history.get("refused"):
                found[made, path.stem] = features(made, history), weight(made, path.stem)
    seen: set[str] = set()
    chosen = []
    while len(chosen) < count:
        best = max(found, key=lambda k: (len(found[k][0] - seen) + 0.2) / (found[k][1] + 20_000))
        seen |= found[best][0]
        chosen.append((best, found.pop(best)[1]))
    print(f"{len(seen)} features, {sum(w for _, w in chosen):,} bytes", file=sys.stderr)
    for made in sets:
        print(made, ",".join(sorted(t for (m, t), _ in chosen if m == made)))


if __name__ == "__main__":
    main()
