# SPDX-License-Identifier: Apache-2.0
"""A store whose listings are wrong, or whose files are not found."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

from shoal.errors import NotFound, StorageFailed
from shoal.store.base import FileInfo, Store


class Lying:
    """`inner` whose listings of the folders that `about` names are wrong, or whose files are not found.

    How: `empty`, `first` and `last` (half of it missing), `stale` (as they were in `old`), `fail`, `vanish` (the
    files cannot be read either). With `once` only the first look is wrong, as on a store that is not consistent.
    """

    def __init__(self, inner: Store, how: str, about: str, old: Store | None = None, once: bool = False) -> None:
        self.inner, self.how, self.about, self.old, self.once = inner, how, about, old, once
        self.looks = 0
        self.honest = False

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def _lies(self, path: str) -> bool:
        if self.honest or not f"/{path}/".endswith(f"/{self.about}/"):
            return False
        self.looks += 1
        return not self.once or self.looks == 1

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        if not self._lies(prefix):
            return self.inner.list_dir(prefix)
        if self.how == "fail":
            raise StorageFailed(f"cannot list {prefix}")
        if self.how == "stale" and self.old is not None:
            return self.old.list_dir(prefix)
        folders, names = self.inner.list_dir(prefix)
        return self._cut(folders), self._cut(names)

    def list(self, prefix: str) -> Iterator[FileInfo]:
        if not self._lies(prefix):
            return self.inner.list(prefix)
        if self.how == "fail":
            raise StorageFailed(f"cannot list {prefix}")
        if self.how == "stale" and self.old is not None:
            return self.old.list(prefix)
        found = sorted(self.inner.list(prefix), key=lambda f: f.path)
        tops = self._cut(sorted({f.path.removeprefix(f"{prefix}/").split("/")[0] for f in found}))
        return (f for f in found if f.path.removeprefix(f"{prefix}/").split("/")[0] in tops)

    def _cut(self, names: builtins.list[str]) -> builtins.list[str]:
        half = len(names) // 2
        return {"empty": [], "first": names[half:], "last": names[:half]}.get(self.how, names)

    def read(self, path: str) -> bytes:
        if self.how == "vanish" and self.about in path:
            raise NotFound(f"no file {path}")
        return self.inner.read(path)

    def size(self, path: str) -> int:
        if self.how == "vanish" and self.about in path:
            raise NotFound(f"no file {path}")
        return self.inner.size(path)
