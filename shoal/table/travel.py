# SPDX-License-Identifier: Apache-2.0
"""Which snapshot a batch read sees, from the `scan.*` options or the arguments of `Table.scan`.

Agrees with: CoreOptions.startupMode, SchemaValidation.validateStartupMode, TimeTravelUtil, AbstractDataTableScan and
the Static, Compacted and FileCreationTime starting scanners (2.0.0). Invariant: a read that names its snapshot (id,
tag, version, time, watermark) has the columns of that snapshot; one that looks for it by another rule has today's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, cast

from shoal.clock import Clock
from shoal.errors import BadRequest, NotFound, near
from shoal.format.snapshot import BATCH_IDENTIFIER, Snapshot
from shoal.options import Options
from shoal.table.history import History, decoupled
from shoal.table.partition_choice import choice_of, visible
from shoal.table.postponed import refuse as refuse_postponed
from shoal.table.refs import branch, branch_of, find_tag, tag, tag_names
from shoal.table.scan import Scan
from shoal.table.selected import Selected

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.table import Table

Time = int | str | datetime

SNAPSHOT, TAG, VERSION, WATERMARK = "scan.snapshot-id", "scan.tag-name", "scan.version", "scan.watermark"
TEXT, MILLIS = "scan.timestamp", "scan.timestamp-millis"
FILES_SINCE, CREATED_SINCE = "scan.file-creation-time-millis", "scan.creation-time-millis"
BETWEEN, BETWEEN_TIMES, TO_AUTO_TAG = "incremental-between", "incremental-between-timestamp", "incremental-to-auto-tag"

# What each mode needs: one of these keys. Other modes take none of them.
_NEEDS: dict[str, tuple[str, ...]] = {
    "from-timestamp": (MILLIS, TEXT),
    "from-snapshot": (SNAPSHOT, TAG, WATERMARK, VERSION),
    "from-snapshot-full": (SNAPSHOT,),
    "from-file-creation-time": (FILES_SINCE,),
    "from-creation-timestamp": (CREATED_SINCE,),
    "incremental": (BETWEEN, BETWEEN_TIMES, TO_AUTO_TAG),
}
POSITIONS = tuple(key for keys in _NEEDS.values() for key in keys)
# Options that pick what is read; a branch that stands in for another is read with the same ones.
_READ_KEYS = (
    *dict.fromkeys(POSITIONS), "scan.mode", "incremental-between-scan-mode", "incremental-between-tag-to-snapshot",
)  # fmt: skip


def start_mode(options: Options) -> str:
    """The `scan.mode` that counts: `default` follows the other options. Contradicting options are refused."""
    mode = options.scan_mode
    given = [k for k in dict.fromkeys(POSITIONS) if options.is_set(k)]
    if mode == "default":
        mode = next((m for m, keys in _NEEDS.items() if m != "from-snapshot-full" and set(keys) & set(given)), "full")
    if mode == "full":
        mode = "latest-full"
    needs = _NEEDS.get(mode, ())
    stray = [k for k in given if k not in needs]
    if stray:
        raise BadRequest(
            f"'{stray[0]}' cannot be set when a read starts with mode '{mode}'"
            + (f", which goes by '{given[0]}'" if given[0] in needs else ""),
            hint="give one way to say where the read starts: " + ", ".join(needs or ("leave it out",)),
        )
    if needs and len(given) != 1:
        found = " and ".join(f"'{k}'" for k in given) or "none"
        raise BadRequest(
            f"scan.mode '{mode}' needs exactly one of {', '.join(needs)}; {found} is set", hint="set one of them"
        )
    return mode


@dataclass(frozen=True, slots=True)
class View:
    """A table as a read sees it. `since_ms`: only files created at that time or later. None for an empty table."""

    table: Table
    snapshot: Snapshot | None
    since_ms: int | None = None

    def entries(self) -> pa.Table:
        """The files, before any filter."""
        entries = self.table.metadata.live(self.snapshot)
        return entries if self.since_ms is None else created_since(entries, self.since_ms, self.table.clock.zone)


def scan(
    table: Table,
    where: str | pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    *,
    snapshot: int | None = None,
    tag: str | None = None,
    version: str | None = None,
    timestamp: Time | None = None,
    watermark: int | None = None,
) -> Scan:
    """The scan of a table at the place in its history that the arguments, or else its options, say.

    With `incremental-between` and kin it is the scan of the changes, the row kind in front.
    """
    at = {SNAPSHOT: snapshot, TAG: tag, VERSION: version, MILLIS: timestamp, WATERMARK: watermark}
    table = at_place(on_branch(table), at)
    mode = start_mode(table.options)
    if mode in ("incremental", "from-file-creation-time", "from-creation-timestamp"):
        refuse_postponed(table, f"scan.mode '{mode}'")
    if branches_of_chain(table) is not None:
        from shoal.table.chain import chain

        return chain(table, mode, where, columns, limit)
    if mode == "incremental":
        from shoal.table.incremental import from_options

        return from_options(table, where, columns, limit, deletes=False)
    if table.options.get("scan.fallback-branch") or table.options.get("scan.primary-branch"):
        from shoal.table.fallback import fallback

        refuse_postponed(table, "two branches")
        return fallback(table, where, columns, limit)
    if mode in ("latest", "latest-full"):
        return Scan(table, where=where, columns=columns, limit=limit)  # what is the newest, it asks when it is read
    seen = view(table)
    if seen.since_ms is None:
        return Scan(seen.table, where=where, columns=columns, limit=limit, snapshot=seen.snapshot)
    entries, choice = seen.entries(), choice_of(seen.table)
    chosen = Selected(seen.snapshot, entries if choice is None else choice.of(entries, visible(seen.table, entries)))
    return Scan(seen.table, where=where, columns=columns, limit=limit, selected=chosen)


def branches_of_chain(table: Table) -> tuple[str, str] | None:
    """The branches of a chain table, None for others. Asks the module of chains only where the option is set."""
    if not table.options.get("chain-table.enabled"):
        return None
    from shoal.table.chain import branches_of

    return branches_of(table)


def on_branch(table: Table) -> Table:
    """The branch that the option `branch` names, read as this table would be; the table itself without it."""
    name = cast(str, table.options.get("branch"))
    if not table.options.is_set("branch") or name == branch_of(table):
        return table
    return branch(table, name).with_options({**read_options(table), "branch": name})


def at_place(table: Table, at: Mapping[str, Any]) -> Table:
    """The table with the one place that is given instead of what its options say; as it is when none is given."""
    given = {k: v for k, v in at.items() if v is not None}
    if not given:
        return table
    if len(given) > 1:
        names = [k.removeprefix("scan.").removesuffix("-id").removesuffix("-name") for k in given]
        raise BadRequest(
            f"{table.name}: {' and '.join(n.removesuffix('-millis') for n in names)} both say which snapshot to read",
            hint="give one of snapshot, tag, version, timestamp and watermark",
        )
    ((key, value),) = given.items()
    if key == MILLIS:
        value = moment(table.clock, value, "timestamp")
    kept = {k: v for k, v in table.schema.options.items() if not says_where(k)}
    return table.with_schema(replace(table.schema, options={**kept, key: str(value)}))


def says_where(key: str) -> bool:
    return key in ("scan.mode", "log.scan", "log.scan.timestamp-millis") or key in POSITIONS


def read_options(table: Table) -> dict[str, str]:
    """The options of a table that say what of it is read."""
    return {k: v for k, v in table.schema.options.items() if k in _READ_KEYS}


def view(table: Table) -> View:
    """The table, snapshot and files that a batch read with these options sees."""
    o, meta = table.options, table.metadata
    history = History(meta)
    match start_mode(o):
        case "compacted-full":
            return View(table, history.newest(compacted(o)))
        case "from-timestamp":
            return _travelled(table, _at_time(history, time_option(table)))
        case "from-snapshot":
            return _travelled(table, _named(table, history))
        case "from-snapshot-full":
            return _travelled(table, _by_id(history, cast(int, o.get(SNAPSHOT))))
        case "from-file-creation-time":
            return View(table, meta.latest(), cast(int, o.get(FILES_SINCE)))
        case "from-creation-timestamp":
            since = cast(int, o.get(CREATED_SINCE))
            start = after_creation(History(meta, decoupled(o)), since)
            return View(table, meta.latest(), since) if start is None else View(table, _by_id(history, start))
        case _:  # latest and latest-full
            return View(table, meta.latest())


def _travelled(table: Table, snap: Snapshot) -> View:
    return View(table.as_of(snap.schema_id), snap)


def _named(table: Table, history: History) -> Snapshot:
    o, meta = table.options, table.metadata
    if (name := o.get(TAG)) is not None:
        return tag(meta, cast(str, name)).snapshot
    if (watermark := o.get(WATERMARK)) is not None:
        return _at_watermark(history, cast(int, watermark))
    if (version := o.get(VERSION)) is not None:
        return _version(history, cast(str, version))
    return _by_id(history, cast(int, o.get(SNAPSHOT)))


def _version(history: History, version: str) -> Snapshot:
    """A tag, `watermark-<n>`, or a snapshot id, in this order: a tag named 5 hides snapshot 5."""
    found = find_tag(history.metadata, version)
    if found is not None:
        return found.snapshot
    mark = re.fullmatch(r"watermark-(-?\d+)", version)
    if mark:
        return _at_watermark(history, int(mark[1]))
    if re.fullmatch(r"\d+", version):
        return _by_id(history, int(version))
    hint = near(version, tag_names(history.metadata))
    raise NotFound(
        f"no version '{version}' of {history.metadata.store.uri}",
        hint=hint or "a version is a tag, a snapshot id or watermark-NUMBER",
    )


def _by_id(history: History, snapshot_id: int) -> Snapshot:
    found = history.find(snapshot_id)
    if found is not None:
        return found
    raise NotFound(f"snapshot {snapshot_id} of {history.metadata.store.uri} does not exist", hint=history.range_text())


def _at_time(history: History, time_ms: int) -> Snapshot:
    found = history.not_after(time_ms)
    if found is not None:
        return found
    first = history.first()
    raise NotFound(
        f"{history.metadata.store.uri} has no snapshot at or before {time_ms}",
        hint="the table has no snapshot yet" if first is None else f"the earliest, {first.id}, is of {first.time_ms}",
    )


def _at_watermark(history: History, watermark: int) -> Snapshot:
    found = history.reaching(watermark)
    if found is None:
        raise NotFound(
            f"{history.metadata.store.uri} has no snapshot whose watermark reached {watermark}",
            hint="wait until the writer's watermark has passed it, or name a snapshot or a time",
        )
    return found


# ---- rules shared with streams ---------------------------------------------------------------------------


def compacted(options: Options) -> Any:
    """What `compacted-full` looks for: a COMPACT snapshot, and where compactions are full ones now and then, such."""
    every = options.get("full-compaction.delta-commits")
    full = options.changelog_producer == "full-compaction" or every is not None
    step = 1 if every is None else cast(int, every)

    def wanted(snap: Snapshot) -> bool:
        i = snap.commit_identifier
        return snap.commit_kind == "COMPACT" and (not full or i % step == 0 or i == BATCH_IDENTIFIER)

    return wanted


def after_creation(history: History, since_ms: int) -> int | None:
    """The snapshot behind the last one earlier than `since_ms`; None where file times must decide."""
    first = history.first()
    if first is None or first.time_ms >= since_ms:
        return None
    before = history.before(since_ms)
    start = None if before is None else before + 1
    return start if start is not None and history.find(start) is not None else None


def created_since(entries: pa.Table, since_ms: int, zone: tzinfo) -> pa.Table:
    """Entries of files created at `since_ms` or later. Files keep the writer's local wall clock."""
    import pyarrow as pa

    def keep(local_ms: int | None) -> bool:
        if local_ms is None:
            return True
        wall = datetime.fromtimestamp(local_ms / 1000, UTC).replace(tzinfo=zone)
        return round(wall.timestamp() * 1000) >= since_ms

    # one step a file, not a row: offsets of a time zone have no vector form
    return entries.filter(pa.array([keep(v) for v in entries.column("creation_ms").to_pylist()], pa.bool_()))


def time_option(table: Table) -> int:
    """`scan.timestamp-millis`, or `scan.timestamp` in local time, as epoch milliseconds."""
    millis = table.options.get(MILLIS)
    return cast(int, millis) if millis is not None else moment(table.clock, cast(str, table.options.get(TEXT)), TEXT)


_TEXT = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?: (\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,9}))?)?")


def moment(clock: Clock, value: Time, what: str) -> int:
    """A time as epoch milliseconds: a number of them, a datetime, or `2026-11-01 12:30:00` in the clock's time zone."""
    if isinstance(value, datetime):
        at = value if value.tzinfo else value.replace(tzinfo=clock.zone)
        return round(at.timestamp() * 1000)
    if isinstance(value, int):
        return value
    m = _TEXT.fullmatch(value)
    try:
        if m is None:
            raise ValueError
        parts = [int(p or 0) for p in m.groups()[:6]]
        at = datetime(parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], tzinfo=clock.zone)
    except ValueError as err:
        raise BadRequest(
            f"{what} '{value}' is not a time", hint="write it as '2026-11-01' or '2026-11-01 12:30:00.123', local time"
        ) from err
    return round(at.timestamp()) * 1000 + int((m[7] or "")[:3].ljust(3, "0"))
