# SPDX-License-Identifier: Apache-2.0
"""Each rule that needs no snapshots: an option set that it speaks of, and the nearest one that it does not.

A case is (rule, severity, options it speaks of, options it is silent on); `with`: what else is known.
"""

from __future__ import annotations

from typing import Any

import pytest

from shoal.doctor.finding import Finding
from shoal.doctor.lint.rules import all_rules, lint
from shoal.doctor.lint.subject import Around, Subject, settings_of
from shoal.format.schema import Schema
from shoal.format.types import Field, parse_atomic

COLUMNS = {"id": "INT NOT NULL", "dt": "STRING NOT NULL", "v": "STRING", "at": "TIMESTAMP(9)", "day": "DATE NOT NULL"}


def schema(keys: str = "id,dt", partitions: str = "dt", **options: str) -> Schema:
    fields = tuple(Field(i, n, parse_atomic(t)) for i, (n, t) in enumerate(COLUMNS.items()))
    return Schema(0, fields, len(fields) - 1, _names(partitions), _names(keys), options)


def _names(text: str) -> tuple[str, ...]:
    return tuple(n for n in text.split(",") if n)


def subject(options: dict[str, str], **known: Any) -> Subject:
    keys, partitions = known.get("keys", "id,dt"), known.get("partitions", "dt")
    around = Around(known.get("slo"), known.get("store"), known.get("cdc", False), known.get("streaming"))
    job = settings_of(known.get("job", {}))
    kind = known.get("kind", "table")
    table = schema(keys, partitions, **options) if kind == "table" else None
    if kind == "job":
        job = settings_of(options)
    return Subject(kind, "t", settings_of(options), table, job=job, around=around, before=known.get("before"))


def said(options: dict[str, str], rule: str, **known: Any) -> list[Finding]:
    return [f for f in lint(subject(options, **known)) if f.id == rule]


def pairs(text: str) -> dict[str, str]:
    return dict(p.strip().split("=", 1) for p in text.split(";") if p.strip())


EVERY_10_S = {"execution.checkpointing.interval": "10 s"}
APPEND = {"keys": "", "partitions": ""}
FULL = "changelog-producer=full-compaction; full-compaction.delta-commits=5"
DV = "deletion-vectors.enabled=true; "

