# SPDX-License-Identifier: Apache-2.0
"""Rules about changelogs: which producers go with what, when they are late, and what they cost.

Agrees with: SchemaValidation.validateTableSchema, validateForDeletionVectors, StoreSinkWrite.createWriteProvider,
GlobalFullCompactionSinkWrite, ChangelogCompactCoordinateOperator (2.0.0). Invariant: what Java refuses in a schema is
an error here, and nothing else is before snapshots show that it hurts.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.doctor.lint.compaction import COMPACT, uncompacted
from shoal.doctor.lint.rules import Say, rule
from shoal.doctor.lint.subject import INTERVAL, Subject
from shoal.doctor.lint.texts import duration

_VALIDATION = "paimon-core/src/main/java/org/apache/paimon/schema/SchemaValidation.java"
_CORE = "paimon-api/src/main/java/org/apache/paimon/CoreOptions.java"
_FLINK = "paimon-flink/paimon-flink-common/src/main/java/org/apache/paimon/flink"
_PAGE = "primary-key-table/changelog-producer.md"
PRODUCER, DELTA, OVERWRITE = "changelog-producer", "full-compaction.delta-commits", "streaming-read-overwrite"
_EVERY = "changelog-producer.compaction-interval"


@rule(
    "L-07",
    "error",
    "full compactions with a lookup changelog",
    "full-compaction.delta-commits with changelog-producer lookup",
    source=_VALIDATION,
    page=_PAGE,
)
def delta_with_lookup(subject: Subject) -> Iterator[Say]:
    if subject.has(DELTA) and subject.producer == "lookup":
        setting = subject.setting(DELTA)
        assert setting is not None
        yield Say(
            f"'{DELTA}' = '{setting.value}' does not go with 'changelog-producer' = 'lookup': Paimon refuses the table",
            DELTA,
            (f"leave '{DELTA}' out", "or take 'changelog-producer' = 'full-compaction'"),
        )


@rule(
    "L-08",
    "error",
    "changelog producer that does not fit",
    "a producer without a primary key; first-row with input or full-compaction; deletion vectors with "
    "full-compaction or first-row",
    source=_VALIDATION,
    page=_PAGE,
)
def producer_fits(subject: Subject) -> Iterator[Say]:
    producer, engine, key = subject.producer, subject.engine, PRODUCER
    pair = f"'{PRODUCER}' = '{producer}'"
    vectors = "deletion-vectors.enabled"
    if subject.has_key is False and producer != "none":
        yield Say(
            f"{pair} needs a primary key: Paimon refuses the table",
            key,
            ("leave it out: an append table is its own log",),
        )
        return
    if engine == "first-row" and producer not in ("none", "lookup"):
        yield Say(
            f"{pair} does not go with 'merge-engine' = 'first-row': Paimon refuses the table", key, ("take 'lookup'",)
        )
    if subject.options.deletion_vectors:
        if producer == "full-compaction":
            yield Say(
                f"{pair} does not go with '{vectors}' = 'true': Paimon refuses the table",
                key,
                ("take 'lookup' or 'input'",),
            )
        if engine == "first-row" and not subject.flag("pk-clustering-override"):
            yield Say(
                f"'{vectors}' = 'true' does not go with 'merge-engine' = 'first-row': Paimon refuses the table",
                vectors,
                ("leave it out: first-row never deletes a row",),
            )


@rule(
    "L-19",
    "warn",
    "full compaction at every checkpoint",
    "changelog-producer full-compaction without full-compaction.delta-commits or "
    "changelog-producer.compaction-interval",
    source=f"{_FLINK}/sink/StoreSinkWrite.java",
    page=_PAGE,
)
def every_checkpoint(subject: Subject) -> Iterator[Say]:
    interval = subject.job_ms(INTERVAL)
    asked = subject.setting(_EVERY)
    if subject.has(DELTA):
        return
    if asked is None:
        if subject.producer == "full-compaction":
            yield Say(
                f"'{PRODUCER}' = 'full-compaction' without '{DELTA}': every checkpoint is a full compaction",
                PRODUCER,
                (f"set '{DELTA}', for example to the checkpoints of 10 minutes", "or take 'lookup'"),
                "each row is written once per checkpoint instead of once per cycle",
            )
    elif asked.key not in subject.wrong and interval is not None and interval > 0:
        # divided by the checkpoint interval without rounding up, and at least 1
        wanted = subject.number(_EVERY) or 0
        if wanted < interval:
            yield Say(
                f"'{asked.key}' = '{asked.value}' is shorter than the checkpoints of {duration(interval)}: every "
                "checkpoint "
                "is a full compaction",
                asked.key,
                (f"set it to a few times {duration(interval)}, or set '{DELTA}'",),
            )


@rule(
    "L-20",
    "warn",
    "changelog left to another job, or late",
    "lookup or full-compaction producer with write-only; error when nobody compacts†; delta-commits x checkpoint > "
    "--slo",
    source=f"{_FLINK}/sink/StoreSinkWrite.java",
    page=_PAGE,
)
def changelog_late(subject: Subject) -> Iterator[Say]:
    producer, interval, slo = subject.producer, subject.interval_ms, subject.around.slo_ms
    if producer not in ("lookup", "full-compaction"):
        return
    if subject.options.write_only:
        if subject.seen is None or not subject.seen.dedicated:
            dead = uncompacted(subject)
            yield Say(
                f"'{PRODUCER}' = '{producer}' with 'write-only' = 'true': the writer makes no changelog, only a "
                "compaction job of "
                "its own does" + (", and none has committed" if dead else ""),
                PRODUCER,
                (COMPACT, "or set 'write-only' = 'false'"),
                "streaming readers get nothing without it",
                severity="error" if dead else None,
            )
        return
    commits = subject.number(DELTA)
    if producer == "full-compaction" and commits and interval and slo and commits * interval > slo:
        yield Say(
            f"'{DELTA}' = '{commits}' with checkpoints of {duration(interval)} makes changelog every "
            f"{duration(commits * interval)}, and {duration(slo)} is asked for",
            DELTA,
            (f"lower it to {max(1, slo // interval)}, or take 'lookup'",),
            severity="error",
            evidence={"interval_ms": interval, "commits": commits, "slo_ms": slo},
            confidence="supported",
        )


@rule(
    "L-21",
    "warn",
    "readers of changes without changelog",
    "producer none on a primary-key table that has consumers†",
    source=_CORE,
    page=_PAGE,
    samples=True,
)
def no_changelog(subject: Subject) -> Iterator[Say]:
    assert subject.seen is not None
    names = tuple(sorted(h.name for h in subject.seen.consumers))
    if names and subject.has_key and subject.producer == "none":
        yield Say(
            f"'{PRODUCER}' = 'none' and {len(names)} consumer(s) ({', '.join(names[:3])}) follow the table: Flink "
            "keeps every "
            "key in state to make old values, others count updates twice",
            PRODUCER,
            ("'lookup' makes a complete changelog, 'input' passes on what a CDC source sends",),
            evidence={"consumers": names},
        )


@rule(
    "L-40",
    "warn",
    "readers slower than commits",
    "continuous.discovery-interval (default 10 s) ≥ checkpoint interval",
    source=_CORE,
    kinds=("table", "hint"),
)
def discovery(subject: Subject) -> Iterator[Say]:
    interval, key = subject.interval_ms, "continuous.discovery-interval"
    every, setting = subject.number(key) or 0, subject.setting(key)
    if not interval or every < interval or (setting is not None and setting.key in subject.wrong):
        return
    if setting is None and (subject.kind == "hint" or every == interval):
        return
    written = f"'{key}' = '{setting.value}'" if setting is not None else f"'{key}' is {duration(every)} by default"
    yield Say(
        f"{written} and commits come every {duration(interval)}: streaming readers look less often than rows arrive",
        key,
        (f"set it to {duration(max(1000, interval // 2))} where readers want each commit",),
        severity=None if setting is not None else "info",
        evidence={"interval_ms": interval, "discovery_ms": every},
    )


@rule(
    "L-41",
    "warn",
    "copies for few files",
    "precommit-compact with < 4 changelog files per partition and commit†; info: without anything it could merge",
    source=f"{_FLINK}/compact/changelog/ChangelogCompactCoordinateOperator.java",
    page=_PAGE,
)
def precommit(subject: Subject) -> Iterator[Say]:
    setting = subject.setting("precommit-compact")
    if setting is None or not subject.flag("precommit-compact"):
        return
    if subject.has_key and subject.producer == "none":
        yield Say(
            f"'{setting.key}' = 'true' does nothing: the table has a primary key and 'changelog-producer' = 'none'",
            setting.key,
            ("leave it out",),
            severity="info",
        )
        return
    files = None if subject.seen is None or not subject.has_key else subject.seen.changelog_files
    if files is not None and files < 4:
        yield Say(
            f"'{setting.key}' = 'true' copies {files:g} changelog file(s) per partition and commit into one: more "
            "requests, "
            "hardly fewer files",
            setting.key,
            ("leave it out, or lengthen the checkpoint interval",),
            evidence={"files": files},
        )


@rule(
    "L-55",
    "error",
    "overwrites read twice",
    "streaming-read-overwrite with lookup or full-compaction, or without a primary key",
    source=_VALIDATION,
)
def overwrite(subject: Subject) -> Iterator[Say]:
    if not subject.flag(OVERWRITE):
        return
    if subject.producer in ("lookup", "full-compaction"):
        yield Say(
            f"'{OVERWRITE}' = 'true' does not go with '{PRODUCER}' = '{subject.producer}': Paimon refuses the table",
            OVERWRITE,
            ("leave one of them out",),
        )
    elif subject.has_key is False:
        yield Say(
            f"'{OVERWRITE}' = 'true' needs a primary key: Paimon refuses the table",
            OVERWRITE,
            ("take 'streaming-read-append-overwrite'",),
        )


@rule(
    "L-59",
    "info",
    "sink walks snapshots",
    "full-compaction producer or delta-commits in a Flink sink",
    source=f"{_FLINK}/sink/GlobalFullCompactionSinkWrite.java",
)
def walks(subject: Subject) -> Iterator[Say]:
    if subject.options.write_only or not subject.keyed or subject.producer == "lookup":
        return
    key = DELTA if subject.has(DELTA) else PRODUCER
    if subject.has(DELTA) or subject.producer == "full-compaction":
        setting = subject.setting(key)
        assert setting is not None
        yield Say(
            f"'{key}' = '{setting.value}': after the first full compaction each task of a Flink sink reads retained "
            "snapshots "
            "back to its last one at every checkpoint",
            key, ("keep 'snapshot.time-retained' short, or take 'lookup'",),
        )  # fmt: skip
