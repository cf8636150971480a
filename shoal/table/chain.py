# SPDX-License-Identifier: Apache-2.0
"""Chain tables: a batch read of partitions that are full in one branch and told by their changes in another.

A partition that the table itself has is read from there, one that the snapshot branch has from that. Any other
partition of the delta branch is the newest earlier one of the snapshot branch (its anchor) with the delta partitions
after it merged in, in the order of the sequence fields. Agrees with: ChainTableFileStoreTable, ChainGroupReadTable,
ChainTableUtils, ChainKeyValueFileReaderFactory, ExposeDeletionKeyValueReader (2.0.0). Invariant: rows carry the
partition they are read for, wherever their file lies; what a partition holds does not depend on the filter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shoal.errors import BadRequest, NotFound, Unsupported
from shoal.format import paths
from shoal.format.datafile import DataFile
from shoal.format.manifest import entries_of
from shoal.format.row import decode, order_key
from shoal.format.schema import SEQUENCE_NUMBER, VALUE_KIND
from shoal.format.types import Field
from shoal.lsm.merge import DELETE, RunInput, merge_runs
from shoal.lsm.sections import sections
from shoal.table.deletions import Deletions
from shoal.table.fallback import TwoBranches, there
from shoal.table.partition_choice import choice_of, only, partitions_of, visible
from shoal.table.partition_pruning import keep_partitions
from shoal.table.refs import branch_names, branch_of, find_branch
from shoal.table.runs import BucketFiles, partition_constants
from shoal.table.scan import Scan
from shoal.table.selected import Selected
from shoal.table.split import Plan
from shoal.table.travel import View, view

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from numpy.typing import NDArray

    from shoal.table.table import Table

SNAPSHOT, DELTA = "scan.fallback-snapshot-branch", "scan.fallback-delta-branch"


def branches_of(table: Table) -> tuple[str, str] | None:
    """(snapshot branch, delta branch) of a chain table; None for others, and for the two branches themselves."""
    o = table.options
    if not o.get("chain-table.enabled") or not o.is_set(SNAPSHOT) or not o.is_set(DELTA):
        return None
    names = cast(str, o.get(SNAPSHOT)), cast(str, o.get(DELTA))
    return None if branch_of(table).lower() in (n.lower() for n in names) else names


def refuse(table: Table, what: str) -> None:
    """Raise when the table is a chain, which `what` cannot read."""
    names = branches_of(table)
    if names is not None:
        raise Unsupported(
            f"{table.name} is a chain of the branches {names[0]} and {names[1]}: {what} cannot read it",
            hint=f"read a branch by itself, as in '{table.name}$branch_{names[1]}'",
        )


@dataclass(frozen=True)
class Link:
    """The files of one partition in one branch."""

    table: Table
    partition: bytes
    entries: pa.Table
    deletions: Mapping[tuple[bytes, int], Deletions]


@dataclass(frozen=True)
class Chained:
    """What is merged into one partition."""

    partition: bytes
    links: tuple[Link, ...]


def chain(
    table: Table, mode: str, where: str | pc.Expression | None, columns: Sequence[str] | None, limit: int | None
) -> Scan:
    """A scan of a chain table: its own partitions, then those that its branches tell."""
    if mode in ("incremental", "from-file-creation-time", "from-creation-timestamp"):
        refuse(table, f"scan.mode '{mode}'")
    names = cast("tuple[str, str]", branches_of(table))
    seen = view(table)
    full, delta = (there(table, _branch(table, key, name)) for key, name in zip((SNAPSHOT, DELTA), names))
    table, own = seen.table, seen.entries()
    have = set(partitions_of(own))
    chained = [c for c in _chained(delta.table, _links(full), _links(delta)) if c.partition not in have]
    choice = choice_of(table)
    if choice is not None:
        chosen = choice.among([*have, *(c.partition for c in chained)])
        own, chained = only(own, chosen), [c for c in chained if chosen is None or c.partition in chosen]
    main = Scan(table, where=where, columns=columns, limit=limit, selected=Selected(seen.snapshot, own))
    return TwoBranches(main, ChainScan(table, delta.table, chained, where, columns, limit))


def _branch(table: Table, key: str, name: str) -> Table:
    found = find_branch(table, name)
    if found is None:
        names = branch_names(table.store)
        raise NotFound(
            f"{table.name}: '{key}' names a branch '{name}' that does not exist",
            hint=f"branches: {', '.join(names)}" if names else "create the branch",
        )
    return found


def _links(seen: View) -> dict[bytes, Link]:
    table, snap = seen.table, seen.snapshot
    entries = visible(table, seen.entries())
    deletions: Mapping[tuple[bytes, int], Deletions] = {}
    if snap is not None and snap.index_manifest is not None and table.options.deletion_vectors:
        deletions = table.metadata.deletions(snap.index_manifest)
    return {p: Link(table, p, part, deletions) for p, part in _by_partition(entries)}


def _by_partition(entries: pa.Table) -> Iterator[tuple[bytes, pa.Table]]:
    import pyarrow as pa

    encoded = entries.column("partition").combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))
    grouped, start = entries.take(pa.array(order)), 0
    for p, end in zip(encoded.dictionary.to_pylist(), ends.tolist()):
        yield p, grouped.slice(start, end - start)
        start = end


# ---- which partitions make one ---------------------------------------------------------------------------


def _chained(table: Table, full: dict[bytes, Link], delta: dict[bytes, Link]) -> Iterator[Chained]:
    """Every partition of the two branches, in order."""
    keys = _ChainKeys(table)
    ordered = sorted({*full, *delta}, key=keys.whole)
    groups: dict[tuple[Any, ...], list[bytes]] = {}  # members in the order of their chain
    for p in ordered:
        groups.setdefault(keys.group(p), []).append(p)
    for members in groups.values():
        anchor: bytes | None = None
        for i, p in enumerate(members):
            if p in full:
                anchor = p
                yield Chained(p, (full[p],))
            elif anchor is None:
                yield Chained(p, tuple(delta[q] for q in members[: i + 1]))
            else:
                later = (q for q in members[: i + 1] if q in delta and keys.between(anchor, q, p))
                yield Chained(p, (full[anchor], *(delta[q] for q in later)))


class _ChainKeys:
    """Partitions as values that compare: the group they belong to and their place in its chain, null lowest."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known: dict[bytes, tuple[Any, ...]] = {}
        self._fields = table.schema.partition_fields
        given = cast("tuple[str, ...]", table.options.get("chain-table.chain-partition-keys"))
        names = tuple(f.name for f in self._fields)
        chain = given or names
        if names[len(names) - len(chain) :] != chain:
            raise BadRequest(
                f"{table.name}: 'chain-table.chain-partition-keys' = '{','.join(chain)}' is no tail of "
                f"{', '.join(names)}",
                hint="name the last partition columns, in their order",
            )
        self._grouped = len(names) - len(chain)
        self._time = _times(table, self._fields[self._grouped :])

    def whole(self, p: bytes) -> tuple[Any, ...]:
        found = self._known.get(p)
        if found is None:
            found = self._known[p] = self._whole(p)
        return found

    def _whole(self, p: bytes) -> tuple[Any, ...]:
        values = decode([f.type for f in self._fields], p, "partition")
        return tuple((v is not None, 0 if v is None else order_key(f.type, v)) for f, v in zip(self._fields, values))

    def group(self, p: bytes) -> tuple[Any, ...]:
        return self.whole(p)[: self._grouped]

    def _chain(self, p: bytes) -> tuple[Any, ...]:
        return self.whole(p)[self._grouped :]

    def between(self, anchor: bytes, p: bytes, last: bytes) -> bool:
        """Whether a delta partition is one of the days, or hours, after the anchor up to the last.

        Java counts the days (with more than one chain column: the hours) and looks for partitions of these names.
        """
        start, end, at = self._of(anchor), self._of(last), self._time(self._texts(p))
        if at is None or (at.minute, at.second) != (0, 0):
            return False
        if len(self._fields) - self._grouped == 1:
            return at.hour == 0 and start.date() < at.date() and at <= end
        here = self._chain(anchor) < self._chain(p) <= self._chain(last)
        return here and start.date() <= at.date() <= end.date()

    def _of(self, p: bytes) -> datetime:
        found = self._time(self._texts(p))
        if found is None:
            raise BadRequest(
                f"{self._table.name}: partition {self._table.partition_path(p).rstrip('/')} is no time",
                hint="it must fit 'partition.timestamp-pattern' and 'partition.timestamp-formatter'",
            )
        return found

    def _texts(self, p: bytes) -> list[str]:
        o = self._table.options
        values = decode([f.type for f in self._fields], p, "partition")[self._grouped :]
        return [
            o.partition_default_name if v is None else paths.value_text(f.type, v, o.partition_legacy_name)
            for f, v in zip(self._fields[self._grouped :], values)
        ]