CASES = [
    ("L-01", "error", "compaction.target.file-size=1 mb", "target-file-size=1 mb", {}),
    ("L-01", "error", "no.such.option=1", "fields.v.aggregate-function=max; file-index.bloom-filter.columns=v", {}),
    ("L-01", "error", "wherehouse=/x", "warehouse=/x; table-default.bucket=1", {"kind": "catalog"}),
    ("L-02", "warn", "compaction.max.file-num=50", "compaction.min.file-num=5", {}),
    ("L-02", "warn", "write-mode=change-log", "write-only=false", {}),
    ("L-02", "warn", "log.system=kafka", "scan.mode=latest", {}),
    ("L-03", "info", "changelog-producer.lookup-wait=false", "lookup-wait=false", {}),
    ("L-03", "info", "write.compaction-skip=true; write-only=TRUE", "write-only=true", {}),
    ("L-03", "error", "write.compaction-skip=true; write-only=false", "write-only=true", {}),
    ("L-04", "error", "metadata.stats-mode=truncate", "metadata.stats-mode=truncate(8)", {}),
    ("L-04", "error", "bucket=0", "bucket=1", {}),
    ("L-04", "error", "bucket=-2", "bucket=-1", APPEND),
    ("L-04", "error", "snapshot.time-retained=1 fortnight", "snapshot.time-retained=14 d", {}),
    ("L-04", "error", "lookup.cache=partial", "lookup.cache=auto", {}),
    ("L-05", "error", "execution.checkpointing.interval=10 s", "bucket=1", {}),
    ("L-05", "error", "checkpoint.interval=10 s", "sink.parallelism=2", {}),
    ("L-05", "error", "spark.sql.shuffle.partitions=4", "write.merge-schema=true", {}),
    ("L-06", "error", "merge-engine=aggregation", "merge-engine=deduplicate", {"before": {"merge-engine": "deduplicate"}}),
    ("L-06", "error", "bucket=4", "bucket=-1", {"before": {"bucket": "-1"}}),
    ("L-06", "error", "", "ignore-delete=true", {"before": {"ignore-delete": "true"}}),
    ("L-07", "error", "changelog-producer=lookup; full-compaction.delta-commits=5", FULL, {}),
    ("L-08", "error", "changelog-producer=input", "changelog-producer=none", APPEND),
    ("L-08", "error", "changelog-producer=input; merge-engine=first-row", "changelog-producer=lookup; merge-engine=first-row", {}),
    ("L-08", "error", DV + "changelog-producer=full-compaction", DV + "changelog-producer=lookup", {}),
    ("L-08", "error", DV + "merge-engine=first-row", DV + "merge-engine=deduplicate", {}),
    ("L-11", "warn", "write-only=true; partition.expiration-time=7 d", "partition.expiration-time=7 d", {}),
    ("L-12", "warn", "write-only=true; tag.automatic-creation=watermark", "write-only=true; tag.automatic-creation=none", {}),
    ("L-12", "warn", "write-only=true; consumer.expiration-time=1 d", "consumer.expiration-time=1 d", {}),
    ("L-14", "warn", "num-sorted-run.stop-trigger=4", "num-sorted-run.stop-trigger=5", {}),
    ("L-15", "warn", "num-sorted-run.stop-trigger=6", "num-sorted-run.stop-trigger=7", {}),
    ("L-16", "warn", "num-levels=5", "num-levels=6", {}),
    ("L-17", "warn", "num-sorted-run.stop-trigger=51", "num-sorted-run.stop-trigger=51; sort-spill-threshold=10", {}),
    ("L-18", "info", "num-sorted-run.compaction-trigger=11", "num-sorted-run.compaction-trigger=10", {}),
    ("L-18", "info", "num-sorted-run.compaction-trigger=30", "num-sorted-run.compaction-trigger=5", {}),
    ("L-19", "warn", "changelog-producer=full-compaction", FULL, {}),
    ("L-19", "warn", "changelog-producer.compaction-interval=5 s", "changelog-producer.compaction-interval=20 s", {"job": EVERY_10_S}),
    ("L-20", "warn", "changelog-producer=lookup; write-only=true", "changelog-producer=lookup", {}),
    ("L-20", "error", FULL, FULL.replace("=5", "=3"), {"job": EVERY_10_S, "slo": 30_000}),
    ("L-22", "warn", DV + "write-only=true", DV + "write-only=true; deletion-vectors.merge-on-read=true", {}),
    ("L-22", "warn", "merge-engine=first-row; lookup-wait=false", "merge-engine=first-row", {}),
    ("L-23", "info", "lookup-compact=gentle", "lookup-compact=radical", {"job": EVERY_10_S, "slo": 60_000}),
    ("L-27", "warn", "scan.mode=latest", "scan.mode=latest; consumer-id=a", {}),
    ("L-27", "warn", "scan.mode=latest", "scan.mode=latest; snapshot.time-retained=1 d", {}),
    ("L-29", "warn", "consumer.changelog-only=true", "consumer.changelog-only=true; changelog.time-retained=1 d", {}),
    ("L-30", "info", "write-buffer-size=256 mb", "write-buffer-size=128 mb", {}),
    (
        "L-30", "warn", "write-buffer-size=1 gb", "write-buffer-size=1 gb; sink.use-managed-memory-allocator=true",
        {"job": {"taskmanager.memory.task.heap.size": "2 gb", "taskmanager.numberOfTaskSlots": "4"}},
    ),
    ("L-32", "warn", "compaction.small-file-ratio=0.3", "compaction.small-file-ratio=0.5", {}),
    ("L-33", "warn", "bucket=4; sink.parallelism=8", "bucket=4; sink.parallelism=4", {"partitions": "", "keys": "id"}),
    ("L-33", "info", "bucket=4; sink.parallelism=8", "bucket=-1; sink.parallelism=8", {}),
    ("L-34", "info", "local-merge-buffer-size=64 mb", "write-buffer-size=64 mb", {"cdc": True}),
    ("L-35", "warn", "snapshot.expire.limit=1", "snapshot.expire.limit=10", {}),
    ("L-36", "warn", "metadata.stats-mode=full", "metadata.stats-mode=counts", {}),
    ("L-04", "error", "snapshot.num-retained.min=0", "snapshot.num-retained.min=1", {}),
    ("L-37", "error", "snapshot.num-retained.max=5", "snapshot.num-retained.max=10", {}),
    ("L-37", "warn", "snapshot.num-retained.max=20", "snapshot.num-retained.max=400", {"job": EVERY_10_S}),
    ("L-38", "info", "file.compression.zstd-level=9", "file.compression.zstd-level=3", {}),
    ("L-38", "info", "file.compression.zstd-level=9", "file.compression.zstd-level=9; file.compression.per.level=0:lz4", {}),
    ("L-40", "warn", "continuous.discovery-interval=10 s", "continuous.discovery-interval=5 s", {"job": EVERY_10_S}),
    ("L-41", "info", "precommit-compact=true", "precommit-compact=true; changelog-producer=input", {}),
    ("L-42", "error", "record-level.expire-time=1 d", "record-level.expire-time=1 d; record-level.time-field=at", {}),
    ("L-42", "error", "record-level.time-field=v", "record-level.time-field=id", {}),
    ("L-42", "error", "record-level.time-field=none", "record-level.time-field=at", {}),
    ("L-43", "error", "sequence.field=v; merge-engine=first-row", "sequence.field=v", {}),
    ("L-43", "error", "sequence.field=v", "merge-engine=deduplicate", {"keys": "id"}),
    ("L-44", "warn", "partition.expiration-time=7 d", "partition.expiration-time=7 d; partition.expiration-strategy=update-time", {"partitions": "day", "keys": "id,day"}),
    ("L-44", "warn", "partition.expiration-time=7 d", "bucket=1", {"partitions": "", "keys": "id"}),
    ("L-45", "warn", "changelog.time-retained=1 h", "changelog.time-retained=2 h", {}),
    ("L-46", "warn", "snapshot.clean-empty-directories=true", "snapshot.clean-empty-directories=false", {"store": "oss"}),
    ("L-47", "warn", "snapshot.expire.execution-mode=async", "snapshot.expire.execution-mode=sync", {"streaming": False}),
    ("L-48", "warn", "tag.automatic-creation=process-time", "tag.automatic-creation=process-time; tag.num-retained-max=7", {}),
    ("L-51", "info", "warehouse=s3://b/w", "warehouse=s3://b/w; metastore=hive", {"kind": "catalog", "store": "s3"}),
    ("L-52", "warn", "commit.force-compact=true", "commit.force-compact=false", {"job": EVERY_10_S}),
    ("L-52", "warn", "full-compaction.delta-commits=1", "full-compaction.delta-commits=2", {"job": EVERY_10_S}),
    ("L-53", "info", "compaction.offpeak.start.hour=1", "compaction.offpeak.start.hour=1; compaction.offpeak.end.hour=5; compaction.offpeak-ratio=50", {}),
    ("L-53", "info", "compaction.offpeak.start.hour=1; compaction.offpeak.end.hour=1; compaction.offpeak-ratio=50", "", {}),
    ("L-54", "warn", "manifest.merge-min-count=101", "manifest.merge-min-count=100", {}),
    ("L-54", "warn", "manifest.target-file-size=512 kb", "manifest.target-file-size=1 mb", {}),
    ("L-55", "error", "streaming-read-overwrite=true; changelog-producer=lookup", "streaming-read-overwrite=true", {}),
    ("L-55", "error", "streaming-read-overwrite=true", "streaming-read-append-overwrite=true", APPEND),
    ("L-56", "warn", "changelog-producer=lookup", "changelog-producer=lookup; lookup-wait=false", {"job": EVERY_10_S}),
    (
        "L-56", "warn", "execution.checkpointing.interval=10 s; execution.checkpointing.min-pause=30 s",
        "execution.checkpointing.interval=60 s; execution.checkpointing.min-pause=30 s", {"kind": "job"},
    ),
    ("L-57", "info", "compaction.skip-expired-partitions=true", "compaction.skip-expired-partitions=true; partition.expiration-time=7 d", {}),
    ("L-58", "info", "source.split.open-file-cost=1 kb", "source.split.open-file-cost=4 mb", {}),
    ("L-59", "info", FULL, "changelog-producer=lookup", {}),
    ("L-60", "warn", "num-sorted-run.stop-trigger=2147483647", "num-sorted-run.stop-trigger=30", {}),
    ("L-61", "error", "bucket=4; bucket-key=v", "bucket=4; bucket-key=id", {}),
    ("L-61", "error", "row-tracking.enabled=true", "row-tracking.enabled=false", {}),
    ("L-62", "error", "streaming-source.enable=true", "continuous.discovery-interval=1 s", {}),
    ("L-62", "error", "hoodie.table.type=MERGE_ON_READ", "type=table", {}),
    ("L-63", "warn", "lock.enabled=true", "connector=paimon; lock.enabled=true", {}),
    ("L-64", "error", "execution.checkpointing.intervall=10 s", "execution.checkpointing.interval=10 s", {"kind": "job"}),
    ("L-64", "info", "write-only=true", "parallelism.default=4", {"kind": "job"}),
    ("L-67", "warn", "write-only=true; full-compaction.delta-commits=5", "full-compaction.delta-commits=5", {}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "severity", "bad", "good", "known"), CASES, ids=lambda v: str(v)[:40])
