# SPDX-License-Identifier: Apache-2.0
"""A batch read over two branches: a partition that the first one has is read from it, every other from the second.

Agrees with: FallbackReadFileStoreTable, FileStoreTableFactory (2.0.0). Invariant: whether a branch has a partition does
not depend on the filter, only on its files; no partition is read from both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from shoal.errors import BadRequest, NotFound
from shoal.table.partition_choice import choice_of, only, partitions_of, visible
from shoal.table.refs import branch_names, branch_of, find_branch
from shoal.table.scan import Scan
from shoal.table.selected import Selected
from shoal.table.travel import SNAPSHOT, View, read_options, view

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.table.explain import Explained
    from shoal.table.table import Table


class TwoBranches(Scan):
    """The rows of one scan, then those of the other."""

    def __init__(self, first: Scan, second: Scan) -> None:
        super().__init__(
            first.table, where=first.where, columns=first.columns, limit=first.limit, selected=first.selected
        )
        self.first, self.second = first, second

    def again(self, where: str | pc.Expression | None, columns: Sequence[str] | None = None) -> Scan:
        return TwoBranches(self.first.again(where, columns), self.second.again(where, columns))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        left = self.limit
        for batch in super().to_batches():
            left = None if left is None else left - batch.num_rows
            yield batch
        if left == 0:
            return
        for batch in self.second.to_batches():
            # the branches may differ in what is nullable
            batch = batch if batch.schema.equals(self.schema) else batch.cast(self.schema)
            batch = batch if left is None else batch.slice(0, left)
            left = None if left is None else left - batch.num_rows
            yield batch
            if left == 0:
                return

    def explain(self) -> Explained:
        """Both branches together."""
        a, b = super().explain(), self.second.explain()
        dropped = {k: a.dropped.get(k, 0) + b.dropped.get(k, 0) for k in (*a.dropped, *b.dropped)}
        return replace(
            a, table=f"{a.table} and {b.table}", files=a.files + b.files, bytes=a.bytes + b.bytes,
            rows=a.rows + b.rows, dropped=dropped, buckets=a.buckets + b.buckets, runs_max=max(a.runs_max, b.runs_max),
            merged_buckets=a.merged_buckets + b.merged_buckets,
        )  # fmt: skip


def fallback(table: Table, where: str | pc.Expression | None, columns: Sequence[str] | None, limit: int | None) -> Scan:
    """A scan of a table with `scan.fallback-branch` or `scan.primary-branch`."""
    o = table.options
    backup, primary = o.get("scan.fallback-branch"), o.get("scan.primary-branch")
    key, name = ("scan.fallback-branch", backup) if backup else ("scan.primary-branch", primary)
    other = _other(table, key, cast(str, name))
    seen = view(table)
    _same_columns(seen.table, other, key)
    theirs = there(table, other)
    first, second = (seen, theirs) if backup else (theirs, seen)
    have = first.entries()
    others = _without_partitions(second.entries(), have)
    choice = choice_of(table)
    if choice is not None:
        listed = [p for v, e in ((first, have), (second, others)) for p in partitions_of(visible(v.table, e))]
        chosen = choice.among(listed)
        have, others = only(have, chosen), only(others, chosen)
    mine, rest = Selected(first.snapshot, have), Selected(second.snapshot, others)
    return TwoBranches(
        Scan(first.table, where=where, columns=columns, limit=limit, selected=mine),
        Scan(second.table, where=where, columns=columns, limit=limit, selected=rest),
    )


def _other(table: Table, key: str, name: str) -> Table:
    found = table if name == branch_of(table) else find_branch(table, name)
    if found is None:
        names = branch_names(table.store)
        raise NotFound(
            f"{table.name}: '{key}' names a branch '{name}' that does not exist",
            hint=f"branches: {', '.join(names)}" if names else f"create the branch, or leave '{key}' out",
        )
    return found


def there(table: Table, other: Table) -> View:
    """The other branch at the same place. Its snapshot ids are its own: an id is taken over by its time."""
    options = read_options(table)
    if SNAPSHOT in options:
        then = table.metadata.snapshot(int(options[SNAPSHOT])).time_ms
        from shoal.table.history import History

        history = History(other.metadata)
        found = history.not_after(then) or history.first()
        if found is None:
            return View(other, None)
        options[SNAPSHOT] = str(found.id)
    kept = {k: v for k, v in other.schema.options.items() if k not in read_options(other)}
    return view(other.with_schema(replace(other.schema, options={**kept, **options})))


def _same_columns(table: Table, other: Table, key: str) -> None:
    mine, theirs = table.schema.fields, other.schema.fields
    same = len(mine) == len(theirs) and all(
        a.type.with_nullable(True).same_as(b.type.with_nullable(True)) for a, b in zip(mine, theirs)
    )
    if not same:
        raise BadRequest(
            f"{table.name} and its branch '{branch_of(other)}' have different columns",
            hint=f"'{key}' needs the same column types in both branches: alter one of them",
        )


def _without_partitions(entries: pa.Table, have: pa.Table) -> pa.Table:
    import pyarrow.compute as pc

    known = pc.unique(have.column("partition"))
    return entries.filter(pc.invert(pc.is_in(entries.column("partition"), known)))
