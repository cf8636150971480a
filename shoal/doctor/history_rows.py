# SPDX-License-Identifier: Apache-2.0
"""Values of a window as rows of the history, and back. Invariant: what comes back is equal to what went in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.doctor.window import (
    CHANGELOG,
    FLUSH,
    REMOVAL,
    REWRITE,
    UNSEEN,
    UPGRADE,
    Count,
    Holder,
    SnapshotFacts,
)

CLASSES = (FLUSH, REWRITE, UPGRADE, REMOVAL, CHANGELOG, UNSEEN)  # by number in the file: append only
# The columns of a flow, behind its snapshot.
FLOW = (
    "class", "change", "partition", "bucket", "total_buckets", "level", "files", "bytes", "rows", "deleted_rows",
    "min_sequence", "max_sequence", "extras", "largest", "small",
)  # fmt: skip


def counts_text(counts: Mapping[str, Count]) -> str:
    return json.dumps(plain_counts(counts))


def plain_counts(counts: Mapping[str, Count]) -> dict[str, list[int]]:
    return {k: [c.files, c.bytes, c.rows] for k, c in counts.items()}


def counts_of(text: str) -> dict[str, Count]:
    return counts_of_plain(json.loads(text))


def counts_of_plain(counts: Mapping[str, Iterable[int]]) -> dict[str, Count]:
    return {k: Count(*c) for k, c in counts.items()}


def plain_holder(h: Holder) -> list[str | int | None]:
    return [h.kind, h.name, h.snapshot, h.time_ms, h.expires_ms]


def row_of(s: SnapshotFacts) -> tuple[Any, ...]:
    return (
        s.id, s.schema_id, s.user, s.identifier, s.kind, s.time_ms, s.total_records, s.delta_records,
        s.changelog_records, s.watermark, s.operation, *s.lists, counts_text(s.wrote), s.manifests.files,
        s.manifests.bytes, s.entries, s.dead_entries, s.live_files, s.identity_holds,
    )  # fmt: skip


def facts_of(r: Sequence[Any]) -> SnapshotFacts:
    (
        at, schema, user, identifier, kind, time, total, delta, changelog, watermark, operation, base_list, delta_list,
        wrote, manifests, manifest_bytes, entries, dead, live, holds,
    ) = r  # fmt: skip
    return SnapshotFacts(
        at, schema, user, identifier, kind, time, total, delta, changelog, watermark, operation,
        (base_list, delta_list), counts_of(wrote), Count(manifests, manifest_bytes), entries, dead, live,
        bool(holds),
    )  # fmt: skip
