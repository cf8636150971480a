# SPDX-License-Identifier: Apache-2.0
"""A writer in a process of its own, to be killed: `kill_writer.py WAREHOUSE KIND [LAST]`.

Goes on after its last checkpoint and commits one after the other, without end or up to LAST; every seventh time it
compacts the table besides. Prints `running` before the first row, each checkpoint, and `ended` at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import itertools

import shoal
from tests.faults.histories import USER, Kind, as_table, batch
from tests.faults.kinds import KINDS


def kind_named(name: str) -> Kind:
    (found,) = [k for k in KINDS if k.name == name]
    return found


def main(warehouse: str, name: str, last: int | None) -> None:
    kind = kind_named(name)
    table = shoal.open(warehouse).table("d.t")
    print("running", flush=True)
    with table.write(commit_user=USER) as w:
        for c in itertools.count((w.last_checkpoint() or 0) + 1):
            if last is not None and c > last:
                break
            rows, gone = batch(kind, c)
            (w.upsert if kind.key else w.append)(as_table(rows))
            if gone:
                w.delete(as_table(gone).select([*dict.fromkeys([*kind.key, *kind.partitions])]))
            w.commit(checkpoint=c)
            print(c, flush=True)
            if c % 7 == 0:
                try:
                    table.maintain.compact(full=c % 14 == 0)
                except shoal.Conflict:
                    pass  # the writer's own compaction was faster
    print("ended", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
