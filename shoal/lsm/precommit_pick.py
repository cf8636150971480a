# SPDX-License-Identifier: Apache-2.0
"""Which new files of one checkpoint become one before they are committed: small neighbours, up to a target size.

Agrees with: ChangelogCompactCoordinateOperator, AppendPreCommitCompactCoordinator (2.0.0). Invariant: pure; groups keep
the order of the files and share none.
"""

from __future__ import annotations

from collections.abc import Sequence


def gathered(sizes: Sequence[int], enough: int, target: int) -> list[tuple[int, ...]]:
    """Positions of the files of one partition that become one, group by group.

    A file of `enough` bytes stays as it is; a group is closed when it has `target` bytes, and at the end of the
    checkpoint. One file alone is no group.

    >>> gathered([4, 5, 90, 3, 2], enough=70, target=9)
    [(0, 1), (3, 4)]
    """
    groups: list[tuple[int, ...]] = []
    waiting: list[int] = []
    size = 0
    for i, n in enumerate(sizes):
        if n >= enough:
            continue
        waiting.append(i)
        size += n
        if size >= target:
            groups.append(tuple(waiting))
            waiting, size = [], 0
    return [g for g in (*groups, tuple(waiting)) if len(g) > 1]
