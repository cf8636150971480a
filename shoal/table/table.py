# SPDX-License-Identifier: Apache-2.0
"""A table as a user holds it: scan, write, inspect, maintain.

Invariant: a `Table` is one schema version of one folder plus the clock, budget and scheduler it was opened with;
every reader and writer it gives uses those and nothing global.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from shoal.budget import DEFAULT_BYTES, Budget
from shoal.clock import Clock, Scheduler, SystemClock, ThreadScheduler, local_ms
from shoal.errors import BadRequest, Unsupported
from shoal.format import paths
from shoal.format.datafile import DataFile
from shoal.format.row import key_tuple
from shoal.format.schema import Schema
from shoal.format.types import arrow_schema
from shoal.lsm.levels import Key
from shoal.lsm.merge import Rules
from shoal.lsm.pick import Policy, policy_of
from shoal.options import Options, check
from shoal.store.base import Store
from shoal.store.cache import Cache
from shoal.table.metadata import Metadata

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.inspect import Inspect
    from shoal.table.maintain import Maintain
    from shoal.table.scan import Scan
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
    ) -> None:
        self.name = name
        self.store = store
        self.schema = schema
        self.metadata = Metadata(store, cache or Cache())
        self.options = Options(schema.options, strict=False)
        self.clock = clock or SystemClock()
        self.new_scheduler = scheduler
        self.memory = memory
        self.rng = rng or random.Random()

    def __repr__(self) -> str:
        return f"<Table {self.name} at {self.store.uri}>"

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """Columns as Arrow sees them."""
        return arrow_schema(self.schema.fields)

    @property
    def primary_key(self) -> tuple[str, ...]:
        return self.schema.primary_keys

    # ---- what users call

    def scan(
        self,
        where: str | pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        *,
        snapshot: int | None = None,
    ) -> Scan:
        """Rows of the newest snapshot, or of `snapshot` with the columns it had.

        `where` is SQL text (`"dt = '2026-11-01' AND total > 5"`) or an Arrow expression; it is applied exactly, after
        the versions of a key are merged. `columns` keeps their order.
        """
        from shoal.table.scan import Scan

        check(self.schema.options, "read", has_primary_key=bool(self.primary_key))
        snapshot = self.options.scan_snapshot_id if snapshot is None else snapshot
        table = self if snapshot is None else self._as_of(snapshot)
        return Scan(table, where=where, columns=columns, limit=limit, snapshot=snapshot)

    def _as_of(self, snapshot: int) -> Table:
        """The table with the columns and keys that it had at a snapshot, and the options of today."""
        then = self.metadata.snapshot(snapshot).schema_id
        if then == self.schema.id:
            return self
        return self.with_schema(replace(self.metadata.schema(then), options=self.schema.options))

    def write(self, commit_user: str | None = None) -> Write:
        """A writer, to be used in a `with` block. The same `commit_user` must not write from two places at once."""
        from shoal.table.write import Write

        check(self.schema.options, "write", has_primary_key=bool(self.primary_key))
        return Write(self, commit_user)

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

    def follow(self, **_: Any) -> Iterator[pa.RecordBatch]:
        """Reserved for streaming reads."""
        raise Unsupported(
            "streaming reads (follow) are not there yet", hint="poll with scan(), or use Flink for the stream"
        )

    # ---- what the rest of this layer calls

    def with_schema(self, schema: Schema) -> Table:
        """The same table at another schema version."""
        return Table(
            self.name, self.store, schema, cache=self.metadata.cache, clock=self.clock, scheduler=self.new_scheduler,
            memory=self.memory, rng=self.rng,
        )  # fmt: skip

    def budget(self) -> Budget:
        return Budget(self.memory)

    def partition_path(self, partition: bytes) -> str:
        o = self.options
        return paths.partition_path(
            self.schema.partition_fields, partition, o.partition_default_name, o.partition_legacy_name
        )

    def bucket_folder(self, partition: bytes, bucket: int) -> str:
        """The bucket's folder relative to the table, with a final slash."""
        return paths.bucket_dir(self.partition_path(partition), bucket) + "/"

    def file_path(self, partition: bytes, bucket: int, file: DataFile) -> str:
        if file.external_path is not None:
            raise Unsupported(
                f"{file.file_name} lies outside the table, at {file.external_path}",
                hint="external paths are not supported yet",
            )
        return self.bucket_folder(partition, bucket) + file.file_name

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
        return Rules(self.schema.trimmed_keys, fields, o.sequence_ascending, o.ignore_delete)

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
        )

    @cached_property
    def bucket_key(self) -> tuple[str, ...]:
        """Columns whose hash is the bucket: `bucket-key`, else the primary key without partition columns."""
        return self.options.bucket_key or self.schema.trimmed_keys

    def local_now_ms(self) -> int:
        """Now, as the local wall clock that `_CREATION_TIME` holds."""
        return local_ms(self.clock, self.clock.now_ms())

    def local_hour(self) -> int:
        return self.local_now_ms() // 3_600_000 % 24


def option_map(options: Mapping[str, object] | None) -> dict[str, str]:
    """Options as users give them (ints, bools) in the text form that schema files keep."""
    out = {}
    for k, v in (options or {}).items():
        out[k] = ("true" if v else "false") if isinstance(v, bool) else str(v)
    return out
