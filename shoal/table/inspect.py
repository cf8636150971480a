# SPDX-License-Identifier: Apache-2.0
"""System tables: what a table consists of, as Arrow.

`table.inspect.files()` has the columns of Java's `t$files`, and so on; `table.system("files")` takes Java's name.
Tables about metadata open no data file; `audit_log`, `binlog`, `read_optimized` and `row_tracking` are scans, streamed
when they are asked for rows. Agrees with: SystemTableLoader, TimeTravelUtil.tryTravelOrLatest (2.0.0). Invariant:
columns, types and texts are Java's; times are local wall clock without a zone, as Java shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from shoal.errors import BadRequest, NotFound, near
from shoal.format.snapshot import Snapshot
from shoal.table import inspect_files, inspect_history
from shoal.table.frames import Frames

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.audit import AuditLog
    from shoal.table.scan import Scan
    from shoal.table.table import Table

# Java's names, and the method of `Inspect` that makes each.
NAMES = {
    "aggregation_fields": "aggregation_fields", "audit_log": "audit_log", "binlog": "binlog", "branches": "branches",
    "buckets": "buckets", "consumers": "consumers", "file_key_ranges": "file_key_ranges", "files": "files",
    "manifests": "manifests", "options": "options", "partitions": "partitions", "ro": "read_optimized",
    "row_tracking": "row_tracking", "schemas": "schemas", "snapshots": "snapshots", "statistics": "statistics",
    "table_indexes": "table_indexes", "tags": "tags",
}  # fmt: skip
# Those that are the same whichever snapshot is asked for.
_TIMELESS = (
    "aggregation_fields", "branches", "consumers", "options", "schemas", "snapshots", "tags",
)  # fmt: skip
_ROWS = ("audit_log", "binlog", "ro", "row_tracking")


class When(TypedDict, total=False):
    """Which state of the table: at most one of these, as in `Table.scan`."""

    tag: str | None
    version: str | None
    timestamp: int | str | datetime | None
    watermark: int | None


class Query(When, total=False):
    """What is asked of a table that shows rows."""

    snapshot: int | None
    where: str | pc.Expression | None
    columns: Sequence[str] | None
    limit: int | None


class Inspect:
    """`table.inspect`. Arguments named `snapshot` are ids; without any, the newest state is told."""

    def __init__(self, table: Table) -> None:
        self.table = table

    # ---- by Java's name

    def system(self, name: str, **asked: Unpack[Query]) -> pa.Table:
        """The whole system table of this name: `system("files", snapshot=3)` is `t$files` as of snapshot 3."""
        return self.scan(name, **asked).to_arrow()

    def scan(self, name: str, **asked: Unpack[Query]) -> Frames:
        """The system table of this name as a scan. `where` and `columns` speak of the system table's columns."""
        key = name.lower().removeprefix("$")
        if key not in NAMES:
            raise NotFound(
                f"there is no system table '{name}'", hint=near(key, NAMES) or f"there are {', '.join(NAMES)}"
            )
        method: Callable[..., Any] = getattr(self, NAMES[key])
        if key in _ROWS:
            return method(**asked)
        where, columns, limit = (asked.pop(k, None) for k in ("where", "columns", "limit"))  # type: ignore[misc]
        if key in _TIMELESS:
            if asked:
                # time travel must name a state there is, even where every state looks the same
                self._at(asked.get("snapshot"), _when(asked))
            return _Held(method(), where, columns, limit)
        return _Held(method(**asked), where, columns, limit)

    # ---- files of a snapshot

    def files(self, snapshot: int | None = None, **when: Unpack[When]) -> pa.Table:
        """Live data files with their keys and column bounds (`t$files`); postponed buckets are left out."""
        return inspect_files.files(*self._at(snapshot, when))

    def file_key_ranges(self, snapshot: int | None = None, **when: Unpack[When]) -> pa.Table:
        """Live data files with their keys (`t$file_key_ranges`)."""
        return inspect_files.key_ranges(*self._at(snapshot, when))

    def partitions(self, snapshot: int | None = None, **when: Unpack[When]) -> pa.Table:
        """Rows, bytes and files of each partition (`t$partitions`); postponed buckets are left out."""
        return inspect_files.partitions(*self._at(snapshot, when))

    def buckets(self, snapshot: int | None = None, **when: Unpack[When]) -> pa.Table:
        """Rows, bytes and files of each bucket (`t$buckets`); -2 is the postponed one."""
        return inspect_files.buckets(*self._at(snapshot, when))

    def manifests(self, snapshot: int | None = None, **when: Unpack[When]) -> pa.Table:
        """Manifests of a snapshot, those of its changelog too (`t$manifests`)."""
        return inspect_files.manifests(*self._at(snapshot, when))

    def table_indexes(self, snapshot: int | None = None, **when: Unpack[When]) -> pa.Table:
        """Index files: hash indexes of dynamic buckets, deletion vectors, global indexes (`t$table_indexes`)."""
        return inspect_files.indexes(*self._at(snapshot, when))

    def statistics(self, snapshot: int | None = None, **when: Unpack[When]) -> pa.Table:
        """What ANALYZE found (`t$statistics`)."""
        return inspect_history.table_statistics(*self._at(snapshot, when))

    # ---- rows

    def audit_log(self, **asked: Unpack[Query]) -> AuditLog:
        """Rows with their kinds, deletes too (`t$audit_log`); `audit_log().follow(...)` streams them."""
        return self._audit(False, asked)

    def binlog(self, **asked: Unpack[Query]) -> AuditLog:
        """Like the audit log with every column as a list (`t$binlog`); in a stream an update has two values."""
        return self._audit(True, asked)

    def read_optimized(self, **asked: Unpack[Query]) -> Scan:
        """Rows that need no merge: the files of the highest level only (`t$ro`)."""
        from shoal.table.audit import read_optimized

        return read_optimized(*self._state(asked), **_what(asked))

    def row_tracking(self, **asked: Unpack[Query]) -> Scan:
        """Rows with `_ROW_ID` and `_SEQUENCE_NUMBER` (`t$row_tracking`)."""
        from shoal.table.audit import row_tracking

        return row_tracking(*self._state(asked), **_what(asked))

    # ---- the table's history

    def snapshots(self) -> pa.Table:
        """Every snapshot there is, oldest first (`t$snapshots`)."""
        return inspect_history.snapshots(self.table)

    def schemas(self) -> pa.Table:
        """Every version of the schema, oldest first (`t$schemas`)."""
        return inspect_history.schemas(self.table)

    def options(self) -> pa.Table:
        """Options that are set (`t$options`)."""
        return inspect_history.options(self.table)

    def aggregation_fields(self) -> pa.Table:
        """How each column is merged (`t$aggregation_fields`)."""
        return inspect_history.aggregation_fields(self.table)

    def tags(self) -> pa.Table:
        """Tags by name (`t$tags`)."""
        return inspect_history.tags(self.table)

    def branches(self) -> pa.Table:
        """Branches by name (`t$branches`); the time is that of their oldest file, where Java shows the folder's."""
        return inspect_history.branches(self.table)

    def consumers(self) -> pa.Table:
        """Consumers and the snapshot each reads next (`t$consumers`)."""
        return inspect_history.consumer_positions(self.table)

    # ---- parts

    def _audit(self, packed: bool, asked: Query) -> AuditLog:
        from shoal.table.audit import audit_log

        return audit_log(self._placed(asked.get("snapshot"), _when(asked)), packed=packed, **_what(asked))

    def _state(self, asked: Query) -> tuple[Table, Snapshot | None]:
        return self._at(asked.get("snapshot"), _when(asked))

    def _at(self, snapshot: int | None, when: When) -> tuple[Table, Snapshot | None]:
        """The table with the columns it had, and the snapshot that is asked for, or else the newest one."""
        from shoal.table.travel import view

        seen = view(self._placed(snapshot, when))
        return seen.table, seen.snapshot

    def _placed(self, snapshot: int | None, when: When) -> Table:
        from shoal.table.travel import MILLIS, SNAPSHOT, TAG, VERSION, WATERMARK, at_place

        for k in when:
            if k not in When.__annotations__:
                raise BadRequest(
                    f"there is no argument '{k}'", hint=near(k, Query.__annotations__) or "time travel is by snapshot, "
                    + ", ".join(When.__annotations__),
                )  # fmt: skip
        at = {SNAPSHOT: snapshot, TAG: when.get("tag"), VERSION: when.get("version"), MILLIS: when.get("timestamp"),
              WATERMARK: when.get("watermark")}  # fmt: skip
        return at_place(self.table, at)


def _when(asked: Query) -> When:
    at: Any = {k: v for k, v in asked.items() if k not in ("snapshot", "where", "columns", "limit")}
    return at


def _what(asked: Query) -> Any:
    return {k: v for k, v in asked.items() if k in ("where", "columns", "limit")}


@dataclass(frozen=True)
class _Held(Frames):
    """A small table that is in memory, filtered and projected like a scan."""

    table: pa.Table
    where: str | pc.Expression | None
    columns: Sequence[str] | None
    limit: int | None

    @property
    def schema(self) -> pa.Schema:
        return self.to_arrow().schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.to_arrow().to_batches()

    def to_arrow(self) -> pa.Table:
        out, where = self.table, self.where
        if isinstance(where, str):
            from shoal.table.where import parse

            where = parse(where, out.schema)
        if where is not None:
            out = out.filter(where)
        if self.columns is not None:
            for c in self.columns:
                if c not in out.column_names:
                    raise BadRequest(f"there is no column '{c}'", hint=near(c, out.column_names))
            out = out.select(list(self.columns))
        return out if self.limit is None else out.slice(0, self.limit)
