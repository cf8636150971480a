# SPDX-License-Identifier: Apache-2.0
"""From `-w`, SHOAL_WAREHOUSE and `--store-option` to an open lake or table.

Invariant: a local warehouse that is not there, or a folder that is a database or a table, is refused with a way out;
nothing is created here.
"""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING

from shoal.errors import BadRequest, NotFound, near

if TYPE_CHECKING:
    from shoal.catalog.filesystem import Lake
    from shoal.table.table import Table


def open_lake(args: Namespace, *, may_create: bool = False) -> Lake:
    """The warehouse of this command line; with `may_create` a missing folder is fine."""
    from shoal.catalog.filesystem import Lake
    from shoal.store.local import LocalStore
    from shoal.store.uri import open_store

    uri = args.warehouse or os.environ.get("SHOAL_WAREHOUSE")
    if not uri:
        raise BadRequest(
            "no warehouse was given", hint="say -w FOLDER (or -w s3://bucket/prefix), or set SHOAL_WAREHOUSE"
        )
    store = open_store(uri, dict(args.store_option))
    if isinstance(store, LocalStore):
        _check_folder(store.root, may_create)
    return Lake(store)


def open_table(args: Namespace) -> Table:
    """The table that the command names."""
    return open_lake(args).table(args.table)


def _check_folder(root: str, may_create: bool) -> None:
    if os.path.isdir(root):
        parent, name = os.path.split(root)
        above, database = os.path.split(parent)
        if database.endswith(".db") and os.path.isdir(f"{root}/schema"):
            raise BadRequest(
                f"{root} is a table, not a warehouse",
                hint=f"say -w {above} and name the table {database.removesuffix('.db')}.{name}",
            )
        if name.endswith(".db"):
            raise BadRequest(
                f"{root} is a database, not a warehouse",
                hint=f"say -w {parent} and name tables {name.removesuffix('.db')}.TABLE",
            )
    elif os.path.exists(root):
        raise BadRequest(f"{root} is a file, not a warehouse", hint="a warehouse is a folder with DATABASE.db folders")
    elif not may_create:
        raise missing(root)


def missing(root: str) -> NotFound:
    """The error for a warehouse folder that is not there."""
    return NotFound(
        f"no warehouse at {root}", hint=_neighbour(root) or "its first table creates it, e.g. with 'shoal job run'"
    )


def _neighbour(root: str) -> str | None:
    """A folder beside the missing one with a near name, or what part of the path is missing already."""
    parent, name = os.path.split(root)
    try:
        folders = [entry.name for entry in os.scandir(parent) if entry.is_dir()]
    except OSError:
        return f"{parent} is not there either: check the path"
    return near(name, folders)
