"""One of several processes that commit to the same table at once (used by test_processes)."""

from __future__ import annotations

import sys
import time

import shoal


def main(warehouse: str, table: str, number: int, commits: int, options: dict[str, str]) -> None:
    pause = float(options.pop("pause", "0"))  # leaves others time to win a race
    t = shoal.open(warehouse, **options).table(table)
    with t.write(commit_user=f"writer-{number}") as w:
        for c in range(commits):
            rows = [{"id": number * 1000 + c, "v": c}]
            if t.primary_key:
                w.upsert(rows)
            else:
                w.append(rows)
            w.commit(checkpoint=c + 1)
            time.sleep(pause)


if __name__ == "__main__":
    pairs = dict(a.split("=", 1) for a in sys.argv[5:])
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), pairs)
