# SPDX-License-Identifier: Apache-2.0
"""Names of databases and tables as users write them: `db.table`, optionally back-quoted."""

from __future__ import annotations

from shoal.errors import BadRequest


def split_name(name: str, default: str | None = None) -> tuple[str, str]:
    """(database, table) of `db.t`, or of `t` with a default database.

    >>> split_name("shop.orders")
    ('shop', 'orders')
    """
    parts = [p.strip("`") for p in name.split(".")]
    if len(parts) == 1 and default is not None:
        parts = [default, parts[0]]
    if len(parts) != 2 or not all(parts):
        raise BadRequest(f"'{name}' is not a table name", hint="tables are named DATABASE.TABLE")
    check_name(parts[0], "database")
    check_name(parts[1], "table")
    return parts[0], parts[1]


def check_name(name: str, what: str) -> None:
    if not name or name in (".", "..") or any(c in name for c in "/\\\0") or name.startswith("."):
        raise BadRequest(f"'{name}' cannot be a {what} name", hint="no slashes, and no dot in front")
