# SPDX-License-Identifier: Apache-2.0
"""What was made of a store once, for stores that answer every question that was asked in the same way.

A test that cuts a call off at each of its changes looks at hundreds of stores that are almost the same. What is read
of one is a function of the store's answers, so where all of these are the same bytes the result is too: only the
answers are asked for again. One byte, name or file that differs, and it is read anew.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from shoal.errors import NotFound
from shoal.store.base import FileInfo
from shoal.store.memory import MemoryStore

P = ParamSpec("P")
T = TypeVar("T")

Question = tuple[str, str]
_GONE = "no such file"


def _answer(store: MemoryStore, question: Question) -> Any:
    what, path = question
    try:
        found = getattr(store, what)(path)
    except NotFound:
        return _GONE
    return list(found) if what == "list" else found


class Asked:
    """A store to read from, which remembers what it was asked and what it said."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.answers: dict[Question, Any] = {}

    @property
    def uri(self) -> str:
        return self.inner.uri

    def _ask(self, what: str, path: str) -> Any:
        found = self.answers[what, path] = _answer(self.inner, (what, path))
        return found

    def read(self, path: str) -> bytes:
        found: bytes = self._ask("read", path)
        if found is _GONE:
            raise NotFound(f"no file {self.uri}/{path}")
        return found

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.read(path)[start : start + length]

    def open(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.read(path))

    def size(self, path: str) -> int:
        return len(self.read(path))

    def list(self, prefix: str) -> Iterator[FileInfo]:
        return iter(self._ask("list", prefix))

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        found: tuple[list[str], list[str]] = self._ask("list_dir", prefix)
        return found


def once_for_equal_stores(make: Callable[Concatenate[Asked, P], T]) -> Callable[Concatenate[MemoryStore, P], T]:
    """Call `make`, which depends on its arguments and on the store's answers alone, once for each set of them.

    Who gets the result must not change it.
    """
    known: dict[str, list[tuple[dict[Question, Any], T]]] = {}

    @wraps(make)
    def found(store: MemoryStore, *args: P.args, **kwargs: P.kwargs) -> T:
        before = known.setdefault(repr((args, kwargs)), [])
        for answers, result in reversed(before):
            if all(_answer(store, question) == said for question, said in answers.items()):
                return result
        asked = Asked(store)
        result = make(asked, *args, **kwargs)
        before.append((asked.answers, result))
        return result

    return found