_PARTS = {"yyyy": "year", "uuuu": "year", "MM": "month", "dd": "day", "HH": "hour", "mm": "minute", "ss": "second"}
_LEAST = (("year", 1970), ("month", 1), ("day", 1), ("hour", 0), ("minute", 0), ("second", 0))


def _times(table: Table, fields: Sequence[Field]) -> Callable[[Sequence[str]], datetime | None]:
    """From the texts of the chain columns to the time they say; None when they say none."""
    o = table.options
    pattern = cast("str | None", o.get("partition.timestamp-pattern"))
    formatter = cast("str | None", o.get("partition.timestamp-formatter"))
    if pattern is None or formatter is None:
        raise BadRequest(
            f"{table.name}: a chain table needs 'partition.timestamp-pattern' and 'partition.timestamp-formatter'",
            hint="set them, such as '$dt' and 'yyyyMMdd'",
        )
    form = re.compile(_regex(table, formatter))

    def time(texts: Sequence[str]) -> datetime | None:
        text = pattern
        for f, value in zip(fields, texts):
            text = text.replace(f"${f.name}", value)
        found = form.fullmatch(text)
        if found is None:
            return None
        parts = {k: int(v) for k, v in found.groupdict().items()}
        try:
            year, month, day, hour, minute, second = (parts.get(k, least) for k, least in _LEAST)
            return datetime(year, month, day, hour, minute, second)
        except ValueError:
            return None

    return time


