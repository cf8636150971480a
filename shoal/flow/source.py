# SPDX-License-Identifier: Apache-2.0
"""What a streaming job reads from: a replayable, ordered stream of change rows.

A position is a plain int that a job keeps in the table's snapshots: the number of rows already
taken, 0 at the start. Each row is due at a stream second, counted from the start of the stream;
due times never go down.

Invariant: `take` from a position gives the same rows with the same kinds in every process, as long as
`fingerprint` is the same; joining takes at any cuts equals one take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from shoal.errors import BadRequest

# Paimon's RowKind bytes.
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Changes:
    """Some rows of a stream, in order. `position` is where the next take goes on.

    `at_s` is the second at which the row before `position` was due (0.0 at the start); `next_s` the second
    at which the row at `position` is due, or None when the stream has ended.
    """

    rows: pa.RecordBatch
    kinds: pa.Int8Array
    position: int
    at_s: float
    next_s: float | None

    @property
    def ended(self) -> bool:
        """Whether no row follows."""
        return self.next_s is None

    def __len__(self) -> int:
        return int(self.rows.num_rows)


class Source(Protocol):
    """A replayable, ordered stream of change rows."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows; the kind is not one of them."""
        ...

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Columns that make a good primary key for the table, or none."""
        ...

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Columns that make a good partition for the table, or none."""
        ...

    @property
    def total(self) -> int | None:
        """How many rows the stream has, or None while that is not known."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names the rows, not their pace: a position is good only for a source with the same fingerprint."""
        ...

    def take(self, position: int, *, until_s: float | None, max_rows: int) -> Changes:
        """Up to `max_rows` rows from `position` that are due at `until_s`; None waits for nothing, -1 only looks."""
        ...


def check_take(position: int, max_rows: int, total: int | None) -> None:
    """Refuse a position outside the stream and a take of nothing."""
    if position < 0 or (total is not None and position > total):
        known = f"0 to {total}" if total is not None else "0 and up"
        raise BadRequest(
            f"position {position} is not in this source ({known})",
            hint="the position was kept for another source; check the job's source",
        )
    if max_rows < 1:
        raise BadRequest(f"max_rows is {max_rows}; a take needs at least 1")
