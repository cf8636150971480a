# SPDX-License-Identifier: Apache-2.0
"""The debt of a table counted without shoal: file names on disk, and manifests decoded by fastavro."""

from __future__ import annotations

import io
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import orc, parquet


def avro(path: Path) -> list[dict[str, Any]]:
    """Rows of an Avro file; fastavro alone has no zstd on every machine, so the blocks are unpacked first."""
    data = io.BytesIO(path.read_bytes())
    assert data.read(4) == b"Obj\x01"
    header, sync = _map(data), data.read(16)
    schema, codec = json.loads(header["avro.schema"]), header["avro.codec"]
    rows = []
    while head := data.read(1):
        data.seek(-len(head), io.SEEK_CUR)
        count, block = _long(data), data.read(_long(data))
        plain = _plain(block, codec)
        assert data.read(16) == sync
        body = io.BytesIO(plain)
        rows += [fastavro.schemaless_reader(body, schema, None) for _ in range(count)]
    return rows


def _plain(block: bytes, codec: bytes) -> bytes:
    match codec:
        case b"zstandard":
            unpacked: bytes = pa.input_stream(pa.BufferReader(block), compression="zstd").read()
            return unpacked
        case b"deflate":
            return zlib.decompress(block, -15)
        case b"snappy":  # the raw block has its plain length in front, and a checksum behind it in Avro
            size = shift = at = 0
            while True:
                size |= (block[at] & 0x7F) << shift
                shift, at = shift + 7, at + 1
                if block[at - 1] < 0x80:
                    break
            return pa.decompress(block[:-4], size, codec="snappy", asbytes=True)  # type: ignore[no-any-return]
    assert codec == b"null"
    return block


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a manifest or manifest list in any of the three formats."""
    head = path.read_bytes()[:4]
    if head == b"Obj\x01":
        return avro(path)
    table = parquet.read_table(path) if head == b"PAR1" else orc.read_table(path)
    rows: list[dict[str, Any]] = table.to_pylist()
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
    metas = rows_of(table / "manifest" / name) if name else []
    return [e for m in metas for e in rows_of(table / "manifest" / m["_FILE_NAME"])]


def live_cells(table: Path) -> dict[tuple[int, int, int], tuple[int, int, int]]:
    """(files, bytes, rows) that live after the newest snapshot, by bucket, total buckets and level."""
    every = snapshots(table)
    out: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    if not every:
        return out
    both = entries(table, every[-1], "base") + entries(table, every[-1], "delta")

    def identity(e: dict[str, Any]) -> tuple[Any, ...]:
        return (e["_PARTITION"], e["_BUCKET"], e["_FILE"]["_LEVEL"], e["_FILE"]["_FILE_NAME"])

    gone = {identity(e) for e in both if e["_KIND"] == 1}
    for e in both:
        if e["_KIND"] == 0 and identity(e) not in gone:
            key = (e["_BUCKET"], e["_TOTAL_BUCKETS"], e["_FILE"]["_LEVEL"])
            n, size, rows = out.get(key, (0, 0, 0))
            out[key] = (n + 1, size + e["_FILE"]["_FILE_SIZE"], rows + e["_FILE"]["_ROW_COUNT"])
    return out


def deltas(table: Path) -> list[tuple[int, dict[str, int]]]:
    """For every snapshot: entries added and removed, changelog files, and names that are both: moved."""
    out = []
    for snap in snapshots(table):
        delta = entries(table, snap, "delta")
        added = [e["_FILE"]["_FILE_NAME"] for e in delta if e["_KIND"] == 0]
        removed = [e["_FILE"]["_FILE_NAME"] for e in delta if e["_KIND"] == 1]
        changelog = len(entries(table, snap, "changelog"))
        moved = len(set(added) & set(removed))
        counts = {"added": len(added), "removed": len(removed), "changelog": changelog, "moved": moved}
        out.append((int(snap["id"]), counts))
    return out


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
