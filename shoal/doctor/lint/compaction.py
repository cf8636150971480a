# SPDX-License-Identifier: Apache-2.0
"""Rules about compaction: who does it, when it starts, when it holds the writer back.

Agrees with: CoreOptions (numSortedRunStopTrigger, sortSpillThreshold, numLevels, lookupCompactMaxInterval,
batchScanSkipLevel0), UniversalCompaction.createUnit, AbstractFileStoreTable.newCommit, CompactAction, StoreSinkWrite,
OffPeakHours, CompactorSourceBuilder (2.0.0). Invariant: with `write-only` nothing is called an error before snapshots
show that nobody compacts, since a job of its own may do it and no option says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.doctor.lint.rules import Say, rule
from shoal.doctor.lint.subject import INTERVAL, Subject
from shoal.doctor.lint.texts import amount, duration

_CORE = "paimon-api/src/main/java/org/apache/paimon/CoreOptions.java"
_TABLE = "paimon-core/src/main/java/org/apache/paimon/table/AbstractFileStoreTable.java"
_UNIVERSAL = "paimon-core/src/main/java/org/apache/paimon/mergetree/compact/UniversalCompaction.java"
_SINK = "paimon-flink/paimon-flink-common/src/main/java/org/apache/paimon/flink/sink/StoreSinkWrite.java"
_PAGE, _DEDICATED = "primary-key-table/compaction.md", "maintenance/dedicated-compaction.mdx"
TRIGGER, STOP, SPILL = "num-sorted-run.compaction-trigger", "num-sorted-run.stop-trigger", "sort-spill-threshold"
COMPACT = "run CALL sys.compact as a streaming job, or on a schedule"
_NO_BRAKE = 1000  # as good as none: a bucket of a thousand runs cannot be read any more


def uncompacted(subject: Subject) -> bool:
    """Whether snapshots show that a write-only table is compacted by nobody."""
    seen = subject.seen
    return (
        seen is not None
        and not seen.compactors
        and seen.commits_without_compaction > subject.options.compaction_trigger
    )


# ---- who compacts


@rule(
    "L-10",
    "error",
    "nobody compacts",
    "write-only, and no COMPACT snapshot for more commits than the trigger†",
    source=_TABLE,
    page=_DEDICATED,
    samples=True,
)
def nobody(subject: Subject) -> Iterator[Say]:
    if subject.options.write_only and subject.keyed and uncompacted(subject):
        assert subject.seen is not None
        commits = subject.seen.commits_without_compaction
        yield Say(
            f"'write-only' = 'true' and {commits} commits without one COMPACT snapshot: nobody compacts or expires "
            "this table",
            "write-only",
            (COMPACT, "or set 'write-only' = 'false'"),
            "every commit adds a sorted run to each bucket that it writes",
            evidence={"commits": commits},
        )


@rule(
    "L-11",
    "warn",
    "partitions do not expire in the writer",
    "write-only with partition.expiration-time",
    source=_TABLE,
    page="maintenance/manage-partitions.md",
)
def partitions_stay(subject: Subject) -> Iterator[Say]:
    if subject.options.write_only:
        for setting in subject.own("partition.expiration-time"):
            yield Say(
                f"'{setting.key}' = '{setting.value}' does nothing in a writer with 'write-only' = 'true'",
                setting.key,
                ("the compaction job does it, or CALL sys.expire_partitions",),
            )


@rule(
    "L-12",
    "warn",
    "tags and consumers are not kept up in the writer",
    "write-only with tag.automatic-creation or consumer.expiration-time",
    source=_TABLE,
    page="maintenance/manage-tags.mdx",
)
def upkeep_off(subject: Subject) -> Iterator[Say]:
    if not subject.options.write_only:
        return
    for setting in subject.own("tag.automatic-creation", "consumer.expiration-time"):
        if setting.value.lower() != "none":
            yield Say(
                f"'{setting.key}' = '{setting.value}' does nothing in a writer with 'write-only' = 'true'",
                setting.key,
                ("the compaction job does it", "or CALL sys.create_tag, sys.clear_consumers"),
            )


@rule(
    "L-13",
    "warn",
    "two jobs compact one partition",
    "several users rewrite files of one partition at one time†",
    page=_PAGE,
    samples=True,
)
def twice(subject: Subject) -> Iterator[Say]:
    assert subject.seen is not None
    shared = subject.seen.shared_partitions("rewrite")
    for partition, users in list(shared.items())[:1]:
        yield Say(
            f"{len(users)} users ({', '.join(sorted(users))}) compact partition '{partition or 'the whole table'}': "
            "they "
            "conflict, and the loser restarts",
            "write-only",
            ("let one job compact: 'write-only' = 'true' in the others",),
            evidence={"users": tuple(sorted(users)), "partitions": len(shared)},
        )


@rule(
    "L-67",
    "warn",
    "full compactions are left to another job",
    "write-only with full-compaction.delta-commits",
    source=_SINK,
    page=_DEDICATED,
)
def delta_commits_idle(subject: Subject) -> Iterator[Say]:
    setting = subject.setting("full-compaction.delta-commits")
    if setting is None or not subject.options.write_only:
        return
    if subject.seen is not None and subject.seen.dedicated:
        return
    dead = uncompacted(subject)
    yield Say(
        f"'{setting.key}' = '{setting.value}' does nothing in a writer with 'write-only' = 'true'; it counts the "
        "commits of a "
        "streaming compaction job" + (", and none has committed" if dead else ", if one runs"),
        setting.key,
        (COMPACT, "or set 'write-only' = 'false'"),
        severity="error" if dead else None,
    )


# ---- sorted runs


@rule(
    "L-14", "warn", "stop trigger below the trigger", "num-sorted-run.stop-trigger < compaction-trigger", source=_CORE
)
def stop_below(subject: Subject) -> Iterator[Say]:
    stop, trigger = subject.number(STOP), subject.options.compaction_trigger
    if stop is not None and stop < trigger and subject.keyed:
        yield Say(
            f"'{STOP}' = '{stop}' is below '{TRIGGER}' = '{trigger}', and is taken as {trigger}",
            STOP,
            (f"leave it out (then it is {trigger + 3}), or raise it above {trigger + 1}",),
            "the writer waits as soon as a compaction starts",
        )


@rule(
    "L-15",
    "warn",
    "stop trigger too near the trigger",
    "stop trigger − trigger is 0 or 1",
    source="paimon-core/src/main/java/org/apache/paimon/mergetree/compact/MergeTreeCompactManager.java",
    page=_PAGE,
)
def stop_near(subject: Subject) -> Iterator[Say]:
    stop, trigger = subject.number(STOP), subject.options.compaction_trigger
    if stop is not None and stop - trigger < 2 and subject.keyed:
        yield Say(
            f"'{STOP}' = '{stop}' leaves {max(0, stop - trigger)} run(s) above '{TRIGGER}' = '{trigger}': "
            "the writer waits for nearly every compaction",
            STOP,
            (f"leave it out (then it is {trigger + 3})",),
            evidence={"trigger": trigger, "stop": stop},
        )


@rule(
    "L-16",
    "warn",
    "few levels",
    "num-levels < compaction-trigger + 1",
    source=_UNIVERSAL,
)
def few_levels(subject: Subject) -> Iterator[Say]:
    levels, trigger = subject.number("num-levels"), subject.options.compaction_trigger
    if levels is not None and levels < trigger + 1 and subject.keyed:
        yield Say(
            f"'num-levels' = '{levels}' is less than '{TRIGGER}' + 1 = {trigger + 1}: a compaction finds no free "
            "level and "
            "takes the next older run with it",
            "num-levels",
            (f"leave it out (then it is {trigger + 1})",),
            "more bytes are rewritten",
        )


@rule(
    "L-17",
    "warn",
    "no limit on open readers",
    "stop trigger > 50 without sort-spill-threshold",
    source=_CORE,
    page=_PAGE,
)
def no_spill(subject: Subject) -> Iterator[Say]:
    stop = subject.number(STOP)
    if stop is not None and stop > 50 and not subject.has(SPILL) and subject.keyed:
        yield Say(
            f"'{STOP}' = '{stop}' and no '{SPILL}', which then is {min(stop + 1, 2**31 - 1)}: a merge opens that "
            "many readers "
            "before it spills",
            STOP,
            (f"set '{SPILL}' = '10'",),
            "memory of readers and compactions stays bounded",
        )


@rule("L-18", "info", "late compaction", "compaction-trigger > 10", page="maintenance/write-performance.md")
def late(subject: Subject) -> Iterator[Say]:
    trigger = subject.number(TRIGGER)
    if trigger is not None and trigger > 10 and subject.keyed:
        yield Say(
            f"'{TRIGGER}' = '{trigger}': reads and compactions merge up to that many runs at once (default 5)",
            TRIGGER,
            ("5 to 10 is usual",),
        )


@rule(
    "L-60",
    "warn",
    "brake off",
    f"stop trigger ≥ {_NO_BRAKE}, and no compaction job is seen",
    source=_CORE,
    page=_PAGE,
)
def no_brake(subject: Subject) -> Iterator[Say]:
    stop = subject.number(STOP)
    if stop is None or stop < _NO_BRAKE or not subject.keyed:
        return
    if subject.seen is not None and subject.seen.dedicated:
        return
    yield Say(
        f"'{STOP}' = '{stop}' never holds the writer back: runs grow without a bound while compaction is slower than "
        "writing",
        STOP,
        ("watch the runs of the fullest bucket, or set a limit that readers bear, such as 30",),
    )


@rule(
    "L-53",
    "info",
    "off-peak hours off",
    "only one of compaction.offpeak.start.hour and .end.hour, both equal, or no ratio",
    source="paimon-core/src/main/java/org/apache/paimon/mergetree/compact/OffPeakHours.java",
    page=_PAGE,
)
def off_peak(subject: Subject) -> Iterator[Say]:
    start, end, ratio = "compaction.offpeak.start.hour", "compaction.offpeak.end.hour", "compaction.offpeak-ratio"
    given = list(subject.own(start, end, ratio))
    if not given or any(s.key in subject.wrong for s in given):
        return
    first, last = subject.options.offpeak_start, subject.options.offpeak_end
    why, change = "", ""
    if first == -1 or last == -1:
        missing = start if first == -1 else end
        why, change = f"'{missing}' is not set", f"set '{missing}'"
    elif first == last:
        why, change = f"both hours are {first}", "set different hours"
    elif subject.options.offpeak_ratio == 0:
        why, change = f"'{ratio}' is 0", f"set '{ratio}', for example to 50"
    if why:
        one = given[0]
        yield Say(
            f"'{one.key}' = '{one.value}' does nothing: {why}, so there are no off-peak hours", one.key, (change,)
        )


@rule(
    "L-57",
    "info",
    "expired partitions are compacted",
    "compaction.skip-expired-partitions without values-time expiry",
    source="paimon-flink/paimon-flink-common/src/main/java/org/apache/paimon/flink/source/CompactorSourceBuilder.java",
    page=_DEDICATED,
)
def skip_expired(subject: Subject) -> Iterator[Say]:
    key = "compaction.skip-expired-partitions"
    if not subject.flag(key):
        return
    strategy = subject.text("partition.expiration-strategy")
    if not subject.has("partition.expiration-time"):
        yield Say(
            f"'{key}' = 'true' does nothing without 'partition.expiration-time'", key, ("set how long they are kept",)
        )
    elif strategy != "values-time":
        yield Say(
            f"'{key}' = 'true' does nothing with 'partition.expiration-strategy' = '{strategy}'",
            key,
            ("take 'values-time'",),
        )


# ---- lookup compaction and what waits for it


@rule(
    "L-22",
    "warn",
    "new rows hidden from batch reads",
    "deletion vectors or first-row, with lookup-wait=false or write-only; error when nobody compacts†",
    source=_CORE,
    page="primary-key-table/table-mode.md",
)
def hidden(subject: Subject) -> Iterator[Say]:
    vectors = subject.options.deletion_vectors
    if not subject.keyed or not (vectors or subject.engine == "first-row"):
        return
    if vectors and subject.options.deletion_vectors_merge_on_read:
        return
    what = "'deletion-vectors.enabled' = 'true'" if vectors else "'merge-engine' = 'first-row'"
    see = "set 'deletion-vectors.merge-on-read' = 'true', which merges while it reads" if vectors else ""
    if subject.options.write_only:
        if subject.seen is not None and subject.seen.dedicated:
            return
        dead = uncompacted(subject)
        yield Say(
            f"{what} with 'write-only' = 'true': batch reads see rows only after another job compacted them"
            + (", and none has" if dead else ""),
            "write-only",
            tuple(filter(None, (COMPACT, see))),
            "without such a job the table reads empty",
            severity="error" if dead else None,
        )
    elif subject.has("lookup-wait") and not subject.flag("lookup-wait"):
        setting = subject.setting("lookup-wait")
        assert setting is not None
        yield Say(
            f"{what} with '{setting.key}' = 'false': batch reads see rows only after the compaction that follows a "
            "commit",
            setting.key,
            tuple(filter(None, ("leave it out where reads must see each commit", see))),
        )


@rule(
    "L-23",
    "info",
    "lookup compaction later than asked",
    "lookup-compact=gentle and its longest interval x checkpoint > --slo",
    source=_CORE,
    page=_PAGE,
)
def gentle(subject: Subject) -> Iterator[Say]:
    slo, interval = subject.around.slo_ms, subject.interval_ms
    mode = subject.setting("lookup-compact")
    if mode is None or slo is None or interval is None or (subject.text("lookup-compact") or "").upper() != "GENTLE":
        return
    trigger = subject.options.compaction_trigger
    longest = max(trigger, subject.number("lookup-compact.max-interval") or 2 * trigger)
    if longest * interval > slo:
        yield Say(
            f"'{mode.key}' = '{mode.value}' lets rows wait up to {longest} checkpoints of {duration(interval)} = "
            f"{duration(longest * interval)}, and {duration(slo)} is asked for",
            mode.key,
            (f"set 'lookup-compact.max-interval' = '{max(1, slo // interval)}', or lower the trigger",),
            evidence={"interval_ms": interval, "checkpoints": longest, "slo_ms": slo},
        )


@rule(
    "L-52",
    "warn",
    "every commit waits for compaction",
    "commit.force-compact, or delta-commits = 1, with checkpoints under 60 s",
    source=_SINK,
    page="primary-key-table/table-mode.md",
)
def forced(subject: Subject) -> Iterator[Say]:
    interval = subject.interval_ms
    if interval is None or interval >= 60_000 or not subject.keyed or subject.options.write_only:
        return
    for key, on in (
        ("commit.force-compact", subject.options.force_compact),
        ("full-compaction.delta-commits", subject.number("full-compaction.delta-commits") == 1),
    ):
        setting = subject.setting(key)
        if on and setting is not None:
            yield Say(
                f"'{key}' = '{setting.value}' compacts in every checkpoint, and those come every {duration(interval)}",
                key,
                (f"lengthen '{INTERVAL}' to a minute or more, or leave '{key}' out",),
                evidence={"interval_ms": interval},
            )


@rule(
    "L-32",
    "warn",
    "unusual small-file ratio",
    "compaction.small-file-ratio < 0.5 or > 0.9 (default 0.7)",
    source=_CORE,
    page=_PAGE,
)
def small_ratio(subject: Subject) -> Iterator[Say]:
    key = "compaction.small-file-ratio"
    setting, ratio = subject.setting(key), subject.real(key)
    if setting is None or setting.key in subject.wrong or 0.5 <= ratio <= 0.9:
        return
    target = subject.options.target_file_size(subject.keyed)
    low = ratio < 0.5
    yield Say(
        f"'{key}' = '{setting.value}': files from {amount(round(target * ratio))} on count as large"
        + (" and are left as they are" if low else ", and nearly full ones are written again"),
        key, ("the default is 0.7",), "more small files stay" if low else "more bytes are rewritten",
    )  # fmt: skip
