# SPDX-License-Identifier: Apache-2.0
"""How a read of the newest snapshot merges: sections by key range, and the sorted runs of each.

Runs that share no key are read one after the other, whatever their number: a bucket of many files whose keys ascend
merges nothing. Agrees with: IntervalPartition, MergeTreeSplitGenerator (2.0.0). Invariant: files that readers skip
(level 0 with deletion vectors) take no part; a table that reads without merging has no fan-in.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from shoal.doctor.window import FanIn
from shoal.format.datafile import DataFile
from shoal.format.manifest import entries_of
from shoal.format.row import key_tuple
from shoal.format.schema import Schema
from shoal.lsm.sections import sections
from shoal.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

# Key ranges are compared file by file: beyond so many files this is not looked at.
MOST_FILES = 50_000


def fan_in_of(live: pa.Table, schema: Schema) -> FanIn | None:
    """The fan-in of live entries; None where readers don't merge, or there is too much to compare."""
    options = Options(schema.options, strict=False)
    vectors = options.deletion_vectors and not options.deletion_vectors_merge_on_read
    if not schema.primary_keys or vectors or options.merge_engine == "first-row":
        return None
    if live.num_rows > MOST_FILES or bool(options.get("pk-clustering-override")):
        return None
    types = schema.key_types
    key = lru_cache(maxsize=65_536)(lambda data: key_tuple(types, data))
    buckets: dict[tuple[bytes, int], list[DataFile]] = {}
    for e in entries_of(live):
        if e.bucket >= 0:
            buckets.setdefault((e.partition, e.bucket), []).append(e.file)
    files = size = count = merging = merging_files = merging_bytes = deepest = 0
    weighted = 0
    for own in buckets.values():
        for section in sections(own, lambda f: (key(f.min_key), key(f.max_key))):
            runs, mine = len(section), [f for run in section for f in run]
            held = sum(f.file_size for f in mine)
            files, size, count = files + len(mine), size + held, count + 1
            deepest, weighted = max(deepest, runs), weighted + runs * held
            if runs > 1:
                merging, merging_files = merging + 1, merging_files + len(mine)
                merging_bytes += held
    mean = weighted / size if size else 0.0
    return FanIn(files, size, count, merging, merging_files, merging_bytes, deepest, mean)
