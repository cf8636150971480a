"""One of several processes that alter the same table at once (used by test_alter)."""

from __future__ import annotations

import sys

import shoal
from shoal.table.evolve_table import alter
from shoal.table.schema_change import changes


def main(warehouse: str, table: str, number: int, count: int) -> None:
    for i in range(count):
        alter(
            shoal.open(warehouse).table(table),
            changes(add={f"c{number}_{i}": "INT"}, options={"fields.k.stats-mode": "full"}),
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
