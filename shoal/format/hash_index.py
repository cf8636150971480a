# SPDX-License-Identifier: Apache-2.0
"""Hash index files of dynamic buckets: the key hashes that live in one bucket.

Agrees with: HashIndexFile, IntFileUtils (2.0.0). Invariant: a file is big-endian 32-bit integers and nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.errors import Corrupt

INDEX_TYPE = "HASH"


def decode(data: bytes, path: str) -> NDArray[np.int32]:
    """The hashes, in the order of the file."""
    if len(data) % 4:
        raise Corrupt(f"{path}: a hash index of {len(data)} bytes", hint="it is cut off")
    return np.frombuffer(data, ">i4").astype(np.int32)


def encode(hashes: NDArray[np.int32]) -> bytes:
    return hashes.astype(">i4").tobytes()
