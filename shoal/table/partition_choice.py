# SPDX-License-Identifier: Apache-2.0
"""`scan.partitions`: the only partitions that a read sees, named one by one or as the greatest there are.

Agrees with: FlinkTableSource.getPartitionPredicateWithOptions, PartitionLoader, StaticPartitionLoader,
DynamicPartitionNumberLoader, DynamicPartitionLevelLoader (2.0.0). Invariant: which partitions are the greatest is
decided once for a read, among those that a batch read of the table sees, whatever its filter; a table without any
partition yet is read without a choice. Java passes over most texts that it cannot read and gives every partition; here
they are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from shoal.errors import BadRequest
from shoal.format.row import Value, decode, encode, order_key, stored_values
from shoal.format.text_values import parsed
from shoal.format.types import Field

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.table.table import Table

OPTION = "scan.partitions"
_MAX, _MAX_TWO = "max_pt()", "max_two_pt()"
# Among the partitions (rows with arity prefix) of a table: those to read, None for all.
Choose = Callable[[Iterable[bytes]], "frozenset[bytes] | None"]


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """A choice as its text says it. `listing`: it depends on which partitions there are."""

    among: Choose
    listing: bool

    def of(self, entries: pa.Table, listed: pa.Table | None = None) -> pa.Table:
        """The entries of the chosen partitions, chosen among those of `listed` (the entries themselves without it)."""
        return only(entries, self.among(partitions_of(entries if listed is None else listed)))


def choice_of(table: Table) -> PartitionChoice | None:
    """The choice that a table's options make; None for none. Without partition columns there is nothing to choose."""
    text = cast("str | None", table.options.get(OPTION))
    fields = table.schema.partition_fields
    if text is None or not fields:
        return None
    number = {_MAX: 1, _MAX_TWO: 2}.get(text.lower())
    if number is not None:
        return PartitionChoice(lambda there: _found(_descending(fields, there)[:number]), True)
    if _MAX in text:
        depth = _depth(fields, text)
        return PartitionChoice(lambda there: _found(_of_greatest(fields, depth, there)), True)
    chosen = frozenset(_named(table, fields, part) for part in text.split(";"))
    return PartitionChoice(lambda _: chosen, False)


def only(entries: pa.Table, chosen: frozenset[bytes] | None) -> pa.Table:
    """The entries of these partitions; all of them for None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if chosen is None or not entries.num_rows:
        return entries
    column = entries.column("partition")
    return entries.filter(pc.is_in(column, pa.array(sorted(chosen), column.type)))


def partitions_of(entries: pa.Table) -> list[bytes]:
    import pyarrow.compute as pc

    found: list[bytes] = pc.unique(entries.column("partition")).to_pylist()
    return found


def chosen_now(table: Table) -> frozenset[bytes] | None:
    """What a stream reads that starts now: it is not decided anew while the stream runs."""
    choice = choice_of(table)
    if choice is None:
        return None
    if not choice.listing:
        return choice.among(())
    from shoal.table.travel import view

    seen = view(table)  # as a batch read with the same options: where the stream starts, if they name a place
    return choice.among(partitions_of(visible(seen.table, seen.entries())))


def visible(table: Table, entries: pa.Table) -> pa.Table:
    """What a batch read sees of these entries."""
    import pyarrow.compute as pc

    if not table.primary_key or not entries.num_rows:
        return entries
    entries = entries.filter(pc.greater_equal(entries.column("bucket"), 0))
    return entries.filter(pc.greater(entries.column("level"), 0)) if table.compacted_only else entries


# ---- the greatest ----------------------------------------------------------------------------------------


def _found(partitions: Sequence[bytes]) -> frozenset[bytes] | None:
    return frozenset(partitions) or None


def _descending(fields: Sequence[Field], partitions: Iterable[bytes]) -> list[bytes]:
    return sorted(partitions, key=lambda p: _order(fields, p), reverse=True)


def _order(fields: Sequence[Field], partition: bytes) -> tuple[Any, ...]:
    """A partition in a form that compares as Java compares it, null below everything."""
    values = decode([f.type for f in fields], partition, "partition")
    return tuple((v is not None, 0 if v is None else order_key(f.type, v)) for f, v in zip(fields, values))


def _of_greatest(fields: Sequence[Field], depth: int, partitions: Iterable[bytes]) -> list[bytes]:
    """Partitions that share the first `depth` values with the greatest one; of the full depth that is itself."""
    ordered = _descending(fields, partitions)
    if depth == len(fields):
        return ordered[:1]
    return [p for p in ordered if _order(fields, p)[:depth] == _order(fields, ordered[0])[:depth]]


def _depth(fields: Sequence[Field], text: str) -> int:
    """How many of the first partition columns are named. What they are set to does not count, as in Java."""
    given = _pairs(text)
    names = [f.name for f in fields]
    depth = next((i for i, n in enumerate(names) if n not in given), len(names))
    if depth == 0 or len(given) != depth:
        raise BadRequest(
            f"'{OPTION}' = '{text}': {_MAX} must be given for the first partition columns, without a gap",
            hint=f"write it as {','.join(f'{n}={_MAX}' for n in names[: max(1, depth)])}",
        )
    return depth


# ---- named ones ------------------------------------------------------------------------------------------


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise BadRequest(
                f"'{OPTION}' has '{part.strip()}', which is no column=value",
                hint=f"write it as 'dt=2026-11-01,hh=5;dt=2026-11-01,hh=6', or {_MAX} or {_MAX_TWO}",
            )
        pairs[name.strip()] = value.strip()
    return pairs


def _named(table: Table, fields: Sequence[Field], text: str) -> bytes:
    """One partition as a row, from `column=value` for every partition column."""
    given = _pairs(text)
    names = [f.name for f in fields]
    if set(given) != set(names):
        raise BadRequest(
            f"'{OPTION}' = '{text}' does not name a partition of {table.name}",
            hint=f"give a value for each of {', '.join(names)}, and for nothing else",
        )
    return encode([f.type for f in fields], [_value(table, f, given[f.name]) for f in fields])


def _value(table: Table, f: Field, text: str) -> Value:
    import pyarrow as pa

    if text == table.options.partition_default_name:
        return None
    values, bad = parsed(pa.array([text], pa.string()), f.type)
    if bad.any():
        raise BadRequest(
            f"'{OPTION}' has {f.name} = '{text}', which is no {f.type.with_nullable(True)}",
            hint="write it as in the partition's folder",
        )
    return stored_values(values, f.type)[0]
