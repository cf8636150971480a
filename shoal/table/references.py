# SPDX-License-Identifier: Apache-2.0
"""Names that hold on to snapshots, as a user changes them: `table.tags` and `table.branches`.

Invariant: each verb is one call of the function that does it; times may be datetimes, durations timedeltas.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from shoal.table import branches, tags
from shoal.table.refs import Tag, branch_names, tag, tag_names
from shoal.table.travel import moment

if TYPE_CHECKING:
    from shoal.table.table import Table

Keep = timedelta | None | Literal["default"]


class Tags:
    """`table.tags`: iterate for the names, ask `tags["spring"]` for one."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __iter__(self) -> Iterator[str]:
        return iter(tag_names(self._table.metadata))

    def __contains__(self, name: object) -> bool:
        return name in tag_names(self._table.metadata)

    def __getitem__(self, name: str) -> Tag:
        return tag(self._table.metadata, name)

    def create(
        self,
        name: str,
        *,
        snapshot: int | None = None,
        timestamp: int | str | datetime | None = None,
        watermark: int | None = None,
        keep: Keep = "default",
        if_not_exists: bool = False,
    ) -> Tag:
        """Name a snapshot: the newest, one by id, or the first that is as late as a time or a watermark.

        It stays for `keep`, or for ever with None; by default `tag.default-time-retained` tells.
        """
        at = None if timestamp is None else moment(self._table.clock, timestamp, "the time of a tag")
        return tags.create_tag(
            self._table, name, snapshot=snapshot, timestamp_ms=at, watermark=watermark, retain_ms=_ms(keep),
            ignore_if_exists=if_not_exists,
        )  # fmt: skip

    def replace(self, name: str, *, snapshot: int | None = None, keep: Keep = "default") -> Tag:
        """Let a tag name another snapshot."""
        return tags.replace_tag(self._table, name, snapshot=snapshot, retain_ms=_ms(keep))

    def rename(self, name: str, new: str) -> Tag:
        return tags.rename_tag(self._table, name, new)

    def delete(self, name: str) -> bool:
        """Remove a tag, and the files that only it still needed. False when there is no such tag."""
        return tags.delete_tag(self._table, name)

    def expire(self, *, older_than: datetime | None = None) -> list[str]:
        """Remove tags whose time is over, and those made before `older_than`; returns their names."""
        return tags.expire_tags(self._table, older_than=older_than)


class Branches:
    """`table.branches`: iterate for the names; `table.branch(name)` opens one."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __iter__(self) -> Iterator[str]:
        return iter(branch_names(self._table.store))

    def __contains__(self, name: object) -> bool:
        return name in branch_names(self._table.store)

    def create(self, name: str, *, tag: str | None = None, if_not_exists: bool = False) -> Table:
        """A branch that begins empty, or at a tag."""
        return branches.create_branch(self._table, name, tag=tag, ignore_if_exists=if_not_exists)

    def rename(self, name: str, new: str) -> Table:
        return branches.rename_branch(self._table, name, new)

    def delete(self, name: str) -> None:
        branches.delete_branch(self._table, name)

    def fast_forward(self, name: str) -> None:
        """Make the table what the branch is; later snapshots of the table are forgotten."""
        branches.fast_forward(self._table, name)


def _ms(keep: Keep) -> int | Literal["default"] | None:
    return keep // timedelta(milliseconds=1) if isinstance(keep, timedelta) else keep
