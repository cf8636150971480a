# SPDX-License-Identifier: Apache-2.0
"""From a URI to a store: the one place that knows the schemes.

Invariant: nothing is asked of the network or the disk here, and only the packages that the scheme needs are
imported; a bad URI fails at once, an unreachable store at its first call.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping

from shoal.errors import BadRequest, Unsupported, near
from shoal.store.base import Store
from shoal.store.local import LocalStore
from shoal.store.memory import MemoryStore

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):(.*)$", re.DOTALL)
_SCHEMES = ("file", "memory", "s3", "s3a", "s3n", "gs", "abfs", "abfss", "az", "oss", "hdfs")
_memory: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def open_store(uri: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Store:
    """The store whose root is `uri`.

    >>> open_store("file:/data/warehouse").uri
    'file:/data/warehouse'
    >>> open_store("memory:demo") is open_store("memory:demo")
    True
    """
    text = os.fspath(uri)
    found = _SCHEME.match(text)
    if found is None:
        return LocalStore(_named(text, text))
    scheme, rest = found[1].lower(), found[2]
    if scheme == "file":
        return LocalStore(_local_path(text, rest))
    if scheme == "memory":
        return _memory_store(rest.strip("/"))
    if scheme in ("s3", "s3a", "s3n"):
        from shoal.store.s3 import s3_store

        bucket, prefix = _bucket(text, rest)
        return s3_store(bucket, prefix, options or {})
    if scheme in ("gs", "abfs", "abfss", "az"):
        return _cloud_store(text, rest)
    if scheme == "oss":
        raise Unsupported(
            f"cannot open {text}: Alibaba OSS refuses the conditional put (If-None-Match) that makes a commit happen "
            "only once",
            hint="use S3, Google Cloud Storage, Azure or a file system; two writers would overwrite each other on OSS",
        )
    if scheme in ("hdfs", "viewfs"):
        raise Unsupported(f"cannot open {text}: HDFS is not supported", hint="mount it, and give the local path")
    raise BadRequest(
        f"unknown scheme '{scheme}' in {text}",
        hint=near(scheme, _SCHEMES) or "give a local path, or a URI that begins with file:, s3:// or memory:",
    )


def _named(uri: str, path: str) -> str:
    if not path:
        raise BadRequest(f"'{uri}' names no folder", hint="give a path, e.g. file:/data/warehouse")
    return path


def _local_path(uri: str, rest: str) -> str:
    """The path of `file:/a`, `file:///a` and `file://localhost/a`; like Hadoop, nothing in it is percent-decoded."""
    if not rest.startswith("//"):
        return _named(uri, rest)
    host, slash, path = rest[2:].partition("/")
    if host not in ("", "localhost"):
        raise BadRequest(
            f"'{uri}' names the host '{host}'", hint=f"for a path on this machine write file:/{host}/{path}"
        )
    return _named(uri, slash + path)


def _bucket(uri: str, rest: str) -> tuple[str, str]:
    bucket, _, prefix = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not bucket:
        raise BadRequest(f"'{uri}' names no bucket", hint="write s3://bucket/prefix")
    return bucket, prefix.strip("/")


def _memory_store(name: str) -> MemoryStore:
    with _memory_lock:
        return _memory.setdefault(name, MemoryStore(name))


def _cloud_store(uri: str, rest: str) -> Store:
    """Google Cloud Storage and Azure: keys come from the environment, as obstore documents. Not run in our tests."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    from shoal.store.object import ObjectStore

    _bucket(uri, rest)
    try:
        return ObjectStore(from_url(uri), uri)
    except (BaseError, ValueError) as err:
        raise BadRequest(f"cannot open {uri}: {err}") from err
