# SPDX-License-Identifier: Apache-2.0
"""One snapshot file: which manifests make up the table at one commit.

Agrees with: Snapshot (2.0.0). Invariant: a snapshot is created once and never changed; fields that this version
does not know are ignored on read, fields that are null are left out on write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from shoal.errors import Corrupt
from shoal.format import jackson

VERSION = 3
# The commit identifier of batch writers: they never replay.
BATCH_IDENTIFIER = (1 << 63) - 1
NO_WATERMARK = -(1 << 63)


def _named(json: str, *, default: Any = None) -> Any:
    return field(default=default, metadata={"json": json})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot, in the order its file is written. Times in epoch milliseconds, sizes in bytes."""

    id: int = field(metadata={"json": "id"})
    schema_id: int = field(metadata={"json": "schemaId"})
    base_manifest_list: str = field(metadata={"json": "baseManifestList"})
    delta_manifest_list: str = field(metadata={"json": "deltaManifestList"})
    commit_user: str = field(metadata={"json": "commitUser"})
    commit_identifier: int = field(metadata={"json": "commitIdentifier"})
    commit_kind: str = field(metadata={"json": "commitKind"})
    time_ms: int = field(metadata={"json": "timeMillis"})
    total_record_count: int = _named("totalRecordCount", default=0)
    delta_record_count: int = _named("deltaRecordCount", default=0)
    version: int = _named("version", default=VERSION)
    uuid: str | None = _named("uuid")
    base_manifest_list_size: int | None = _named("baseManifestListSize")
    delta_manifest_list_size: int | None = _named("deltaManifestListSize")
    changelog_manifest_list: str | None = _named("changelogManifestList")
    changelog_manifest_list_size: int | None = _named("changelogManifestListSize")
    index_manifest: str | None = _named("indexManifest")
    changelog_record_count: int | None = _named("changelogRecordCount")
    watermark: int | None = _named("watermark")
    statistics: str | None = _named("statistics")
    properties: Mapping[str, str] | None = _named("properties")
    next_row_id: int | None = _named("nextRowId")
    operation: str | None = _named("operation")

    def encode(self) -> bytes:
        """The snapshot file's bytes."""
        out: dict[str, jackson.Json] = {}
        for json, name in _ORDER:
            value = getattr(self, name)
            if value is None or (name == "properties" and not value):
                continue
            out[json] = value
        return jackson.dumps(out).encode()


_JSON = {f.metadata["json"]: f.name for f in fields(Snapshot)}
_ORDER = [(j, _JSON[j]) for j in (
    "version", "uuid", "id", "schemaId", "baseManifestList", "baseManifestListSize", "deltaManifestList",
    "deltaManifestListSize", "changelogManifestList", "changelogManifestListSize", "indexManifest", "commitUser",
    "commitIdentifier", "commitKind", "timeMillis", "totalRecordCount", "deltaRecordCount", "changelogRecordCount",
    "watermark", "statistics", "properties", "nextRowId", "operation",
)]  # fmt: skip
_INTS = {
    "id", "schema_id", "commit_identifier", "time_ms", "total_record_count", "delta_record_count", "version",
    "base_manifest_list_size", "delta_manifest_list_size", "changelog_manifest_list_size", "changelog_record_count",
    "watermark", "next_row_id",
}  # fmt: skip
_NEEDED = (
    "id",
    "schema_id",
    "base_manifest_list",
    "delta_manifest_list",
    "commit_user",
    "commit_identifier",
    "commit_kind",
    "time_ms",
)


# Snapshots by the bytes of their files: these are read again and again, and most hold what they held before.
_KNOWN: dict[bytes, Snapshot] = {}
_KEPT = 256


def decode(data: bytes, path: str) -> Snapshot:
    """A snapshot from its file; `Corrupt` names the file and the field."""
    known = _KNOWN.get(data)
    if known is None:
        if len(_KNOWN) >= _KEPT:
            _KNOWN.clear()
        known = _KNOWN[data] = _decode(data, path)
    return known


def _decode(data: bytes, path: str) -> Snapshot:
    raw = jackson.loads(data, path)
    values: dict[str, Any] = {}
    for json, name in _ORDER:
        v = raw.get(json)
        if v is None:
            continue
        good = isinstance(v, Mapping) if name == "properties" else isinstance(v, int if name in _INTS else str)
        if not good or isinstance(v, bool):
            raise Corrupt(f"{path}: field '{json}' holds {v!r}")
        values[name] = v
    missing = [n for n in _NEEDED if n not in values]
    if missing:
        raise Corrupt(f"{path}: field '{missing[0]}' is missing")
    if values.get("version", VERSION) > VERSION:
        raise Corrupt(
            f"{path}: snapshot version {values['version']} is newer than this shoal reads ({VERSION})",
            hint="upgrade shoal",
        )
    return Snapshot(**values)
