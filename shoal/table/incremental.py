# SPDX-License-Identifier: Apache-2.0
"""What changed between two places in a table's history, as one batch read.

Agrees with: AbstractDataTableScan.createIncrementalStartingScanner, IncrementalDeltaStartingScanner,
IncrementalDiffStartingScanner, TagPeriodHandler (2.0.0). Invariant: the start is left out, the end is taken; `delta`
and `changelog` give rows as the commits wrote them, `diff` one row for each key that differs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from shoal.errors import BadRequest, NotFound, Unsupported
from shoal.format.datafile import ADD
from shoal.format.snapshot import Snapshot
from shoal.lsm.merge import KIND
from shoal.options import Options
from shoal.table.history import History, changelog_entries, delta_entries
from shoal.table.metadata import live_entries
from shoal.table.partition_choice import choice_of
from shoal.table.refs import Tag, find_tag, tag_names, tags
from shoal.table.scan import Scan
from shoal.table.selected import Selected
from shoal.table.travel import BETWEEN, BETWEEN_TIMES, TO_AUTO_TAG, moment, on_branch

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.table import Table

MODES = ("auto", "delta", "changelog", "diff")
_SCAN_MODE, _TAG_TO_SNAPSHOT = "incremental-between-scan-mode", "incremental-between-tag-to-snapshot"

Place = int | str | datetime


def changes(
    table: Table,
    start: Place,
    end: Place,
    *,
    mode: str | None = None,
    where: str | pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    deletes: bool = True,
) -> Scan:
    """The rows that changed after `start` up to and with `end`, the row kind in front as `_VALUE_KIND`.

    A place is a snapshot id, a tag, or a datetime. `deletes` only matters for `diff`, which Java's plain read gives
    without the rows of keys that are gone.
    """
    if mode is not None and mode not in MODES:
        raise BadRequest(f"mode '{mode}' is not one of {', '.join(MODES)}", hint="auto takes the changelog if any")
    table = on_branch(table)
    read = _Read(table, where, columns, deletes)
    if isinstance(start, datetime) or isinstance(end, datetime):
        times = [moment(table.clock, p, "a time") if isinstance(p, datetime) else None for p in (start, end)]
        if times[0] is None or times[1] is None:
            raise BadRequest(f"{table.name}: changes between a time and {end!r}", hint="give two times")
        return _between_times(read, times[0], times[1], mode or "auto")
    return _between(read, str(start), str(end), mode)


def from_options(
    table: Table,
    where: str | pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    *,
    deletes: bool = True,
) -> Scan:
    """The changes that `incremental-between`, `incremental-between-timestamp` or `incremental-to-auto-tag` ask for.

    The row kind comes in front, unless columns are named and `_VALUE_KIND` is not the first of them.
    """
    kinds = columns is None or KIND in columns[:1]
    columns = None if columns is None else [c for c in columns if not kinds or c != KIND]
    o, read = table.options, _Read(table, where, columns, deletes, kinds, limit)
    mode = cast(str, o.get(_SCAN_MODE))
    if o.is_set(BETWEEN):
        start, end = _pair(BETWEEN, cast(str, o.get(BETWEEN)))
        return _between(read, start, end, mode if o.is_set(_SCAN_MODE) else None, o)
    if o.is_set(BETWEEN_TIMES):
        texts = _pair(BETWEEN_TIMES, cast(str, o.get(BETWEEN_TIMES)))
        numbers = all(re.fullmatch(r"[+-]?\d+", t) for t in texts)
        a, b = (int(t) if numbers else moment(table.clock, t, BETWEEN_TIMES) for t in texts)
        return _between_times(read, a, b, mode)
    return _to_auto_tag(read, cast(str, o.get(TO_AUTO_TAG)))


def _pair(key: str, text: str) -> tuple[str, str]:
    parts = text.split(",")
    if len(parts) != 2:
        raise BadRequest(f"'{key}' = '{text}' needs a start and an end", hint=f"write it as '{key}' = '5,10'")
    return parts[0], parts[1]


class _Read:
    """What is asked of the changes, whatever range they are of."""

    def __init__(
        self,
        table: Table,
        where: str | pc.Expression | None,
        columns: Sequence[str] | None,
        deletes: bool,
        kinds: bool = True,
        limit: int | None = None,
    ) -> None:
        self.table = table
        self.deletes = deletes
        self.rows: dict[str, Any] = {"where": where, "columns": columns, "kinds": kinds, "limit": limit}
        self.history = History(table.metadata)

    def raw(self, entries: pa.Table) -> Scan:
        import pyarrow.compute as pc

        if self.table.primary_key:
            # what lies in the postponed bucket comes when a compaction moves it
            entries = entries.filter(pc.greater_equal(entries.column("bucket"), 0))
        choice = choice_of(self.table)
        entries = entries if choice is None else choice.of(entries)
        chosen = Selected(None, entries, merge=False, deletes=True)
        return Scan(self.table, selected=chosen, **self.rows)

    def nothing(self) -> Scan:
        return self.raw(live_entries([]))

    def diff(self, start: Snapshot, end: Snapshot) -> Scan:
        from shoal.table.diff import Diff, changed

        if self.table.data_evolution:
            # new files hold the changed columns only: rows with the others null are in neither state (Java fails here)
            raise Unsupported(
                f"{self.table.name}: a diff of a table with data evolution cannot be read",
                hint="mode='delta' gives the columns that each commit wrote; or scan both snapshots and compare",
            )
        _same_buckets(self.table, start, end)
        if not self.table.primary_key:
            # without a key nothing tells which row became which: rows of files that the start did not have yet
            added = changed(self.table.metadata.live(start), self.table.metadata.live(end))[1]
            choice = choice_of(self.table)
            chosen = Selected(end, added if choice is None else choice.of(added))
            return Scan(self.table, selected=chosen, **self.rows)
        return Diff(self.table, start, end, deletes=self.deletes, **self.rows)

    def files(self, start: int, end: int, mode: str) -> Scan:
        """The delta or changelog files of the snapshots after `start` up to `end`."""
        meta = self.table.metadata
        if mode == "auto":
            mode = "delta" if self.table.options.changelog_producer == "none" else "changelog"
        parts = []
        for i in range(start + 1, end + 1):
            snap = meta.snapshot(i)
            if mode == "changelog" and snap.commit_kind != "OVERWRITE":
                parts.append(changelog_entries(meta, snap))
            elif mode == "delta" and snap.commit_kind == "APPEND":
                parts.append(_only_adds(self.table, snap, delta_entries(meta, snap)))
        if not parts:
            return self.nothing()
        import pyarrow as pa

        return self.raw(pa.concat_tables(parts))


def _only_adds(table: Table, snap: Snapshot, entries: pa.Table) -> pa.Table:
    import pyarrow.compute as pc

    if entries.num_rows and pc.any(pc.not_equal(entries.column("kind"), ADD)).as_py():
        raise Unsupported(
            f"snapshot {snap.id} of {table.name} takes files away, so its delta is no list of new rows",
            hint="compare the states instead: mode='diff'",
        )
    return entries


def _between(read: _Read, start: str, end: str, mode: str | None, options: Options | None = None) -> Scan:
    meta = read.table.metadata
    a, b = find_tag(meta, start), find_tag(meta, end)
    if a is not None and b is not None:
        by_files = mode not in (None, "diff") if options is None else bool(options.get(_TAG_TO_SNAPSHOT))
        return _between_tags(read, a, b, (mode or "auto") if by_files else "diff")
    try:
        first, last = int(start), int(end)
    except ValueError as err:
        unknown = next(t for t, found in ((start, a), (end, b)) if found is None)
        raise NotFound(
            f"{read.table.name}: '{start}' and '{end}' are neither two tags nor two snapshot ids",
            hint=f"tags: {', '.join(tag_names(meta)) or 'none'}; '{unknown}' is not among them",
        ) from err
    if last < first:
        raise BadRequest(f"{read.table.name}: changes end at snapshot {last}, before their start {first}")
    ids = meta.snapshot_ids()
    if not ids or first == last:
        return read.nothing()
    if mode == "diff":
        return read.diff(meta.snapshot(first), meta.snapshot(last))
    _check_range(read, first, last, ids)
    return read.files(first, last, mode or "auto")


def _check_range(read: _Read, first: int, last: int, ids: Sequence[int]) -> None:
    # the start itself is not read, so it may be the snapshot before the oldest
    if first < ids[0] - 1 or last > ids[-1]:
        raise NotFound(
            f"{read.table.name}: changes after snapshot {first} up to {last} are not all there",
            hint=f"snapshots {ids[0]} to {ids[-1]} are there, so a start of {ids[0] - 1} or later works",
        )


def _between_tags(read: _Read, a: Tag, b: Tag, mode: str) -> Scan:
    first, last = a.snapshot, b.snapshot
    if last.id < first.id:
        raise BadRequest(
            f"{read.table.name}: tag '{b.name}' is of snapshot {last.id}, before tag '{a.name}' of {first.id}",
            hint="give the older tag first",
        )
    if first.id == last.id:
        return read.nothing()
    if mode == "diff":
        return read.diff(first, last)
    ids = read.table.metadata.snapshot_ids()
    if not ids:
        return read.nothing()
    _check_range(read, first.id, last.id, ids)
    return read.files(first.id, last.id, mode)


def _between_times(read: _Read, start: int, end: int, mode: str) -> Scan:
    if end < start:
        raise BadRequest(f"{read.table.name}: changes end at {end}, before their start {start}")
    history = read.history
    earliest, latest = history.first(), read.table.metadata.latest()
    if earliest is None or latest is None or start == end or start > latest.time_ms or end < earliest.time_ms:
        return read.nothing()
    a, b = history.not_after(start), history.not_after(end) or latest
    if mode == "diff":
        return read.diff(a or earliest, b)
    return read.files(earliest.id - 1 if a is None else a.id, b.id, mode)


def _same_buckets(table: Table, start: Snapshot, end: Snapshot) -> None:
    """A key must lie in the same bucket on both sides."""
    if start.schema_id == end.schema_id:
        return
    a, b = (Options(table.metadata.schema(s.schema_id).options, strict=False).bucket for s in (start, end))
    if a != b:
        raise Unsupported(
            f"{table.name}: snapshot {start.id} has {a} buckets and snapshot {end.id} has {b}",
            hint="a diff needs the same number of buckets on both sides: diff up to the rescale, and from it on",
        )


# ---- automatic tags --------------------------------------------------------------------------------------


def _to_auto_tag(read: _Read, name: str) -> Scan:
    """The diff from the newest earlier automatic tag; empty when there is none, or `name` does not exist."""
    o, meta = read.table.options, read.table.metadata
    end_time = auto_tag_time(o, name)
    if end_time is None:
        raise BadRequest(
            f"{read.table.name}: '{name}' is not the name of an automatic tag",
            hint="it must fit 'tag.creation-period' and 'tag.period-formatter'",
        )
    end = find_tag(meta, name)
    timed = [(at, t) for t in tags(meta) if (at := auto_tag_time(o, t.name)) is not None and at < end_time]
    if end is None or not timed:
        return read.nothing()
    start = max(timed, key=lambda p: p[0])[1]
    return read.diff(start.snapshot, end.snapshot)


_DASHES = {"daily": r"(\d{4})-(\d\d)-(\d\d)", "hourly": r"(\d{4})-(\d\d)-(\d\d) (\d\d)"}
_PLAIN = {"daily": r"(\d{4})(\d\d)(\d\d)", "hourly": r"(\d{4})(\d\d)(\d\d) (\d\d)"}
_PACKED = {"daily": r"(\d{4})(\d\d)(\d\d)", "hourly": r"(\d{4})(\d\d)(\d\d)(\d\d)"}
_BY_MINUTE = r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)"


def auto_tag_time(options: Options, name: str) -> datetime | None:
    """The time that an automatic tag's name says, by the table's tag options; None for any other name."""
    period = cast(str, options.get("tag.creation-period"))
    style = cast(str, options.get("tag.period-formatter"))
    if options.get("tag.creation-period-duration") is not None:
        pattern = _BY_MINUTE
    elif period == "two-hours":
        pattern = _DASHES["hourly"]
    else:
        forms = {"with_dashes": _DASHES, "without_dashes": _PLAIN, "without_dashes_and_spaces": _PACKED}[style]
        pattern = forms[period]
        name = name.split(" ")[0] if period == "daily" else name
    m = re.fullmatch(pattern, name)
    if m is None:
        return None
    parts = [int(p) for p in m.groups()]
    try:
        hour, minute = (*parts[3:], 0, 0)[:2]
        return datetime(parts[0], parts[1], parts[2], hour, minute)
    except ValueError:
        return None
