# SPDX-License-Identifier: Apache-2.0
"""Statistics of a whole table, as ANALYZE leaves them in `statistics/stat-*`.

Agrees with: Statistics, ColStats, StatsFile (2.0.0). Invariant: fields that this version does not know are ignored;
bounds stay the text that the file holds, since their form belongs to the column's serializer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.errors import Corrupt
from shoal.format import jackson

FOLDER = "statistics"
# The fields of a column in the order Java prints them.
_COLUMN = {
    "colId": int, "distinctCount": int, "min": str, "max": str, "nullCount": int, "avgLen": int, "maxLen": int
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Statistics:
    """What ANALYZE found. `columns` holds JSON objects by column name, in the file's order."""

    snapshot_id: int
    schema_id: int
    merged_record_count: int | None
    merged_record_size: int | None
    columns: Mapping[str, jackson.Json]

    @property
    def columns_text(self) -> str:
        """The columns as Java prints them."""
        return jackson.dumps(self.columns)

    def encode(self) -> bytes:
        """The file's bytes."""
        out: dict[str, jackson.Json] = {"snapshotId": self.snapshot_id, "schemaId": self.schema_id}
        if self.merged_record_count is not None:
            out["mergedRecordCount"] = self.merged_record_count
        if self.merged_record_size is not None:
            out["mergedRecordSize"] = self.merged_record_size
        out["colStats"] = self.columns
        return jackson.dumps(out).encode()


def decode(data: bytes, path: str) -> Statistics:
    """Statistics from their file; `Corrupt` names the file and the field."""
    raw = jackson.loads(data, path)
    columns = raw.get("colStats")
    if columns is None:
        columns = {}
    if not isinstance(columns, Mapping):
        raise Corrupt(f"{path}: field 'colStats' holds {columns!r}")
    return Statistics(
        _whole(raw, "snapshotId", path) or 0,
        _whole(raw, "schemaId", path) or 0,
        _whole(raw, "mergedRecordCount", path),
        _whole(raw, "mergedRecordSize", path),
        {name: _column(v, f"{path}: column '{name}'") for name, v in columns.items()},
    )


def _column(raw: jackson.Json, where: str) -> dict[str, jackson.Json]:
    if not isinstance(raw, Mapping):
        raise Corrupt(f"{where} holds {raw!r}")
    out: dict[str, jackson.Json] = {}
    for name, kind in _COLUMN.items():
        v = raw.get(name)
        if v is None:
            continue
        if not isinstance(v, kind) or isinstance(v, bool):
            raise Corrupt(f"{where}: field '{name}' holds {v!r}")
        out[name] = v
    out.setdefault("colId", 0)
    return out


def _whole(raw: Mapping[str, jackson.Json], name: str, path: str) -> int | None:
    v = raw.get(name)
    if v is None or (isinstance(v, int) and not isinstance(v, bool)):
        return v
    raise Corrupt(f"{path}: field '{name}' holds {v!r}")
