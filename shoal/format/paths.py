# SPDX-License-Identifier: Apache-2.0
"""Every file name inside a table's folder, in one place. All paths are relative to the table's root.

Agrees with: FileStorePathFactory, DataFilePathFactory, PartitionPathUtils, InternalRowPartitionComputer (2.0.0).
Invariant: a partition's folder name is for people and listings only; null, empty and blank share one folder, so
the partition's identity is its BinaryRow in the manifest, never the name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from shoal.format.row import Value, decode
from shoal.format.types import DataType, Field

SCHEMA, SNAPSHOT, MANIFEST, CHANGELOG, INDEX, TAG, BRANCH, CONSUMER = (
    "schema", "snapshot", "manifest", "changelog", "index", "tag", "branch", "consumer",
)  # fmt: skip
EARLIEST, LATEST = "snapshot/EARLIEST", "snapshot/LATEST"

_ESCAPED = re.compile(r'[\x00-\x1f"#%\'*/:=?\\{\[\]^}\x7f]')
_SNAPSHOT = re.compile(r"^snapshot-(\d+)$")
_SCHEMA = re.compile(r"^schema-(\d+)$")


def snapshot(snapshot_id: int) -> str:
    return f"{SNAPSHOT}/snapshot-{snapshot_id}"


def schema(schema_id: int) -> str:
    return f"{SCHEMA}/schema-{schema_id}"


def manifest(name: str) -> str:
    return f"{MANIFEST}/{name}"


def snapshot_ids(names: Sequence[str]) -> list[int]:
    """Ids of the snapshot files among `names`, ascending; anything else (hints, temporary files) is ignored."""
    return sorted(int(m[1]) for n in names if (m := _SNAPSHOT.match(n)))


def schema_ids(names: Sequence[str]) -> list[int]:
    return sorted(int(m[1]) for n in names if (m := _SCHEMA.match(n)))


def bucket_dir(partition_path: str, bucket: int) -> str:
    """`<partition>/bucket-<b>`; bucket -2 is the postpone bucket."""
    name = "bucket-postpone" if bucket == -2 else f"bucket-{bucket}"
    return f"{partition_path}{name}"


def escape(text: str) -> str:
    """A partition key or value as a folder name.

    >>> escape("x y:z%")
    'x y%3Az%25'
    """
    return _ESCAPED.sub(lambda m: f"%{ord(m[0]):02X}", text)


def partition_path(fields: Sequence[Field], partition: bytes, default_name: str, legacy: bool) -> str:
    """`k1=v1/k2=v2/` with a final slash, or an empty string for an unpartitioned table."""
    if not fields:
        return ""
    values = decode([f.type for f in fields], partition)
    parts = []
    for f, v in zip(fields, values):
        text = None if v is None else value_text(f.type, v, legacy)
        if text is None or not text.strip(" \t\n\r\f\v"):
            text = default_name
        parts.append(f"{escape(f.name)}={escape(text)}/")
    return "".join(parts)


def value_text(t: DataType, v: Value, legacy: bool) -> str:
    """A stored partition value as text: Java's internal form (legacy) or its CAST to STRING."""
    match t.root:
        case "BOOLEAN":
            return "true" if v else "false"
        case "CHAR" | "VARCHAR":
            assert isinstance(v, bytes)
            return v.decode("utf-8", "replace")
        case "FLOAT" | "DOUBLE":
            assert isinstance(v, float)
            import numpy as np

            from shoal.format.float_text import one_text

            return one_text(np.float32(v) if t.root == "FLOAT" else np.float64(v))
        case "DECIMAL":
            assert isinstance(v, int)
            return decimal_text(v, t.scale or 0)
        case "DATE" if not legacy:
            assert isinstance(v, int)
            return (date(1970, 1, 1) + timedelta(days=v)).isoformat()
        case "TIME" if not legacy:
            assert isinstance(v, int)
            return time_text(v, t.precision or 0)
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            assert isinstance(v, int)
            return timestamp_text(v, "T" if legacy else " ", None if legacy else t.precision)
        case "BINARY" | "VARBINARY":
            assert isinstance(v, bytes)
            return v.decode("utf-8", "replace")
    return str(v)


def decimal_text(unscaled: int, scale: int) -> str:
    sign, digits = ("-" if unscaled < 0 else ""), str(abs(unscaled)).rjust(scale + 1, "0")
    return sign + digits + "" if scale == 0 else f"{sign}{digits[:-scale]}.{digits[-scale:]}"


def time_text(ms: int, precision: int) -> str:
    h, rest = divmod(ms, 3_600_000)
    m, rest = divmod(rest, 60_000)
    s, ms = divmod(rest, 1000)
    fraction = f"{ms:03d}"[: min(precision, 3)]
    return f"{h:02d}:{m:02d}:{s:02d}" + (f".{fraction}" if fraction else "")


def timestamp_text(ns: int, separator: str, precision: int | None) -> str:
    """Java's LocalDateTime text: seconds and fraction only where needed (`precision` None), else fixed digits."""
    seconds, nanos = divmod(ns, 1_000_000_000)
    d = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    text = f"{d.year:04d}-{d:%m-%d}{separator}{d:%H:%M}"
    if precision is not None:
        fraction = f"{nanos:09d}"[:precision]
        return text + f":{d:%S}" + (f".{fraction}" if fraction else "")
    if nanos:
        digits = f"{nanos:09d}"
        digits = digits[:3] if digits.endswith("000000") else digits[:6] if digits.endswith("000") else digits
        return text + f":{d:%S}.{digits}"
    return text + (f":{d:%S}" if d.second else "")
