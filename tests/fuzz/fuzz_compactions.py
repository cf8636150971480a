# SPDX-License-Identifier: Apache-2.0
"""Every compaction that Java committed to a table, done again by shoal on the snapshot before it.

The state is Java's, what is compared is all that the compaction made of it: which files went away, the rows of the new
ones with their levels, kinds and sequence numbers, changelog rows in their order, deletion vectors. Nothing is
committed; the new files are deleted again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.clock import ManualScheduler
from shoal.errors import ShoalError, Unsupported
from shoal.format.datafile import ADD, DELETE, DataFile, Entry
from shoal.format.index_manifest import IndexEntry
from shoal.format.manifest import entries_of
from shoal.format.snapshot import Snapshot
from shoal.table.bucket_writer import BucketWriter, bucket_writer_of
from shoal.table.deletion_writer import read_vectors
from shoal.table.new_files import NewFiles
from shoal.table.runs import SYSTEM_FIELDS, BucketFiles
from shoal.table.table import Table

_Place = tuple[bytes, int]
_KINDS = ("+I", "-U", "+U", "-D")


@dataclass(frozen=True)
class Difference:
    snapshot: int
    place: str
    what: str
    java: str
    shoal: str

    def __str__(self) -> str:
        return f"snapshot {self.snapshot} {self.place}: {self.what}\n    java  {self.java}\n    shoal {self.shoal}"


def asked_of(history: Mapping[str, Any]) -> dict[int, str]:
    """What each commit identifier of a made table asked of compaction: none, minor, full; or that it overwrote."""
    asked = {}
    for op in history["ops"]:
        if op["op"] == "write":
            asked[op["id"]] = op.get("compact", "none")
        elif op["op"] == "compact":
            asked[op["id"]] = "full" if op.get("full") else "minor"
        elif op["op"] in ("overwrite", "rescale"):
            asked[op["id"]] = "overwrite"
    return asked


def compactions(table: Table, asked: Mapping[int, str]) -> Iterator[tuple[int, list[Difference]]]:
    """Each COMPACT snapshot that can be done again. `asked` says what a commit identifier asked for: minor or full."""
    meta = table.metadata
    ids = meta.snapshot_ids()
    for n in ids:
        snap = meta.snapshot(n)
        if snap.commit_kind != "COMPACT" or n - 1 not in ids:
            continue
        then = table.with_schema(meta.schema(snap.schema_id))
        yield n, list(_one(then, meta.snapshot(n - 1), snap, asked.get(snap.commit_identifier, "none")))


def left_alone(table: Table, history: Mapping[str, Any]) -> Iterator[tuple[int, list[Difference]]]:
    """Each bucket that a commit of Java wrote to and did not compact: shoal must not want to on files of those sizes."""
    meta = table.metadata
    alive = set(meta.snapshot_ids())
    moved = {"rollback", "fast_forward", "create_branch"} & {o["op"] for o in history["ops"]}
    if moved or table.options.write_only or table.options.bucket == -2:
        return
    for o in history["ops"]:
        made = o.get("snapshots", ())
        if o["op"] != "write" or "refused" in o or not made or not alive.issuperset(made):
            continue
        snap = meta.snapshot(made[0])
        compacted = [_by_place(_entries(table, meta.snapshot(n))) for n in made[1:]]
        then = table.with_schema(meta.schema(snap.schema_id))
        for place, entries in sorted(_by_place(_entries(table, snap)).items()):
            if any(place in c for c in compacted) or not any(e.kind == ADD for e in entries):
                continue
            writer = _writer(then, snap, place, overwrites=False)
            gone = _again(then, writer, snap, place, o.get("compact", "none"))["files that go away"]
            name = f"{table.partition_path(place[0])}bucket-{place[1]}"
            yield snap.id, [Difference(snap.id, name, "compacted", "nothing", str(gone))] if gone else []


def _one(table: Table, base: Snapshot, made: Snapshot, asked: str) -> Iterator[Difference]:
    delta = _by_place(_entries(table, made))
    for place, entries in sorted(delta.items()):
        try:
            yield from _in_bucket(table, base, made, asked, place, entries)
        except Unsupported as err:
            if "64-bit nanoseconds" not in err.message:  # no batch of Arrow holds what this table holds
                raise


def _in_bucket(
    table: Table, base: Snapshot, made: Snapshot, asked: str, place: _Place, entries: Sequence[Entry]
) -> Iterator[Difference]:
    java = _outcome(
        table, place,
        [e.file for e in entries if e.kind == DELETE], [e.file for e in entries if e.kind == ADD],
        [e.file for e in _by_place(_changelog(table, made)).get(place, ())],
        _indexes(table, made, place),
    )  # fmt: skip
    name = f"{table.partition_path(place[0])}bucket-{place[1]}"
    writer = _writer(table, base, place, overwrites=asked == "overwrite")
    try:
        ours = _again(table, writer, base, place, asked)
    except ShoalError as err:
        if "64-bit nanoseconds" in err.message:
            raise
        yield Difference(made.id, name, "refused", "", f"{type(err).__name__}: {err}")
        return
    for what, theirs in java.items():
        if theirs != ours[what]:
            yield Difference(made.id, name, what, _short(theirs, ours[what]), _short(ours[what], theirs))


def _entries(table: Table, snap: Snapshot) -> list[Entry]:
    return [e for m in table.metadata.delta(snap) for e in entries_of(_table(table, m))]


def _changelog(table: Table, snap: Snapshot) -> list[Entry]:
    return [e for m in table.metadata.changelog(snap) for e in entries_of(_table(table, m))]


def _table(table: Table, meta: Any) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches([table.metadata.entries(meta)])


def _by_place(entries: Sequence[Entry]) -> dict[_Place, list[Entry]]:
    out: dict[_Place, list[Entry]] = {}
    for e in entries:
        out.setdefault((e.partition, e.bucket), []).append(e)
    return out


def _indexes(table: Table, snap: Snapshot, place: _Place) -> list[IndexEntry]:
    if not snap.index_manifest:
        return []
    return [e for e in table.metadata.index_entries(snap.index_manifest) if (e.partition, e.bucket) == place]


def _writer(table: Table, base: Snapshot, place: _Place, *, overwrites: bool) -> BucketWriter:
    live = [e for e in entries_of(table.metadata.live(base)) if (e.partition, e.bucket) == place]
    files = [e.file for e in live]
    table = _with(table, {"write-only": "false"})
    # each level in its own format: ORC keeps no blanks of CHAR values, and a second pick goes by the size of the first
    spec = NewFiles(table).spec(*place)
    total = live[0].total_buckets if live else 1
    last = max((f.max_sequence for f in files), default=-1)
    return bucket_writer_of(
        table, *place, total, spec, files, last + 1, _indexes(table, base, place), overwrites=overwrites
    )


def _with(table: Table, options: Mapping[str, str]) -> Table:
    return table.with_schema(replace(table.schema, options={**table.schema.options, **options}))


def _again(table: Table, writer: BucketWriter, base: Snapshot, place: _Place, asked: str) -> dict[str, Any]:
    """As Java's writer goes about it: what was asked for, then whatever it would do at a commit."""
    scheduler, budget = ManualScheduler(), table.budget()
    try:
        if asked in ("minor", "full"):
            writer.trigger(scheduler, budget, full=asked == "full")
            writer.wait(scheduler)
        writer.trigger(scheduler, budget)
        writer.wait(scheduler)
        done = writer.drain()
        if done is None:
            return _outcome(table, place, [], [], [], _indexes(table, base, place))
        indexes = list(done.compact_new_indexes) or _indexes(table, base, place)
        out = _outcome(table, place, done.compact_before, done.compact_after, done.compact_changelog, indexes)
        old = {f.file_name for f in done.compact_before}
        for f in (*done.compact_after, *done.compact_changelog):
            if f.file_name not in old:
                table.store.delete(writer.at.spec.folder + f.file_name)
        return out
    finally:
        writer.abandon(scheduler)


