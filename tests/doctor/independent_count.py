# SPDX-License-Identifier: Apache-2.0
"""The debt of a table counted without shoal: file names on disk, and manifests decoded by fastavro."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa


def avro(path: Path) -> list[dict[str, Any]]:
    """Rows of an Avro file; fastavro alone has no zstd on every machine, so the blocks are unpacked first."""
    data = io.BytesIO(path.read_bytes())
    assert data.read(4) == b"Obj\x01"
    header, sync = _map(data), data.read(16)
    schema, codec = json.loads(header["avro.schema"]), header["avro.codec"]
    assert codec == b"zstandard"
    rows = []
    while head := data.read(1):
        data.seek(-len(head), io.SEEK_CUR)
        count, block = _long(data), data.read(_long(data))
        plain = pa.input_stream(pa.BufferReader(block), compression="zstd").read()
        assert data.read(16) == sync
        body = io.BytesIO(plain)
        rows += [fastavro.schemaless_reader(body, schema, None) for _ in range(count)]
    return rows


def _long(data: io.BytesIO) -> int:
    shift = value = 0
    while True:
        byte = data.read(1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)


def _map(data: io.BytesIO) -> dict[str, bytes]:
    out = {}
    while count := _long(data):
        for _ in range(count):
            key = data.read(_long(data)).decode()
            out[key] = data.read(_long(data))
    return out


def on_disk(table: Path) -> Counter[str]:
    """Files by kind, told by their names alone."""
    kinds: Counter[str] = Counter()
    for path in table.rglob("*"):
        if path.is_file():
            name = path.name
            kinds[
                "manifest_list" if name.startswith("manifest-list-")
                else "manifest" if name.startswith("manifest-")
                else "snapshot" if name.startswith("snapshot-")
                else "changelog" if name.startswith("changelog-")
                else "data" if name.startswith("data-")
                else "other"
            ] += 1  # fmt: skip
    return kinds


def bytes_on_disk(table: Path, prefix: str) -> int:
    return sum(p.stat().st_size for p in table.rglob(f"{prefix}*") if p.is_file())


def snapshots(table: Path) -> list[dict[str, Any]]:
    files = table.glob("snapshot/snapshot-*")
    return sorted((json.loads(f.read_text()) for f in files), key=lambda s: int(s["id"]))


def entries(table: Path, snapshot: dict[str, Any], part: str) -> list[dict[str, Any]]:
    name = snapshot.get(f"{part}ManifestList")
    metas = avro(table / "manifest" / name) if name else []
    return [e for m in metas for e in avro(table / "manifest" / m["_FILE_NAME"])]


def per_snapshot(table: Path) -> list[dict[str, Any]]:
    """For every snapshot: how many files of each class, and the live files after it by (bucket, level)."""
    live: dict[str, tuple[int, int]] = {}
    out = []
    for snap in snapshots(table):
        delta = entries(table, snap, "delta")
        added = {e["_FILE"]["_FILE_NAME"]: e for e in delta if e["_KIND"] == 0}
        gone = {e["_FILE"]["_FILE_NAME"] for e in delta if e["_KIND"] == 1}
        for name in gone:
            del live[name]
        for name, e in added.items():
            live[name] = (e["_BUCKET"], e["_FILE"]["_LEVEL"])
        new = [e["_FILE"] for name, e in added.items() if name not in gone]
        out.append({
            "id": snap["id"],
            "flush": sum(f["_FILE_SOURCE"] == 0 for f in new),
            "flush_sizes": [f["_FILE_SIZE"] for f in new if f["_FILE_SOURCE"] == 0],
            "rewrite": sum(f["_FILE_SOURCE"] == 1 for f in new),
            "rewrite_bytes": sum(f["_FILE_SIZE"] for f in new if f["_FILE_SOURCE"] == 1),
            "upgrade": len(added.keys() & gone),
            "removal": len(gone - added.keys()),
            "changelog": len(entries(table, snap, "changelog")),
            "live": Counter(live.values()),
        })  # fmt: skip
    return out


def runs(live: Counter[tuple[int, int]], bucket: int) -> int:
    levels = {level: n for (b, level), n in live.items() if b == bucket}
    return levels.get(0, 0) + sum(n > 0 for level, n in levels.items() if level)
