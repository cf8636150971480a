# SPDX-License-Identifier: Apache-2.0
"""D11: planning reads too many manifests, or entries that are too large.

A commit merges manifests once `manifest.merge-min-count` small ones lie there (30 unless set), so a healthy table
swings between a few and 30, whatever share of their entries is dead; those of full size come on top. Bytes an entry are
counted without the header that each manifest has. Agrees with: ManifestFileMerger, SimpleStatsCollector (2.0.0).
Invariant: the swing of a table with default options is never a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from shoal.doctor.diagnose.case import Case, per_hour
from shoal.doctor.finding import Evidence, Finding
from shoal.doctor.states import class_is, ints
from shoal.doctor.window import CHANGELOG, SnapshotFacts
from shoal.format.manifest import write_entries
from shoal.options import Options

NAME = "manifest bloat"
_MANY = 2.0  # times what default options let lie
_ENTRY_BYTES = 2048  # an entry of more costs planning (lint L-36)
_FEW = 20  # entries that a size is told from
_MODE = "metadata.stats-mode"


def bloat(case: Case) -> Iterator[Finding]:
    """Too many manifests, or too large ones."""
    steps = case.window.steps
    if not steps:
        return
    yield from _many(case, steps)
    yield from _large(case, steps)


def _many(case: Case, steps: tuple[SnapshotFacts, ...]) -> Iterator[Finding]:
    options, default = case.options, Options({}, strict=False)
    newest = steps[-1]
    # A merge may just have been: the most of the second half of the window is what a reader meets.
    late = steps[len(steps) // 2 :]
    peak = max(late, key=lambda s: (s.manifests.files, s.id))
    usual = default.manifest_merge_min_count + -(-peak.manifests.bytes // default.manifest_target_size)
    if peak.manifests.files < _MANY * usual:
        return
    live = peak.entries - 2 * peak.dead_entries
    dead = peak.dead_entries / live if live > 0 else None
    causes = {
        "manifest.merge-min-count": (options.manifest_merge_min_count, default.manifest_merge_min_count, ""),
        "manifest.target-file-size": (options.manifest_target_size, default.manifest_target_size, "under"),
        "manifest.full-compaction-threshold-size": (
            options.manifest_full_threshold, default.manifest_full_threshold, "",
        ),
    }  # fmt: skip
    set_off = [k for k, (now, usually, side) in causes.items() if (now < usually if side else now > usually)]
    evidence: dict[str, Evidence] = {
        "manifests": peak.manifests.files, "manifests_now": newest.manifests.files, "usual_most": usual,
        "manifest_bytes": peak.manifests.bytes, "entries": peak.entries, "dead_entries": peak.dead_entries,
        "live_files": live, "dead_ratio": None if dead is None else round(dead, 2),
        **{k: causes[k][0] for k in set_off}, **per_hour(case.model, "manifests"),
    }  # fmt: skip
    trend = case.model.trends.get("manifests")
    grows = trend is not None and trend.rising  # from merge to merge: merges leave more behind each time
    why = f": {', '.join(f'{k} = {causes[k][0]:,}' for k in set_off)} keeps them apart" if set_off else ""
    resets = (f"ALTER TABLE ... RESET ({', '.join(repr(k) for k in set_off)})",) if set_off else ()
    yield Finding(
        "D11", NAME, "warn", "supported" if set_off or grows else "consistent with",
        {"table": case.window.name or case.window.table, "class": "metadata", **_option(set_off)}, evidence,
        f"a read of snapshot {peak.id} opens {peak.manifests.files:,} manifests with {peak.entries:,} entries for "
        f"{live:,} live files, where default options leave at most about {usual}{why}",
        ("CALL sys.compact_manifest(`table` => '...')", *resets),
        f"planning opens a few manifests instead of {peak.manifests.files:,}, and {2 * peak.dead_entries:,} entries "
        "that cancel each other go",
        (peak.id, newest.id) if peak.id != newest.id else (newest.id,),
    )  # fmt: skip


def _option(names: list[str]) -> dict[str, str | int]:
    return {"option": ", ".join(names)} if names else {}


def _large(case: Case, steps: tuple[SnapshotFacts, ...]) -> Iterator[Finding]:
    schema, options = case.window.schema, case.options
    size = entry_bytes(case)
    if size is None or schema is None or size < _ENTRY_BYTES:
        return
    mode, columns = options.stats_mode(), len(schema.columns)
    by_column = [c for c in schema.columns if options.column_stats_mode(c) is not None]
    fuller = _fuller(mode) or any(_fuller(options.column_stats_mode(c) or "") for c in by_column)
    newest = steps[-1]
    total = round(size * newest.entries)
    # Many columns make large entries at the default mode too: that costs once it is more than a manifest.
    severe = fuller or total > Options({}, strict=False).manifest_target_size
    yield Finding(
        "D11", NAME, "warn" if severe else "info", "supported" if fuller else "consistent with",
        {"table": case.window.name or case.window.table, "class": "metadata", "option": _MODE},
        {"bytes_per_entry": round(size), "entries": newest.entries, "manifest_bytes": newest.manifests.bytes,
         "columns": columns, "stats_mode": mode, "columns_with_own_mode": len(by_column)},
        f"a manifest entry takes {size:,.0f} bytes: statistics of {columns} columns in the mode '{mode}'"
        + (f" ({len(by_column)} with their own)" if by_column else ""),
        (f"ALTER TABLE ... SET ('{_MODE}' = 'truncate(16)')" if fuller
         else f"ALTER TABLE ... SET ('{_MODE}' = 'none'), with 'fields.COLUMN.stats-mode' for columns that filters use",
         "CALL sys.compact_manifest(`table` => '...')"),
        f"new entries shrink from {size:,.0f} bytes to a few hundred; those of old files stay until they are compacted",
        (newest.id,),
    )  # fmt: skip


def _fuller(mode: str) -> bool:
    """Whether a mode keeps more of a value than the default, `truncate(16)`."""
    mode = mode.strip().lower()
    if mode.startswith("truncate("):
        return int(mode.removeprefix("truncate(").rstrip(") ") or 0) > 16
    return mode == "full"


def entry_bytes(case: Case) -> float | None:
    """Bytes that one entry takes, headers left out: of those that came, or of all that readers met where few were seen
    to come, as where snapshots are kept for minutes. None where those are few too."""
    flows, steps = case.window.flows, case.window.steps
    wrote = [s.wrote["delta-manifest"] for s in steps if "delta-manifest" in s.wrote]
    # A class of flows has a row for each entry's file; both entries of an upgrade are there.
    count = int(ints(flows, "files")[~class_is(flows, CHANGELOG)].sum())
    if count < _FEW or not wrote:
        wrote, count = [s.manifests for s in steps], sum(s.entries for s in steps)
    if count < _FEW:
        return None
    files, size = sum(w.files for w in wrote), sum(w.bytes for w in wrote)
    return max(size - files * header_bytes(case.options.manifest_compression), 0) / count


@cache
def header_bytes(compression: str) -> int:
    """What a manifest without entries takes."""
    return len(write_entries([], compression))
