# SPDX-License-Identifier: Apache-2.0
"""Where a stream read begins: with the state of a snapshot, or with the changes of one.

Agrees with: AbstractDataTableScan.createStartingScanner and the Continuous starting scanners (2.0.0). Invariant: an
explicit place of the caller (`start=5`, a consumer's progress) is kept to or refused; `scan.snapshot-id` and times,
as in Java, begin with the oldest there is when they lie before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, cast

from shoal.errors import BadRequest, NotFound
from shoal.format.snapshot import Snapshot
from shoal.table.history import History
from shoal.table.travel import (
    CREATED_SINCE,
    FILES_SINCE,
    SNAPSHOT,
    after_creation,
    compacted,
    created_since,
    moment,
    start_mode,
    time_option,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

_MODES = ("latest-full", "latest", "compacted-full", "earliest")


@dataclass(frozen=True, slots=True)
class Position:
    """The first thing to read: all `entries` of `snapshot` if it is given, then the changes from `next_id` on."""

    next_id: int
    snapshot: Snapshot | None = None
    entries: pa.Table | None = None


class Start:
    """How a reader begins. `position` is asked until the table has what it needs."""

    def __init__(
        self,
        table: Table,
        history: History,
        start: int | str | datetime | None,
        progress: int | None,
        consumer: str | None = None,
    ) -> None:
        self._consumer = consumer
        self._table = table
        self._history = history
        self._explicit: int | None = progress
        self._mode = "explicit"
        if progress is not None:
            return
        if isinstance(start, int):
            self._explicit = start
        elif isinstance(start, datetime):
            self._mode, self._time = "from-timestamp", moment(table.clock, start, "start")
        elif start is not None:
            if start not in _MODES:
                raise BadRequest(
                    f"start='{start}' is no place in a stream",
                    hint=f"give a snapshot id, a datetime, or one of {', '.join(_MODES)}",
                )
            self._mode = start
        else:
            self._mode = start_mode(table.options)
            self._check_mode()
            if self._mode == "from-timestamp":
                self._time = time_option(table)
        self._empty_at_start = self._mode == "latest" and table.metadata.latest_id() is None

    def _check_mode(self) -> None:
        o = self._table.options
        if self._mode == "incremental":
            raise BadRequest(
                f"{self._table.name}: an incremental read has an end, a stream has none",
                hint="read it with changes() or scan(), or follow from the start with until= for the end",
            )
        if self._mode == "from-snapshot" and not o.is_set(SNAPSHOT):
            raise BadRequest(
                f"{self._table.name}: a stream cannot start from a tag or a watermark",
                hint="start from a snapshot id or a time; a tag's snapshot id is in the system table tags",
            )

    def position(self) -> Position | None:
        """Where to begin; None as long as the table has no snapshot to tell it by."""
        meta, history, o = self._table.metadata, self._history, self._table.options
        match self._mode:
            case "explicit":
                return self._at(cast(int, self._explicit))
            case "latest":
                latest = meta.latest_id()
                return None if latest is None else Position(1 if self._empty_at_start else latest + 1)
            case "earliest":
                earliest = history.earliest()
                return None if earliest is None else Position(earliest)
            case "from-timestamp":
                before = history.before(self._time)
                return None if before is None else Position(before + 1)
            case "from-snapshot":
                earliest = history.earliest()
                return None if earliest is None else Position(max(cast(int, o.get(SNAPSHOT)), earliest))
            case "from-snapshot-full":
                earliest = meta.earliest_id()
                wanted = cast(int, o.get(SNAPSHOT))
                return None if earliest is None else self._full(meta.snapshot(max(wanted, earliest)))
            case "from-creation-timestamp":
                start = after_creation(history, cast(int, o.get(CREATED_SINCE)))
                return self._full(meta.latest(), CREATED_SINCE) if start is None else Position(start)
            case "from-file-creation-time":
                return self._full(meta.latest(), FILES_SINCE)
            case "compacted-full":
                return self._full(history.newest(compacted(o)))
            case _:  # latest-full
                return self._full(meta.latest())

    def _at(self, wanted: int) -> Position:
        if wanted < 1:
            raise BadRequest(f"{self._table.name}: there is no snapshot {wanted}", hint="snapshots count from 1")
        earliest = self._history.earliest()
        if earliest is not None and wanted < earliest:
            raise expired(self._table, self._history, wanted, self._consumer)
        return Position(wanted)

    def _full(self, snap: Snapshot | None, since: str | None = None) -> Position | None:
        if snap is None:
            return None
        entries = self._table.metadata.live(snap)
        if since is not None:
            entries = created_since(entries, cast(int, self._table.options.get(since)), self._table.clock.zone)
        return Position(snap.id + 1, snap, entries)


def expired(table: Table, history: History, wanted: int, consumer: str | None) -> NotFound:
    """A snapshot that a reader still needed is gone."""
    earliest = history.earliest()
    prevent = "name a consumer, whose snapshots are kept, or keep them longer"
    if consumer is not None:
        # its progress would lead here again
        prevent = f"keep them longer; with consumer '{consumer}' also set 'consumer.ignore-progress' once"
    return NotFound(
        f"{table.name}: snapshot {wanted} has expired before it was read"
        + ("" if earliest is None else f"; the earliest that is left is {earliest}"),
        hint=f"start again with a full read (start='latest-full') or with start={earliest}, which leaves out what is "
        f"gone; to prevent it, {prevent} (snapshot.time-retained, changelog.time-retained)",
    )