def _outcome(
    table: Table,
    place: _Place,
    before: Sequence[DataFile],
    after: Sequence[DataFile],
    changelog: Sequence[DataFile],
    indexes: Sequence[IndexEntry],
) -> dict[str, Any]:
    old = {f.file_name for f in before}
    vectors = read_vectors(table, *place, [e for e in indexes if e.index_type == "DELETION_VECTORS"])
    written: dict[int, list[str]] = {}
    for f in after:
        if f.file_name not in old:
            written.setdefault(f.level, []).extend(_rows(table, place, f))
    told = [_rows(table, place, f) for f in changelog]
    return {
        "files that go away": sorted(f"{f.file_name}@{f.level}" for f in before),
        "files that move": sorted(f"{f.file_name}@{f.level}" for f in after if f.file_name in old),
        "rows written": dict(sorted(written.items())),
        "retractions written": sum(f.delete_row_count or 0 for f in after if f.file_name not in old),
        "changelog": [row for rows in sorted(told) for row in rows],
        "vectors": {name: v.positions.tolist() for name, v in sorted(vectors.items()) if len(v.positions)},
    }


def _rows(table: Table, place: _Place, file: DataFile) -> list[str]:
    """The rows of a file as texts, in their order."""
    files = BucketFiles(table, *place, (*table.schema.fields, *SYSTEM_FIELDS))
    out = []
    for batch in files.batches((file,), 1 << 16):
        for row in batch.to_pylist():
            kind, sequence = row.pop("_VALUE_KIND"), row.pop("_SEQUENCE_NUMBER")
            out.append(f"{_KINDS[kind]} #{sequence} {_plain(row)}")
    return out


def _plain(value: Any) -> Any:
    """Maps in the order of their keys: the one they are stored in says nothing."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        pairs = value and all(isinstance(v, tuple) and len(v) == 2 for v in value)
        return sorted(map(_plain, value), key=str) if pairs else [_plain(v) for v in value]
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _short(one: Any, other: Any) -> str:
    """What `one` has and `other` has not, as far as that can be told in a line."""
    if isinstance(one, dict) and set(one) == set(other) and all(isinstance(v, list) for v in one.values()):
        return "; ".join(f"{k}: {_short(v, other[k])}" for k, v in one.items() if v != other[k])
    if isinstance(one, list) and isinstance(other, list):
        more = Counter(map(str, one)) - Counter(map(str, other))
        text = ", ".join(list(more.elements())[:3]) if more else "the same in another order"
        return f"{len(one)} {text}"[:1500]
    return str(one)[:1500]
