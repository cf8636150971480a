# SPDX-License-Identifier: Apache-2.0
"""Which manifests consecutive snapshots have, from fewer lists than they name.

A commit's base list is the base and the delta list of the snapshot before it, in this order, unless the commit merged
manifests. So the base list of the last snapshot of a span tells all lists within it: where it begins with the
manifests known before the span and goes on with one manifest for each delta, none was merged in between. A delta is
one manifest for certain where there are as many new manifests as deltas and none is empty; a snapshot that changed no
number of records may have an empty one, so its own list is read. Where the last list tells something else, the span
is halved until each list that differs was read. Agrees with: FileStoreCommitImpl.tryCommitOnce, ManifestFileMerger
(2.0.0).

Invariant: a list that was not read is what reading it would have given, once the records of its manifest add up to
what the snapshot says of its delta (`Listed.told` is False until somebody has compared them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import Corrupt, NotFound, ShoalError
from shoal.format.manifest import ManifestMeta
from shoal.format.snapshot import Snapshot
from shoal.table.metadata import Metadata

Metas = tuple[ManifestMeta, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """The manifests of one snapshot. `told`: its delta list was read, else it follows from a later base list."""

    base: Metas
    delta: Metas
    told: bool = True

    @property
    def after(self) -> Metas:
        """What the base list of the next snapshot holds, unless its commit merges manifests."""
        return (*self.base, *self.delta)


def vanished(err: ShoalError) -> bool:
    """A missing file, met directly or by `Metadata`, which calls a missing manifest `Corrupt`."""
    return isinstance(err, NotFound) or (isinstance(err, Corrupt) and isinstance(err.__cause__, NotFound))


def each_list(reader: Metadata, span: Sequence[Snapshot]) -> list[Listed | ShoalError]:
    """The lists of each snapshot, all of them read; the error where one has vanished."""
    return [_read(reader, s) for s in span]


def few_lists(reader: Metadata, after: Metas | None, span: Sequence[Snapshot]) -> list[Listed | ShoalError]:
    """The same from as few lists as tell them. `after`: the manifests before the span, None where they are unknown.

    The ids of `span` follow each other, and the snapshot of `after`. No list is read twice while the cache holds it.
    """
    if len(span) < 2 or after is None:
        first = each_list(reader, span[:1])
        return first + few_lists(reader, _end(first), span[1:]) if len(span) > 1 else first
    told = _told_by_last(reader, after, span)
    if told is not None:
        return told
    middle = len(span) // 2
    left = few_lists(reader, after, span[:middle])
    return left + few_lists(reader, _end(left), span[middle:])


def _end(found: Sequence[Listed | ShoalError]) -> Metas | None:
    last = found[-1]
    return last.after if isinstance(last, Listed) else None


def _read(reader: Metadata, snap: Snapshot) -> Listed | ShoalError:
    try:
        return Listed(reader.base(snap), reader.delta(snap))
    except ShoalError as err:
        if not vanished(err):
            raise
        return err


def _told_by_last(reader: Metadata, after: Metas, span: Sequence[Snapshot]) -> list[Listed | ShoalError] | None:
    """All lists of a span from the base list of its last snapshot; None where that does not tell them."""
    *earlier, last = span
    try:
        whole = reader.base(last)
        if whole[: len(after)] != after:
            return None
        out: list[Listed | ShoalError] = []
        at = len(after)
        for s in earlier:
            own = whole[at : at + 1] if s.delta_record_count else reader.delta(s)
            if (not own and s.delta_record_count) or whole[at : at + len(own)] != own:
                return None
            out.append(Listed(whole[:at], own, told=not s.delta_record_count))
            at += len(own)
        return [*out, *each_list(reader, [last])] if at == len(whole) else None
    except ShoalError as err:
        if not vanished(err):
            raise
        return None  # the halves tell which
