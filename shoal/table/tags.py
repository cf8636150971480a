# SPDX-License-Identifier: Apache-2.0
"""Making, renaming and deleting tags.

Agrees with: TagManager, Tag, TagTimeExpire, SuccessFileTagCallback, AbstractFileStoreTable.createTag (2.0.0).
Invariant: a tag is one file that appears whole; deleting a tag removes that file first and its data files after, so a
crash leaves the tag readable or gone, and at worst files that orphan cleaning takes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, cast

from shoal.clock import local_ms
from shoal.errors import BadRequest, NotFound, StorageFailed
from shoal.format import jackson, paths
from shoal.format.snapshot import NO_WATERMARK, Snapshot
from shoal.table.auto_tags import automatic_period
from shoal.table.expire_guard import TagTimes, memory_of
from shoal.table.history import History
from shoal.table.partition_done import write_success
from shoal.table.refs import Tag, decode_tag, find_tag, root_of, tag, tag_names, tag_path, tags
from shoal.table.tag_files import Freed, freed_by

if TYPE_CHECKING:
    from shoal.table.table import Table

Retain = int | None | Literal["default"]
_RENAMED = "renamedFrom"
_SUCCESS = f"{paths.TAG}/tag-success-file"
# How often a committer looks for tags of others, and reads those again that it knows.
_LOOK_MS, _READ_MS = 60_000, 3_600_000


# ---- the file --------------------------------------------------------------------------------------------


def encode_tag(snapshot: Snapshot, created_local_ms: int | None = None, retained_ms: int | None = None) -> bytes:
    """A tag's file: the snapshot's, and with a retention the local time it was made and how long it stays."""
    data = snapshot.encode()
    if retained_ms is None or created_local_ms is None:
        return data
    made = datetime(1970, 1, 1) + timedelta(milliseconds=created_local_ms)
    time = [made.year, made.month, made.day, made.hour, made.minute]
    if made.second or made.microsecond:
        time.append(made.second)
    if made.microsecond:
        time.append(made.microsecond * 1000)
    # Java prints a Duration as a decimal of nine digits, which no float can carry
    seconds = "0.0" if retained_ms == 0 else f"{retained_ms // 1000}.{retained_ms % 1000:03d}000000"
    return _with_field(_with_field(data, "tagCreateTime", jackson.dumps(time)), "tagTimeRetained", seconds)


def _with_field(data: bytes, name: str, value: str) -> bytes:
    return data.removesuffix(b"\n}") + f',\n  "{name}" : {value}\n}}'.encode()


# ---- verbs -----------------------------------------------------------------------------------------------


def create_tag(
    table: Table, name: str, *, snapshot: int | None = None, timestamp_ms: int | None = None,
    watermark: int | None = None, retain_ms: Retain = "default", ignore_if_exists: bool = False,
) -> Tag:  # fmt: skip
    """Name a snapshot: the newest, the one with this id (tags know expired ones too), or the first that is as late as
    `timestamp_ms` (its commit) or `watermark`.

    The tag stays for `retain_ms`, or for ever with None; by default `tag.default-time-retained` tells.
    """
    check_name(name)
    there = find_tag(table.metadata, name)
    if there is None:
        chosen = _chosen(table, snapshot, timestamp_ms, watermark)
        _not_tagged_already(table, name, chosen)
        data = _encoded(table, chosen, retain_ms)
        if _created(table, name, data):
            _mark_success(table, name)
            return decode_tag(name, data, tag_path(name))
        there = tag(table.metadata, name)  # made by somebody else meanwhile
    if ignore_if_exists:
        return there
    raise BadRequest(
        f"{table.name}: tag '{name}' already exists, of snapshot {there.snapshot.id}",
        hint="take another name, replace the tag, or pass ignore_if_exists=True",
    )


def _created(table: Table, name: str, data: bytes) -> bool:
    """Create the file; an answer that did not come is settled by reading it back."""
    try:
        return table.store.create(tag_path(name), data)
    except StorageFailed as err:
        if err.definite or _bytes(table, name) != data:
            raise
        return True


def replace_tag(table: Table, name: str, *, snapshot: int | None = None, retain_ms: Retain = "default") -> Tag:
    """Let an existing tag name another snapshot: the newest, or the one with this id."""
    check_name(name)
    tag(table.metadata, name)
    chosen = _chosen(table, snapshot)
    _not_tagged_already(table, name, chosen)
    return put_tag(table, name, chosen, retain_ms)


def put_tag(table: Table, name: str, snapshot: Snapshot, retain_ms: Retain = "default") -> Tag:
    """Write the tag's file whatever is there."""
    data = _encoded(table, snapshot, retain_ms)
    table.store.put(tag_path(name), data)
    return decode_tag(name, data, tag_path(name))


