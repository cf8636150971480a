"""One of several processes that commit to the same table at once (used by test_processes)."""

from __future__ import annotations

import sys
import time

import shoal
from shoal.table.table import Table


def compacted(table: Table, seen: int) -> int:
    """Wait for a compaction after snapshot `seen`; the newest snapshot then."""
    while True:
        newest = table.metadata.latest_id() or 0
        if any(table.metadata.snapshot(i).commit_kind == "COMPACT" for i in range(seen + 1, newest + 1)):
            return newest
        time.sleep(0.05)


def main(warehouse: str, table: str, number: int, commits: int, options: dict[str, str]) -> None:
    every = int(options.pop("every", "0"))  # so many commits at most without a compaction, however slow others are
    t = shoal.open(warehouse, **options).table(table)
    seen = 0
    with t.write(commit_user=f"writer-{number}") as w:
        for c in range(commits):
            rows = [{"id": number * 1000 + c, "v": c}]
            if t.primary_key:
                w.upsert(rows)
            else:
                w.append(rows)
            w.commit(checkpoint=c + 1)
            if every and (c + 1) % every == 0:
                seen = compacted(t, seen)


if __name__ == "__main__":
    pairs = dict(a.split("=", 1) for a in sys.argv[5:])
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), pairs)
