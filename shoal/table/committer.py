# SPDX-License-Identifier: Apache-2.0
"""One committer for many writers: staged values in, snapshots out, each checkpoint once.

Writers may be other processes: `Write.prepare` gives a value that travels (`Staged.encode`). Agrees with:
StreamTableCommit, StoreCommitter, CommitterOperator (2.0.0). Invariant: checkpoint ids of a commit user ascend; one
that is committed is never committed again; an unclear outcome is settled before anything else is committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from shoal.errors import BadRequest, CommitUnknown
from shoal.format.snapshot import BATCH_IDENTIFIER
from shoal.table import placed_keys
from shoal.table.commit import Commit
from shoal.table.staged import Committed, Staged
from shoal.table.upkeep import Keeper

if TYPE_CHECKING:
    from shoal.table.table import Table


class Committer:
    """Commits what writers of one commit user prepared. Not for several threads, nor at two places at once.

    >>> with table.committer("job-7") as c:   # doctest: +SKIP
    ...     c.filter_and_commit(recovered)     # after a restart
    ...     c.commit(43, *staged)
    """

    def __init__(self, table: Table, commit_user: str) -> None:
        self.table = table
        self.commit_user = commit_user
        self._commit = Commit(table, commit_user, table.rng)
        self._scheduler = table.new_scheduler()
        self.keeper = Keeper(table, self._scheduler)
        self._last: int | None = None
        self._looked_back = False
        self._unclear: tuple[int, Staged] | None = None

    def last_checkpoint(self) -> int | None:
        """The newest checkpoint id that this commit user has committed."""
        if not self._looked_back:
            self._last, self._looked_back = self._commit.last_identifier(), True
        return self._last

    def commit(
        self,
        checkpoint: int,
        *staged: Staged,
        watermark: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Committed:
        """Make what the writers prepared for this checkpoint visible, all of it in one.

        A checkpoint that is committed already is a no-op (`replayed`). After `CommitUnknown`, commit the same
        checkpoint again: what was given then counts.
        """
        if self._unclear is not None:
            if self._unclear[0] != checkpoint:
                raise BadRequest(
                    f"{self.table.name}: the outcome of checkpoint {self._unclear[0]} is still unclear",
                    hint="commit that checkpoint again first",
                )
            whole = self._unclear[1]
        else:
            last = self.last_checkpoint()
            if last is not None and last != BATCH_IDENTIFIER and checkpoint <= last:
                return Committed(replayed=True)
            whole = joined(staged, watermark, properties, self.table.name)
        try:
            committed = self._commit.commit(whole, checkpoint, force_snapshot=self._forced(checkpoint))
        except CommitUnknown:
            self._unclear = checkpoint, whole
            raise
        self._unclear = None
        if committed.snapshots:
            self._last = checkpoint
        return self.keeper.after(committed, checkpoint)

    def _forced(self, checkpoint: int) -> bool:
        empty_too = self.table.options.ignore_empty_commit is False
        return empty_too or self.keeper.wants_snapshot(checkpoint, self._commit.refresh)

    def filter_and_commit(self, recovered: Mapping[int, Sequence[Staged]]) -> tuple[Committed, ...]:
        """Commit checkpoints of before a restart, those that are not committed yet; what became of each, ascending.

        Their files must still be there, and are held against what the table holds now.
        """
        whole = [
            (checkpoint, joined(staged, None, None, self.table.name))
            for checkpoint, staged in sorted(recovered.items())
        ]
        done = self._commit.filter_and_commit(whole, force_snapshot=self.table.options.ignore_empty_commit is False)
        self._looked_back = False
        return done

    def abort(self, *staged: Staged) -> None:
        """Delete the files of values that will not be committed."""
        for s in staged:
            self._commit.abort(s)

    def close(self) -> None:
        self._scheduler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def joined(staged: Sequence[Staged], watermark: int | None, properties: Mapping[str, str] | None, name: str) -> Staged:
    """What several writers staged for one checkpoint as one value. Time has come as far as for the slowest of them."""
    marks = [s.watermark for s in staged if s.watermark is not None]
    return Staged(
        tuple(c for s in staged for c in s.changes),
        min((s.base_snapshot for s in staged), default=0),
        watermark if watermark is not None else min(marks, default=None),
        {k: v for s in staged for k, v in s.properties.items()} | dict(properties or {}),
        placed_keys.joined([s.placed for s in staged], name),
    )