def rename_tag(table: Table, name: str, new: str) -> Tag:
    """Give a tag another name. A store has no rename: the new file says where it comes from until the old one is gone,
    so that a rename that was cut off can be done again."""
    check_name(name)
    check_name(new)
    store = table.store
    old, target = _bytes(table, name), _bytes(table, new)
    if target is not None and jackson.loads(target, tag_path(new)).get(_RENAMED) != name:
        if old is None:
            tag(table.metadata, name)
        raise BadRequest(f"{table.name}: tag '{new}' already exists", hint="delete it first, or take another name")
    if target is None:
        if old is None:
            tag(table.metadata, name)
        assert old is not None
        target = _with_field(old, _RENAMED, jackson.dumps(name))
        store.put(tag_path(new), target)
    store.delete(tag_path(name))
    whole = target.replace(f',\n  "{_RENAMED}" : {jackson.dumps(name)}'.encode(), b"")
    store.put(tag_path(new), whole)
    return decode_tag(new, whole, tag_path(new))


def delete_tag(table: Table, name: str, *, keep_files: bool = False) -> bool:
    """Delete a tag, and the files that nothing else holds. False when there is no such tag, which is no error.

    When it cannot be told which files are in use, nothing is deleted; `keep_files` leaves them to orphan cleaning.
    """
    check_name(name)
    found = find_tag(table.metadata, name)
    if found is None:
        return False
    freed = Freed() if keep_files else freed_by(table, found)
    table.store.delete(tag_path(name))
    _unmark_success(table, name)
    freed.delete(table.store)
    return True


def expire_tags(table: Table, *, older_than: datetime | None = None) -> list[str]:
    """Delete tags whose retention has passed, and those made before `older_than`; returns their names.

    A tag without a retention has no time of its own: for `older_than` its file's time counts. A time without a zone
    is the local wall clock.
    """
    now = table.local_now_ms()
    limit = None if older_than is None else _local_time(table, older_than)
    modified: dict[str, int] = {}
    if limit is not None:
        modified = {i.path: i.modified_ms for i in table.store.list(paths.TAG)}
    due = []
    for t in tags(table.metadata):
        created, end = t.created, _end_ms(t)
        if end is None:
            if limit is None or (changed := modified.get(tag_path(t.name))) is None:
                continue
            created = _local(table, changed)
        assert created is not None
        if (end is not None and now > end) or (limit is not None and limit > created):
            due.append(t.name)
    return [n for n in due if delete_tag(table, n)]


def _end_ms(t: Tag) -> int | None:
    """The local time at which a tag has been retained long enough, or None for one that stays."""
    if t.created is None or t.retained_ms is None:
        return None
    return (t.created - datetime(1970, 1, 1)) // timedelta(milliseconds=1) + t.retained_ms


def expire_tags_when_due(table: Table) -> tuple[str, ...]:
    """Delete tags whose retention has passed, as a committer does it after each commit.

    Names are listed once a minute and only new tags are read, all of them once an hour; nothing is asked in between
    unless a known tag is due.
    """
    meta, now, local = table.metadata, table.clock.now_ms(), table.local_now_ms()
    memory = memory_of(meta.cache, root_of(table.store).uri).tags
    seen = memory.get(meta.store.uri)
    ends: dict[str, int | None] = {} if seen is None else dict(seen.ends)
    fresh = seen is not None and 0 <= now - seen.looked_ms < _LOOK_MS
    if fresh and not any(e is not None and local > e for e in ends.values()):
        return ()
    again = seen is None or not 0 <= now - seen.read_ms < _READ_MS
    known = {} if again else ends
    names = tag_names(meta)
    found = {n: find_tag(meta, n) for n in names if n not in known}
    ends = {n: known[n] if n in known else None if (t := found[n]) is None else _end_ms(t) for n in names}
    gone = []
    for name in [n for n, e in ends.items() if e is not None and local > e]:
        t = find_tag(meta, name)  # as it is now: it may have been replaced
        ends[name] = end = None if t is None else _end_ms(t)
        if end is not None and local > end and delete_tag(table, name):
            gone.append(name)
            del ends[name]
    memory[meta.store.uri] = TagTimes(now, now if again or seen is None else seen.read_ms, ends)
    return tuple(gone)


# ---- which snapshot --------------------------------------------------------------------------------------


