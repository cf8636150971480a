# SPDX-License-Identifier: Apache-2.0
"""The numbers of `java.util.Random`, many at a time: the rows that a Java writer was given, made again here.

The generator is linear (48 bits), so the n-th state is one multiplication away from the first; whole arrays of them are
computed at once.
"""

from __future__ import annotations

import numpy as np

_A, _C, _MASK = 0x5DEECE66D, 0xB, (1 << 48) - 1


class JavaRandom:
    def __init__(self, seed: int) -> None:
        self._state = (seed ^ _A) & _MASK

    def states(self, rows: int, draws: int) -> np.ndarray:
        """The next rows x draws states, a row after the other."""
        factor, offset = np.empty(draws, np.uint64), np.empty(draws, np.uint64)
        a, c = 1, 0
        for i in range(draws):
            a, c = a * _A & _MASK, (c * _A + _C) & _MASK
            factor[i], offset[i] = a, c
        starts = np.empty(rows, np.uint64)
        s = self._state
        for i in range(rows):
            starts[i] = s
            s = (s * a + c) & _MASK
        self._state = s
        # products wrap at 2^64, which keeps the low 48 bits
        return (starts[:, None] * factor + offset) & np.uint64(_MASK)


def doubles(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """`nextDouble` of two states."""
    high, low = first >> np.uint64(22), second >> np.uint64(21)
    return ((high << np.uint64(27)) + low).astype(np.float64) * 2.0**-53


def digits(states: np.ndarray) -> np.ndarray:
    """`nextInt(16)` of each state."""
    return (states >> np.uint64(44)).astype(np.uint8)
