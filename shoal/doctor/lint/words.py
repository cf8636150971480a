# SPDX-License-Identifier: Apache-2.0
"""Words around Paimon that are no options of it: what older releases had, what belongs to Flink, what others call it.

The lists that the release itself decides come from `facts.json` (made by `dev/make-lint-facts`); the rest is written
here. Invariant: a word that is an option of the release is in none of these lists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from shoal.option_table import all_options


@dataclass(frozen=True, slots=True)
class Procedure:
    """The named arguments of a procedure; `takes` is None where they go by position only."""

    takes: tuple[str, ...] | None
    needs: tuple[str, ...] = ()


@cache
def _facts() -> Mapping[str, Any]:  # Any: a JSON object
    import json  # first use only

    with open(os.path.join(os.path.dirname(__file__), "facts.json"), encoding="utf-8") as file:
        return MappingProxyType(json.load(file))


# ---- options that are gone

# What takes the place of a removed key; where nothing is here, nothing does.
_INSTEAD = {
    "compaction.max.file-num": (
        "use 'num-sorted-run.compaction-trigger' (with a primary key) or 'compaction.min.file-num' (without)"
    ),
    "compaction.early-max.file-num": "use 'compaction.min.file-num'",
    "compaction.max-sorted-run-num": "leave it out: one compaction takes as many runs as it needs",
    "compaction.manual-triggered": "CALL sys.compact compacts by hand",
    "compaction.partition-spec": "CALL sys.compact takes partitions => '...'",
    "log.changelog-mode": "leave it out: tables have no log system since 1.4; streams read 'changelog-producer'",
    "metadata.iceberg-compatible": "use 'metadata.iceberg.storage'",
    "object-location": "use an object table as its page says",
    "orc.compress": "use 'file.compression'",
    "orc.compression.zstd.level": "use 'file.compression.zstd-level'",
    "record-level.time-field-type": "leave it out: the type of 'record-level.time-field' is taken from the column",
    "sequence.auto-padding": "leave it out: since 0.8 'sequence.field' takes several columns",
    "streaming-compact": "use 'write-only' with a compaction job of its own",
    "streaming-read-mode": "leave it out: streams read the table's files",
    "streaming-read-atomic": "leave it out",
    "write-manifest-cache": "leave it out; catalogs have 'cache.manifest.max-memory'",
    "write-mode": "leave it out: a primary key makes a table one of changes, none makes it an append table",
    "append-only.assert-disorder": "use 'bucket-append-ordered'",
    "fs.allow-hadoop-fallback": "use 'resolving-file-io.enabled'",
    "lookup.local-file-type": "leave it out: sorted files are the only kind",
    "root-path": "use 'warehouse' of the catalog",
}


@dataclass(frozen=True, slots=True)
class Removed:
    """A key that releases `first` to `last` had, and what to use now."""

    key: str
    first: str
    last: str
    instead: str


def removed(key: str) -> Removed | None:
    """What became of a key that the release no longer has."""
    row = _facts()["removed"].get(key)
    if row is None:
        return None
    family = key.split(".")[0]
    instead = _INSTEAD.get(key) or {
        "log": "leave it out: the log system is gone, streams read the table's own changelog",
        "kafka": "leave it out: the log system is gone, streams read the table's own changelog",
        "rocksdb": "leave it out: lookups keep sorted files of their own, see 'lookup.cache-max-disk-size'",
    }.get(family, "leave it out")
    return Removed(key, row["first"], row["last"], instead)


# ---- keys that belong elsewhere

_FLINK = (
    "execution.", "state.", "taskmanager.", "jobmanager.", "pipeline.", "parallelism.default", "table.exec.",
    "table.optimizer.", "table.local-time-zone", "table.dml-sync", "sql-client.", "restart-strategy", "rest.address",
    "rest.port", "high-availability", "metrics.reporter", "kubernetes.", "yarn.", "cluster.", "env.java.", "jobstore.",
    "security.kerberos", "classloader.", "fine-grained.", "slotmanager.", "task.cancellation", "blob.server.",
)  # fmt: skip
_SPARK = ("spark.",)
# other systems, by how their keys begin: what it is, what Paimon has instead
_OTHERS = (
    ("streaming-source", "Flink's Hive connector", "use 'continuous.discovery-interval', 'scan.mode'"),
    ("lookup.join.cache.ttl", "Flink's Hive connector", "use 'lookup.refresh.async' or 'lookup.cache'"),
    ("hoodie.", "Hudi", ""),
    ("delta.", "Delta Lake", ""),
    ("write.target-file-size-bytes", "Iceberg", "use 'target-file-size'"),
    ("write.format.default", "Iceberg", "use 'file.format'"),
    ("write.distribution-mode", "Iceberg", ""),
    ("write.metadata.", "Iceberg", ""),
    ("write.parquet.", "Iceberg", "use 'parquet.*' or 'file.compression'"),
    ("history.expire.", "Iceberg", "use 'snapshot.time-retained', 'snapshot.num-retained.min'"),
    ("commit.retry.", "Iceberg", "use 'commit.max-retries', 'commit.min-retry-wait'"),
    ("format-version", "Iceberg", "'metadata.iceberg.format-version' is for Iceberg metadata beside a Paimon table"),
    ("compaction.async.enabled", "Hudi", "compactions are asynchronous unless 'lookup-wait' says otherwise"),
    ("compaction.delta_commits", "Hudi", "use 'full-compaction.delta-commits'"),
    ("compaction.tasks", "Hudi", "CALL sys.compact takes options => 'sink.parallelism=N'"),
    ("read.streaming.", "Hudi", "use 'scan.mode' and 'continuous.discovery-interval'"),
    ("slotSharingGroup", "Flink's DataStream API", "a table option cannot set it"),
    ("scan.startup.mode", "Flink's Kafka connector", "use 'scan.mode'"),
    ("scan.incremental.snapshot", "Flink CDC's MySQL connector", "it goes to the source, not to the Paimon table"),
    ("properties.bootstrap", "Flink's Kafka connector", ""),
)  # fmt: skip
JOB_WORDS = {
    "checkpoint.interval": "execution.checkpointing.interval",
    "checkpoint-interval": "execution.checkpointing.interval",
    "CheckpointInterval": "execution.checkpointing.interval",
    "checkpoint.timeout": "execution.checkpointing.timeout",
    "sink.savepoint-timeout": "execution.checkpointing.timeout",
    "checkpoint.mode": "execution.checkpointing.mode",
    "execution.checkpoint.interval": "execution.checkpointing.interval",
}
_API = ("CheckpointInterval",)  # how a job's API calls it: not a mistyped option


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A key that means something, but not here. `own`: it is spelled as its owner spells it."""

    owner: str
    use: str
    own: bool = True


