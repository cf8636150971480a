# SPDX-License-Identifier: Apache-2.0
"""A ready-made choice of files for a scan: what a snapshot holds, or what lies between two of them.

Invariant: a selection is a value; whoever made it (time travel, an incremental read, a stream) has decided which
files count, the scan only reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.snapshot import Snapshot


@dataclass(frozen=True)
class Selected:
    """Files to read: `entries` is an entry table as `Metadata.live` gives it.

    `merge`: the newest version of each key; otherwise rows as they lie in the files, files and buckets in the order of
    the entries. `deletes` keeps -U and -D rows. `snapshot` tells whose deletion vectors apply; None for no vectors.
    `levels` gives the least level that counts (1: compacted files only), None for the rule of a batch read.
    """

    snapshot: Snapshot | None
    entries: pa.Table
    merge: bool = True
    deletes: bool = False
    levels: int | None = None
