# SPDX-License-Identifier: Apache-2.0
"""How many rows each bucket of each partition holds, and which bucket the next new row gets.

Agrees with: crosspartition.BucketAssigner (2.0.0). Invariant: rows that come and go in one batch are placed as if they
came one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Leaving:
    """Rows that leave a partition: when (a row number), and from which bucket.

    `bucket` is -1 for those that came in this same batch; `came` then says as the how manieth.
    """

    when: Array
    bucket: Array
    came: Array


class PartitionCounts:
    """Rows of the buckets of one partition; `target` is how many fill one."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.rows: dict[int, int] = {}

    def add(self, bucket: int, count: int) -> None:
        """Count rows that are there already."""
        self.rows[bucket] = self.rows.get(bucket, 0) + count

    def place(self, when: Array, leaving: Leaving) -> Array:
        """The buckets of rows that arrive at the ascending times `when`, others leaving meanwhile."""
        count = len(when)
        if not count:
            self._leave(leaving.bucket)
            return np.empty(0, np.int32)
        bucket, room = next(self._open())
        # full buckets below the first with room stay full unless a row leaves one of them
        if count <= room and not np.any((leaving.bucket >= 0) & (leaving.bucket < bucket)):
            given = np.full(count, bucket, np.int32)
            self.add(bucket, count)
        elif not len(leaving.when):
            given = self._fill(count)
        else:
            return self._one_by_one(when, leaving)
        self._leave(np.where(leaving.bucket < 0, given[leaving.came], leaving.bucket))
        return given

    def _open(self) -> Iterator[tuple[int, int]]:
        """Buckets that take rows, in Java's order, with their room: those there are, then new ones."""
        for bucket in sorted(self.rows):
            if self.rows[bucket] < self._target:
                yield bucket, self._target - self.rows[bucket]
        new = 0
        while True:
            if new not in self.rows:
                yield new, max(1, self._target)
            new += 1

    def _fill(self, count: int) -> Array:
        pieces = []
        for bucket, room in list_until(self._open(), count):
            self.add(bucket, room)
            pieces.append(np.full(room, bucket, np.int32))
        return np.concatenate(pieces)

    def _leave(self, buckets: Array) -> None:
        for bucket, count in zip(*(a.tolist() for a in np.unique(buckets, return_counts=True))):
            self.add(bucket, -count)

    def _one_by_one(self, when: Array, leaving: Leaving) -> Array:
        """Where a full bucket gets room in the midst of a batch, each row depends on the one before it: no vector form.

        Only rows that change their partition out of a full bucket, or while one fills up, come here.
        """
        times = np.concatenate([when, leaving.when])
        order = np.argsort(times, kind="stable")
        given: list[int] = []
        left, came, count = leaving.bucket.tolist(), leaving.came.tolist(), len(when)
        for event in order.tolist():
            if event < count:
                bucket = next(self._open())[0]
                self.add(bucket, 1)
                given.append(bucket)
            else:
                from_bucket = left[event - count]
                self.add(given[came[event - count]] if from_bucket < 0 else from_bucket, -1)
        return np.array(given, np.int32)


def list_until(open_buckets: Iterator[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """As many of the buckets as `count` rows need, with the rows each takes."""
    out = []
    for bucket, room in open_buckets:
        take = min(room, count)
        out.append((bucket, take))
        count -= take
        if not count:
            break
    return out
