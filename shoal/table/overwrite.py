# SPDX-License-Identifier: Apache-2.0
"""What an overwrite takes away: the live files of some partitions, and their index files.

Agrees with: OverwriteChangesProvider, PartitionPredicate.createPartitionPredicate, FileStoreCommitImpl.tryUpgrade
(2.0.0). Invariant: what is taken away is what the newest snapshot holds at the moment of the commit, not what was there
when the rows were written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from shoal.errors import BadRequest
from shoal.format.datafile import DELETE, Entry
from shoal.format.manifest import entries_of
from shoal.format.row import Value, decode, stored_values
from shoal.format.snapshot import Snapshot
from shoal.format.text_values import parsed
from shoal.format.types import Field, to_arrow
from shoal.table.base_files import live_in
from shoal.table.partition_choice import partitions_of
from shoal.table.staged import Content

if TYPE_CHECKING:
    from shoal.table.table import Table

Spec = Mapping[str, object]  # values by partition column; columns that are not named may hold anything


class Partitions:
    """The partitions that specs name: texts as in a folder's name, or values; None is the null partition.

    Without specs these are all partitions.
    """

    def __init__(self, table: Table, specs: Sequence[Spec] | None) -> None:
        self._types = table.schema.partition_types
        fields = {f.name: f for f in table.schema.partition_fields}
        position = {name: i for i, name in enumerate(fields)}
        self._wanted: list[dict[int, Value]] | None = None
        if specs is not None:
            self._wanted = []
            for spec in specs:
                if unknown := set(spec) - set(fields):
                    raise BadRequest(
                        f"{table.name}: '{sorted(unknown)[0]}' is not a partition column",
                        hint=f"the partition columns are {', '.join(fields)}" if fields else "it has no partitions",
                    )
                self._wanted.append({position[n]: _value(table, fields[n], v) for n, v in spec.items()})

    def __contains__(self, partition: bytes) -> bool:
        if self._wanted is None:
            return True
        values = decode(self._types, partition, "partition")
        return any(all(values[i] == v for i, v in spec.items()) for spec in self._wanted)


class Exactly:
    """The partitions of these rows (BinaryRows with arity prefix)."""

    def __init__(self, partitions: Collection[bytes]) -> None:
        self.partitions = frozenset(partitions)

    def __contains__(self, partition: bytes) -> bool:
        return partition in self.partitions


Chosen = Partitions | Exactly


def _value(table: Table, f: Field, value: object) -> Value:
    """A value as partitions hold it."""
    import pyarrow as pa

    if value is None or value == table.options.partition_default_name:
        return None
    try:
        if isinstance(value, str):
            column, bad = parsed(pa.array([value], pa.string()), f.type)
        else:
            column, bad = pa.array([value], to_arrow(f.type)), None
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as err:
        raise BadRequest(f"{table.name}: partition column {f.name} takes no {value!r} ({err})") from err
    if bad is not None and bad.any():
        raise BadRequest(
            f"{table.name}: {f.name} = '{value}' is no {f.type.with_nullable(True)}",
            hint=f"write it as in the partition's folder; '{table.options.partition_default_name}' is null",
        )
    return stored_values(column, f.type)[0]


def replaced(table: Table, latest: Snapshot | None, chosen: Chosen, content: Content) -> Content:
    """`content` as an overwrite of the chosen partitions on top of `latest`.

    Postponed rows stay, as nobody has decided on their bucket yet, unless the table postpones all of them.
    """
    if latest is None:
        return Content("OVERWRITE", content.entries, (), content.indexes)
    meta = table.metadata
    if isinstance(chosen, Exactly):
        live = live_in(table, latest, chosen.partitions)
    else:
        live = meta.live(latest)
        live = live_in(table, latest, [p for p in partitions_of(live) if p in chosen])
    if table.options.bucket != -2:
        import pyarrow.compute as pc

        live = live.filter(pc.greater_equal(live.column("bucket"), 0))
    gone = tuple(e._replace(kind=DELETE) for e in entries_of(live))
    indexes = meta.index_entries(latest.index_manifest) if latest.index_manifest is not None else ()
    unindexed = tuple(i._replace(kind=DELETE) for i in indexes if i.partition in chosen)
    return Content("OVERWRITE", gone + content.entries, (), unindexed + content.indexes)


def lifted(table: Table, entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """New files of an overwrite at the last level, where those of a bucket follow each other by key.

    So what batch jobs write needs no compaction (`overwrite-upgrade`).
    """
    plain = table.primary_key and not table.clustered and table.options.get("overwrite-upgrade")
    if not plain or any(e.file.level > 0 or e.bucket < 0 for e in entries):
        return tuple(entries)
    buckets: dict[tuple[bytes, int], list[Entry]] = {}
    for e in entries:
        buckets.setdefault((e.partition, e.bucket), []).append(e)
    out: list[Entry] = []
    for files in buckets.values():
        bounds = sorted(table.bounds(e.file) for e in files)
        if all(high < low for (_, high), (low, _) in pairwise(bounds)):
            files = sorted(files, key=lambda e: table.bounds(e.file)[0])
            files = [e._replace(file=e.file.upgraded(table.options.num_levels - 1)) for e in files]
        out += files
    return tuple(out)
