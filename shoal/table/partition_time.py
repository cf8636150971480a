# SPDX-License-Identifier: Apache-2.0
"""The time that a partition's values name, on the local clock.

Agrees with: PartitionTimeExtractor, AbstractFileStoreWrite.PartitionTimestampValidator (2.0.0). Invariant: a partition
whose values are no time, or null where one is needed, has none; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from shoal.errors import BadRequest
from shoal.format import paths
from shoal.format.row import decode
from shoal.format.time_pattern import TimePattern, default_time, time_pattern
from shoal.options import Options

if TYPE_CHECKING:
    from shoal.table.table import Table

PATTERN, FORMATTER = "partition.timestamp-pattern", "partition.timestamp-formatter"


@dataclass(frozen=True, slots=True)
class PartitionTime:
    """How values become a time: by default the first one, else all of them put into `pattern` (`$dt $hour:00:00`)."""

    keys: tuple[str, ...]
    pattern: str | None = None
    formatter: TimePattern | None = None

    def of(self, values: Sequence[str | None]) -> int | None:
        """Nanoseconds since 1970 on the local clock, or None. `values` are in the order of the partition columns."""
        needed = values[:1] if self.pattern is None else values
        if not needed or any(v is None for v in needed):
            return None
        text = cast(str, values[0])
        if self.pattern is not None:
            text = self.pattern
            for key, value in zip(self.keys, values):  # as Java: in this order, `$d` also takes the `$d` of `$dt`
                text = text.replace(f"${key}", cast(str, value))
        return default_time(text) if self.formatter is None else self.formatter.parse(text)


def partition_time_of(
    keys: Sequence[str], options: Options, pattern: str | None = None, formatter: str | None = None
) -> PartitionTime:
    """What a table's options say, unless told here."""
    pattern = cast("str | None", options.get(PATTERN)) if pattern is None else pattern
    formatter = cast("str | None", options.get(FORMATTER)) if formatter is None else formatter
    return PartitionTime(tuple(keys), pattern, None if formatter is None else time_pattern(formatter, FORMATTER))


def value_texts(table: Table, partition: bytes) -> tuple[str | None, ...]:
    """The values as Java's `toString` shows them: a DATE is its number of days."""
    fields = table.schema.partition_fields
    values = decode([f.type for f in fields], partition, "partition")
    return tuple(None if v is None else paths.value_text(f.type, v, legacy=True) for f, v in zip(fields, values))


def strict_time_of(table: Table) -> PartitionTime | None:
    """What `partition.timestamp-format.strict` checks new partitions against; None where nothing is checked."""
    o = table.options
    if not o.get("partition.timestamp-format.strict") or not table.schema.partition_keys:
        return None
    if o.get(PATTERN) is None and o.get(FORMATTER) is None:
        return None
    return partition_time_of(table.schema.partition_keys, o)


def check_partition(table: Table, time: PartitionTime, partition: bytes) -> None:
    """`BadRequest` for a partition whose values are no time."""
    values = value_texts(table, partition)
    if time.of(values) is None:
        shown = ", ".join(f"{k}={v}" for k, v in zip(table.schema.partition_keys, values))
        raise BadRequest(
            f"{table.name}: partition {shown} does not match {PATTERN} or {FORMATTER}",
            hint="write a value that is a time, or take partition.timestamp-format.strict away",
        )
