# SPDX-License-Identifier: Apache-2.0
"""Partitions that are old enough go: which ones is a decision over values and times, dropping them is a commit.

Agrees with: NormalPartitionExpire, PartitionValuesTimeExpireStrategy, PartitionUpdateTimeExpireStrategy (2.0.0).
Invariant: a partition whose age cannot be told stays. Dropping deletes no file: those go when the snapshots that hold
the partition expire, and until then the table can be rolled back.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, cast

from shoal.clock import local_ms
from shoal.errors import BadRequest, Unsupported
from shoal.format.snapshot import BATCH_IDENTIFIER, Snapshot
from shoal.options import Options
from shoal.table.commit import Commit
from shoal.table.new_files import new_uuid
from shoal.table.overwrite import Exactly
from shoal.table.partition_time import PartitionTime, partition_time_of, value_texts
from shoal.table.travel import moment

if TYPE_CHECKING:
    from shoal.clock import Clock
    from shoal.table.table import Table

_VALUES, _UPDATE = "values-time", "update-time"
_TIME = "partition.expiration-time"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A partition: its values as Java shows them, and when its newest file was made, on the local clock."""

    partition: bytes
    values: tuple[str | None, ...]
    updated_ms: int | None


@dataclass(frozen=True, slots=True)
class Policy:
    """What options say about old partitions. `batch` partitions go with one commit, all at once with 0."""

    after_ms: int
    every_ms: int
    strategy: str
    time: PartitionTime
    most: int
    batch: int
    at_end: bool
    default_name: str


@dataclass(frozen=True, slots=True)
class ExpiredPartitions:
    """The partitions that were dropped, or (`dry_run`) would be, and the snapshots that did it."""

    table: str
    partitions: tuple[str, ...] = ()
    snapshots: tuple[int, ...] = ()
    dry_run: bool = False

    def __str__(self) -> str:
        if not self.partitions:
            return f"{self.table}: no partition is old enough"
        would = "would drop" if self.dry_run else "dropped"
        return f"{self.table}: {would} {len(self.partitions):,} partitions: {', '.join(self.partitions)}"

    def to_dict(self) -> dict[str, object]:
        return {n: getattr(self, n) for n in self.__slots__}


# ---- deciding --------------------------------------------------------------------------------------------


def policy_of(
    keys: Sequence[str], options: Options, *, strategy: str | None = None, pattern: str | None = None,
    formatter: str | None = None, most: int | None = None,
) -> Policy:  # fmt: skip
    """The policy of a table with these partition columns, with what the caller wants otherwise."""
    strategy = str(options.get("partition.expiration-strategy")) if strategy is None else strategy
    if strategy not in (_VALUES, _UPDATE):
        raise Unsupported(
            f"partition.expiration-strategy '{strategy}' is not supported", hint=f"take {_VALUES} or {_UPDATE}"
        )
    after, batch = options.get(_TIME), options.get("partition.expiration-batch-size")
    most = cast(int, options.get("partition.expiration-max-num")) if most is None else most
    if most < 0:
        raise BadRequest(f"partition.expiration-max-num is {most}", hint="take 0 or more")
    return Policy(
        cast(int, after or 0), cast(int, options.get("partition.expiration-check-interval")), strategy,
        partition_time_of(keys, options, pattern, formatter), most, max(0, cast("int | None", batch) or 0),
        bool(options.get("end-input.check-partition-expire")), options.partition_default_name,
    )  # fmt: skip


def choose(policy: Policy, candidates: Iterable[Candidate], before_local_ms: int) -> list[Candidate]:
    """The partitions older than a time on the local clock: in the order of their values, at most `most` of them."""
    if policy.strategy == _VALUES:
        before = before_local_ms * 1_000_000
        old = [c for c in candidates if (time := policy.time.of(c.values)) is not None and time < before]
    else:
        old = [c for c in candidates if c.updated_ms is not None and c.updated_ms < before_local_ms]
    name = policy.default_name
    # Java compares texts by their UTF-16 units
    old.sort(key=lambda c: ",".join(name if v is None else v for v in c.values).encode("utf-16-be"))
    return old[: policy.most]


class Checks:
    """When a committer looks for old partitions: once an interval, and at the end of a batch where that is wanted."""

    def __init__(self, policy: Policy, clock: Clock, rng: random.Random) -> None:
        self._policy = policy
        # as Java: somewhere in the interval, so that jobs that do not run for so long check now and then as well
        seconds = policy.every_ms // 1000
        self._last = clock.now_ms() - (rng.randrange(seconds) * 1000 if seconds else 0)

    def due(self, now_ms: int, identifier: int) -> bool:
        """Whether to look now; when so, the next interval begins."""
        p = self._policy
        due = not p.every_ms or now_ms > self._last + p.every_ms or (p.at_end and identifier == BATCH_IDENTIFIER)
        if due:
            self._last = now_ms
        return due


# ---- doing -----------------------------------------------------------------------------------------------


def automatic(table: Table) -> Policy | None:
    """The policy of a table whose partitions expire by themselves."""
    if table.options.get(_TIME) is None or not table.schema.partition_keys:
        return None
    return policy_of(table.schema.partition_keys, table.options)


def expire_partitions(
    table: Table, policy: Policy, before_local_ms: int, identifier: int = BATCH_IDENTIFIER, dry_run: bool = False
) -> ExpiredPartitions:
    """Drop the partitions that are older than a time on the local clock."""
    if table.options.get("chain-table.enabled"):
        raise Unsupported(
            f"{table.name}: partitions of a chain table are not expired ({_TIME})",
            hint="CALL sys.expire_partitions in Flink or Spark does it",
        )
    commit = Commit(table, new_uuid(table), table.rng)
    old = choose(policy, _candidates(table, commit.refresh()), before_local_ms)
    names = tuple(table.partition_path(c.partition).rstrip("/") for c in old)
    made: list[int] = []
    size = policy.batch or len(old)
    for at in range(0, 0 if dry_run else len(old), size or 1):
        made += commit.drop_partitions(Exactly([c.partition for c in old[at : at + size]]), identifier).snapshots
    return ExpiredPartitions(table.name, names, tuple(made), dry_run)


def expire_old_partitions(
    table: Table, older_than: int | str | datetime | None = None, *, strategy: str | None = None,
    pattern: str | None = None, formatter: str | None = None, most: int | None = None, dry_run: bool = False,
) -> ExpiredPartitions:  # fmt: skip
    """What `partition.expiration-time` would drop now, or what lies before `older_than`."""
    if not table.schema.partition_keys:
        raise BadRequest(f"{table.name} has no partitions", hint="nothing can be dropped from it by age")
    policy = policy_of(
        table.schema.partition_keys, table.options, strategy=strategy, pattern=pattern, formatter=formatter, most=most
    )
    if older_than is not None:
        before = local_ms(table.clock, moment(table.clock, older_than, "older_than"))
    elif table.options.get(_TIME) is not None:
        before = table.local_now_ms() - policy.after_ms
    else:
        raise BadRequest(
            f"{table.name}: nothing says when a partition is old", hint=f"give older_than, or set the option {_TIME}"
        )
    return expire_partitions(table, policy, before, dry_run=dry_run)


def _candidates(table: Table, snap: Snapshot | None) -> list[Candidate]:
    from shoal.table.inspect_files import all_partition_sums

    sums = all_partition_sums(table, snap)
    columns = (sums.column(c).to_pylist() for c in ("partition", "creation_ms_max"))
    return [Candidate(p, value_texts(table, p), updated) for p, updated in zip(*columns)]
