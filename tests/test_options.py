# SPDX-License-Identifier: Apache-2.0
"""The option table, the typed view, and what is refused: through the public names of shoal.options."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.errors import BadRequest, Unsupported
from shoal.options import Options, all_options, check, lookup, parse_duration, parse_memory, problems

MEMORY = [
    ("0", 0),
    ("1234", 1234),
    ("10b", 10),
    ("10 bytes", 10),
    ("3k", 3 << 10),
    ("3 KB", 3 << 10),
    ("3kibibytes", 3 << 10),
    ("256 mb", 256 << 20),
    ("  7m  ", 7 << 20),
    ("7   MebiBytes", 7 << 20),
    ("2g", 2 << 30),
    ("2 gibibytes", 2 << 30),
    ("1t", 1 << 40),
    ("1 tebibytes", 1 << 40),
    ("9223372036854775807 bytes", 2**63 - 1),
]
NOT_MEMORY = ["", " ", "mb", "-1 mb", "+1", "1.5 gb", "1,5 gb", "10 pb", "10 byte", "9223372036854775808", "9000000 tb"]

DURATION = [
    ("0 s", 0),
    ("1500", 1500),
    ("5ms", 5),
    ("5 milli", 5),
    ("5 millis", 5),
    ("5 milliseconds", 5),
    ("10 s", 10_000),
    ("10 sec", 10_000),
    ("10secs", 10_000),
    ("10 Seconds", 10_000),
    ("3m", 180_000),
    ("3 min", 180_000),
    ("3 minutes", 180_000),
    ("1h", 3_600_000),
    ("1 hour", 3_600_000),
    ("2 hours", 7_200_000),
    ("1 d", 86_400_000),
    ("7 days", 604_800_000),
    ("1999 µs", 1),
    ("2000 micros", 2),
    ("999999 ns", 0),
    ("3000000 nanoseconds", 3),
]
NOT_DURATION = [
    "",
    "h",
    "-1 h",
    "1.5 h",
    "1 week",
    "1 mins",
    "1 hrs",
    "1 us",
    "99999999999999999999",
    "9223372036854775807 d",
]


@pytest.mark.parametrize(("text", "size"), MEMORY)
def test_a_size_means_what_java_reads(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", NOT_MEMORY)
def test_a_size_java_refuses_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_memory(text)


@pytest.mark.parametrize(("text", "millis"), DURATION)
def test_a_duration_means_what_java_reads(text: str, millis: int) -> None:
    assert parse_duration(text) == millis


@pytest.mark.parametrize("text", NOT_DURATION)
def test_a_duration_java_refuses_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_duration(text)


def test_a_broken_value_names_its_key_and_the_units() -> None:
    with pytest.raises(BadRequest, match=r"'write-buffer-size' = '1 pb' has an unknown unit 'pb'") as caught:
        Options({"write-buffer-size": "1 pb"}, strict=False).get("write-buffer-size")
    assert "mb" in (caught.value.hint or "")


# the table


def test_every_option_has_a_default_that_parses() -> None:
    for spec in all_options().values():
        spec.default_value()
        for value in spec.fine:
            assert spec.parse(value) == value, spec.key


def test_the_table_holds_the_release_and_the_patterns() -> None:
    # the dump of release 2.0.0 has 508 keys (509 options, 'uri' twice); the rest are patterns and Spark's own
    assert len(all_options()) == 588
    assert {scope for spec in all_options().values() for scope in spec.scope.split(",")} == {
        *("table", "flink", "spark", "format", "index", "iceberg"),
        *("catalog", "rest", "jdbc", "hive", "filesystem", "cdc"),
    }
    assert sum(spec.immutable for spec in all_options().values()) == 21


def test_older_keys_patterns_and_map_keys_are_found() -> None:
    found = {
        "write.compaction-skip": "write-only",
        "partial-update.ignore-delete": "ignore-delete",
        "changelog.precommit-compact": "precommit-compact",
        "changelog-producer.lookup-wait": "lookup-wait",
        "file.compression": "file.compression",  # a key of its own before it is an older key of another
        "fields.a,b.sequence-group": "fields.<columns>.sequence-group",
        "fields.price.aggregate-function": "fields.<column>.aggregate-function",
        "fields.default-aggregate-function": "fields.default-aggregate-function",
        "fields.m.map.storage-layout": "fields.<column>.map.storage-layout",
        "file-index.bloom-filter.columns": "file-index.<index>.columns",
        "file-index.bloom-filter.k.fpp": "file-index.<index>.<column>.<param>",
        "file.format.per.level.0": "file.format.per.level",
        "commit.callback.com.example.Call.param": "commit.callback.#.param",
        "parquet.page.size": "parquet.<param>",
        "parquet.compression#a": "parquet.compression#<column>",
        "orc.stripe.size": "orc.<param>",
        "s3.endpoint": "s3.<param>",
    }
    assert {key: spec.key for key in found if (spec := lookup(key))} == found


@pytest.mark.parametrize(
    "key", ["fields.a.aggregat-function", "fields.a", "file-index.bitmap", "write_only", "csv.x", ""]
)
def test_a_key_that_is_none_is_not_found(key: str) -> None:
    assert lookup(key) is None


def test_importing_the_module_loads_neither_the_table_nor_arrow() -> None:
    code = "import shoal.options, sys; print(sorted({'json', 'pyarrow', 'msgspec'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# names of the seed articles

REAL = [
    *("write-only", "changelog-producer", "precommit-compact", "changelog.precommit-compact", "target-file-size"),
    *("num-sorted-run.stop-trigger", "sort-spill-threshold", "changelog-producer.lookup-wait", "write-buffer-size"),
    *("write-buffer-spillable", "sink.use-managed-memory-allocator", "sink.parallelism", "bucket", "bucket-key"),
    *("file.compression", "file.compression.zstd-level", "file.format", "compaction.small-file-ratio"),
    *("snapshot.time-retained", "snapshot.num-retained.min", "metadata.stats-mode", "full-compaction.delta-commits"),
    *("merge-engine", "deletion-vectors.enabled", "lookup.cache", "continuous.discovery-interval", "scan.snapshot-id"),
    *("partition.expiration-time", "local-merge-buffer-size", "type", "warehouse", "connector", "path"),
    *("s3.endpoint", "s3.access-key", "s3.secret-key"),
]
MEANT = {
    "local-merge.max-parallelism": "local-merge-buffer-size",
    "bucket-shuffle.enabled": "LOOKUP",
    "bucket-shuffle.threshold": "LOOKUP",
    "max_pt": "'scan.partitions' = 'max_pt()'",
    "compaction.duration": "no such option",
    "compaction.file-size": "target-file-size",
    "compaction.target-file-size": "target-file-size",
    "compaction.target.file-size": "target-file-size",
    "compaction.max-num-files": "num-sorted-run.compaction-trigger",
    "compaction.max.file-num": "compaction.min.file-num",
    "full-compaction.strategy": "full-compaction.delta-commits",
    "metadata.stats-truncate-length": "metadata.stats-mode",
    "format": "file.format",
    "sink.savepoint-timeout": "execution.checkpointing.timeout",
    "streaming-source": "Hive connector",
    "streaming-source.monitor-interval": "continuous.discovery-interval",
    "streaming-source.consume-order": "scan.mode",
    "scan.start-snapshot-id": "scan.snapshot-id",
    "FULL_COMPACTION": "changelog-producer",
    "checkpoint.interval": "execution.checkpointing.interval",
    "CheckpointInterval": "execution.checkpointing.interval",
    "taskmanager.memory.managed.fraction": "Flink job setting",
    "execution.runtime-mode": "Flink job setting",
    # and plain slips of the keyboard
    "bukcet": "did you mean 'bucket'?",
    "merge-engin": "did you mean 'merge-engine'?",
    "write_only": "did you mean 'write-only'?",
    "snapshot.time-retain": "snapshot.time-retained",
    "fields.price.aggregation-function": "fields.price.aggregate-function",
}


@pytest.mark.parametrize("key", REAL)
def test_a_real_name_is_known(key: str) -> None:
    assert lookup(key) is not None


@pytest.mark.parametrize(("key", "meant"), MEANT.items())
def test_an_unknown_key_is_refused_with_what_was_meant(key: str, meant: str) -> None:
    with pytest.raises(BadRequest, match=f"no option '{key}'") as caught:
        check({key: "1"}, "create", has_primary_key=True)
    assert meant in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("metadata.stats-mode", "truncate", "truncate(16)"),
        ("lookup.cache", "partial", ""),
        ("scan.snapshot-id", "LATEST", ""),
        ("merge-engine", "deduplicat", "deduplicate"),
        ("file.format", "parket", "parquet"),
        ("write-only", "yes", ""),
        ("bucket", "0", "-1"),
        ("bucket", "4 ", ""),
        ("bucket", "4_0", ""),
        ("num-sorted-run.compaction-trigger", "99999999999", ""),
        ("num-levels", "1", ""),
        ("compaction.offpeak.start.hour", "24", ""),
        ("compaction.small-file-ratio", "a third", ""),
        ("snapshot.time-retained", "1 week", "units are"),
        ("file.format.per.level", "0", "a:b"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(key: str, value: str, hint: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check({key: value}, "create", has_primary_key=True)
    assert f"'{key}' = '{value}'" in caught.value.message
    assert hint in (caught.value.hint or "")
    with pytest.raises(BadRequest):
        check({key: value}, "create", has_primary_key=False)


# the typed view


def test_unset_options_have_javas_defaults() -> None:
    opts = Options({}, strict=True)
    assert (opts.bucket, opts.bucket_key, opts.bucket_function) == (-1, (), "default")
    assert (opts.merge_engine, opts.sequence_field, opts.sequence_ascending) == ("deduplicate", (), True)
    assert (opts.file_format, opts.file_compression, opts.zstd_level) == ("parquet", "zstd", 1)
    assert (opts.target_file_size(primary_key=True), opts.target_file_size(primary_key=False)) == (128 << 20, 256 << 20)
    assert (opts.compaction_trigger, opts.stop_trigger, opts.num_levels) == (5, 8, 6)
    assert (opts.size_ratio, opts.max_size_amplification, opts.small_file_ratio) == (1, 200, 0.7)
    assert (opts.optimization_interval_ms, opts.total_size_threshold, opts.incremental_size_threshold) == (None,) * 3
    assert (opts.offpeak_start, opts.offpeak_end, opts.offpeak_ratio) == (-1, -1, 0)
    assert (opts.compaction_min_file_num, opts.write_buffer_size, opts.write_only) == (5, 256 << 20, False)
    assert (opts.manifest_target_size, opts.manifest_merge_min_count, opts.manifest_full_threshold) == (
        *(8 << 20, 30, 16 << 20),
    )
    assert opts.manifest_compression == "zstd"
    assert (opts.commit_max_retries, opts.commit_min_retry_wait_ms, opts.commit_max_retry_wait_ms) == (10, 10, 10_000)
    assert (opts.commit_timeout_ms, opts.commit_user_prefix, opts.ignore_empty_commit) == (None, None, None)
    assert (opts.stats_mode(), opts.stats_mode("c"), opts.stats_dense_store) == ("truncate(16)", "truncate(16)", True)
    assert (opts.partition_default_name, opts.partition_legacy_name) == ("__DEFAULT_PARTITION__", True)
    assert (opts.changelog_producer, opts.ignore_delete, opts.force_compact) == ("none", False, False)
    assert (opts.split_target_size, opts.split_open_file_cost) == (128 << 20, 4 << 20)
    assert (opts.scan_mode, opts.get("scan.snapshot-id"), opts.primary_key, opts.partition) == ("default", None, (), ())
    assert (opts.get("bucket-append-ordered"), opts.data_file_prefix, opts.file_block_size) == (True, "data-", None)


def test_set_options_are_typed() -> None:
    opts = Options(
        {
            "bucket": "4",
            "bucket-key": "a, b",
            "sequence.field": "ts,seq",
            "sequence.field.sort-order": "DESCENDING",
            "write.compaction-skip": "TRUE",
            "target-file-size": "64 mb",
            "compaction.optimization-interval": "1 h",
            "commit.timeout": "30",
            "metadata.stats-mode": "COUNTS",
            "fields.wide.stats-mode": "none",
            "scan.mode": "from-snapshot",
            "scan.snapshot-id": "7",
        },
        strict=True,
    )
    assert (opts.bucket, opts.bucket_key) == (4, ("a", "b"))
    assert (opts.sequence_field, opts.sequence_ascending) == (("ts", "seq"), False)
    assert opts.write_only and opts.is_set("write-only") and not opts.is_set("bucket-function.type")
    assert opts.target_file_size(primary_key=True) == opts.target_file_size(primary_key=False) == 64 << 20
    assert (opts.optimization_interval_ms, opts.commit_timeout_ms) == (3_600_000, 30)
    assert (opts.stats_mode(), opts.stats_mode("wide"), opts.stats_mode("other")) == ("counts", "none", "counts")
    assert (opts.scan_mode, opts.get("scan.snapshot-id")) == ("from-snapshot", 7)


@pytest.mark.parametrize(
    ("trigger", "stop", "expected"),
    [(None, None, 8), ("2", None, 5), ("5", "6", 6), ("5", "3", 5), ("2147483647", None, 2147483647)],
)
def test_the_stop_trigger_is_never_below_the_trigger(trigger: str | None, stop: str | None, expected: int) -> None:
    keys = {"num-sorted-run.compaction-trigger": trigger, "num-sorted-run.stop-trigger": stop}
    assert Options({k: v for k, v in keys.items() if v is not None}, strict=True).stop_trigger == expected


def test_the_newer_key_wins_over_the_older() -> None:
    assert not Options({"write.compaction-skip": "true", "write-only": "false"}, strict=True).write_only


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"file.format.per.level": "0:avro, 3:'par:quet'"}, {"0": "avro", "3": "par:quet"}),
        ({"file.format.per.level.0": "avro", "file.format.per.level.1": "orc"}, {"0": "avro", "1": "orc"}),
        ({"file.format.per.level": ""}, {}),
    ],
)
def test_a_map_is_one_text_or_many_keys(options: dict[str, str], expected: dict[str, str]) -> None:
    opts = Options(options, strict=True)
    assert opts.get("file.format.per.level") == expected
    assert opts.is_set("file.format.per.level") == bool(options)


def test_the_view_cannot_change() -> None:
    source = {"bucket": "1"}
    opts = Options(source, strict=True)
    source["bucket"] = "2"
    assert opts.bucket == 1
    with pytest.raises(TypeError):
        opts.raw["bucket"] = "3"  # type: ignore[index]


def test_only_a_strict_view_minds_what_is_not_asked_for() -> None:
    strange = {"no.such.option": "1", "file.block-size": "big"}
    assert Options(strange, strict=False).bucket == -1
    with pytest.raises(BadRequest):
        Options(strange, strict=True)
    with pytest.raises(BadRequest, match="no option 'bukcet'"):
        Options({}, strict=False).get("bukcet")


# what is refused


def kinds(options: dict[str, str], *, has_primary_key: bool = True) -> list[str]:
    return [problem.kind for problem in problems(options, has_primary_key=has_primary_key)]


def test_the_default_value_never_says_anything() -> None:
    defaults = {spec.key: spec.default for spec in all_options().values() if spec.default is not None}
    defaults = {
        key: text for key, text in defaults.items() if all_options()[key].scope in ("table", "flink", "iceberg")
    }
    assert len(defaults) > 200
    assert problems(defaults, has_primary_key=True) == []
    assert problems(defaults, has_primary_key=False) == []


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("bucket", "4", None),
        ("bucket", "-1", None),
        ("bucket", "-2", None),
        ("bucket-function.type", "hive", None),
        ("file.compression", "lz4", None),
        ("file.compression", "lzo", "refuses-write"),
        ("file.format", "PARQUET", None),
        ("file.format", "orc", None),
        ("file.format", "lance", "refuses-write"),
        ("file.format.per.level.0", "avro", None),
        ("fields.c.stats-mode", "none", None),
        ("scan.mode", "latest-full", None),
        ("scan.mode", "from-snapshot", None),
        ("scan.mode", "latest", None),
        ("scan.tag-name", "t", None),
        ("merge-engine", "aggregation", None),
        ("merge-engine", "first-row", None),
        ("fields.c.aggregate-function", "sum", None),
        ("fields.a,b.sequence-group", "c", None),
        ("fields.c.distinct", "false", None),
        ("deletion-vectors.enabled", "true", None),
        ("sequence.snapshot-ordering", "true", None),
        ("fields.c.map.storage-layout", "shared-shredding", "refuses-write"),
        ("scan.partitions", "max_pt()", None),
        ("postpone.merge-on-read", "true", None),
        ("manifest.format", "orc", None),
        ("type", "format-table", None),
        ("query-auth.enabled", "true", "refuses-read"),
        ("blob-field", "b", None),
        ("blob-descriptor-field", "b", "refuses-write"),
        ("changelog-producer", "lookup", None),
        ("rowkind.field", "k", None),
        ("ignore-update-before", "true", None),
        ("file-index.bloom-filter.columns", "a", None),
        ("data-file.thin-mode", "true", None),
        ("dynamic-partition-overwrite", "false", None),
        ("metadata.iceberg.storage", "table-location", "refuses-write"),
        ("parquet.compression", "gzip", None),
        ("parquet.crypto.factory.class", "x", "refuses-write"),
        ("snapshot.num-retained.max", "20", None),
        ("partition.expiration-time", "7 d", None),
        ("tag.automatic-creation", "process-time", None),
        ("tag.callbacks", "com.test.A", "upkeep"),
        ("sink.parallelism", "4", "note"),
        ("parquet.page.size", "1024", "note"),
        ("parquet.enable.dictionary", "false", None),
        ("write-buffer-spillable", "false", None),
        ("warehouse", "/w", "note"),
        ("no.such.option", "1", "unknown"),
    ],
)
def test_each_option_does_what_its_class_says(key: str, value: str, kind: str | None) -> None:
    assert kinds({key: value}) == ([kind] if kind else [])


def test_an_older_key_is_noted_and_still_counts() -> None:
    assert kinds({"write.compaction-skip": "true"}) == ["note"]
    assert kinds({"log.scan": "latest"}) == ["note"]


def test_options_of_keyed_tables_do_nothing_without_a_key() -> None:
    assert kinds({"pk-vector.index.columns": "a"}, has_primary_key=False) == ["note"]
    assert kinds({"changelog-producer": "input"}, has_primary_key=False) == ["bad-value"]
    assert kinds({"bucket": "-2"}, has_primary_key=False) == ["bad-value"]


def test_a_secret_is_not_shown() -> None:
    for problem in problems({"s3.secret-key": "hunter2", "my.password": "hunter2"}, has_primary_key=False):
        assert "hunter2" not in problem.message


def test_reading_is_refused_only_where_the_result_would_change() -> None:
    with pytest.raises(Unsupported, match=r"'query-auth.enabled' = 'true'.*what a read returns"):
        check({"query-auth.enabled": "true"}, "read", has_primary_key=True)
    for options in (
        {"changelog-producer": "input"},
        {"merge-engine": "first-row"},
        {"no.such.option": "1"},
        {"file.block-size": "big"},
        {"snapshot.time-retained": "1 d"},
    ):
        check(options, "read", has_primary_key=True)


def test_writing_is_refused_where_a_read_is_and_where_a_reader_would_see_less() -> None:
    for options in ({"metadata.iceberg.storage": "table-location"}, {"pk-vector.index.columns": "a"}):
        for purpose in ("write", "create"):
            with pytest.raises(Unsupported):
                check(options, purpose, has_primary_key=True)
    check(
        {"snapshot.time-retained": "1 d", "sink.parallelism": "2", "no.such.option": "1"}, "write", has_primary_key=True
    )
    with pytest.raises(BadRequest):
        check({"metadata.stats-mode": "truncate"}, "write", has_primary_key=True)


def test_an_option_that_cannot_be_passed_over_must_be_readable() -> None:
    with pytest.raises(BadRequest):
        check({"query-auth.enabled": "perhaps"}, "read", has_primary_key=True)


def test_creating_names_the_way_out() -> None:
    with pytest.raises(Unsupported) as caught:
        check({"bucket": "2", "file.format": "lance"}, "create", has_primary_key=True)
    assert caught.value.hint == "leave 'file.format' out or set it to 'parquet' or 'orc' or 'avro'"