def _regex(table: Table, formatter: str) -> str:
    """A time format of Java's as a regular expression with named groups. Fields of fixed width only."""
    out = ""
    for quoted, letters, _, other in re.findall(r"('[^']*')|(([A-Za-z])\3*)|(.)", formatter):
        if letters and letters not in _PARTS:
            raise Unsupported(
                f"{table.name}: 'partition.timestamp-formatter' = '{formatter}' has '{letters}', which is unknown here",
                hint=f"{', '.join(_PARTS)} and quoted text are",
            )
        out += rf"(?P<{_PARTS[letters]}>\d{{{len(letters)}}})" if letters else re.escape(quoted.strip("'") or other)
    return out


# ---- rows ------------------------------------------------------------------------------------------------


class _LinkFiles(BucketFiles):
    """Files of another partition, read as of this one. Rows that a deletion vector marks come as -D."""

    def __init__(self, link: Link, bucket: int, fields: Sequence[Field], partition: bytes) -> None:
        deletions = link.deletions.get((link.partition, bucket))
        super().__init__(link.table, link.partition, bucket, fields, deletions=deletions)
        self._read_as = partition

    @cached_property
    def _constants(self) -> dict[int, pa.Scalar]:
        return partition_constants(self._table, self._read_as)

    def batches(
        self, files: Sequence[DataFile], rows: int | None = None, *, threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        for f in files:
            deletion = self._deletions.get(f.file_name)
            if deletion is None:
                yield from super().batches((f,), rows, threads=threads)
                continue
            vector = self.vector(deletion)
            reader = self.reader(f, threads=threads)
            for start, batch in reader.positioned(rows or self._fitting(reader, f)):
                # what is gone here must also be gone where the anchor still has it
                yield _as_deletes(batch, vector.keep(start, batch.num_rows))


class ChainScan(Scan):
    """The rows of chained partitions, one after the other. `plan` lists the files; only `to_batches` merges them."""

    def __init__(
        self, table: Table, delta: Table, chained: Sequence[Chained], where: str | pc.Expression | None,
        columns: Sequence[str] | None, limit: int | None,
    ) -> None:  # fmt: skip
        self._delta, self._chained = delta, chained
        entries = _joined(table, [link.entries for c in chained for link in c.links])
        super().__init__(table, where=where, columns=columns, limit=limit, selected=Selected(None, entries))

    def again(self, where: str | pc.Expression | None, columns: Sequence[str] | None = None) -> Scan:
        return ChainScan(self.table, self._delta, self._chained, where, columns, self.limit)

    def _wanted(self) -> list[Chained]:
        if self.where is None or not self._chained:
            return list(self._chained)
        fields = self.table.schema.partition_fields
        constants = [partition_constants(self.table, c.partition) for c in self._chained]
        values = [[c[f.id] for f in fields] for c in constants]
        keep = keep_partitions([f.name for f in fields], values, self.where, list(self.table.readable.values()))
        return [c for c, k in zip(self._chained, keep) if k]

    def plan(self) -> Plan:
        links = [link.entries for c in self._wanted() for link in c.links]
        return Plan(self.table, None, _joined(self.table, links))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        left, names = self.limit, self.schema.names
        for batch in self._merged() if left != 0 else ():
            if self.where is not None:
                batch = _filtered(batch, self.where)
            batch = batch if left is None else batch.slice(0, left)
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.select(names).columns, schema=self.schema)
            left = None if left is None else left - batch.num_rows
            if left == 0:
                return

    def _merged(self) -> Iterator[pa.RecordBatch]:
        rules, table = replace(self._delta.rules, lookup=False), self.table
        names = [f.name for f in self.read_fields]
        needed = [table.schema.field(n) for n in rules.needs([n for n in names if n != SEQUENCE_NUMBER.name])]
        needed += [SEQUENCE_NUMBER, VALUE_KIND]
        for chained in self._wanted():
            for _, files in sorted(_by_bucket(chained.links, needed, chained.partition).items()):
                runs = [_run(run, files) for run in _deep(sections((f for f, _ in files.values()), self._delta.bounds))]
                yield from merge_runs(runs, rules, names, table.budget(), drop_deletes=True, ordered=False)


