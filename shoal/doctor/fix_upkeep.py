# SPDX-License-Identifier: Apache-2.0
"""Steps against what the past holds, against metadata and for readers: expiry, tags, manifests, partitions, files.

What is deleted cannot be brought back, so these are root fixes; each says what is lost. Pure functions of a case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shoal.doctor.diagnose.case import Case
from shoal.doctor.fix import Action, Forecast, Step
from shoal.doctor.fix_text import Sql
from shoal.doctor.readings import readings
from shoal.doctor.stocks import due_earliest, retention
from shoal.options import Options

_MANY = 5  # tags and consumers that are named one by one

Make = Callable[[Case, Sql, tuple[str, ...]], Iterable[Step]]


def _consumers(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    stock, latest = case.window.stock, case.window.stock.latest
    if latest is None or not case.window.steps:
        return
    due = due_earliest(case.window)
    late = [h for h in stock.holders if h.kind == "consumer" and h.snapshot < due]
    for h in late[:_MANY]:
        yield Step(
            f"move-consumer-{h.name}", "root fix", f"move consumer '{h.name}', or let it read on", causes,
            (sql.call("reset_consumer", consumer_id=h.name, next_snapshot_id=latest),),
            notes=(f"it stands at snapshot {h.snapshot}, {latest - h.snapshot:,} behind; mend its reader if it lives",),
            undo=(f"{sql.call('reset_consumer', consumer_id=h.name, next_snapshot_id=h.snapshot)} "
                  "-- only until the snapshot expires",),
            loses=f"what '{h.name}' has not read: snapshots {h.snapshot} to {latest - 1}",
            effect="expiry goes on where the consumer stood", probe="readings retained_snapshots and retained_files",
            action=Action("reset_consumer", {"consumer": h.name, "snapshot": latest}), typed_name=True,
        )  # fmt: skip
    if late and "consumer.expiration-time" not in sql.set_options:
        yield sql.alter(
            "expire-consumers", "root fix", "forget consumers that nobody moves", causes,
            {"consumer.expiration-time": "7 d"}, effect="a reader that is gone holds snapshots for a week at most",
            loses="a reader that pauses for a week loses its place",
            probe="consumers that stood still for a week are gone",
        )  # fmt: skip


def _expire(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    if not case.window.steps or case.window.stock.earliest is None:
        return
    due = due_earliest(case.window)
    latest = case.window.stock.latest or due
    r = readings(case)
    keep = retention(case.window).snapshots
    kept = max(latest - due + 1, keep.least)
    yield Step(
        "expire-now", "root fix", "expire the snapshots that are due", causes, (sql.call("expire_snapshots"),),
        undo=("cannot be undone: a tag on a snapshot keeps it, if made before",),
        loses=f"time travel to before snapshot {due}",
        effect=f"snapshots before {due} go, with the files that only they hold",
        notes=(f"the options keep {keep.least:,} to {keep.most:,} snapshots and {keep.time_ms / 60_000:,.0f} minutes; "
               "consumers and tags keep what they need",),
        probe="reading retained_snapshots",
        forecasts=(Forecast("retained_snapshots", r["retained_snapshots"], None, 1.5 * kept),),
        action=Action("expire", {}),
    )  # fmt: skip
    if case.limits is not None and case.limits.write_only:
        yield Step(
            "schedule-expiry", "root fix", "run expiry beside the writers: write-only ones never expire", causes,
            notes=(f"'{sql.call('expire_snapshots')}' every few minutes, or a dedicated compaction job does it",),
            undo=("stop the schedule",), loses="nothing", effect="retained snapshots stay as many as the options say",
            probe="reading retained_snapshots",
        )  # fmt: skip


def _tags(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    tags = [h for h in case.window.stock.holders if h.kind == "tag"]
    if "tag.automatic-creation" in sql.set_options and not sql.set_options.keys() & {
        "tag.num-retained-max", "tag.default-time-retained",
    }:  # fmt: skip
        yield sql.alter(
            "bound-tags", "root fix", "keep the newest automatic tags only", causes, {"tag.num-retained-max": "30"},
            effect="older automatic tags go, and with them the files that only they hold",
            loses="time travel to tags beyond the newest 30", probe="the number of tags, reading retained_files",
        )  # fmt: skip
    elif "tag.default-time-retained" not in sql.set_options:
        yield sql.alter(
            "bound-tags", "root fix", "let new tags go by themselves", causes, {"tag.default-time-retained": "30 d"},
            effect="tags made from now on hold files for 30 days", loses="time travel to tags older than 30 days",
            probe="no tag holds files for longer",
        )  # fmt: skip
    held = {h.name: h for h in case.model.retained.holders if h.kind == "tag"}
    oldest = sorted((t for t in tags if t.expires_ms is None), key=lambda t: t.snapshot)[:_MANY]
    for t in oldest:
        most = held[t.name].most if t.name in held else None
        if most is not None and not most.files:
            continue
        what = "files that nothing else holds" if most is None else f"up to {most.files:,} files"
        yield Step(
            f"drop-tag-{t.name}", "root fix", f"delete tag '{t.name}' if nobody needs it", causes,
            (sql.call("delete_tag", tag=t.name),), undo=("cannot be undone",),
            loses=f"time travel to tag '{t.name}' (snapshot {t.snapshot})", effect=f"{what} are deleted",
            probe="bytes that only tags hold", action=Action("drop_tag", {"tag": t.name}), typed_name=True,
        )  # fmt: skip


def _manifests(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    r = readings(case)
    yield Step(
        "compact-manifests", "first aid", "merge the manifests once", causes, (sql.call("compact_manifest"),),
        undo=("nothing to undo: readers see the same files",), loses="no freshness",
        effect="planning reads few large manifests", probe="readings manifests and dead_ratio",
        forecasts=(Forecast("manifests", r["manifests"], None, max(0.5 * (r["manifests"] or 0), 5.0)),),
        action=Action("compact_manifest", {}),
    )  # fmt: skip
    changes: dict[str, str | None] = {}
    for key, worse in (("manifest.merge-min-count", 30), ("manifest.target-file-size", None)):
        given = sql.set_options.get(key)
        if given is not None and (worse is None or (given.isdigit() and int(given) > worse)):
            changes[key] = None
    if sql.set_options.get("metadata.stats-mode", "").lower() == "full":
        changes["metadata.stats-mode"] = "truncate(16)"
    if changes:
        yield sql.alter(
            "default-manifests", "root fix", "let manifests be merged and trimmed as by default", causes, changes,
            effect="manifests stay few and small", loses="pruning by the ends of long texts",
            probe="reading manifests", notes=("entries that are there keep their statistics until they are merged",),
        )  # fmt: skip


def _late_partitions(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    r = readings(case)
    yield Step(
        "compact-idle-partitions", "first aid", "compact the partitions that only stragglers write to", causes,
        (sql.call("compact", partition_idle_time="1 h"),), undo=("nothing to undo: rows stay the same",),
        loses="no freshness", effect="old partitions become few files again", probe="reading excess_files",
        forecasts=(Forecast("excess_files", r["excess_files"], None, 0.8 * (r["excess_files"] or 0)),),
        action=Action("compact", {"full": True, "idle_time": "1 h"}),
    )  # fmt: skip
    yield Step(
        "guard-event-time", "root fix", "keep stragglers out of old partitions", causes,
        notes=("drop or set aside rows whose event time lies further back than reports need",
               "or collect them and write them once an hour, sorted by partition"),
        undo=("take the guard out",), loses="rows that come later than the guard allows",
        effect="a commit touches the newest partitions only", probe="reading active_buckets_per_commit",
    )  # fmt: skip


def _file_sizes(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    changes: dict[str, str | None] = {
        k: None for k in ("target-file-size", "compaction.small-file-ratio") if k in sql.set_options
    }
    if changes:
        yield sql.alter(
            "default-file-size", "root fix", "write files of the usual size", causes, changes,
            effect="compaction writes fewer, larger files; flushes stay as small as they are",
            probe="reading excess_files", notes=("compact in full once, so that the small ones go",),
        )  # fmt: skip


def _buffer(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    changes: dict[str, str | None] = {}
    if sql.set_options.get("write-buffer-spillable", "").lower() == "false":
        changes["write-buffer-spillable"] = None
    if "write-buffer-size" in sql.set_options:
        changes["write-buffer-size"] = None
    if not changes:
        changes["write-buffer-size"] = "512 mb"
    yield sql.alter(
        "larger-buffer", "root fix", "let a writer hold what a bucket gets between two commits", causes, changes,
        effect="one new file a bucket and commit", loses="memory of the writer tasks, or its local disk",
        probe="reading files_per_active_bucket", notes=("a spill disk that is full makes small files too",),
        forecasts=(Forecast("files_per_active_bucket", readings(case)["files_per_active_bucket"], None, 1.1),),
    )  # fmt: skip


def _readers(case: Case, sql: Sql, causes: tuple[str, ...]) -> Iterable[Step]:
    if "D12" in causes:
        yield sql.alter(
            "look-sooner", "root fix", "let stream readers look for snapshots more often", causes,
            {"continuous.discovery-interval": "1 s"}, effect="rows are seen up to 9 s sooner after their commit",
            loses="each reader asks the store every second", probe="a sentinel's lag between commit and read",
        )  # fmt: skip
    if "D17" not in causes:
        return
    given = sql.set_options.get(_TRIGGER)
    if given is not None and case.options.compaction_trigger > Options({}, strict=False).compaction_trigger:
        yield sql.alter(
            "usual-trigger", "root fix", "let compaction begin at the usual number of runs", causes, {_TRIGGER: None},
            effect="reads merge fewer runs", loses="writers compact more often", probe="reading most_runs",
        )  # fmt: skip
    if case.options.deletion_vectors or not _takes_vectors(case):
        return
    full = sql.call("compact", compact_strategy="full")
    yield Step(
        "deletion-vectors", "root fix", "read without merging, by deletion vectors", causes,
        # Paimon refuses the change but for tables that are said to be fully compacted, and looks at the option first.
        (full, *sql.alter_text({_MODIFIABLE: "true"}), *sql.alter_text({_VECTORS: "true"})),
        notes=("try it on a shadow of the table first",
               "stop the writers before: a row that comes between the compaction and the change may be read twice",
               f"or read {sql.table[:-1]}$ro`, which is as old as the "
               "last full compaction: 'compaction.optimization-interval' bounds that"),
        undo=(full, *sql.alter_text({_VECTORS: sql.set_options.get(_VECTORS)}),
              *sql.alter_text({_MODIFIABLE: sql.set_options.get(_MODIFIABLE)})),
        loses="batch readers see new rows only once they are compacted; writers look keys up",
        effect="reads open files side by side instead of merging runs", probe="files opened a read",
    )  # fmt: skip


_TRIGGER, _VECTORS = "num-sorted-run.compaction-trigger", "deletion-vectors.enabled"
_MODIFIABLE = "deletion-vectors.modifiable"


def _takes_vectors(case: Case) -> bool:
    """SchemaValidation: no vectors for first-row, nor beside a changelog of full compactions."""
    return case.options.merge_engine != "first-row" and case.options.changelog_producer != "full-compaction"


UPKEEP: tuple[tuple[frozenset[str], Make], ...] = (
    (frozenset({"D8"}), _late_partitions),
    (frozenset({"D9"}), _file_sizes),
    (frozenset({"D13"}), _buffer),
    (frozenset({"D6"}), _consumers),
    (frozenset({"D15"}), _tags),
    (frozenset({"D6"}), _expire),
    (frozenset({"D11"}), _manifests),
    (frozenset({"D12", "D17"}), _readers),
)
