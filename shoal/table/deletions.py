# SPDX-License-Identifier: Apache-2.0
"""Where the deletion vectors of a bucket's files lie, as an index manifest tells.

Agrees with: DeletionFile, IndexFileHandler.scanDVIndex (2.0.0). Invariant: a data file has one vector at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Deletion(NamedTuple):
    """Where the deletion vector of one data file lies."""

    index_file: str
    external_path: str | None
    offset: int
    length: int
    cardinality: int | None


Deletions = Mapping[str, Deletion]
