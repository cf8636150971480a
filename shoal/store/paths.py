# SPDX-License-Identifier: Apache-2.0
"""Relative paths inside a store: one check that every store applies before it touches anything.

Invariant: a path that passed `checked` or `folder` names something below the root, spelled one way only
(no leading or trailing slash, no empty, `.` or `..` part), so equal files have equal paths in every store.
"""

from __future__ import annotations

from shoal.errors import BadRequest


def checked(path: str) -> str:
    """The path itself, when it names a file below the root.

    >>> checked("db.db/t/snapshot/snapshot-1")
    'db.db/t/snapshot/snapshot-1'
    """
    parts = path.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in path:
        raise BadRequest(
            f"'{path}' is not a path inside the store",
            hint="a store path is relative, with '/' between parts and no empty, '.' or '..' part",
        )
    return path


def folder(prefix: str) -> str:
    """The folder without a trailing slash; the empty string is the root."""
    prefix = prefix.removesuffix("/")
    return checked(prefix) if prefix else ""


def hidden(name: str) -> bool:
    """Whether listings leave the name out: temporary files of shoal and of Java Paimon begin with a dot."""
    return name.startswith(".")


def join(prefix: str, name: str) -> str:
    """`name` inside the folder `prefix`."""
    return f"{prefix}/{name}" if prefix else name
