# SPDX-License-Identifier: Apache-2.0
"""Consumers: how far a named reader of a stream has come, one small file each.

Agrees with: ConsumerManager, Consumer (2.0.0). Invariant: `next` is the first snapshot the reader has not taken; expiry
keeps every snapshot from the least of them on.
"""

from __future__ import annotations

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


def all_progress(store: Store) -> dict[str, int]:
    """Every consumer and its next snapshot, by name. One that vanishes meanwhile is left out."""
    names = [n.removeprefix(_PREFIX) for n in store.list_dir(paths.CONSUMER)[1] if n.startswith(_PREFIX)]
    found = ((n, progress(store, n)) for n in names)
    return {n: p for n, p in found if p is not None}


def least(store: Store) -> int | None:
    """The oldest snapshot that some consumer still needs."""
    return min(all_progress(store).values(), default=None)
