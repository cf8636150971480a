# SPDX-License-Identifier: Apache-2.0
"""shoal: a complete Apache Paimon engine in Python, and the doctor that keeps its tables healthy.

import shoal

lake = shoal.open("/data/warehouse")
orders = lake.table("shop.orders")
orders.scan(where="dt = '2026-11-01'", columns=["id", "total"]).to_arrow()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.errors import (
    BadRequest,
    CommitUnknown,
    Conflict,
    Corrupt,
    Fenced,
    MissingExtra,
    NotFound,
    ShoalError,
    StorageFailed,
    Unsupported,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from shoal.catalog.filesystem import Lake
    from shoal.clock import Clock, ManualClock, ManualScheduler, Scheduler, SystemClock, ThreadScheduler
    from shoal.metrics import Registry
    from shoal.table.scan import Scan
    from shoal.table.staged import Committed
    from shoal.table.stream import Changes, Follow
    from shoal.table.table import Table
    from shoal.table.write import Write

__version__ = "0.1.0"

__all__ = [
    "BadRequest", "Changes", "Clock", "CommitUnknown", "Committed", "Conflict", "Corrupt", "Fenced", "Follow", "Lake",
    "ManualClock", "ManualScheduler", "MissingExtra", "NotFound", "Scan", "Scheduler", "ShoalError", "StorageFailed",
    "SystemClock", "Table", "ThreadScheduler", "Unsupported", "Write", "open",
]  # fmt: skip

_LAZY = {
    "Lake": "shoal.catalog.filesystem",
    "Table": "shoal.table.table",
    "Scan": "shoal.table.scan",
    "Changes": "shoal.table.stream",
    "Follow": "shoal.table.stream",
    "Write": "shoal.table.write",
    "Committed": "shoal.table.staged",
    **dict.fromkeys(
        ("Clock", "ManualClock", "ManualScheduler", "Scheduler", "SystemClock", "ThreadScheduler"), "shoal.clock"
    ),
}


def __getattr__(name: str) -> Any:
    # what a name needs (pyarrow, threads) is imported when it is used
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'shoal' has no attribute '{name}'")


def open(  # noqa: A001  the name users type: shoal.open(...)
    warehouse: str,
    *,
    clock: Clock | None = None,
    scheduler: Callable[[], Scheduler] | None = None,
    memory: int = 256 << 20,
    rng: random.Random | None = None,
    wide_timestamps: bool = False,
    metrics: Registry | None = None,
    **options: str,
) -> Lake:
    """A lake over a warehouse folder: a path, `file:`, `s3://bucket/prefix` or `memory:name`.

    `memory` is the budget of each reader and writer in bytes. With `wide_timestamps`, TIMESTAMP(7) to (9) columns are
    read as decimal128(21, 9), seconds since 1970, since Arrow's nanoseconds hold the years 1677 to 2262 only.
    Several lakes with one registry of `metrics` count together.
    Other options go to the store, with `_` for `-` and `.` (`s3_endpoint=`, `s3_access_key=`), or as a dict:
    `shoal.open(uri, **{"s3.endpoint": ...})`.
    """
    from shoal.catalog.filesystem import Lake
    from shoal.store.uri import open_store

    return Lake(
        open_store(warehouse, options), clock=clock, scheduler=scheduler, memory=memory, rng=rng,
        wide_timestamps=wide_timestamps, store_options=options,
    )  # fmt: skip
