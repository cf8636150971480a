# SPDX-License-Identifier: Apache-2.0
"""Names of changelog files that share one file on disk, and the stretch of it that is each of them.

`compacted-changelog-<x>$<b>-<len>.cc-<format>` is the file itself, in the folder of bucket b; as a changelog file's
name it stands for its first `len` bytes. `compacted-changelog-<x>$<b>-<len>-<offset>-<length>.cc-<format>` is no file:
it stands for `length` bytes from `offset` of the one in bucket b, whatever bucket the name is listed in. Agrees with:
CompactedChangelogPathResolver, CompactedChangelogReadOnlyFormat (2.0.0). Invariant: one name of each shared file begins
at offset 0, so the file itself is always listed under its own name.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import Corrupt

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = "compacted-changelog-"
FORMATS = ("parquet", "orc", "avro")
"""Formats that Java reads a stretch of."""
_MARK = ".cc-"
_NAME = re.compile(r"(compacted-changelog-[^$.]*\$(\d+)-(\d+))(?:-(\d+)-(\d+))?(\.cc-\w+)")


@dataclass(frozen=True, slots=True)
class Slice:
    """`length` bytes from `offset` of the file `name`, which lies in the folder of `bucket`."""

    bucket: int
    name: str
    offset: int
    length: int


def slice_of(file_name: str) -> Slice | None:
    """What of which shared file a name stands for; None for a file of its own.

    >>> slice_of("compacted-changelog-x$0-20-20-7.cc-orc")
    Slice(bucket=0, name='compacted-changelog-x$0-20.cc-orc', offset=20, length=7)
    """
    if _MARK not in file_name:
        return None
    found = _NAME.fullmatch(file_name)
    if found is None:
        raise Corrupt(
            f"changelog file '{file_name}' does not say where its bytes lie",
            hint="it should read compacted-changelog-<x>$<bucket>-<length>[-<offset>-<length>].cc-<format>",
        )
    own, bucket, first, offset, length, ending = found.groups()
    if offset is None:
        return Slice(int(bucket), file_name, 0, int(first))
    return Slice(int(bucket), own + ending, int(offset), int(length))


def elsewhere(names: pa.Array) -> pa.Array:
    """Which of the names are a stretch of a file that another name stands for."""
    import pyarrow.compute as pc

    return pc.match_substring_regex(names, r"^compacted-changelog-[^$.]*\$\d+-\d+-\d+-\d+\.cc-")


def shared_name(unique: str, bucket: int, first: int, format_name: str) -> str:
    """The name of a shared file whose first `first` bytes are a changelog file of `bucket`."""
    return f"{PREFIX}{unique}${bucket}-{first}{_MARK}{format_name}"


def slice_name(shared: str, offset: int, length: int) -> str:
    """The name of a stretch of a shared file."""
    own, mark, ending = shared.rpartition(_MARK)
    return f"{own}-{offset}-{length}{mark}{ending}" if offset else shared


def window(file: pa.NativeFile, offset: int, length: int) -> pa.NativeFile:
    """The stretch of an open file as a file of its own; closing it closes the file."""
    import pyarrow as pa

    return pa.PythonFile(_Window(file, offset, length), mode="r")


class _Window(io.RawIOBase):
    def __init__(self, inner: pa.NativeFile, offset: int, length: int) -> None:
        self._inner, self._offset, self._length, self._at = inner, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._length - self._at)
        count = left if size is None or size < 0 else min(size, left)
        self._inner.seek(self._offset + self._at)
        data: bytes = self._inner.read(count)
        self._at += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()