def elsewhere(key: str) -> Elsewhere | None:
    """Whose key this is, when it is not Paimon's."""
    if job := JOB_WORDS.get(key):
        return Elsewhere("a Flink job", f"set '{job}' for the job", own=key in _API)
    if key.startswith(_FLINK):
        return Elsewhere("a Flink job", f"SET '{key}' for the job, or put it into its configuration")
    if key.startswith(_SPARK):
        return Elsewhere("a Spark session", f"SET {key} for the session")
    for head, owner, use in _OTHERS:
        if key.startswith(head):
            return Elsewhere(owner, use)
    return None


# ---- near in meaning

_SAME = {
    "retention": "retained", "retain": "retained", "ttl": "retained", "keep": "retained", "count": "num",
    "number": "num", "files": "file", "buckets": "bucket", "snapshots": "snapshot", "bytes": "size",
    "threshold": "trigger", "period": "interval", "maximum": "max", "minimum": "min", "codec": "compression",
    "compress": "compression", "threads": "thread", "compact": "compaction", "enable": "enabled",
    "expiration": "expire", "percent": "ratio", "memory": "buffer", "fields": "field", "columns": "field",
    "column": "field",
}  # fmt: skip


def _tokens(key: str) -> frozenset[str]:
    words = re.sub(r"([a-z])([A-Z])", r"\1-\2", key).lower()
    return frozenset(_SAME.get(w, w) for w in re.split(r"[.\-_ ]+", words) if w)


