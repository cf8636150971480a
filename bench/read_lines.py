# SPDX-License-Identifier: Apache-2.0
"""R1 to R3 merge reads, R5 and R6 reads without overlap: CPU against PyArrow reading the same bytes.

The limit is `pq.read_table` of every data file, one after the other, of the columns that any reader of the table must
decode: the table's own, and for keyed tables the row kind that marks deletes. `x_all_columns` in the output is the
same read of every column in the files (`_KEY_` copies and sequence numbers too), for comparison with other benches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow.parquet as pq

from bench import tables
from bench.context import Context
from bench.measure import Case, Figure, alternate, ratio_figure, timed
from shoal.table.table import Table


def merge(ctx: Context) -> Iterator[Figure]:
    """R1: deduplicate, R = 2, 5, 10; at least 1.3 times as fast as the Rust reader."""
    for kind in ctx.kinds:
        for runs in (2, 5, 10):
            for writer in [None, ctx.peers] if ctx.rust_tables and ctx.peers else [None]:
                name = tables.merge_table(ctx.root, kind, ctx.rows, runs, writer)
                best = alternate(_cases(ctx, name, keyed=True), ctx.repeat)
                case = f"{kind} R={runs}" + (", files of the Rust writer" if writer else "")
                yield _figure("R1", case, best, 1.6, 1.25)
                if "rust" in best:
                    x = best["rust"] / best["shoal"]
                    yield Figure("R1", case, x, "x rust", 1.3, 1.3, higher_is_better=True)
                yield from _pypaimon(ctx, kind, runs)


def many_runs(ctx: Context) -> Iterator[Figure]:
    """R2: deduplicate, R = 30."""
    for kind in ctx.kinds:
        name = tables.merge_table(ctx.root, kind, ctx.rows, 30)
        yield _figure("R2", f"{kind} R=30", alternate(_cases(ctx, name, keyed=True), ctx.repeat), 1.9, 1.4)


def engines(ctx: Context) -> Iterator[Figure]:
    """R3: partial-update, sequence groups and aggregation, R = 10; at least twice as fast as the Rust reader."""
    for kind in ctx.kinds:
        for engine in tables.ENGINES:
            name = tables.engine_table(ctx.root, kind, ctx.rows, 10, engine)
            best = alternate(_cases(ctx, name, keyed=True), ctx.repeat)
            yield _figure("R3", f"{engine}, {kind} R=10", best, 2.2, 1.6)
            if "rust" in best:
                x = best["rust"] / best["shoal"]
                yield Figure("R3", f"{engine}, {kind} R=10", x, "x rust", 2, 2, higher_is_better=True)


def _pypaimon(ctx: Context, kind: str, runs: int) -> Iterator[Figure]:
    """pypaimon's own merge takes half a minute, so it is measured once, on a small table."""
    if runs != 5 or kind != "bigint" or ctx.peers is None:
        return
    name = tables.merge_table(ctx.root, kind, 200_000, runs)
    best = alternate({**_cases(ctx, name, keyed=True), "pypaimon": ctx.peer("read", name=name, native=False)}, 1)
    yield _figure("R1", f"{kind} R={runs}, 200,000 rows, one round", best, None, None)


def plain(ctx: Context) -> Iterator[Figure]:
    """R5: a compacted table and an append table."""
    for what, name, keyed in _without_overlap(ctx):
        best = alternate(_cases(ctx, name, keyed=keyed), ctx.repeat + 2)
        yield _figure("R5", what, best, 1.1, 1.03)


def deleted(ctx: Context) -> Iterator[Figure]:
    """R6: the same files, a tenth of whose rows deletion vectors mark."""
    for what, base, keyed in _without_overlap(ctx):
        name = tables.deleted_table(ctx.root, base)
        left = tables.counted(tables.open_table(ctx.root, name).scan().to_batches())
        every = tables.counted(tables.open_table(ctx.root, base).scan().to_batches())
        if abs(left / every - 0.9) > 0.01:
            raise SystemExit(f"R6: {left:,} of {every:,} rows are left, which is not nine tenths")
        best = alternate(_cases(ctx, name, keyed=keyed), ctx.repeat + 2)
        yield _figure("R6", what, best, 1.3, 1.1)


def _without_overlap(ctx: Context) -> list[tuple[str, str, bool]]:
    """(what, table, whether it has a key)."""
    return [
        ("compacted", tables.compacted_table(ctx.root, "bigint", ctx.rows), True),
        ("append, 4 files", tables.append_table(ctx.root, "bigint", ctx.rows, 4), False),
    ]


def _cases(ctx: Context, name: str, *, keyed: bool) -> dict[str, Case | None]:
    table = tables.open_table(ctx.root, name)
    files = tables.data_files(table)
    columns = [*table.schema.names, *(["_VALUE_KIND"] if keyed else [])]
    return {
        "limit": timed(lambda: read_raw(files, columns)),
        "all_columns": timed(lambda: read_raw(files, None)),
        "shoal": timed(lambda: read_shoal(table)),
        "rust": ctx.peer("read", name=name, native=True),
    }


def _figure(line: str, case: str, best: dict[str, float], must: float | None, goal: float | None) -> Figure:
    every = best.pop("all_columns")
    return ratio_figure(line, case, best, must, goal, x_all_columns=best["shoal"] / every)


def read_shoal(table: Table) -> int:
    return tables.counted(table.scan().to_batches())


def read_raw(files: Sequence[str], columns: list[str] | None) -> int:
    return sum(pq.read_table(f, columns=columns).num_rows for f in files)
