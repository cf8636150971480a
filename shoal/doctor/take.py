# SPDX-License-Identifier: Apache-2.0
"""One look at a table: the snapshots since the last look, what each did, and what stands beside them.

A first look reads the live files once, for the state before its first snapshot; a later one goes on from `Known` and
reads only new snapshots. Ids follow each other: the next one is asked for by name, so a LATEST hint that lags hides
nothing. The last known snapshot is compared with the one that has its id now, so a rollback that gave ids away again
is noticed.

Invariants: nothing is ever written; `start` plus the flows is the state after every step, whatever happened between
two looks; where it had to be read again there is an `Event`, and a `Gap` where snapshots were missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shoal.clock import Clock, SystemClock
from shoal.doctor.allowance import FREE, Allowance, MeteredStore
from shoal.doctor.fan_in import fan_in_of
from shoal.doctor.holders import schema_facts, stock_of
from shoal.doctor.lists import vanished
from shoal.doctor.pins import pins_of
from shoal.doctor.walk import Step, Walk
from shoal.doctor.window import (
    CHANGELOG,
    REMOVAL,
    Event,
    FanIn,
    Gap,
    Mark,
    SchemaFacts,
    SnapshotFacts,
    Window,
    advance,
    difference,
    flow_fields,
    in_order,
    state_fields,
)
from shoal.errors import ShoalError
from shoal.format import paths
from shoal.format.manifest import ManifestMeta
from shoal.format.snapshot import NO_WATERMARK, Snapshot
from shoal.options import Options
from shoal.table.metadata import Metadata

if TYPE_CHECKING:
    import pyarrow as pa

# What one more snapshot costs at least: its file, two lists, a manifest.
_ONE_SNAPSHOT = 4


def _no_mark(_: int) -> Mark | None:
    return None


def _nowhere(_: bytes) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Known:
    """Where earlier looks ended: what the next one goes on from. `mark_of` tells older snapshots by their id."""

    last: Mark | None = None
    last_ms: int = 0
    state: pa.Table | None = None  # after `last`
    schemas: tuple[SchemaFacts, ...] = ()
    small_size: int | None = None
    mark_of: Callable[[int], Mark | None] = field(default=_no_mark, compare=False)

    @classmethod
    def of(cls, window: Window) -> Known:
        """What one window leaves."""
        marks = {s.id: s.mark for s in window.steps}
        last = window.steps[-1].mark if window.steps else window.after
        time = window.steps[-1].time_ms if window.steps else 0
        return cls(last, time, window.end, window.schemas, window.small_size, marks.get)


UNKNOWN = Known()


def take(
    metadata: Metadata, *, name: str = "", clock: Clock | None = None, since: int | None = None,
    known: Known = UNKNOWN, budget: Allowance = FREE,
) -> Window:  # fmt: skip
    """Look at a table: the snapshots after `known`, or after the id `since`, or all that are retained."""
    return _Look(metadata, clock or SystemClock(), budget, known).window(name, since)[0]


def take_named(
    metadata: Metadata, *, name: str = "", clock: Clock | None = None, since: int | None = None,
    known: Known = UNKNOWN, budget: Allowance = FREE,
) -> tuple[Window, pa.Table]:  # fmt: skip
    """The same, and every file by its name: columns of `walk.entry_fields`, a row an entry, two rows an upgrade."""
    return _Look(metadata, clock or SystemClock(), budget, known).window(name, since)


class _Look:
    def __init__(self, metadata: Metadata, clock: Clock, budget: Allowance, known: Known) -> None:
        self.store = MeteredStore(metadata.store, budget, clock)
        self.reader = Metadata(self.store, metadata.cache)
        # The first look reads every list: it is where a file that is gone must show. Later ones spare what they can.
        self.walk = Walk(self.reader, sparing=known.last is not None, can_afford=self.store.can_afford)
        self.clock = clock
        self.known = known
        self.gaps: list[Gap] = []
        self.events: list[Event] = []
        self.notes: dict[str, str] = {}
        self.partial = False
        self.after: Mark | None = None
        self._text: Callable[[bytes], str] = _nowhere
        self._small = 0
        self._stands: Snapshot | None = None  # the snapshot that the first step follows, when it is there
        self._before: pa.Table | None = None  # the live entries before the first step, where they were read

    def window(self, name: str, since: int | None) -> tuple[Window, pa.Table]:
        state = self.known.state if self.known.last is not None else None
        first = self._resume() if self.known.last is not None else self._begin(since)
        if self.after != self.known.last:
            state = None
        if first is not None:
            self._walk(first)
        steps, entries = self.walk.finish()
        self.gaps += self._lost()
        schemas = schema_facts(self.reader, self.known.schemas)
        self._know(schemas)
        flows = flows_of(entries, self._text, self._small)
        start, flows = self._states(state, steps, flows)
        newest = steps[-1].snapshot if steps else self._stands
        stock, cut = stock_of(self.reader, self.store, newest, self.clock)
        looked = stock(self.partial)
        if self.known.last is None and since is None and steps and not self.gaps and self._before is not None:
            pins = pins_of(self.reader, self.store, looked.holders, reachable(self._before, steps, entries))
            fan_in = self._fan_in(steps[-1].snapshot)
            spent = self.store.requests, self.store.bytes_read
            looked = replace(looked, pins=pins, fan_in=fan_in, requests=spent[0], bytes_read=spent[1])
        if self.partial or cut:
            what = "snapshots" if self.partial else "tags, consumers or branches"
            self._event("cut", f"the allowance was spent before all {what} were seen")
        window = Window(
            self.store.uri, name, tuple(map(facts, steps)), flows, start, schemas, looked, self.after,
            tuple(sorted(self.gaps, key=lambda g: g.first)), tuple(self.events), self.notes,
            inherited=self.walk.inherited, small_size=self._small if steps or state is None else self.known.small_size,
        )  # fmt: skip
        return window, entries

    def _event(self, kind: str, what: str, snapshot: int | None = None) -> None:
        self.events.append(Event(self.clock.now_ms(), kind, what, snapshot))

    # ---- where to begin

    def _begin(self, since: int | None) -> int | None:
        """The first snapshot of a first look; None when there is none."""
        earliest = self.reader.earliest_id()
        if earliest is None:
            self.after = None if since is None else Mark(since, None)
            return None
        if since is None or since < earliest - 1:
            if since is not None and since > 0:
                self.gaps.append(Gap(since + 1, earliest - 1, "expired", "expired before it was sampled"))
                self.after = Mark(since, None)
            return earliest
        self._stand(since)
        self.after = self.after or Mark(since, None)
        return since + 1

    def _stand(self, snapshot_id: int) -> None:
        found = self.walk.read(snapshot_id)
        if found is not None:
            self._stands = found[0]
            self.after = mark_of(found[0])

    def _resume(self) -> int | None:
        """The first snapshot after the last known one, when the table still goes on from there."""
        last = self.known.last
        assert last is not None
        found = self.walk.read(last.id)
        if found is not None and (last.lists is None or mark_of(found[0]) == last):
            self._stands, self.after = found[0], last
            return last.id + 1
        latest = self.reader.latest_id()
        earliest = self.reader.earliest_id()
        if found is None and latest is not None and earliest is not None and latest > last.id:
            first = self.walk.read(earliest)
            if first is not None and first[0].time_ms >= self.known.last_ms:
                self.after = last
                return last.id + 1  # the walk finds what has expired
        return self._after_rollback(earliest, latest)

    def _after_rollback(self, earliest: int | None, latest: int | None) -> int | None:
        """Find the newest snapshot that both the table and the earlier looks know, by halving."""
        last = self.known.last
        assert last is not None
        low, high, common = earliest or 1, min(latest or 0, last.id), None
        while low <= high:
            middle = (low + high) // 2
            there = self.walk.read(middle)
            mine = self.known.mark_of(middle)
            if there is not None and mine is not None and mine == mark_of(there[0]):
                common, low = there[0], middle + 1
            else:
                high = middle - 1
        if common is None:
            self._event(
                "replaced",
                f"no snapshot up to {last.id} is one that is known: the table was made anew, or rolled back far",
            )
            return earliest
        self._stands, self.after = common, mark_of(common)
        what = f"rolled back to snapshot {common.id}: what was seen of {common.id + 1} to {last.id} is gone"
        self._event("rollback", what, common.id)
        return common.id + 1

    # ---- the walk

    def _walk(self, first: int) -> None:
        stood, seen, latest = self._stands is None, False, None
        at = first
        while True:
            spent = seen and not self.store.can_afford(_ONE_SNAPSHOT + self.walk.owed)
            # What waits may turn out to cost less than it might have.
            if self.walk.cut or (spent and not (self.walk.settle() and self.store.can_afford(_ONE_SNAPSHOT))):
                self.partial = True
                return
            if not stood and self._stands is not None:
                if not self.reader.exists(paths.snapshot(at)):
                    latest = self._latest(at)
                    if latest is None or at > latest:
                        return
                self.walk.stand_on(self._stands)
                stood = True
            if self.walk.visit(at):
                seen, at = True, at + 1
                continue
            if self.walk.cut:
                continue
            latest = self._latest(at)
            if latest is None or at > latest:
                return
            earliest = self.reader.earliest_id()
            if earliest is not None and at < earliest:
                self.gaps.append(Gap(at, earliest - 1, "expired", "expired before it was sampled"))
                at = earliest
            else:
                self.gaps.append(Gap(at, at, "missing", f"snapshot {at} does not exist"))
                at += 1

    def _latest(self, missing: int) -> int | None:
        """The newest id, told that `missing` is not there: the hint is enough when it is older."""
        hint = self.reader.hint(paths.LATEST)
        return hint if hint is not None and hint == missing - 1 else self.reader.latest_id()

    def _lost(self) -> list[Gap]:
        if not self.walk.lost:
            return []
        now = self.reader.earliest_id()
        return [Gap(a, b, "expired" if now is None or b < now else "missing", why) for a, b, why in self.walk.lost]

    # ---- states

    def _states(
        self, state: pa.Table | None, steps: Sequence[Step], flows: pa.Table
    ) -> tuple[pa.Table | None, pa.Table]:
        """The state before the first step, and the flows with what had to be read again."""
        fresh = state is None
        if state is None:
            state = self._first_state(steps)
        if state is None:
            return None, flows
        start = told = state
        parts, done = [flows], 0  # flows up to `done` are in `told`
        before = self.after.id if self.after is not None else None
        for i, step in enumerate(steps):
            s = step.snapshot.id
            other_small = i == 0 and not fresh and self.known.small_size not in (None, self._small)
            follows = step.follows or (i == 0 and fresh)
            if not follows and s - 1 == (steps[i - 1].snapshot.id if i else before):
                # The snapshot before had vanished, but nothing lies between: the counts decide.
                told, done = advance(told, _between(flows, done, s)), s
                follows = _files(told) == step.live_listed
            if follows and step.holds and not other_small:
                continue
            told, done = advance(told, _between(flows, done, s)), s
            actual = self._live((*self.reader.base(step.snapshot), *self.reader.delta(step.snapshot)))
            if actual is None:
                self.notes["start"] = f"the live files of snapshot {s} could not be read, so stocks are not known"
                self._event("blind", self.notes["start"], s)
                return None, flows
            missed = difference(actual, told, s)
            why = "snapshots before it were not seen" if not step.follows else (
                "the manifest lists and the entries disagree" if not step.holds else "the size of small files changed"
            )  # fmt: skip
            self._event("resync", f"live files read again: {why}", s)
            parts.append(missed)
            told = actual
        import pyarrow as pa

        return start, in_order(pa.concat_tables(parts)) if len(parts) > 1 else flows

    def _first_state(self, steps: Sequence[Step]) -> pa.Table | None:
        if steps:
            metas = self.reader.base(steps[0].snapshot)
        elif self._stands is not None:
            try:
                metas = self.reader.manifests(self._stands)
            except ShoalError as err:
                if not vanished(err):
                    raise
                self.notes["start"] = err.message
                return None
        elif self.after is None and not self.gaps:
            metas = ()
        else:
            return None
        return self._live(metas)

    def _live(self, metas: Sequence[ManifestMeta]) -> pa.Table | None:
        """The state that manifests add up to; None when it cannot be read, or not within the allowance."""
        if metas and not self.store.can_afford(len(metas), sum(m.file_size for m in metas)):
            self.notes["start"] = f"{len(metas):,} manifests of the live files are more than the allowance"
            self.partial = True
            return None
        try:
            live = self.reader.live_in(metas)
            if self._before is None:
                self._before = live
            return state_of(live, self._text, self._small)
        except ShoalError as err:
            if not vanished(err):
                raise
            self.notes["start"] = err.message
            return None

    def _fan_in(self, newest: Snapshot) -> FanIn | None:
        """What a read of the newest snapshot merges."""
        try:
            metas = self.reader.manifests(newest)
            if not self.store.can_afford(len(metas), sum(m.file_size for m in metas)):
                return None
            return fan_in_of(self.reader.live_in(metas), self.reader.schema(newest.schema_id))
        except ShoalError as err:
            if not vanished(err):
                raise
            return None

    def _know(self, schemas: tuple[SchemaFacts, ...]) -> None:
        """What the newest schema says of partitions and of small files."""
        if not schemas:
            return
        schema = self.reader.schema(schemas[-1].id)
        options = Options(schema.options, strict=False)
        self._small = small_size(schemas[-1])
        if schema.partition_fields:
            default, legacy = str(options.get("partition.default-name")), bool(options.get("partition.legacy-name"))
            self._text = lambda p: paths.partition_path(schema.partition_fields, p, default, legacy)


def reachable(before: pa.Table, steps: Sequence[Step], entries: pa.Table) -> frozenset[str]:
    """Names of the data files that the snapshots of `steps` list; `before` is what was live before the first one."""
    import pyarrow.compute as pc

    kinds, change = entries.column("class"), entries.column("change")
    first = pc.and_(pc.equal(kinds, REMOVAL), pc.equal(entries.column("snapshot"), steps[0].snapshot.id))
    came = pc.and_(pc.greater(change, 0), pc.not_equal(kinds, CHANGELOG))
    names = set(before.column("file_name").to_pylist())
    names -= set(entries.filter(first).column("file_name").to_pylist())
    return frozenset(names | set(entries.filter(came).column("file_name").to_pylist()))


def small_size(schema: SchemaFacts) -> int:
    """Files below this size are small: compaction does not leave them alone."""
    options = Options(schema.options, strict=False)
    return int(options.target_file_size(bool(schema.primary_keys)) * options.small_file_ratio)


def mark_of(snap: Snapshot) -> Mark:
    return Mark(snap.id, (snap.base_manifest_list, snap.delta_manifest_list))


def facts(step: Step) -> SnapshotFacts:
    """A step of the walk as the fact it is."""
    s = step.snapshot
    watermark = None if s.watermark == NO_WATERMARK else s.watermark
    return SnapshotFacts(
        s.id, s.schema_id, s.commit_user, s.commit_identifier, s.commit_kind, s.time_ms, s.total_record_count,
        s.delta_record_count, s.changelog_record_count, watermark, s.operation, mark_of(s).lists or ("", ""),
        step.wrote, step.manifests, step.listed_entries, step.listed_deletes, step.live_listed, step.holds,
    )  # fmt: skip


def _files(state: pa.Table) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(state.column("files"), min_count=0).as_py())


def _between(flows: pa.Table, done: int, until: int) -> pa.Table:
    import pyarrow.compute as pc

    ids = flows.column("snapshot")
    return flows.filter(pc.and_(pc.greater(ids, done), pc.less_equal(ids, until)))


def _texts(column: pa.ChunkedArray, text: Callable[[bytes], str]) -> pa.Array:
    """Partitions as text, each distinct one decoded once."""
    import pyarrow as pa

    coded = column.combine_chunks().dictionary_encode()
    words = pa.array([text(p) for p in coded.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(coded.indices, words).cast(pa.string())


def flows_of(entries: pa.Table, text: Callable[[bytes], str], small: int) -> pa.Table:
    """Classified entries summed by snapshot, class, change, partition, bucket and level."""
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = flow_fields()
    if not entries.num_rows:
        return fields.empty_table()
    gone, null = pc.equal(entries.column("class"), REMOVAL), pa.scalar(None, pa.int64())
    columns = {n: entries.column(n) for n in ("snapshot", "class", "change", "bucket", "total_buckets", "level")}
    columns |= {
        "partition": _texts(entries.column("partition"), text),
        "files": entries.column("files"),  # none for a changelog that lies in another one's file
        "size": entries.column("file_size"),
        "rows": entries.column("row_count"),
        "deleted_rows": entries.column("deleted_rows"),
        "min_sequence": pc.if_else(gone, null, entries.column("min_sequence")),
        "max_sequence": pc.if_else(gone, null, entries.column("max_sequence")),
        "extras": entries.column("extras").cast(pa.int64()),
        "small": pc.less(entries.column("file_size"), small).cast(pa.int64()),
    }
    keys = ["snapshot", "class", "change", "partition", "bucket", "total_buckets", "level"]
    table = pa.table(columns).group_by(keys, use_threads=False)
    sums = table.aggregate([
        ("files", "sum"), ("size", "sum"), ("rows", "sum"), ("deleted_rows", "sum"), ("min_sequence", "min"),
        ("max_sequence", "max"), ("extras", "sum"), ("size", "max"), ("small", "sum"),
    ])  # fmt: skip
    return in_order(sums.rename_columns(fields.names).cast(fields))


def state_of(live: pa.Table, text: Callable[[bytes], str], small: int) -> pa.Table:
    """Live entries summed by partition, bucket and level."""
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = state_fields()
    if not live.num_rows:
        return fields.empty_table()
    columns = {
        n: live.column(n) for n in ("bucket", "total_buckets", "level", "file_size", "row_count", "max_sequence")
    }
    columns["partition"] = _texts(live.column("partition"), text)
    columns["extras"] = pc.coalesce(pc.list_value_length(live.column("extra_files")), 0)
    columns["small"] = pc.less(live.column("file_size"), small).cast(pa.int64())
    keys = ["partition", "bucket", "total_buckets", "level"]
    sums = pa.table(columns).group_by(keys, use_threads=False).aggregate([
        ("file_size", "count"), ("file_size", "sum"), ("row_count", "sum"), ("max_sequence", "max"),
        ("extras", "sum"), ("small", "sum"),
    ])  # fmt: skip
    return sums.rename_columns(fields.names).cast(fields).sort_by([(k, "ascending") for k in keys]).combine_chunks()
