# SPDX-License-Identifier: Apache-2.0
"""Roaring bitmaps of 32-bit positions in the portable format, as deletion vectors and file indexes hold them.

Agrees with: RoaringBitmap32 (2.0.0), RoaringFormatSpec. Invariant: a bitmap knows its own length, so one can be read
out of a larger block, and bytes that are not a bitmap end in `Corrupt` that names the file.
"""

from __future__ import annotations

from struct import error as struct_error
from struct import unpack_from

from pyroaring import BitMap

from shoal.errors import Corrupt

_RUNS, _NO_RUNS = 12347, 12346
_OFFSETS_FROM = 4  # a bitmap with run containers leaves out the offsets when it has fewer containers


def read(data: bytes | memoryview, at: int, path: str) -> tuple[BitMap, int]:
    """(the bitmap that starts at `at`, where it ends)."""
    try:
        end = at + _size(data, at)
        if end > len(data):
            raise IndexError
        return BitMap.deserialize(bytes(data[at:end])), end
    except (struct_error, IndexError, ValueError) as err:
        raise Corrupt(f"{path}: the bitmap at byte {at} is damaged", hint="the file is damaged") from err


def encode(bitmap: BitMap) -> bytes:
    """The bytes of a bitmap, its long runs stored as runs, as Java writes it."""
    compact = bitmap.copy()
    compact.run_optimize()
    return compact.serialize()


def _size(data: bytes | memoryview, at: int) -> int:
    """Bytes of the bitmap that starts at `at`, worked out from its header."""
    start = at
    (cookie,) = unpack_from("<I", data, at)
    at += 4
    if cookie & 0xFFFF == _RUNS:
        count = (cookie >> 16) + 1
        runs = int.from_bytes(data[at : at + (count + 7) // 8], "little")
        at += (count + 7) // 8
    elif cookie == _NO_RUNS:
        (count,) = unpack_from("<I", data, at)
        runs = 0
        at += 4
    else:
        raise ValueError(f"{cookie} starts no bitmap")
    if count == 0:
        return at - start
    if at + 4 * count > len(data):
        raise IndexError
    heads, at = at, at + 4 * count
    first = 0
    if cookie == _NO_RUNS or count >= _OFFSETS_FROM:  # where the last container starts is written down
        (last,) = unpack_from("<I", data, at + 4 * (count - 1))
        first, at = count - 1, start + last
    for i in range(first, count):
        if runs >> i & 1:
            at += 2 + 4 * int(unpack_from("<H", data, at)[0])
        else:
            values = int(unpack_from("<H", data, heads + 4 * i + 2)[0]) + 1
            at += 8192 if values > 4096 else 2 * values
    return at - start
