# SPDX-License-Identifier: Apache-2.0
"""The body of one racing process; a module of its own so that a spawned process starts without pytest."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier
from pathlib import Path

from shoal.store.local import LocalStore


def race(root: str, me: int, files: int, start: Barrier) -> None:
    """Try to create every file, then write down which ones this process made."""
    store = LocalStore(root)
    start.wait(60)
    mine = []
    for n in range(files):
        if store.create(f"race/snapshot-{n}", f"{me} {n} {'x' * 500}".encode()):
            mine.append(str(n))
    Path(root, f"won-{me}").write_text("\n".join(mine))
