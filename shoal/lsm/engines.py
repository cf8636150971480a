# SPDX-License-Identifier: Apache-2.0
"""The merge engines: how the versions of a key become one row.

`engine_of` reads the table's options; merge, compaction and the write buffer call `fold` block by block.
Agrees with: PrimaryKeyTableUtils.createMergeFunctionFactory, FirstRowMergeFunction (2.0.0). Invariant: a key with a
single version passes as it is; `deduplicate` has no engine, the merge does it on its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.errors import BadRequest
from shoal.format.schema import Schema
from shoal.lsm.aggregation import Aggregation
from shoal.lsm.partial_update import PartialUpdate
from shoal.lsm.versions import INSERT, Engine, Folded, Versions, taken
from shoal.lsm.versions import Steps as Steps
from shoal.options import Options


def engine_of(schema: Schema, options: Options) -> Engine | None:
    """The table's engine; None for `deduplicate`. `BadRequest` when the options contradict each other or the schema."""
    match options.merge_engine:
        case "partial-update":
            return PartialUpdate(schema, options)
        case "aggregation":
            return Aggregation(schema, options)
        case "first-row":
            return FirstRow(options)
    return None


class FirstRow:
    """The version that came first."""

    def __init__(self, options: Options) -> None:
        self._ignores = options.ignore_delete

    def needs(self, columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(columns))

    def fold(self, versions: Versions, columns: Sequence[str]) -> Folded:
        at, back = versions.starts, versions.retracts
        if back is not None:
            several = np.ones(len(at), bool) if versions.lone is None else ~versions.lone
            if not self._ignores and bool((back & np.repeat(several, versions.plain.counts)).any()):
                raise BadRequest(
                    "merge-engine 'first-row' takes no row of kind -U or -D, and one is to be merged",
                    hint="set 'ignore-delete' = 'true' to pass over such rows",
                )
            place = np.arange(len(back))
            at = np.where(several, np.minimum.reduceat(np.where(back, len(back), place), at), at)
            at = at[at < len(back)]  # a key of which only retractions are left has no row
        rows = versions.order[at]
        kinds = versions.ordered_kinds
        return Folded(
            [taken(versions.column(name), rows) for name in columns],
            np.full(len(rows), INSERT, np.int8) if kinds is None else kinds[at],
            rows,
        )
