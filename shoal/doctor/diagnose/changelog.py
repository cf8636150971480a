# SPDX-License-Identifier: Apache-2.0
"""D3: a changelog file for each new data file, and nobody who reads changelogs.

Changelog files are never compacted once they are committed; only expiry takes them away. A consumer, a table whose own
options make it a stream's source, and changelogs that are kept longer than their snapshots are signs of a reader, and
then nothing is said. Invariant: a reader that leaves no trace in the table cannot be seen, and the finding says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.doctor.diagnose.case import Case
from shoal.doctor.finding import Evidence, Finding, Severity
from shoal.doctor.report import size_text
from shoal.doctor.stocks import retention

NAME = "changelog doubling"
# Changelog files for each new data file: half and more is doubling in all but name, less is compaction's own pace.
_DOUBLING, _SOME = 0.5, 0.2
_STREAMS = ("latest", "from-snapshot", "from-timestamp", "from-file-creation-time")


def doubling(case: Case) -> Iterable[Finding]:
    """D3, when changelog files keep up with new files and no reader of them is found."""
    pace = case.pace
    producer = str(case.options.get("changelog-producer"))
    if pace is None or producer == "none" or not pace.telling or not pace.changelog or readers(case):
        return
    ratio = pace.changelog / pace.flushed
    if ratio < _SOME:
        return
    severity: Severity = "warn" if ratio >= _DOUBLING else "info"
    model = case.model
    retained, steady = model.retained.changelog, model.steady
    per_day = pace.changelog * pace.commits_per_day
    evidence: dict[str, Evidence] = {
        "changelog_producer": producer, "changelog_files_per_new_file": round(ratio, 3),
        "changelog_files_per_commit": round(pace.changelog, 3), "new_files_per_commit": round(pace.flushed, 3),
        "share_of_objects": round(pace.changelog / pace.objects, 3), "consumers": 0, "commits": pace.commits,
        "retained_changelog_files": None if retained is None else retained.files,
        "retained_changelog_bytes": None if retained is None else retained.bytes,
    }  # fmt: skip
    says = (
        f"changelog-producer '{producer}' writes {ratio:.2f} changelog files for each new data file "
        f"({pace.changelog:,.1f} a commit), and no consumer or streaming reader is found."
    )
    change = [
        "make sure that nobody reads the changelog: a stream without consumer-id, or an incremental query, leaves no "
        "trace in the table",
        "if nobody does: ALTER TABLE t SET ('changelog-producer' = 'none'), and restart the writer",
        "if somebody does: give it a consumer-id; SET ('precommit-compact' = 'true') leaves one changelog file for a "
        f"partition and commit instead of {pace.changelog / max(pace.partitions, 1):,.1f}, but copies what was written",
        "a shorter changelog.time-retained or snapshot.time-retained keeps fewer of them",
    ]
    effect = f"{per_day:,.0f} fewer files a day ({pace.changelog / pace.objects:.0%} of all objects made)"
    if steady is not None and steady.changelog_files.value:
        effect += (
            f", {steady.changelog_files.value:,.0f} fewer kept at any time"
            f" ({size_text(round(steady.changelog_bytes.value or 0))})"
        )
    scope = {"class": "changelog", "user": model.segments.user or "", "option": "changelog-producer"}
    # The producer writes them by definition; the doubt is in who reads, and the change asks that first.
    yield Finding(
        "D3", NAME, severity, "supported" if severity == "warn" else "consistent with", scope, evidence, says,
        tuple(change), effect, (pace.first, pace.last),
    )  # fmt: skip


def readers(case: Case) -> tuple[str, ...]:
    """Signs that somebody reads changes of the table."""
    options = case.options
    found = [f"consumer {h.name}" for h in case.window.stock.holders if h.kind == "consumer"]
    if options.is_set("consumer-id"):
        found.append("option consumer-id")
    if options.is_set("scan.mode") and str(options.get("scan.mode")) in _STREAMS:
        found.append("option scan.mode")
    if retention(case.window).decoupled:
        found.append("changelogs that outlive their snapshots")
    return tuple(found)
