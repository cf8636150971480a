# SPDX-License-Identifier: Apache-2.0
"""`partition.end-input-to-done`: a batch marks the partitions it wrote with a file, for schedulers that wait for it.

Agrees with: PartitionMarkDoneListener, SuccessFileMarkDoneAction (2.0.0). Invariant: a partition is marked after the
commit that wrote it; where it was marked before, the file keeps the time of the first mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.errors import NotFound, Unsupported
from shoal.format import jackson

if TYPE_CHECKING:
    from shoal.options import Options
    from shoal.store.base import Store
    from shoal.table.table import Table

SUCCESS = "_SUCCESS"
_AT_END, _ACTION, _CLOCK = (
    "partition.end-input-to-done",
    "partition.mark-done-action",
    "partition.mark-done-action.mode",
)


def marks_done(options: Options) -> bool:
    """Whether batches mark their partitions; `Unsupported` for other ways than a file, or by watermarks."""
    if not options.get(_AT_END):
        return False
    actions = [a.strip() for a in str(options.get(_ACTION)).split(",")]
    if actions != ["success-file"]:
        raise Unsupported(
            f"{_ACTION} '{options.get(_ACTION)}' is not supported with {_AT_END}",
            hint=f"take success-file, or leave {_AT_END} out",
        )
    if str(options.get(_CLOCK)) != "process-time":
        raise Unsupported(f"{_CLOCK} '{options.get(_CLOCK)}' is not supported with {_AT_END}", hint="take process-time")
    return True


def mark_done(table: Table, changed: Mapping[bytes, bool]) -> tuple[str, ...]:
    """Mark the partitions that a batch wrote; returns their names. `changed` is False for compactions alone.

    As Java: where rows can be read only after a compaction, one counts as well.
    """
    o = table.options
    late = bool(table.primary_key) and (o.deletion_vectors or o.merge_engine == "first-row" or o.bucket == -2)
    names = sorted({table.partition_path(p) for p, rows in changed.items() if rows or late})
    for name in names:
        write_success(table.store, f"{name}{SUCCESS}", table.clock.now_ms())
    return tuple(n.rstrip("/") for n in names)


def write_success(store: Store, path: str, now_ms: int) -> None:
    """The file that Java reads as SuccessFile: when it was first written, and last."""
    created: jackson.Json = now_ms
    try:
        created = jackson.loads(store.read(path), path).get("creationTime", now_ms)
    except NotFound:
        pass
    store.put(path, jackson.dumps({"creationTime": created, "modificationTime": now_ms}).encode())
