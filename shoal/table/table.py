# SPDX-License-Identifier: Apache-2.0
"""A table as a user holds it: scan, write, inspect, maintain.

Invariant: a `Table` is one schema version of one folder plus the clock, budget and scheduler it was opened with;
every reader and writer it gives uses those and nothing global.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, cast

from shoal.budget import DEFAULT_BYTES, Budget
from shoal.clock import Clock, Scheduler, SystemClock, ThreadScheduler, local_ms
from shoal.errors import BadRequest, MissingExtra
from shoal.format import paths
from shoal.format.compacted_changelog import slice_of
from shoal.format.datafile import DataFile
from shoal.format.row import key_tuple
from shoal.format.schema import SEQUENCE_NUMBER, Schema
from shoal.format.types import Field, arrow_schema, widened
from shoal.lsm.levels import Key
from shoal.lsm.merge import Rules
from shoal.lsm.pick import Policy, policy_of
from shoal.metrics import Registry
from shoal.options import Options, check
from shoal.store.base import Store
from shoal.store.cache import Cache
from shoal.table.external_paths import Places
from shoal.table.metadata import Metadata

if TYPE_CHECKING:
    from datetime import datetime

    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from shoal.lsm.lookup import LookupFile, LookupFiles
    from shoal.table.committer import Committer
    from shoal.table.inspect import Inspect
    from shoal.table.key_index import KeyFile
    from shoal.table.maintain import Maintain
    from shoal.table.references import Branches, Tags
    from shoal.table.rollback import RolledBack
    from shoal.table.row_changes import Changed
    from shoal.table.scan import Scan
    from shoal.table.schema_change import Change
    from shoal.table.staged import Committed
    from shoal.table.stream import Changes, Follow
    from shoal.table.table_metrics import TableMetrics
    from shoal.table.write import Write


class Table:
    """One table. Open it with `Lake.table`."""

    def __init__(
        self,
        name: str,
        store: Store,
        schema: Schema,
        *,
        cache: Cache | None = None,
        clock: Clock | None = None,
        scheduler: Callable[[], Scheduler] = ThreadScheduler,
        memory: int = DEFAULT_BYTES,
        rng: random.Random | None = None,
        wide_timestamps: bool = False,
        store_options: Mapping[str, str] | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.name = name
        self.store = store
        self.store_options = store_options
        self.wide_timestamps = wide_timestamps
        self.schema = _widened(schema) if wide_timestamps else schema
        self.metadata = Metadata(store, cache or Cache())
        self.options = Options(schema.options, strict=False)
        self.clock = clock or SystemClock()
        self.new_scheduler = scheduler
        self.memory = memory
        self.rng = rng or random.Random()
        self.registry = Registry() if registry is None else registry

    def __repr__(self) -> str:
        return f"<Table {self.name} at {self.store.uri}>"

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """Columns as Arrow sees them."""
        return arrow_schema(self.schema.fields)

    @property
    def primary_key(self) -> tuple[str, ...]:
        return self.schema.primary_keys

    @cached_property
    def readable(self) -> dict[str, Field]:
        """Columns that a scan may ask for by name: the table's, and those that Paimon adds to its rows."""
        fields = {f.name: f for f in self.schema.fields}
        if self.primary_key:
            return {SEQUENCE_NUMBER.name: SEQUENCE_NUMBER} | fields
        if self.options.row_tracking:
            from shoal.table.row_tracking import TRACKED

            return {f.name: f for f in TRACKED} | fields
        return fields

    @cached_property
    def readable_schema(self) -> pa.Schema:
        """The Arrow schema of `readable`."""
        return arrow_schema(list(self.readable.values()))

    @property
    def data_evolution(self) -> bool:
        """Whether the columns of a row may lie in several files."""
        return self.options.data_evolution

    def index_at(self, partition: bytes, bucket: int, name: str, external: str | None) -> tuple[Store, str]:
        """The store and the path in it where an index file of a bucket lies."""
        beside = self.options.get("index-file-in-data-file-dir")
        folder = self.bucket_folder(partition, bucket) if beside else f"{paths.INDEX}/"
        return self.places.locate(folder, name, external)

    @cached_property
    def places(self) -> Places:
        """Where files are that lie outside the table's folder."""
        return Places(self.store, self.store_options)

    @property
    def compacted_only(self) -> bool:
        """Whether rows become visible by compaction: deletion vectors without merge-on-read, and first-row."""
        o = self.options
        if not self.primary_key:
            return False
        vectors = o.deletion_vectors and not o.deletion_vectors_merge_on_read
        return vectors or o.merge_engine == "first-row"

    @property
    def clustered(self) -> bool:
        """Whether compacted files are sorted by `clustering.columns` instead of the key, their bounds with them."""
        return bool(self.primary_key) and bool(self.options.get("pk-clustering-override"))

    @property
    def clustered_fields(self) -> tuple[Field, ...]:
        """What compacted files are sorted by, and what their least and greatest row is told by, where it is no key."""
        names = cast("tuple[str, ...]", self.options.get("clustering.columns") or ()) if self.clustered else ()
        return tuple(self.schema.field(n) for n in names)

    # ---- what users call

    def scan(
        self,
        where: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        *,
        snapshot: int | None = None,
        tag: str | None = None,
        version: str | None = None,
        timestamp: int | str | datetime | None = None,
        watermark: int | None = None,
    ) -> Scan:
        """Rows of the newest snapshot, or of one of the past with the columns it had.

        `where` is SQL text (`"dt = '2026-11-01' AND total > 5"`) or an Arrow expression; it is applied exactly, after
        the versions of a key are merged. `columns` keeps their order. The past is named by at most one of `snapshot`
        (its id), `tag`, `version` (a tag, `watermark-<n>` or an id), `timestamp` (the newest snapshot not after it:
        epoch milliseconds, a datetime, or text in local time), `watermark` (the first snapshot that reached it), or by
        the table's `scan.*` options.
        """
        from shoal.table.travel import scan

        check(self.schema.options, "read", has_primary_key=bool(self.primary_key))
        return scan(
            self, where, columns, limit, snapshot=snapshot, tag=tag, version=version, timestamp=timestamp,
            watermark=watermark,
        )  # fmt: skip

    def changes(
        self,
        start: int | str | datetime,
        end: int | str | datetime,
        *,
        mode: str | None = None,
        where: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        deletes: bool = True,
    ) -> Scan:
        """What changed after `start` up to and with `end`: snapshot ids, tags or times.

        `mode` is `auto` (the changelog where the table has one), `delta` (rows as they were written), `changelog`, or
        `diff` (the two states compared; without `deletes`, keys that are gone are left out, as in a plain read of
        Java's). Batches begin with the column `_VALUE_KIND`: 0 +I, 1 -U, 2 +U, 3 -D.
        """
        from shoal.table.incremental import changes

        check(self.schema.options, "read", has_primary_key=bool(self.primary_key))
        return changes(self, start, end, mode=mode, where=where, columns=columns, deletes=deletes)

    def follow(
        self,
        *,
        start: int | str | datetime | None = None,
        consumer: str | None = None,
        where: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        until: int | str | None = None,
        buckets: Sequence[int] | tuple[int, int] | None = None,
        poll: float | None = None,
    ) -> Follow:
        """The table's changes as they are committed: an endless iterator of `Changes`, each of one snapshot.

        `start` is a snapshot id, a time, or a mode (`latest-full`, `latest`, `compacted-full`, `earliest`); without it
        the `scan.*` options say, and without those the newest state comes first. `consumer` keeps the progress under
        that name, moved on when the next batch is asked for. `until` ends the stream: a snapshot id, or `latest` for
        what is there now. `buckets` reads a share: bucket numbers, or (i, n) for the i-th of n readers. `poll` is the
        pause in seconds when nothing is new. A snapshot that expired before it was read is `NotFound`: there is never
        a silent gap.
        """
        from shoal.table.stream import Follow

        check(self.schema.options, "read", has_primary_key=bool(self.primary_key))
        return Follow(
            self, start=start, consumer=consumer, where=where, columns=columns, until=until, buckets=buckets, poll=poll
        )

    def follow_async(self, **arguments: Any) -> AsyncIterator[Changes]:
        """`follow` for `async for`, with the same arguments."""
        from shoal.table.stream_async import follow_async

        check(self.schema.options, "read", has_primary_key=bool(self.primary_key))
        return follow_async(self, **arguments)

    def dataset(self, **when: Any) -> ds.Dataset:
        """The table as a `pyarrow.dataset.Dataset`, for DuckDB and other engines: columns and filters reach the scan.

        `when` is the past to read, as in `scan` (`snapshot=`, `tag=`, ...).
        """
        from shoal.table.dataset import TableDataset

        return TableDataset(self, **when)

    def lazy(self, **when: Any) -> pl.LazyFrame:
        """A Polars LazyFrame; the columns and filters of the query reach the scan. `when` as in `scan`."""
        try:
            import polars
        except ImportError as err:
            raise MissingExtra("lazy needs polars", hint="pip install 'shoal[polars]'") from err
        return polars.scan_pyarrow_dataset(self.dataset(**when))

    def with_options(self, options: Mapping[str, object]) -> Table:
        """The same table read with these options on top of its own, as Flink's OPTIONS hint does."""
        given = option_map(options)
        check(given, "hint", has_primary_key=bool(self.primary_key))
        return self.with_schema(replace(self.schema, options={**self.schema.options, **given}))

    def branch(self, name: str) -> Table:
        """The branch `name` of this table; `NotFound` lists the branches there are."""
        from shoal.table.refs import branch

        return branch(self, name)

    @property
    def tags(self) -> Tags:
        """Tags: `tags.create("spring")`, `delete`, `rename`, `replace`, `expire`."""
        from shoal.table.references import Tags

        return Tags(self)

    @property
    def branches(self) -> Branches:
        """Branches: `branches.create("b")`, `delete`, `rename`, `fast_forward`."""
        from shoal.table.references import Branches

        return Branches(self)

    def rollback(
        self,
        *,
        snapshot: int | None = None,
        tag: str | None = None,
        timestamp: int | str | datetime | None = None,
        watermark: int | None = None,
    ) -> RolledBack:
        """Forget every snapshot, changelog and tag after this one. Writers that are open must be started again."""
        from shoal.table.rollback import rollback
        from shoal.table.travel import moment

        at = None if timestamp is None else moment(self.clock, timestamp, "the time to go back to")
        return rollback(self, snapshot=snapshot, tag=tag, timestamp_ms=at, watermark=watermark)

    def as_of(self, schema_id: int) -> Table:
        """The table with the columns and keys of another schema version, and the options of today."""
        if schema_id == self.schema.id:
            return self
        return self.with_schema(replace(self.metadata.schema(schema_id), options=self.schema.options))

    def write(self, commit_user: str | None = None) -> Write:
        """A writer, to be used in a `with` block. The same `commit_user` must not write from two places at once."""
        from shoal.table.write import Write

        check(self.schema.options, "write", has_primary_key=bool(self.primary_key))
        return Write(self, commit_user)

    def delete(
        self,
        where: str | pc.Expression | None = None,
        *,
        commit_user: str | None = None,
        checkpoint: int | None = None,
    ) -> Changed:
        """Delete the rows that `where` is true for, all of them without it. One commit.

        Whole partitions are dropped; else primary-key tables get deletes by key (the merge engine must take them),
        other tables a mark on each row (`deletion-vectors.enabled`) or files written again.
        """
        from shoal.table.delete import delete
        from shoal.table.newest_schema import of_today
        from shoal.table.row_changes import By

        return delete(of_today(self), where, By(commit_user, checkpoint))

    def update(
        self,
        set: Mapping[str, Any],  # noqa: A002  SQL's word
        where: str | pc.Expression | None = None,
        *,
        commit_user: str | None = None,
        checkpoint: int | None = None,
    ) -> Changed:
        """Give columns of the rows that `where` is true for new values. One commit.

        `t.update({"price": pc.field("price") * 2, "state": "old"}, where="id < 5")`: constants, or Arrow expressions
        over the row's old values.
        """
        from shoal.table.newest_schema import of_today
        from shoal.table.row_changes import By
        from shoal.table.update import update

        return update(of_today(self), set, where, By(commit_user, checkpoint))

    def merge(
        self,
        source: Any,
        on: str | Sequence[str] | Mapping[str, str],
        *,
        when_matched_update: Mapping[str, Any] | bool | None = None,
        when_matched_delete: pc.Expression | bool | None = None,
        when_not_matched_insert: Mapping[str, Any] | bool | None = None,
        when_not_matched_by_source_update: Mapping[str, Any] | None = None,
        when_not_matched_by_source_delete: pc.Expression | bool | None = None,
        commit_user: str | None = None,
        checkpoint: int | None = None,
    ) -> Changed:
        """Let the rows of `source` meet those of the table by the columns `on`; clauses say what becomes of them.

        `t.merge(rows, on="id", when_matched_update=True, when_not_matched_insert=True)` is an upsert. Updates and
        inserts take True (the columns of both sides that have one name) or {column: value}; deletes take True or a
        condition, and are asked before updates. Expressions name columns of the source `pc.field("source.x")`. One
        commit.
        """
        from shoal.table.merge_into import merge
        from shoal.table.newest_schema import of_today
        from shoal.table.row_changes import By

        return merge(
            of_today(self), source, on, when_matched_update=when_matched_update,
            when_matched_delete=when_matched_delete,
            when_not_matched_insert=when_not_matched_insert,
            when_not_matched_by_source_update=when_not_matched_by_source_update,
            when_not_matched_by_source_delete=when_not_matched_by_source_delete, by=By(commit_user, checkpoint),
        )  # fmt: skip

    def overwrite(
        self, data: Any, partition: Mapping[str, object] | None = None, *, dynamic: bool | None = None
    ) -> Committed:
        """Write rows in place of what is there, and commit.

        In a partitioned table, the partitions that `data` has rows of are replaced (`dynamic`), or, with
        `dynamic=False`, all that `partition` fits: values by column, not necessarily of every column. Without
        `dynamic` the option `dynamic-partition-overwrite` decides. A table without partitions is replaced as a whole.
        The bucket number may have changed: so a partition is rescaled.
        """
        from shoal.table.replace_rows import overwrite

        return overwrite(self, data, partition, dynamic=dynamic)

    def truncate(self, partitions: Sequence[Mapping[str, object]] | None = None) -> Committed:
        """Take away every row, or those of the partitions that these values fit: `[{"dt": "2026-11-01"}]`.

        Values are texts as in the partition's folder (`__DEFAULT_PARTITION__` is null) or Python values.
        """
        from shoal.table.replace_rows import truncate

        return truncate(self, partitions)

    def drop_partitions(self, partitions: Sequence[Mapping[str, object]], *, missing_ok: bool = False) -> Committed:
        """`truncate` of partitions that must be there: `NotFound` when one of the values fits none."""
        from shoal.table.replace_rows import drop_partitions

        return drop_partitions(self, partitions, missing_ok=missing_ok)

    def committer(self, commit_user: str) -> Committer:
        """Commits what writers of `commit_user`, here or in other processes, gave from `prepare`."""
        from shoal.table.committer import Committer

        check(self.schema.options, "write", has_primary_key=bool(self.primary_key))
        return Committer(self, commit_user)

    def alter(self, changes: Sequence[Change] = (), **asked: Any) -> Table:
        """Change the schema; the table with the new one. This object keeps the old one.

        `t.alter(add={"c": "INT"}, rename={"a": "b"}, options={"bucket": 8})`; also `drop`, `types`, `nullable`,
        `defaults`, `comments`, `move`, `reset` and `comment`, or values of `shoal.table.schema_change` in a list. What
        Java's guards refuse is `BadRequest`. Another writer's change meanwhile is kept: this one is applied on top.
        """
        from shoal.table import evolve_table, schema_change

        return evolve_table.alter(self, [*changes, *schema_change.changes(**asked)])

    @property
    def inspect(self) -> Inspect:
        """System tables: `inspect.files()`, `inspect.snapshots()` and kin, as Arrow."""
        from shoal.table.inspect import Inspect

        return Inspect(self)

    @property
    def maintain(self) -> Maintain:
        """Verbs that change files: `maintain.compact()`."""
        from shoal.table.maintain import Maintain

        return Maintain(self)

    @cached_property
    def metrics(self) -> TableMetrics:
        """What work on this table through its lake measured: `metrics.to_dict()["commit"]["lastCommitDuration"]`."""
        from shoal.table.table_metrics import TableMetrics

        return TableMetrics(self.registry, self.name, self.clock)

    def system(self, name: str, **time_travel: Any) -> Any:
        """A system table by Java's name: `system("files")` is `t$files`."""
        return self.inspect.system(name, **time_travel)

    # ---- what the rest of this layer calls

    def with_schema(self, schema: Schema) -> Table:
        """The same table at another schema version."""
        return Table(
            self.name, self.store, schema, cache=self.metadata.cache, clock=self.clock, scheduler=self.new_scheduler,
            memory=self.memory, rng=self.rng, wide_timestamps=self.wide_timestamps, store_options=self.store_options,
            registry=self.registry,
        )  # fmt: skip

    def file_schema(self, schema_id: int) -> Schema:
        """The schema that a data file was written with, its types read as this table reads them."""
        if schema_id == self.schema.id:
            return self.schema
        schema = self.metadata.schema(schema_id)
        return _widened(schema) if self.wide_timestamps else schema

    def budget(self) -> Budget:
        return Budget(self.memory)

    def partition_path(self, partition: bytes) -> str:
        o = self.options
        return paths.partition_path(
            self.schema.partition_fields, partition, o.partition_default_name, o.partition_legacy_name
        )

    def bucket_folder(self, partition: bytes, bucket: int) -> str:
        """The bucket's folder relative to the table, with a final slash."""
        inside = paths.bucket_dir(self.partition_path(partition), bucket) + "/"
        return f"{self._data_root}{inside}"

    @cached_property
    def _data_root(self) -> str:
        folder = self.options.get("data-file.path-directory")
        return f"{str(folder).strip('/')}/" if folder else ""

    def file_at(self, partition: bytes, bucket: int, file: DataFile) -> tuple[Store, str]:
        """The store and the path in it where a data file lies."""
        return self.named_at(partition, bucket, file.file_name, file.external_path)

    def named_at(self, partition: bytes, bucket: int, name: str, external: str | None) -> tuple[Store, str]:
        """The same by the file's name and external path. Changelog files may share one, in the folder of another."""
        part = slice_of(name)
        if part is None:
            return self.places.locate(self.bucket_folder(partition, bucket), name, external)
        if external is not None:
            external = f"{external.rsplit('/', 2)[0]}/{paths.bucket_dir('', part.bucket)}/{part.name}"
        return self.places.locate(self.bucket_folder(partition, part.bucket), part.name, external)

    def beside(self, partition: bytes, bucket: int, file: DataFile, name: str) -> tuple[Store, str]:
        """The store and the path in it of an extra file of a data file, such as its index."""
        return self.places.beside(self.bucket_folder(partition, bucket), name, file.external_path)

    def bounds(self, file: DataFile) -> tuple[Key, Key]:
        """Least and greatest key of a file, decoded."""
        return self._key(file.min_key), self._key(file.max_key)

    @cached_property
    def _key(self) -> Callable[[bytes], Key]:
        types = self.schema.key_types
        return lru_cache(maxsize=65_536)(lambda data: key_tuple(types, data))

    @cached_property
    def rules(self) -> Rules:
        """How versions of a key merge."""
        o = self.options
        fields = o.sequence_field
        for name in fields:
            if name not in self.schema.names:
                raise BadRequest(f"{self.name}: sequence.field '{name}' is not a column")
        engine = None
        if o.merge_engine != "deduplicate":
            from shoal.lsm.engines import engine_of

            engine = engine_of(self.schema, o)
        return Rules(
            self.schema.trimmed_keys,
            fields,
            o.sequence_ascending,
            o.ignore_delete,
            engine,
            engine is not None and o.needs_lookup and o.merge_engine != "first-row",
        )

    @cached_property
    def policy(self) -> Policy:
        """When and what to compact."""
        o = self.options
        return policy_of(
            trigger=o.compaction_trigger,
            stop_trigger=o.stop_trigger,
            num_levels=o.num_levels,
            size_ratio=o.size_ratio,
            max_size_amplification=o.max_size_amplification,
            target_file_size=o.target_file_size(True),
            small_file_ratio=o.small_file_ratio,
            optimization_interval_ms=o.optimization_interval_ms,
            total_size_threshold=o.total_size_threshold,
            incremental_size_threshold=o.incremental_size_threshold,
            offpeak_start=o.offpeak_start,
            offpeak_end=o.offpeak_end,
            offpeak_ratio=o.offpeak_ratio,
            need_lookup=o.needs_lookup,
            lookup_gentle=str(o.get("lookup-compact")).lower() == "gentle",
            lookup_max_interval=cast("int | None", o.get("lookup-compact.max-interval")),
            force_up_level0=bool(o.get("compaction.force-up-level-0")),
            force_rewrite_all=bool(o.get("compaction.force-rewrite-all-files")),
            deletion_vectors=o.deletion_vectors,
            keep_deletes=bool(o.get("chain-table.enabled")),
            full_changelog=o.changelog_producer == "full-compaction",
            last_wins=o.merge_engine == "deduplicate" and not o.sequence_field,
            level_formats=o.formats_by_level,
        )

    @cached_property
    def lookup_files(self) -> LookupFiles[LookupFile]:
        """Files whose old rows compactions asked for lately, on local disk."""
        from shoal.lsm.lookup import LookupFiles

        return LookupFiles(cast("int | None", self.options.get("lookup.cache-max-disk-size")))

    @cached_property
    def key_files(self) -> LookupFiles[KeyFile]:
        """Files that are not sorted by the key, and where compactions found keys in them lately, on local disk."""
        from shoal.lsm.lookup import LookupFiles

        return LookupFiles(cast("int | None", self.options.get("lookup.cache-max-disk-size")))

    @cached_property
    def bucket_key(self) -> tuple[str, ...]:
        """Columns whose hash is the bucket: `bucket-key`, else the primary key without partition columns."""
        return self.options.bucket_key or self.schema.trimmed_keys

    def local_now_ms(self) -> int:
        """Now, as the local wall clock that `_CREATION_TIME` holds."""
        return local_ms(self.clock, self.clock.now_ms())

    def local_hour(self) -> int:
        return self.local_now_ms() // 3_600_000 % 24


def _widened(schema: Schema) -> Schema:
    return replace(schema, fields=tuple(replace(f, type=widened(f.type)) for f in schema.fields))


def option_map(options: Mapping[str, object] | None) -> dict[str, str]:
    """Options as users give them (ints, bools) in the text form that schema files keep."""
    out = {}
    for k, v in (options or {}).items():
        out[k] = ("true" if v else "false") if isinstance(v, bool) else str(v)
    return out
