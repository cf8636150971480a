# SPDX-License-Identifier: Apache-2.0
"""R4, W3: memory of a merge read and of a commit above imports, in a fresh process, at a fixed budget.

Run as a module (`python -m bench.memory_lines ROOT TABLE BUDGET [ROWS]`) it is that process: it reads the table and
drops every batch, or writes so many rows in one commit, and prints the peak resident set before and after. The peak is
the kernel's own VmHWM.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import rows as made
from bench import tables
from bench.context import Context
from bench.measure import Figure
from shoal.table.table import Table


def memory(ctx: Context) -> Iterator[Figure]:
    """R4: R = 10 and 30, two sizes of table; the larger has 20 times the budget in full mode. Then an engine, and more
    runs than are merged at once."""
    # a quick run's tables are too small to judge by, so its figures are for information
    bars: list[tuple[float | None, float | None]] = [(None, None)] * 2 if ctx.quick else [(1.5, 1.0), (1.25, 1.1)]
    budget = (64 if ctx.quick else 256) << 20
    # about 105 bytes a decoded row
    large = 5 * ctx.rows if ctx.quick else 20 * budget // 105 // 1_000 * 1_000
    for runs in (10, 30):
        peaks = {}
        for count in (large // 4, large):
            name = tables.merge_table(ctx.root, "bigint", count, runs)
            seen = peak(ctx.root, name, budget)
            peaks[count] = seen["above_imports"]
            case = f"bigint R={runs}, {count:,} rows, budget {budget >> 20} MB"
            detail = {k: v / (1 << 20) if k != "rows" else v for k, v in seen.items()}
            yield Figure("R4", case, seen["above_imports"] / budget, "x budget", *bars[0], detail=detail)
        growth = peaks[large] / peaks[large // 4]
        yield Figure("R4", f"bigint R={runs}, memory of 4 times the rows", growth, "x", *bars[1])
    count = large // 4
    for what, name in (
        ("partial-update, bigint R=10", tables.engine_table(ctx.root, "bigint", count, 10, "partial-update")),
        ("bigint R=60, two passes", tables.merge_table(ctx.root, "bigint", count, 60)),
    ):
        seen = peak(ctx.root, name, budget)
        yield Figure("R4", f"{what}, {count:,} rows", seen["above_imports"] / budget, "x budget", *bars[0])


def commit_memory(ctx: Context) -> Iterator[Figure]:
    """W3: one commit of 5 million rows, with one bucket and eight, and of an append table."""
    budget, count = 256 << 20, 5 * ctx.rows if ctx.quick else 5_000_000
    bars: tuple[float | None, float | None] = (None, None) if ctx.quick else (1.5, 1.0)
    for what, keyed, buckets in (("1 bucket", True, 1), ("8 buckets", True, 8), ("append", False, -1)):
        name = f"commit_{buckets if keyed else 'append'}"
        tables.create(ctx.root, name, "bigint", keyed=keyed, bucket=buckets)
        seen = peak(ctx.root, name, budget, count)
        detail = {k: v / (1 << 20) if k != "rows" else v for k, v in seen.items()}
        case = f"bigint {what}, {count:,} rows, budget {budget >> 20} MB"
        yield Figure("W3", case, seen["above_imports"] / budget, "x budget", *bars, detail=detail)


def peak(root: str, name: str, budget: int, write: int = 0) -> dict[str, int]:
    """Bytes: `imports`, `above_imports`, and the most that Arrow had allocated; and the rows read or written."""
    command = [sys.executable, "-m", "bench.memory_lines", root, name, str(budget), str(write)]
    done = subprocess.run(
        command, cwd=Path(__file__).resolve().parent.parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the memory child failed: {done.stderr.strip()}")
    seen: dict[str, int] = json.loads(done.stdout)
    return seen


def _resident_peak() -> int:
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))


def _child(root: str, name: str, budget: int, write: int) -> None:
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet

    import shoal.table.read
    import shoal.table.scan
    import shoal.table.write  # noqa: F401

    table = tables.open_table(root, name, memory=budget)
    base = _resident_peak()
    rows = _written(table, write) if write else tables.counted(table.scan().to_batches())
    above = _resident_peak() - base
    print(
        json.dumps(
            {"imports": base, "above_imports": above, "arrow": pa.default_memory_pool().max_memory(), "rows": rows}
        )
    )


def _written(table: Table, count: int) -> int:
    with table.write() as w:
        for batch in made.upserts("bigint", count):
            w.upsert(batch) if table.primary_key else w.append(batch)
        return w.commit().rows


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
