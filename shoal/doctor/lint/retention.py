# SPDX-License-Identifier: Apache-2.0
"""Rules about what is kept and what expires: snapshots, changelogs, consumers, tags, partitions.

Agrees with: ExpireSnapshotsImpl, ExpireChangelogImpl, ExpireConfig, CoreOptions.changelogLifecycleDecoupled,
ConsumerManager, PartitionTimeExtractor, SchemaValidation (2.0.0). Invariant: a reader is called in danger only when
snapshots show how far behind it is, or when options say that nothing protects it.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.doctor.lint.rules import Say, rule
from shoal.doctor.lint.subject import Subject
from shoal.doctor.lint.texts import duration
from shoal.table.partition_time import partition_time_of

_CORE = "paimon-api/src/main/java/org/apache/paimon/CoreOptions.java"
_EXPIRE = "paimon-core/src/main/java/org/apache/paimon/table/ExpireSnapshotsImpl.java"
_CONFIG = "paimon-api/src/main/java/org/apache/paimon/options/ExpireConfig.java"
_VALIDATION = "paimon-core/src/main/java/org/apache/paimon/schema/SchemaValidation.java"
_CONSUMERS = "paimon-core/src/main/java/org/apache/paimon/consumer/ConsumerManager.java"
_PARTITIONS = "paimon-core/src/main/java/org/apache/paimon/partition/PartitionTimeExtractor.java"
_PAGE, _CONSUMER_PAGE = "maintenance/manage-snapshots.mdx", "flink/consumer-id.mdx"
KEPT, LEAST, MOST = "snapshot.time-retained", "snapshot.num-retained.min", "snapshot.num-retained.max"
_CHANGELOG = ("changelog.time-retained", "changelog.num-retained.min", "changelog.num-retained.max")
_STREAM_STARTS = ("latest", "from-timestamp", "from-snapshot", "from-file-creation-time", "from-creation-timestamp")


def decoupled(subject: Subject) -> bool:
    """Whether changelogs outlive snapshots: one of the three limits is higher than that of snapshots."""
    return any(
        (own := subject.number(key)) is not None and own > (subject.number(key.replace("changelog", "snapshot")) or 0)
        for key in _CHANGELOG
    )


@rule(
    "L-26",
    "warn",
    "snapshots expire under slow readers",
    "snapshot.time-retained < 2 x the lag of a consumer†",
    source=_EXPIRE,
    page=_PAGE,
    samples=True,
)
def short(subject: Subject) -> Iterator[Say]:
    assert subject.seen is not None
    kept = subject.number(KEPT) or 0
    for holder in subject.seen.consumers:
        lag = subject.seen.behind_ms(holder)
        if lag and kept < 2 * lag:
            yield Say(
                f"'{KEPT}' = '{duration(kept)}' and consumer '{holder.name}' is {duration(lag)} behind: only its "
                "consumer file "
                "keeps the snapshot that it reads next",
                KEPT,
                (f"keep snapshots for {duration(2 * lag)} or longer, or speed the reader up",),
                evidence={"lag_ms": lag, "kept_ms": kept},
            )


@rule(
    "L-27",
    "warn",
    "stream without protection",
    "a streaming read without consumer-id, and snapshots kept ≤ 1 h",
    source=_EXPIRE,
    page=_CONSUMER_PAGE,
    kinds=("table", "hint"),
)
def unprotected(subject: Subject) -> Iterator[Say]:
    mode = subject.setting("scan.mode")
    if mode is None or subject.has("consumer-id") or subject.around.streaming is False or subject.schema is None:
        return
    if (subject.text("scan.mode") or "") not in _STREAM_STARTS or decoupled(subject):
        return
    kept = subject.number(KEPT) or 0
    if kept <= 3_600_000 and (subject.around.streaming or subject.text("scan.mode") == "latest"):
        yield Say(
            f"'{mode.key}' = '{mode.value}' without 'consumer-id', and '{KEPT}' is {duration(kept)}: a stream that "
            "is down for "
            "longer cannot go on",
            mode.key,
            ("set 'consumer-id' for this reader", f"or raise '{KEPT}'"),
            evidence={"kept_ms": kept},
        )


@rule(
    "L-28",
    "warn",
    "consumer left behind",
    "a consumer is further behind than snapshots are kept, and consumers never expire†",
    source=_CONSUMERS,
    page=_CONSUMER_PAGE,
    samples=True,
)
def left_behind(subject: Subject) -> Iterator[Say]:
    assert subject.seen is not None
    if subject.has("consumer.expiration-time") or subject.flag("consumer.changelog-only"):
        return
    kept = subject.number(KEPT) or 0
    for holder in subject.seen.consumers:
        lag = subject.seen.behind_ms(holder)
        if lag is None or lag > kept:
            how_far = "more than the sampled snapshots" if lag is None else duration(lag)
            yield Say(
                f"consumer '{holder.name}' reads snapshot {holder.snapshot} next, {how_far} behind: no snapshot from "
                "there on "
                "expires, and 'consumer.expiration-time' is not set",
                "consumer.expiration-time",
                (
                    "set 'consumer.expiration-time', for example to '1 d'",
                    "or CALL sys.clear_consumers, sys.reset_consumer",
                ),
                evidence={"snapshot": holder.snapshot, "lag_ms": lag},
            )


@rule(
    "L-29",
    "warn",
    "consumers protect nothing",
    "consumer.changelog-only=true while changelogs live no longer than snapshots",
    source=_CONFIG,
    page=_CONSUMER_PAGE,
)
def consumers_void(subject: Subject) -> Iterator[Say]:
    key = "consumer.changelog-only"
    if subject.flag(key) and not decoupled(subject):
        yield Say(
            f"'{key}' = 'true' and changelogs are kept no longer than snapshots: consumers keep nothing from expiring",
            key,
            (f"set 'changelog.time-retained' above '{KEPT}', or leave '{key}' out",),
        )


@rule(
    "L-35",
    "warn",
    "expiry cannot keep up",
    "snapshot.expire.limit (default 50) < 2 x snapshots per commit",
    source=_CORE,
    page=_PAGE,
)
def limit(subject: Subject) -> Iterator[Say]:
    key = "snapshot.expire.limit"
    setting, most = subject.setting(key), subject.number(key)
    if setting is None or most is None:
        return
    made = None if subject.seen is None else subject.seen.snapshots_per_commit
    # without samples: a streaming commit makes one snapshot or two
    if most < 2 * (made or 1):
        yield Say(
            f"'{key}' = '{setting.value}': a commit makes {f'{made:.1f}' if made else 'up to 2'} snapshots and "
            "expires at most "
            f"{most}, so a backlog hardly shrinks",
            key,
            ("leave it out (50)",),
            evidence={"snapshots_per_commit": made},
        )


@rule(
    "L-37",
    "error",
    "snapshot counts",
    "num-retained.min > max (below 1: L-04); warn: max x checkpoint interval < time-retained",
    source=_VALIDATION,
    page=_PAGE,
)
def counts(subject: Subject) -> Iterator[Say]:
    for what in ("snapshot", "changelog"):
        low_key, high_key = f"{what}.num-retained.min", f"{what}.num-retained.max"
        low, high = (subject.number(k) or subject.number(k.replace(what, "snapshot")) or 0 for k in (low_key, high_key))
        if not any(True for _ in subject.own(low_key, high_key)):
            continue
        low_set = subject.setting(low_key)
        if low > high:
            key = low_key if low_set is not None else high_key
            yield Say(
                f"'{low_key}' = '{low}' is above '{high_key}' = '{high}': Paimon refuses the table",
                key,
                ("set both",),
                evidence={"min": low, "max": high},
            )
    most, interval, kept = subject.number(MOST) or 0, subject.interval_ms, subject.number(KEPT) or 0
    if subject.has(MOST) and interval and 0 < most * interval < kept:
        yield Say(
            f"'{MOST}' = '{most}' with commits every {duration(interval)} keeps {duration(most * interval)}, not the "
            f"{duration(kept)} of '{KEPT}': the count wins",
            MOST,
            (f"leave it out, or raise it above {kept // interval}",),
            severity="warn",
            confidence="supported",
            evidence={"interval_ms": interval},
        )


@rule(
    "L-44",
    "warn",
    "partitions never expire",
    "partition.expiration-time by values, and no value is a time",
    source=_PARTITIONS,
    page="maintenance/manage-partitions.md",
)
def never_expire(subject: Subject) -> Iterator[Say]:
    setting = subject.setting("partition.expiration-time")
    if setting is None or subject.schema is None or subject.text("partition.expiration-strategy") != "values-time":
        return
    keys, own = subject.schema.partition_keys, f"'{setting.key}' = '{setting.value}'"
    takes = (
        "set 'partition.timestamp-formatter' and 'partition.timestamp-pattern'",
        "or 'partition.expiration-strategy' = 'update-time'",
    )
    if not keys:
        yield Say(f"{own} does nothing: the table has no partitions", setting.key, ("leave it out",))
        return
    pattern, formatter = subject.text("partition.timestamp-pattern"), subject.text("partition.timestamp-formatter")
    first = subject.schema.field(keys[0]).type
    if pattern is None and first.root == "DATE":
        yield Say(
            f"{own}: '{keys[0]}' is a DATE, whose value is a number of days, and that is never read as a time",
            setting.key,
            ("make the column a STRING such as '2024-05-01', or take 'partition.expiration-strategy' = 'update-time'",),
        )
        return
    if pattern is None and formatter is None and first.root not in ("CHAR", "VARCHAR"):
        yield Say(f"{own}: '{keys[0]}' is {first}, whose values are no times without a formatter", setting.key, takes)
        return
    seen = [] if subject.seen is None else subject.seen.partitions
    time = partition_time_of(keys, subject.options)
    values = [tuple(part.partition("=")[2] for part in p.strip("/").split("/")) for p in seen]
    if values and all(time.of(v) is None for v in values):
        yield Say(
            f"{own}: none of {len(values)} partitions such as '{seen[0]}' is read as a time",
            setting.key,
            takes,
            evidence={"partitions": len(values)},
        )


@rule(
    "L-45",
    "warn",
    "changelogs live no longer",
    "changelog.* retention set, and none above that of snapshots",
    source=_CONFIG,
    page=_PAGE,
)
def coupled(subject: Subject) -> Iterator[Say]:
    given = [s for s in subject.own(*_CHANGELOG) if s.key not in subject.wrong]
    if given and not decoupled(subject):
        one = given[0]
        yield Say(
            f"'{one.key}' = '{one.value}' does nothing: no changelog limit is above that of snapshots, so changelogs "
            "go with them",
            one.key,
            (f"set 'changelog.time-retained' above '{KEPT}' ({duration(subject.number(KEPT) or 0)})",),
        )


@rule(
    "L-46",
    "warn",
    "folders cleaned in an object store",
    "snapshot.clean-empty-directories in an object store",
    source=_CORE,
    page=_PAGE,
)
def empty_folders(subject: Subject) -> Iterator[Say]:
    setting = subject.setting("snapshot.clean-empty-directories")
    if setting is not None and subject.flag("snapshot.clean-empty-directories") and subject.on_objects:
        yield Say(
            f"'{setting.key}' = 'true' in {subject.around.store}: expiry lists and deletes prefixes that are no "
            "folders",
            setting.key,
            ("leave it out",),
            "fewer requests per expiry",
        )


@rule(
    "L-47",
    "warn",
    "expiry in the wrong mode",
    "expire.execution-mode async in batch; sync while expiry is behind†",
    source="paimon-core/src/main/java/org/apache/paimon/table/sink/TableCommitImpl.java",
    page=_PAGE,
)
def expire_mode(subject: Subject) -> Iterator[Say]:
    key = "snapshot.expire.execution-mode"
    setting, mode = subject.setting(key), subject.text(key)
    if setting is not None and mode == "async" and subject.around.streaming is False:
        yield Say(
            f"'{key}' = 'async' in a batch job: the job may end before its expiry does",
            key,
            ("take 'sync' for batch jobs",),
        )
    seen = subject.seen
    if seen is None or mode != "sync" or subject.options.write_only or seen.consumers or not seen.commits:
        return
    kept, age, least = subject.number(KEPT) or 0, seen.expired_late_ms or 0, subject.number(LEAST) or 0
    # what is new enough to have been kept by the last commit's own expiry is not late
    fresh = seen.window.stock.taken_ms - seen.steps[-1].time_ms
    if age - fresh > 2 * kept and len(seen.steps) > 2 * max(least, subject.number("snapshot.expire.limit") or 0):
        yield Say(
            f"'{key}' = 'sync' and the oldest of {len(seen.steps)} snapshots is {duration(age)} old, kept for "
            f"{duration(kept)}: "
            "each commit waits for an expiry that is behind",
            key,
            ("CALL sys.expire_snapshots once, then 'async'",),
            evidence={"age_ms": age, "snapshots": len(seen.steps)},
        )


@rule(
    "L-48",
    "warn",
    "tags pile up",
    "tag.automatic-creation without tag.num-retained-max or tag.default-time-retained",
    source=_CORE,
    page="maintenance/manage-tags.mdx",
)
def tags(subject: Subject) -> Iterator[Say]:
    setting = subject.setting("tag.automatic-creation")
    if setting is None or subject.text("tag.automatic-creation") == "none":
        return
    if not any(True for _ in subject.own("tag.num-retained-max", "tag.default-time-retained")):
        yield Say(
            f"'{setting.key}' = '{setting.value}' and no limit: every tag keeps its files for ever", setting.key,
            ("set 'tag.num-retained-max' or 'tag.default-time-retained'",),
        )  # fmt: skip
