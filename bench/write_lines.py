# SPDX-License-Identifier: Apache-2.0
"""W1 the write path, W2 the bucket hash, C1 small commits, K1 full compaction, K2 changelogs by lookup."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import rows, tables
from bench.context import Context
from bench.measure import Case, Figure, alternate, ratio_figure, timed
from shoal.format.hashing import buckets
from shoal.table.table import Table

_BUCKETS = 8
# Columns of many values lose by a dictionary: with a small one PyArrow itself writes such rows twice as fast.
_TUNED = {"dictionary_pagesize_limit": 1 << 15, "data_page_size": 1 << 16}


# ---- W1


def upserts(ctx: Context) -> Iterator[Figure]:
    """W1: batches of 65,536 rows to level-0 files of 8 buckets, with the commit.

    The limit is `pq.write_table` of the rows that ended up in those files, all their columns, at the same compression
    and PyArrow's defaults; `x_tuned` is against the same with a small dictionary. Goals are set for one buffer that
    holds everything; the default budget flushes more often and folds less.
    """
    for kind in ctx.kinds:
        batches = list(rows.upserts(kind, ctx.rows))
        for what, memory in (("one flush", 4 << 30), ("256 MB budget", 256 << 20)):
            best, files = _upserts(ctx, kind, batches, memory)
            rate, tuned = ctx.rows / best["shoal"], best["shoal"] / best.pop("tuned")
            yield ratio_figure(
                "W1", f"{kind}, {what}", best, 2.5, 1.6, x_tuned=tuned, files=files, rows_a_second=rate
            )  # fmt: skip
            if "rust" in best:
                x = best["rust"] / best["shoal"]
                yield Figure("W1", f"{kind}, {what}", x, "x rust", 1.0, 1.0, higher_is_better=True)


def _upserts(ctx: Context, kind: str, batches: Sequence[pa.RecordBatch], memory: int) -> tuple[dict[str, float], int]:
    """CPU seconds of the cases, and the number of files that shoal wrote."""
    names = (f"write_{i}" for i in itertools.count())

    def write() -> Table:
        return _write(ctx.root, next(names), kind, batches, memory)

    final = [pq.read_table(f) for f in tables.data_files(write())]
    whole = memory > 256 << 20
    cases = {
        "limit": timed(lambda: _write_raw(ctx, final)),
        "tuned": timed(lambda: _write_raw(ctx, final, **_TUNED)),
        "shoal": timed(write, before=lambda: _forget(ctx.root, "write_")),
        "rust": ctx.peer("write", kind=kind, count=ctx.rows, buckets=_BUCKETS, native=True) if whole else None,
    }
    best = alternate(cases, ctx.repeat)
    _forget(ctx.root, "write_")
    return best, len(final)


def _write(root: str, name: str, kind: str, batches: Sequence[pa.RecordBatch], memory: int) -> Table:
    options = {"bucket": _BUCKETS, "write-buffer-size": "2 gb" if memory > 1 << 30 else "256 mb"}
    table = tables.create(root, name, kind, memory=memory, **options)
    with table.write() as w:
        for b in batches:
            w.upsert(b)
        w.commit()
    return table


def _write_raw(ctx: Context, final: Sequence[pa.Table], **settings: int) -> None:
    for t in final:
        pq.write_table(t, f"{ctx.root}/raw.parquet", compression="zstd", compression_level=1, **settings)


def _forget(root: str, prefix: str) -> None:
    folder = f"{root}/{tables.DATABASE}.db"
    for name in os.listdir(folder):
        if name.startswith(prefix):
            shutil.rmtree(f"{folder}/{name}")


# ---- W2


def hashes(ctx: Context) -> Iterator[Figure]:
    """W2: million rows a second of one core, keys to buckets and nothing else."""
    for kind in ctx.kinds:
        schema = tables.create(ctx.root, f"hash_{kind}", kind, bucket=_BUCKETS).schema
        fields = [schema.field(k) for k in rows.key_names(kind)]
        data = pa.Table.from_batches(rows.upserts(kind, ctx.rows)).combine_chunks()
        columns = [data.column(f.name).chunk(0) for f in fields]
        types = [f.type for f in fields]
        best = alternate({"shoal": timed(lambda c=columns, t=types: buckets(c, t, _BUCKETS))}, ctx.repeat + 4)
        millions = ctx.rows / best["shoal"] / 1e6
        yield Figure("W2", kind, millions, "M rows/s", 10, 20, higher_is_better=True, shoal=best["shoal"])


# ---- C1


def commits(ctx: Context) -> Iterator[Figure]:
    """C1: 100 rows written and committed, CPU milliseconds, from commit 20 on and up to the last.

    The least of 60 commits from there (two rounds of manifest merging), their median beside it; one writer with
    checkpoints, and a new writer for every commit. The limit is the same files written by hand without thinking.
    """
    last = 300 if ctx.quick else 2_000
    batches = list(rows.upserts("bigint", 100 * last, batch=100))
    limit, _ = _window(_times(_by_hand(ctx, batches), 100), 40)
    peers = {}
    if ctx.peers:
        for name, native in (("pypaimon", False), ("rust", True)):
            peers[name] = _window(ctx.peers.commits(ctx.root, 80, native), 20)[0] * 1e3
    for what, one in (("one writer", _one_writer(ctx, batches)), ("a new writer each", _new_writers(ctx, batches))):
        times = _times(one, last)
        early, early_median = _window(times, 20)
        late, late_median = _window(times, last - 60)
        more = {"median_ms": early_median * 1e3}
        yield Figure("C1", f"{what}, commit 20", early * 1e3, "ms", 8, 3, False, early, limit, peers, more)
        more = {"late_ms": late * 1e3, "late_median_ms": late_median * 1e3}
        yield Figure("C1", f"{what}, commit {last:,} against 20", late / early, "x", 1.2, 1.05, detail=more)


def _times(one: Callable[[int], None], count: int) -> list[float]:
    out = []
    for i in range(count):
        start = time.process_time()
        one(i)
        out.append(time.process_time() - start)
    return out


def _window(times: Sequence[float], start: int) -> tuple[float, float]:
    """The least and the median of 60 times."""
    some = times[start : start + 60]
    return min(some), median(some)


def _one_writer(ctx: Context, batches: Sequence[pa.RecordBatch]) -> Callable[[int], None]:
    writer = tables.create(ctx.root, f"commits_{uuid.uuid4().hex}", "bigint", bucket=1).write("bench")

    def one(i: int) -> None:
        writer.upsert(batches[i])
        writer.commit(checkpoint=i)

    return one


def _new_writers(ctx: Context, batches: Sequence[pa.RecordBatch]) -> Callable[[int], None]:
    table = tables.create(ctx.root, f"commits_{uuid.uuid4().hex}", "bigint", bucket=1)

    def one(i: int) -> None:
        with table.write() as w:
            w.upsert(batches[i])
            w.commit()

    return one


def _by_hand(ctx: Context, batches: Sequence[pa.RecordBatch]) -> Callable[[int], None]:
    """Data file, manifest, two lists, snapshot and hint, with the bytes of a real commit."""
    table = tables.create(ctx.root, f"commits_{uuid.uuid4().hex}", "bigint", bucket=1)
    with table.write() as w:
        w.upsert(batches[0])
        w.commit()
    source = f"{ctx.root}/{tables.DATABASE}.db/{table.name.split('.')[1]}"
    blobs = [_bytes(f"{source}/manifest/{name}") for name in os.listdir(f"{source}/manifest")]
    snapshot = _bytes(f"{source}/snapshot/snapshot-1")
    data = pq.read_table(tables.data_files(table)[0])
    folder = f"{ctx.root}/by_hand_{uuid.uuid4().hex}"
    os.makedirs(folder)

    def put(name: str, content: bytes) -> None:
        with open(f"{folder}/{name}", "wb") as f:
            f.write(content)

    def one(i: int) -> None:
        pq.write_table(data, f"{folder}/data-{uuid.uuid4()}.parquet", compression="zstd", compression_level=1)
        for blob in blobs:
            put(str(uuid.uuid4()), blob)
        put("tmp", snapshot)
        os.link(f"{folder}/tmp", f"{folder}/snapshot-{i}")
        os.unlink(f"{folder}/tmp")
        put("LATEST", str(i).encode())

    return one


def _bytes(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()


# ---- K1


def compaction(ctx: Context) -> Iterator[Figure]:
    """K1: full compaction of one bucket of 10 runs.

    The limit reads the runs (all columns, since all are written again) and writes the merged rows; `x_tuned` as in W1.
    """
    for kind in ctx.kinds:
        best = alternate(_compactions(ctx, kind), ctx.repeat)
        tuned, rate = best["shoal"] / best.pop("tuned"), ctx.rows / best["shoal"]
        yield ratio_figure("K1", f"{kind} R=10", best, 2.0, 1.4, x_tuned=tuned, rows_a_second=rate)


def _compactions(ctx: Context, kind: str) -> dict[str, Case | None]:
    source = tables.merge_table(ctx.root, kind, ctx.rows, 10)
    files = tables.data_files(tables.open_table(ctx.root, source))
    folder = f"{ctx.root}/{tables.DATABASE}.db"

    def fresh() -> None:
        shutil.rmtree(f"{folder}/compact", ignore_errors=True)
        shutil.copytree(f"{folder}/{source}", f"{folder}/compact", copy_function=os.link)

    def compact() -> None:
        tables.open_table(ctx.root, "compact").maintain.compact(full=True)

    fresh()
    compact()
    final = [pq.read_table(f) for f in tables.data_files(tables.open_table(ctx.root, "compact"))]

    def raw(**settings: int) -> None:
        for f in files:
            pq.read_table(f)
        _write_raw(ctx, final, **settings)

    return {
        "limit": timed(raw),
        "tuned": timed(lambda: raw(**_TUNED)),
        "shoal": timed(compact, before=fresh),
    }


# ---- K2


def lookups(ctx: Context) -> Iterator[Figure]:
    """K2: checkpoints of 10,000 changed rows on a bucket of a million, with a changelog by lookup.

    The limit is the same checkpoints without one. Both count until the writer is closed, all threads: compactions
    beside the writer are in, and the first lookup, which lays the bucket down on local disk. The two take turns on the
    same files and rows; the figure is the median of the rounds' ratios, with the least and the greatest of them.
    """
    bucket, count = (100_000, 8) if ctx.quick else (1_000_000, 30)
    for kind in ctx.kinds:
        rng = np.random.default_rng(7)
        whole = rows.table(kind, rng.permutation(bucket), rng)
        plain = _whole_bucket(ctx, kind, whole, {})
        looking = _whole_bucket(ctx, kind, whole, {"changelog-producer": "lookup"})
        size = bucket // 100
        batches = [rows.table(kind, rng.choice(bucket, size, replace=False), rng) for _ in range(count)]
        each = 1e6 / (size * count)
        rounds = [(_checkpoints(ctx, plain, batches) * each, _checkpoints(ctx, looking, batches) * each)
                  for _ in range(ctx.repeat)]  # fmt: skip
        ratios = [looked / limit for limit, looked in rounds]
        detail = {"least": min(ratios), "greatest": max(ratios), "rounds": len(ratios)}
        limit, looked = (median(c) * 1e-6 for c in zip(*rounds))
        yield Figure("K2", kind, median(ratios), "x limit", 4.0, 2.0, False, looked, limit, detail=detail)
        _forget(ctx.root, "lookup_")


def _whole_bucket(ctx: Context, kind: str, whole: pa.Table, options: dict[str, str]) -> str:
    """Name of a table whose one bucket was compacted in full."""
    name = f"lookup_{uuid.uuid4().hex}"
    table = tables.create(ctx.root, name, kind, bucket=1, **{"write-only": "false", **options})
    with table.write("bench") as w:
        w.upsert(whole)
        w.commit(checkpoint=1)
    table.maintain.compact(full=True)
    return name


def _checkpoints(ctx: Context, source: str, batches: Sequence[pa.Table]) -> float:
    """CPU seconds of a commit of each batch, on the files of a table, which stays as it is."""
    folder = f"{ctx.root}/{tables.DATABASE}.db"
    shutil.copytree(f"{folder}/{source}", f"{folder}/lookup_round", copy_function=os.link)
    table = tables.open_table(ctx.root, "lookup_round")
    gc.collect()
    start = time.process_time()
    with table.write("bench") as w:
        for i, b in enumerate(batches):
            w.upsert(b)
            w.commit(checkpoint=i + 2)
    taken = time.process_time() - start
    shutil.rmtree(f"{folder}/lookup_round")
    return taken
