# SPDX-License-Identifier: Apache-2.0
"""Consumers: how far a named reader of a stream has come, one small file each.

Agrees with: ConsumerManager, Consumer, ResetConsumerProcedure, ClearConsumersProcedure (2.0.0). Invariant: `next` is
the first snapshot the reader has not taken; expiry keeps every snapshot from the least of them on.
"""

from __future__ import annotations

import re

from shoal.errors import BadRequest, Corrupt, NotFound
from shoal.format import jackson, paths
from shoal.store.base import Store

_PREFIX = "consumer-"


def path(name: str) -> str:
    """The file of a consumer."""
    if not name.strip() or "/" in name or "\\" in name or name in (".", ".."):
        raise BadRequest(f"'{name}' cannot be a consumer id", hint="take a name without slashes")
    return f"{paths.CONSUMER}/{_PREFIX}{name}"


def progress(store: Store, name: str) -> int | None:
    """The first snapshot that the consumer has not taken, or None when it is not known."""
    at = path(name)
    try:
        data = store.read(at)
    except NotFound:
        return None
    value = jackson.loads(data, f"{store.uri}/{at}").get("nextSnapshot")
    if not isinstance(value, int) or isinstance(value, bool):
        raise Corrupt(
            f"{store.uri}/{at}: 'nextSnapshot' holds {value!r}", hint="delete the file, or reset the consumer"
        )
    return value


def save(store: Store, name: str, next_snapshot: int) -> None:
    """Set the progress, forward or back. The file's time tells expiry that the reader is alive."""
    store.put(path(name), jackson.dumps({"nextSnapshot": next_snapshot}).encode())


def drop(store: Store, name: str) -> None:
    """Forget a consumer; an unknown one is no error."""
    store.delete(path(name))


def reset(store: Store, name: str, next_snapshot: int) -> None:
    """Let a consumer go on at a snapshot that is there. A reader that runs does not notice."""
    try:
        store.size(paths.snapshot(next_snapshot))
    except NotFound as err:
        ids = paths.snapshot_ids(store.list_dir(paths.SNAPSHOT)[1])
        raise NotFound(
            f"{store.uri}: snapshot {next_snapshot} does not exist, so consumer '{name}' cannot go on there",
            hint=f"snapshots {ids[0]} to {ids[-1]} are there" if ids else "the table has no snapshot",
        ) from err
    save(store, name, next_snapshot)


def clear(store: Store, including: str = "", excluding: str = "") -> list[str]:
    """Forget the consumers whose whole name matches `including` (all when blank) and not `excluding`; their names."""
    wanted, kept = _pattern(including), _pattern(excluding)
    gone = []
    for name in names(store):
        if (wanted is None or wanted.fullmatch(name)) and (kept is None or not kept.fullmatch(name)):
            drop(store, name)
            gone.append(name)
    return gone


def _pattern(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text.strip() else None
    except re.error as err:
        raise BadRequest(f"'{text}' is not a regular expression: {err}", hint="escape special characters") from err


def names(store: Store) -> list[str]:
    """Names of the consumers, sorted."""
    return [n.removeprefix(_PREFIX) for n in store.list_dir(paths.CONSUMER)[1] if n.startswith(_PREFIX)]


def all_progress(store: Store) -> dict[str, int]:
    """Every consumer and its next snapshot, by name. One that vanishes meanwhile is left out."""
    found = ((n, progress(store, n)) for n in names(store))
    return {n: p for n, p in found if p is not None}


def least(store: Store) -> int | None:
    """The oldest snapshot that some consumer still needs."""
    return min(all_progress(store).values(), default=None)
