# SPDX-License-Identifier: Apache-2.0
"""`python -m bench [LINE ...]`: measure the lines, one JSON object a figure, then the table of goals.

Exit status 1 when a `must` is missed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import doctor_lines, memory_lines, plan_lines, read_lines, rows, start_lines, write_lines
from bench.context import Context
from bench.measure import Figure
from bench.peers import find_peers
from bench.report import goal_table

LINES: dict[str, tuple[str, Callable[[Context], Iterator[Figure]]]] = {
    "R1": ("merge read, deduplicate, R ≤ 10", read_lines.merge),
    "R2": ("the same, R = 30", read_lines.many_runs),
    "R3": ("partial-update, sequence groups, aggregation, R = 10", read_lines.engines),
    "R4": ("memory above imports, R = 10 / 30", memory_lines.memory),
    "R5": ("tables without overlap (compacted, append)", read_lines.plain),
    "R6": ("the same with deletion vectors on 10 % of the rows", read_lines.deleted),
    "P1": ("plan, 20 k entries in 20 and in 2,000 manifests", plan_lines.plan),
    "P2": ("plan of 1 M entries, a partition filter that keeps 0.1 %", plan_lines.filtered),
    "P3": ("point lookup by key, 100 files", plan_lines.points),
    "W1": ("upserts through buffer, hash, sort, fold, files", write_lines.upserts),
    "W2": ("bucket hash alone", write_lines.hashes),
    "W3": ("memory of a 5 M-row commit above imports", memory_lines.commit_memory),
    "C1": ("100-row write and commit", write_lines.commits),
    "K1": ("full compaction of one bucket, R = 10", write_lines.compaction),
    "K2": ("10 k-row checkpoints on a 1 M-row bucket, changelog by lookup", write_lines.lookups),
    "D1": ("doctor sample, per new snapshot, table of any size", doctor_lines.looks),
    "T1": ("process start to end", start_lines.start),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="dev/bench", description=__doc__)
    parser.add_argument("lines", nargs="*", metavar="LINE", help=f"of {', '.join(LINES)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="200,000 rows and fewer rounds")
    parser.add_argument("--rows", type=int, help="rows of the tables (2,000,000)")
    parser.add_argument("--repeat", type=int, help="rounds (5)")
    parser.add_argument("--keys", default=",".join(rows.KINDS), help="key types: bigint,string,composite")
    parser.add_argument("--rust-tables", action="store_true", help="R1 also on tables that the peers' Rust writer made")
    parser.add_argument("--root", help="keep the tables in this folder (a temporary one by default)")
    a = parser.parse_args()
    unknown = [line for line in a.lines if line not in LINES]
    if unknown:
        parser.error(f"no line {unknown[0]}; there are {', '.join(LINES)}")
    root = a.root or tempfile.mkdtemp(prefix="shoal-bench-")
    peers = find_peers()
    count = a.rows or (200_000 if a.quick else 2_000_000)
    repeat = a.repeat or (3 if a.quick else 5)
    kinds = tuple(a.keys.split(","))
    ctx = Context(str(Path(root).resolve()), count, repeat, a.quick, kinds, peers, a.rust_tables)
    figures: list[Figure] = []
    try:
        for line in a.lines or LINES:
            started = time.monotonic()
            for figure in LINES[line][1](ctx):
                print(figure.to_json(), flush=True)
                figures.append(figure)
            print(f"{line}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    finally:
        if peers:
            peers.close()
        if not a.root:
            shutil.rmtree(root, ignore_errors=True)
    print(f"\n{count:,} rows, least of {repeat} rounds, " + (f"peers {peers.versions}" if peers else "no peers"))
    print(goal_table(figures, {line: title for line, (title, _) in LINES.items()}))
    return 0 if all(f.ok for f in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
