# SPDX-License-Identifier: Apache-2.0
"""Tags and branches: names for snapshots, and tables that share a table's files.

Agrees with: Tag, TagManager, BranchManager, FileSystemBranchManager, Identifier (2.0.0). Invariant: a tag is a whole
snapshot and stays readable after that snapshot has expired; a branch is a table like any other, over `BranchStore`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from shoal.errors import BadRequest, Corrupt, NotFound, near
from shoal.format import jackson, paths
from shoal.format.snapshot import Snapshot
from shoal.format.snapshot import decode as decode_snapshot
from shoal.store.base import Store
from shoal.store.branch import BranchStore

if TYPE_CHECKING:
    from shoal.table.metadata import Metadata
    from shoal.table.table import Table

MAIN = "main"
_TAG, _BRANCH = "tag-", "branch-"


# ---- tags ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tag:
    """A named snapshot. `created` is the maker's local wall clock; both are None for tags without a time limit."""

    name: str
    snapshot: Snapshot
    created: datetime | None = None
    retained_ms: int | None = None


def tag_path(name: str) -> str:
    return f"{paths.TAG}/{_TAG}{name}"


def tag_names(metadata: Metadata) -> list[str]:
    """Names of the tags, sorted."""
    return [n.removeprefix(_TAG) for n in metadata.store.list_dir(paths.TAG)[1] if n.startswith(_TAG)]


def find_tag(metadata: Metadata, name: str) -> Tag | None:
    """The tag, or None when there is none of that name."""
    if not name.strip() or "/" in name or "\\" in name:
        return None
    path = tag_path(name)
    try:
        data = metadata.store.read(path)
    except NotFound:
        return None
    return decode_tag(name, data, f"{metadata.store.uri}/{path}")


def tag(metadata: Metadata, name: str) -> Tag:
    """The tag; `NotFound` lists near names."""
    found = find_tag(metadata, name)
    if found is None:
        raise NotFound(f"no tag '{name}' in {metadata.store.uri}", hint=_have(name, tag_names(metadata), "tags"))
    return found


def tags(metadata: Metadata) -> list[Tag]:
    """Every tag, by snapshot and name. One that is deleted meanwhile is left out."""
    found = [t for n in tag_names(metadata) if (t := find_tag(metadata, n)) is not None]
    return sorted(found, key=lambda t: (t.snapshot.id, t.name))


def decode_tag(name: str, data: bytes, path: str) -> Tag:
    """A tag from its file: a snapshot with two more fields."""
    raw = jackson.loads(data, path)
    created, retained = raw.get("tagCreateTime"), raw.get("tagTimeRetained")
    if retained is not None and (isinstance(retained, bool) or not isinstance(retained, (int, float))):
        raise Corrupt(f"{path}: field 'tagTimeRetained' holds {retained!r}")
    return Tag(
        name,
        decode_snapshot(data, path),
        None if created is None else _local_time(created, path),
        None if retained is None else round(retained * 1000),
    )


def _local_time(value: jackson.Json, path: str) -> datetime:
    """Jackson's LocalDateTime: year, month, day, hour, minute, and second and nanosecond where they are not 0."""
    parts = [v for v in value if isinstance(v, int)] if isinstance(value, list) else []
    if isinstance(value, list) and 5 <= len(parts) == len(value) <= 7:
        second, nanos = (*parts[5:], 0, 0)[:2]
        try:
            return datetime(parts[0], parts[1], parts[2], parts[3], parts[4], second, nanos // 1000)
        except ValueError as err:
            raise Corrupt(f"{path}: field 'tagCreateTime' holds {value!r}, which is no time") from err
    raise Corrupt(f"{path}: field 'tagCreateTime' holds {value!r}")


# ---- branches --------------------------------------------------------------------------------------------


def split_name(name: str) -> tuple[str, str | None, str | None]:
    """(table, branch, system table) of a name as users write it.

    >>> split_name("shop.orders$branch_b$files")
    ('shop.orders', 'b', 'files')
    """
    table, *rest = [p.strip("`") for p in name.split("$")]
    if len(rest) > 2 or not table or not all(rest) or (len(rest) == 2 and not rest[0].startswith("branch_")):
        raise BadRequest(f"'{name}' is not a table name", hint="write DB.TABLE$branch_NAME or DB.TABLE$SYSTEM_TABLE")
    branch = rest.pop(0).removeprefix("branch_") if rest and rest[0].startswith("branch_") else None
    if branch == "":
        raise BadRequest(f"'{name}' names no branch", hint="write DB.TABLE$branch_NAME")
    return table, None if branch is None or branch.lower() == MAIN else branch, rest[0] if rest else None


def branch_names(store: Store) -> list[str]:
    """Names of the branches, sorted; `main` is not among them, nor a branch that is half made or half deleted."""
    from shoal.table.branches import unfinished

    root = root_of(store)
    return [name for name in branch_folders(root) if not unfinished(root, name)]


def branch_folders(root: Store) -> list[str]:
    """Names of all folders of branches, those that are not whole too."""
    return [f.removeprefix(_BRANCH) for f in root.list_dir(paths.BRANCH)[0] if f.startswith(_BRANCH)]


def root_of(store: Store) -> Store:
    """The store of the main branch."""
    return store.root if isinstance(store, BranchStore) else store


def branch_of(table: Table) -> str:
    """The branch that a table is: `main`, or its name."""
    return table.store.name if isinstance(table.store, BranchStore) else MAIN


def branch(table: Table, name: str) -> Table:
    """The branch `name` of a table with its newest schema; `main` gives the main table from any branch."""
    if name == branch_of(table):
        return table
    found = find_branch(table, name)
    if found is None:
        names = [MAIN, *branch_names(table.store)]
        raise NotFound(f"{base_name(table)} has no branch '{name}'", hint=_have(name, names, "branches"))
    return found


def find_branch(table: Table, name: str) -> Table | None:
    """The branch, or None when it has no schema."""
    from shoal.table.metadata import Metadata
    from shoal.table.table import Table

    if not name.strip() or "/" in name or "\\" in name:
        raise BadRequest(f"'{name}' cannot be a branch name", hint="take a name without slashes")
    root = root_of(table.store)
    if name != MAIN:
        from shoal.table.branches import unfinished

        if unfinished(root, name):
            return None
    store: Store = root if name == MAIN else BranchStore(root, name)
    meta = Metadata(store, table.metadata.cache)
    newest = meta.latest_schema_id()
    if newest is None:
        return None
    full = base_name(table) + ("" if name == MAIN else f"$branch_{name}")
    return Table(
        full, store, meta.schema(newest), cache=table.metadata.cache, clock=table.clock, scheduler=table.new_scheduler,
        memory=table.memory, rng=table.rng, wide_timestamps=table.wide_timestamps, store_options=table.store_options,
        registry=table.registry,
    )  # fmt: skip


def base_name(table: Table) -> str:
    """The table's name without its branch."""
    return table.name.partition("$branch_")[0]


def _have(name: str, names: Sequence[str], what: str) -> str:
    if (hint := near(name, names)) is not None:
        return hint
    return f"{what}: {', '.join(list(names)[:20])}" if names else f"there are no {what}"
