# SPDX-License-Identifier: Apache-2.0
"""What a writer knows after a checkpoint, as a value: another one goes on from it.

Its buckets with their files, sequence numbers, and what is staged and not handed out yet, finished compactions among
it. Agrees with: FileStoreWrite.State, AbstractFileStoreWrite.checkpoint and restore (2.0.0). Invariant: the state is
of one moment, with no rows in memory; writer and successor never both write.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.format.datafile import DataFile
from shoal.table.staged import BucketChanges
from shoal.table.staged_bytes import packed, unpacked


@dataclass(frozen=True, slots=True)
class BucketState:
    """One bucket. `files` are those it will hold once everything staged is committed, where its writer compacts."""

    partition: bytes
    bucket: int
    total_buckets: int
    next_sequence: int
    files: tuple[DataFile, ...] = ()
    pending: BucketChanges | None = None
    modified: int | None = None
    """The last checkpoint that changed it."""


@dataclass(frozen=True, slots=True)
class WriterState:
    """A writer's buckets. `base_snapshot` is the one that its compactions are planned on."""

    commit_user: str
    base_snapshot: int
    buckets: tuple[BucketState, ...] = ()

    def encode(self) -> bytes:
        """JSON with a version, for `decode`."""
        return packed("writer state", self)

    @classmethod
    def decode(cls, data: bytes | str) -> WriterState:
        return unpacked("writer state", data, cls)