def test_a_rule_speaks_of_one_and_not_of_the_other(rule, severity, bad, good, known):
    found = said(pairs(bad), rule, **known)
    assert [f.severity for f in found] == [severity]
    assert all(word in found[0].says for word in ("'",)) and found[0].change
    assert said(pairs(good), rule, **known) == []


# rules that need snapshots (test_rules_seen.py) or statements (test_sql.py)
ELSEWHERE = {
    "L-09", "L-10", "L-13", "L-21", "L-24", "L-25", "L-26", "L-28", "L-31", "L-49", "L-50", "L-65", "L-66", "L-68", "L-69",
    "L-39",
}  # fmt: skip


def test_every_rule_has_a_case():
    assert {r.id for r in all_rules()} - {c[0] for c in CASES} == ELSEWHERE
    assert {f"L-{n:02}" for n in range(1, 60)} <= {r.id for r in all_rules()}


def test_avro_is_told_by_what_it_costs_and_where_it_cannot_be():
    known = {"keys": "id", "partitions": ""}
    assert [f.severity for f in said({"file.format": "avro"}, "L-39", **known)] == ["info"]
    assert said({"file.format": "avro", "metadata.stats-mode": "none"}, "L-39", **known) == []
    found = said({"file.format.per.level": "0:avro"}, "L-39", **known)
    assert [(f.severity, f.confidence) for f in found] == [("error", "proven")] and "TIMESTAMP(9)" in found[0].says