@cache
def _by_tokens() -> tuple[tuple[str, frozenset[str]], ...]:
    return tuple((k, _tokens(k)) for k, spec in all_options().items() if not spec.patterned)


def near_in_meaning(key: str, least: float) -> list[str]:
    """Options that share at least that part of their words with a key, the nearest first.

    >>> near_in_meaning("snapshot.retention.time", 0.7)[0]
    'snapshot.time-retained'
    """
    own = _tokens(key)
    scored = []
    for name, words in _by_tokens():
        score = len(own & words) / len(own | words)
        if score >= least:
            scored.append((-score, len(name), name))
    return [name for _, _, name in sorted(scored)[:2]]


# ---- statements, metrics, classes


def procedures(engine: str) -> Mapping[str, Procedure]:
    """Procedures of 'flink' or 'spark', by name."""
    return {
        name: Procedure(None) if row is None else Procedure(tuple(row["takes"]), tuple(row["needs"]))
        for name, row in _facts()["procedures"][engine].items()
    }


# what arguments of other names were meant to be
ARGUMENTS = {
    ("compact", "partition"): "partitions",
    ("compact", "mode"): "compact_strategy",
    ("compact", "strategy"): "compact_strategy",
    ("compact", "filter"): "where",
    ("compact_database", "compact_mode"): "mode",
    ("rescale", "buckets"): "bucket_num",
    ("expire_snapshots", "retain"): "retain_max",
    ("expire_snapshots", "older-than"): "older_than",
}

METRICS_OF_FLINK = (
    "numBytesOut", "numBytesOutPerSecond", "numBytesIn", "numBytesInPerSecond", "numRecordsOut",
    "numRecordsOutPerSecond", "numRecordsIn", "numRecordsInPerSecond", "busyTimeMsPerSecond", "idleTimeMsPerSecond",
    "backPressuredTimeMsPerSecond", "mailboxMailsPerSecond", "mailboxQueueSize", "mailboxLatencyMs",
    "lastCheckpointDuration", "lastCheckpointSize", "numberOfCompletedCheckpoints", "numberOfFailedCheckpoints",
    "currentInputWatermark", "currentEmitEventTimeLag", "currentFetchEventTimeLag", "pendingRecords", "numRestarts",
)  # fmt: skip
METRIC_WORDS = {
    "PAIMON_SINK_COMMIT_COST_TIME": "lastCommitDuration, commitDuration (group commit)",
    "Mailbox.Throughput": "Flink mailboxMailsPerSecond",
    "Mailbox.QueueSize": "Flink mailboxQueueSize",
    "BusyTimePerSecond": "Flink busyTimeMsPerSecond",
}
# words that are neither options nor metrics: verdict, what to use
PHRASES: Mapping[str, tuple[Literal["wrong name", "other system"], str]] = {
    "_deleted_": ("wrong name", "no such column: readers apply deletion vectors; `t$audit_log` has rowkind"),
    "replacingmergetree": ("other system", "ClickHouse; in Paimon it is merge-engine deduplicate"),
    "backpressure ok/high": ("other system", "Flink's web page; the metric is backPressuredTimeMsPerSecond"),
    "datev2": ("other system", "Doris; cast the column or upgrade its connector"),
    "datetimev2": ("other system", "Doris; cast the column or upgrade its connector"),
}  # fmt: skip


def metrics() -> Sequence[str]:
    """Paimon's own metrics."""
    return list(_facts()["metrics"])


def classes() -> Sequence[str]:
    """Classes that stand in logs and thread dumps."""
    return list(_facts()["classes"])
