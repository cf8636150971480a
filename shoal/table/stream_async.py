# SPDX-License-Identifier: Apache-2.0
"""`follow` for asyncio: the same reader, its work on a thread, its waits on the loop.

Invariant: a batch is asked for only when the caller awaits the next one, so progress means the same as in `follow`; a
task that is cancelled leaves no thread waiting for data.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from shoal.table.stream import Changes, Follow

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from shoal.table.table import Table


async def follow_async(
    table: Table,
    *,
    start: int | str | datetime | None = None,
    consumer: str | None = None,
    where: str | pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    until: int | str | None = None,
    buckets: Sequence[int] | tuple[int, int] | None = None,
    poll: float | None = None,
) -> AsyncIterator[Changes]:
    """The changes of a table as they come, for `async for`. The arguments are those of `follow`."""

    def reader() -> Follow:
        return Follow(
            table, start=start, consumer=consumer, where=where, columns=columns, until=until, buckets=buckets, poll=poll
        )

    changes = await asyncio.to_thread(reader)
    try:
        while not changes.ended:
            found = await asyncio.to_thread(changes.poll)
            if found is not None:
                yield found
            elif not changes.ended:
                await asyncio.to_thread(changes.rest)
    finally:
        changes.close()