def find_snapshot(table: Table, snapshot_id: int) -> Snapshot | None:
    """A snapshot by id, or what a tag keeps of it."""
    try:
        return table.metadata.snapshot(snapshot_id)
    except NotFound:
        kept = (t.snapshot for t in tags(table.metadata) if t.snapshot.id == snapshot_id)
        return next(kept, None)


def _chosen(
    table: Table, snapshot: int | None, timestamp_ms: int | None = None, watermark: int | None = None
) -> Snapshot:
    if sum(v is not None for v in (snapshot, timestamp_ms, watermark)) > 1:
        raise BadRequest("a tag names one snapshot", hint="give one of snapshot, timestamp_ms and watermark")
    if snapshot is not None:
        found = find_snapshot(table, snapshot)
        if found is None:
            history = History(table.metadata)
            raise NotFound(f"{table.name}: snapshot {snapshot} does not exist", hint=history.range_text())
        return found
    if timestamp_ms is not None:
        found = _first_since(table, timestamp_ms)
        what = f"was committed at {timestamp_ms} or later"
    elif watermark is not None:
        found = _first_reaching(table, watermark)
        what = f"has watermark {watermark} or later"
    else:
        found = table.metadata.latest()
        what = "is there to be tagged"
    if found is None:
        raise NotFound(f"{table.name}: no snapshot {what}", hint=History(table.metadata).range_text())
    return found


def _first_since(table: Table, time_ms: int) -> Snapshot | None:
    """The first snapshot, or tag of an expired one, committed at `time_ms` or later."""
    history = History(table.metadata)
    before = history.before(time_ms)
    found = None if before is None else history.find(before + 1)
    kept = next((t.snapshot for t in tags(table.metadata) if t.snapshot.time_ms >= time_ms), None)
    return kept if kept is not None and (found is None or kept.time_ms < found.time_ms) else found


def _first_reaching(table: Table, watermark: int) -> Snapshot | None:
    found = History(table.metadata).reaching(watermark)
    for t in tags(table.metadata):
        mark = t.snapshot.watermark
        if mark is not None and mark >= watermark:
            known = NO_WATERMARK if found is None or found.watermark is None else found.watermark
            return t.snapshot if found is None or found.watermark is None or mark < known else found
    return found


# ---- checks and times ------------------------------------------------------------------------------------


def check_name(name: str) -> None:
    """`BadRequest` for a name that no tag can have."""
    if not name.strip():
        raise BadRequest("a tag's name cannot be blank", hint="give the tag a name")
    if any(c in name for c in "/\\\0"):
        raise BadRequest(f"'{name}' cannot be a tag name", hint="take a name without slashes")


def _not_tagged_already(table: Table, name: str, snapshot: Snapshot) -> None:
    """A name that looks like an automatic tag's is refused for a snapshot that has an automatic tag."""
    period = automatic_period(table.options)
    if period is None or period.time(name) is None:
        return
    same = [t.name for t in tags(table.metadata) if t.snapshot.id == snapshot.id]
    if automatic := [n for n in same if period.time(n) is not None]:
        raise BadRequest(
            f"{table.name}: snapshot {snapshot.id} is already auto-tagged with {', '.join(automatic)}",
            hint=f"'{name}' looks like an automatic tag; take another name",
        )


def _encoded(table: Table, snapshot: Snapshot, retain_ms: Retain) -> bytes:
    kept = cast("int | None", table.options.get("tag.default-time-retained")) if retain_ms == "default" else retain_ms
    if kept is not None and kept < 0:
        raise BadRequest(f"a tag cannot be retained for {kept} ms", hint="give a time of 0 ms or more")
    return encode_tag(snapshot, local_ms(table.clock, table.clock.now_ms()), kept)


def _bytes(table: Table, name: str) -> bytes | None:
    try:
        return table.store.read(tag_path(name))
    except NotFound:
        return None


def _local(table: Table, epoch_ms: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(milliseconds=local_ms(table.clock, epoch_ms))


def _local_time(table: Table, time: datetime) -> datetime:
    return time if time.tzinfo is None else time.astimezone(table.clock.zone or UTC).replace(tzinfo=None)


# ---- success files ---------------------------------------------------------------------------------------


def _mark_success(table: Table, name: str) -> None:
    """`tag.create-success-file`: a file that says when the tag was made, for schedulers that wait for it."""
    if not table.options.get("tag.create-success-file"):
        return
    write_success(table.store, f"{_SUCCESS}/{name}_SUCCESS", table.clock.now_ms())


def _unmark_success(table: Table, name: str) -> None:
    if table.options.get("tag.create-success-file"):
        table.store.delete(f"{_SUCCESS}/{name}_SUCCESS")
