# SPDX-License-Identifier: Apache-2.0
"""A process that compacts a table again and again until its input ends (used by test_processes); prints what it did."""

from __future__ import annotations

import sys
import threading

import shoal


def main(warehouse: str, table: str, options: dict[str, str]) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    compacted = lost = 0
    print("ready", flush=True)
    while not ended.is_set():
        try:
            done = shoal.open(warehouse, **options).table(table).maintain.compact(full=(compacted + lost) % 3 == 0)
            compacted += done.snapshot is not None
        except shoal.Conflict:
            lost += 1
    print(compacted, lost)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], dict(a.split("=", 1) for a in sys.argv[3:]))