def test_the_message_names_key_and_value_and_hides_secrets():
    found = said({"s3.secret-key": "abc", "fs.oss.accesskeysecret": "abc", "dlf.access-key-secrett": "abc"}, "L-01")
    assert [f.scope["option"] for f in found] == ["dlf.access-key-secrett"]
    assert "abc" not in found[0].says + str(found[0].evidence) and "'******'" in found[0].says


def test_the_nearest_key_is_found_by_spelling_and_by_meaning():
    hints = {
        k: said({k: "1"}, "L-01")[0].change[0] for k in ("bukcet", "snapshot.retention.time", "target.size.of.file")
    }
    assert hints["bukcet"] == "did you mean 'bucket'?"
    assert "'snapshot.time-retained'" in hints["snapshot.retention.time"]
    assert "'target-file-size'" in hints["target.size.of.file"]


def test_findings_of_one_option_do_not_contradict():
    found = lint(subject({"num-sorted-run.stop-trigger": "3"}))
    assert [f.id for f in found if f.scope.get("option") == "num-sorted-run.stop-trigger"] == ["L-14"]
    # a value that cannot be read is no other rule's premise
    assert [f.id for f in lint(subject({"snapshot.expire.limit": "one"}))] == ["L-04"]
    # what is refused for a reason that a rule names is not told twice
    refused = [f.id for f in lint(subject({"merge-engine": "first-row", "sequence.field": "v"}))]
    assert refused == ["L-43"]


def test_every_error_without_snapshots_of_a_schema_is_what_java_refuses_or_cannot_read():
    for rule, severity, bad, _, known in CASES:
        if severity == "error" and rule in ("L-07", "L-08", "L-37", "L-42", "L-43", "L-55"):
            found = lint(subject(pairs(bad), **known))
            # the schema checks that CREATE TABLE runs refuse the same table
            assert [f for f in found if f.id == rule]
            from shoal.errors import BadRequest
            from shoal.table.schema_checks import normal

            with pytest.raises(BadRequest):
                normal("t", subject(pairs(bad), **known).schema)
