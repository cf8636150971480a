# SPDX-License-Identifier: Apache-2.0
"""Tags that make themselves: which are due is a pure decision over options, tag names, snapshots and a time zone.

Agrees with: TagAutoCreation, TagPeriodHandler, TagTimeExtractor, TagBatchCreation (2.0.0). Invariant: a period's tag is
made by the first snapshot of the next period (after the delay), once; asking again makes nothing twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from shoal.errors import BadRequest, NotFound
from shoal.format.snapshot import NO_WATERMARK, Snapshot
from shoal.options import Options

if TYPE_CHECKING:
    from shoal.table.refs import Tag
    from shoal.table.table import Table

_EPOCH = datetime(1970, 1, 1)
_MS = timedelta(milliseconds=1)
_DAY, _HOUR = timedelta(days=1), timedelta(hours=1)
_DATE = {"with_dashes": "%Y-%m-%d"}  # the other formatters write %Y%m%d
_HOURS = {"with_dashes": "%Y-%m-%d %H", "without_dashes": "%Y%m%d %H", "without_dashes_and_spaces": "%Y%m%d%H"}
_DIGITS = {"%Y": "[0-9]{4}", "%m": "[0-9]{2}", "%d": "[0-9]{2}", "%H": "[0-9]{2}", "%M": "[0-9]{2}"}


@dataclass(frozen=True, slots=True)
class Period:
    """How long one automatic tag stands for, and how its name is written."""

    length: timedelta
    form: str
    first_word: bool = False  # a day's name may be followed by a space and anything

    def name(self, time: datetime) -> str:
        # strftime's %Y does not pad years below 1000
        return time.strftime(self.form.replace("%Y", f"{time.year:04d}"))

    def time(self, name: str) -> datetime | None:
        """The time that a tag's name says, or None when it is no automatic tag's name."""
        text = name.split(" ")[0] if self.first_word else name
        pattern = re.sub("%[YmdHM]", lambda m: _DIGITS[m[0]], self.form)
        if re.fullmatch(pattern, text) is None:
            return None
        try:
            return datetime.strptime(text, self.form)
        except ValueError:
            return None

    def before(self, time: datetime) -> datetime:
        """The period before the one that `time` lies in. Periods are counted on the local clock."""
        ms, length = (time - _EPOCH) // _MS, self.length // _MS
        whole = ms // length if ms >= 0 else -(-ms // length)  # Java divides towards zero
        return _EPOCH + whole * length * _MS - self.length


@dataclass(frozen=True, slots=True)
class Policy:
    """What the options of a table say about automatic tags."""

    mode: str  # process-time or watermark
    period: Period
    zone: tzinfo
    delay: timedelta = timedelta(0)
    most: int | None = None
    completes: bool = False
    idle_timeout_ms: int | None = None

    def time_of(self, snap: Snapshot) -> datetime | None:
        """When the snapshot was, on the clock that tags follow; None for one without a watermark."""
        if self.mode == "process-time":
            return local_time(snap.time_ms, self.zone)
        return (
            None if snap.watermark is None or snap.watermark == NO_WATERMARK else local_time(snap.watermark, self.zone)
        )

    def due_at(self, time: datetime, next_tag: datetime | None) -> bool:
        return next_tag is None or time - self.delay >= next_tag + self.period.length


@dataclass(frozen=True, slots=True)
class Progress:
    """The first snapshot not looked at, and the period whose tag is next (None before the first tag)."""

    snapshot: int
    next_tag: datetime | None = None


def local_time(epoch_ms: int, zone: tzinfo) -> datetime:
    """The wall clock in a zone."""
    utc = (_EPOCH + epoch_ms * _MS).replace(tzinfo=UTC)
    return utc.astimezone(zone).replace(tzinfo=None)


# ---- options ---------------------------------------------------------------------------------------------


def policy_of(options: Options, zone: tzinfo) -> Policy | None:
    """The policy of a table, None where tags do not make themselves. `zone` is the machine's own."""
    mode = str(options.get("tag.automatic-creation"))
    if mode not in ("process-time", "watermark"):
        return None
    process = mode == "process-time"
    key = "sink.process-time-zone" if process else "sink.watermark-time-zone"
    text = cast("str | None", options.get(key))
    period, delay = period_of(options), timedelta(milliseconds=cast(int, options.get("tag.creation-delay")))
    if delay >= period.length:
        raise BadRequest(f"tag.creation-delay {delay} is not shorter than the period of the tags, {period.length}")
    return Policy(
        mode,
        period,
        zone if text is None else zone_of(text, key),
        delay,
        cast("int | None", options.get("tag.num-retained-max")),
        bool(options.get("tag.automatic-completion")),
        cast("int | None", options.get("snapshot.watermark-idle-timeout")),
    )