def _by_bucket(
    links: Iterable[Link], fields: Sequence[Field], partition: bytes
) -> dict[int, dict[str, tuple[DataFile, BucketFiles]]]:
    """Files by bucket and name, each with what opens it."""
    out: dict[int, dict[str, tuple[DataFile, BucketFiles]]] = {}
    totals = set()
    for link in links:
        openers: dict[int, BucketFiles] = {}
        for e in entries_of(link.entries):
            totals.add(e.total_buckets)
            if e.bucket not in openers:
                openers[e.bucket] = _LinkFiles(link, e.bucket, fields, partition)
            out.setdefault(e.bucket, {})[e.file.file_name] = (e.file, openers[e.bucket])
    if len(totals) > 1:
        raise Unsupported(
            f"the branches of a chain have {' and '.join(map(str, sorted(totals)))} buckets in partitions that belong "
            "together",
            hint="keys of such partitions do not meet: give both branches the same number of buckets",
        )
    return out


def _deep(found: Sequence[Any]) -> list[list[DataFile]]:
    """Sections as few sorted runs: the i-th runs of all, one after the other."""
    return [[f for run in runs for f in run] for runs in zip_longest(*found, fillvalue=())]


def _run(files: Sequence[DataFile], openers: dict[str, tuple[DataFile, BucketFiles]]) -> RunInput:
    def batches(rows: int) -> Iterator[pa.RecordBatch]:
        for f in files:
            yield from openers[f.file_name][1].batches((f,), rows)

    largest = max(files, key=lambda f: f.file_size)
    sequences = (min(f.min_sequence for f in files), max(f.max_sequence for f in files))
    row_bytes = openers[largest.file_name][1].run((largest,)).row_bytes
    return RunInput(batches, row_bytes, sequences, sum(f.row_count for f in files))


def _as_deletes(batch: pa.RecordBatch, keep: NDArray[np.bool_]) -> pa.RecordBatch:
    """The rows, those not to keep with the kind -D."""
    import pyarrow as pa

    i = batch.schema.get_field_index(VALUE_KIND.name)
    kinds = np.where(keep, batch.column(i).to_numpy(), np.int8(DELETE))
    return batch.set_column(i, batch.schema.field(i), pa.array(kinds, pa.int8()))


def _joined(table: Table, parts: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(parts) if parts else table.metadata.live(None)


def _filtered(batch: pa.RecordBatch, where: pc.Expression) -> pa.RecordBatch:
    import pyarrow as pa

    batches = pa.Table.from_batches([batch]).filter(where).combine_chunks().to_batches()
    return batches[0] if batches else batch.slice(0, 0)