def automatic_period(options: Options) -> Period | None:
    """The period of a table whose tags make themselves from times."""
    return period_of(options) if options.get("tag.automatic-creation") in ("process-time", "watermark") else None


def period_of(options: Options) -> Period:
    """How often tags are made."""
    length = cast("int | None", options.get("tag.creation-period-duration"))
    if length is not None:
        if length <= 0:
            raise BadRequest("tag.creation-period-duration must be longer than 0")
        return Period(timedelta(milliseconds=length), "%Y%m%d%H%M")
    form = str(options.get("tag.period-formatter"))
    match str(options.get("tag.creation-period")):
        case "hourly":
            return Period(_HOUR, _HOURS[form])
        case "two-hours":
            return Period(2 * _HOUR, _HOURS["with_dashes"])
    return Period(_DAY, _DATE.get(form, "%Y%m%d"), first_word=True)


def zone_of(text: str, key: str) -> tzinfo:
    """A time zone as Java's ZoneId writes it: a region, `Z`, or an offset such as `+08:00`, `GMT+8`, `UTC+08:00`."""
    offset = re.fullmatch(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", text)
    if offset is not None:
        span = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
        if span <= timedelta(hours=18):
            return timezone(-span if offset[1] == "-" else span)
    if text in ("Z", "UTC", "GMT", "UT"):
        return UTC
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as err:
        raise BadRequest(
            f"{key} '{text}' is not a time zone", hint="write a region such as Europe/Berlin, or +02:00"
        ) from err


# ---- decisions -------------------------------------------------------------------------------------------


def newest(policy: Policy, names: Iterable[str]) -> tuple[str, datetime] | None:
    """The automatic tag of the latest period."""
    timed = [(n, t) for n in names if (t := policy.period.time(n)) is not None]
    return max(timed, key=lambda nt: nt[1], default=None)


def start(policy: Policy, names: Iterable[str], snapshot_of: Mapping[str, int], earliest: int | None) -> Progress:
    """Where to go on: after the snapshot of the newest automatic tag, else at the earliest snapshot."""
    last = newest(policy, names)
    if last is None:
        return Progress(1 if earliest is None else earliest)
    return Progress(snapshot_of[last[0]] + 1, last[1] + policy.period.length)


def step(policy: Policy, at: Progress, snap: Snapshot) -> tuple[Progress, str | None]:
    """What one more snapshot means: the new progress, and the name of the tag that is due on it."""
    at = replace(at, snapshot=snap.id + 1)
    time = policy.time_of(snap)
    if time is None or not policy.due_at(time, at.next_tag):
        return at, None
    this = policy.period.before(time)
    if policy.completes and at.next_tag is not None:
        this = at.next_tag  # the oldest that is missing; the next snapshot makes the one after it
    return replace(at, next_tag=this + policy.period.length), policy.period.name(this)


def surplus(policy: Policy, tags: Iterable[tuple[str, int]]) -> list[str]:
    """The oldest automatic tags beyond `tag.num-retained-max`. `tags` are (name, snapshot id)."""
    by_snapshot: dict[int, list[str]] = {}
    for name, snapshot in tags:
        if policy.period.time(name) is not None:
            by_snapshot.setdefault(snapshot, []).append(name)
    if policy.most is None:
        return []
    out = []
    for snapshot in sorted(by_snapshot)[: max(0, len(by_snapshot) - policy.most)]:
        names = by_snapshot[snapshot]
        if len(names) > 1:
            raise BadRequest(
                f"snapshot {snapshot} has more than one automatic tag: {', '.join(names)}",
                hint="rename or delete all but one of them",
            )
        out += names
    return out


def needs_snapshot(policy: Policy, at: Progress, latest: Snapshot | None, now_ms: int) -> bool:
    """Whether an idle writer should commit an empty snapshot so that a tag can be made."""
    if policy.mode == "process-time":
        return policy.due_at(local_time(now_ms, policy.zone), at.next_tag)
    if policy.idle_timeout_ms is None or latest is None or latest.watermark is None:
        return False
    return now_ms - policy.idle_timeout_ms >= latest.watermark


def batch_surplus(tags: Sequence[tuple[str, int, int]], most: int) -> list[str]:
    """Tags of any kind beyond `most`, oldest snapshots first, then oldest files: (name, snapshot id, file time)."""
    ordered = sorted(tags, key=lambda t: (t[1], t[2]))
    return [t[0] for t in ordered[: max(0, len(ordered) - most)]]


# ---- effects ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AutoTags:
    """Names of the tags that were made and deleted."""

    created: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    def __str__(self) -> str:
        made = f"made {', '.join(self.created)}" if self.created else "no tag is due"
        return made + (f", deleted {', '.join(self.deleted)}" if self.deleted else "")

    def to_dict(self) -> dict[str, object]:
        return {"created": list(self.created), "deleted": list(self.deleted)}


def progress(table: Table, policy: Policy) -> Progress:
    """Where the table's automatic tags have come; only the newest of them is read."""
    from shoal.table.expire_guard import memory_of, names_in
    from shoal.table.refs import root_of, tag

    # a listing that leaves out the newest would make tags of old snapshots, in whose place others would go
    memory = memory_of(table.metadata.cache, root_of(table.store).uri)
    names = [n.removeprefix("tag-") for n in names_in(table.store, "tag", "tag-", memory)]
    last = newest(policy, names)
    known = {} if last is None else {last[0]: tag(table.metadata, last[0]).snapshot.id}
    return start(policy, names, known, table.metadata.earliest_id())


def make_due_tags(
    table: Table, at: Progress | None = None, newest: int | None = None, *, drop: bool = True
) -> tuple[AutoTags, Progress | None]:
    """Make the tags that are due on the snapshots since `at`, and `drop` those beyond `tag.num-retained-max`.

    A committer knows its `newest` snapshot: no call is spent to find out that there is no newer one. Returns what was
    done and where to go on, so that a writer need not read the tags at each commit. Nothing where the table has no
    automatic tags.
    """
    from shoal.table.tags import create_tag

    policy = policy_of(table.options, table.clock.zone)
    if policy is None:
        return AutoTags(), None
    meta = table.metadata
    at = progress(table, policy) if at is None else at
    created: list[str] = []
    deleted: list[str] = []
    while newest is None or at.snapshot <= newest:
        try:
            snap = meta.snapshot(at.snapshot)
        except NotFound:
            earliest = meta.earliest_id()
            if earliest is None or earliest <= at.snapshot:
                return AutoTags(tuple(created), tuple(deleted)), at
            at = replace(at, snapshot=earliest)  # expired before it was looked at
            continue
        then, name = step(policy, at, snap)
        if name is not None:
            create_tag(table, name, snapshot=snap.id, ignore_if_exists=True)
            created.append(name)
            deleted += drop_surplus(table, policy) if drop else ()
        at = then
    return AutoTags(tuple(created), tuple(deleted)), at


def drop_surplus(table: Table, policy: Policy) -> tuple[str, ...]:
    """Delete the oldest automatic tags beyond `tag.num-retained-max`; returns their names."""
    from shoal.table.tag_files import all_tags
    from shoal.table.tags import delete_tag

    there = [] if policy.most is None else [(t.name, t.snapshot.id) for t in all_tags(table)]
    return tuple(n for n in surplus(policy, there) if delete_tag(table, n))


def make_batch_tag(table: Table) -> AutoTags:
    """`tag.automatic-creation = batch`: tag the newest snapshot once a batch has ended, and drop the oldest tags.

    A tag of the same name moves to the new snapshot in one write; what its old snapshot alone held is deleted then.
    """
    from shoal.table.refs import find_tag
    from shoal.table.tag_files import Freed, all_tags, freed_by
    from shoal.table.tags import check_name, delete_tag, put_tag

    if table.options.get("tag.automatic-creation") != "batch":
        return AutoTags()
    meta = table.metadata
    snap = meta.latest()
    if snap is None:
        return AutoTags()
    name = batch_name(table, snap)
    check_name(name)
    old: Tag | None = find_tag(meta, name)
    freed = Freed() if old is None else freed_by(table, old)
    put_tag(table, name, snap)
    freed.delete(table.store)
    most = cast("int | None", table.options.get("tag.num-retained-max"))
    if most is None:
        return AutoTags((name,))
    modified = {i.path.rpartition("/tag-")[2]: i.modified_ms for i in table.store.list("tag")}
    there = [(t.name, t.snapshot.id, modified.get(t.name, 0)) for t in all_tags(table)]
    beyond = batch_surplus(there, most)
    return AutoTags((name,), tuple(n for n in beyond if delete_tag(table, n)))


def batch_name(table: Table, snap: Snapshot) -> str:
    """The name of a batch's tag: `tag.batch.customized-name`, else the day of the snapshot."""
    named = table.options.get("tag.batch.customized-name")
    if named is not None:
        return str(named)
    text = cast("str | None", table.options.get("sink.process-time-zone"))
    zone = table.clock.zone if text is None else zone_of(text, "sink.process-time-zone")
    return f"batch-write-{local_time(snap.time_ms, zone):%Y-%m-%d}"
