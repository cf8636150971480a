# SPDX-License-Identifier: Apache-2.0
"""Rules about files and what describes them: sizes, formats, statistics, manifests, splits, sequences, commits.

Agrees with: SchemaValidation (the parts that need columns), CoreOptions, ManifestFileMerger, FlinkSinkBuilder,
AbstractCatalog.lockFactory (2.0.0). Invariant: L-61 speaks only where no other error of the same options does.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.doctor.lint.rules import Say, rule
from shoal.doctor.lint.subject import Subject
from shoal.doctor.lint.texts import amount
from shoal.errors import BadRequest
from shoal.option_values import parse_memory
from shoal.table.schema_checks import normal

_CORE = "paimon-api/src/main/java/org/apache/paimon/CoreOptions.java"
_VALIDATION = "paimon-core/src/main/java/org/apache/paimon/schema/SchemaValidation.java"
_PAGE = "maintenance/write-performance.md"
TARGET, BUFFER = "target-file-size", "write-buffer-size"
_MANAGED = "sink.use-managed-memory-allocator"
_SLOTS = "taskmanager.numberOfTaskSlots"
# the first that is set bounds what buffers of a task manager can take
_HEAPS = ("taskmanager.memory.task.heap.size", "taskmanager.memory.flink.size", "taskmanager.memory.process.size")


@rule(
    "L-30",
    "warn",
    "write buffer",
    "write-buffer-size x slots > memory of a task manager; info: set to its default",
    source=_CORE,
    page=_PAGE,
    kinds=("table", "hint"),
)
def write_buffer(subject: Subject) -> Iterator[Say]:
    setting, size = subject.setting(BUFFER), subject.number(BUFFER) or 0
    memory, slots = _memory(subject)
    if memory is not None and size * slots > memory[1] and not subject.flag(_MANAGED):
        written = (
            f"'{BUFFER}' = '{setting.value}'" if setting is not None else f"'{BUFFER}' is {amount(size)} by default"
        )
        yield Say(
            f"{written}, and {slots} slot(s) of a task manager take {amount(size * slots)} of '{memory[0]}' = "
            f"{amount(memory[1])}",
            BUFFER,
            ("lower it: a full buffer spills to local disk", f"or set '{_MANAGED}' = 'true'"),
            "no long collections, no OutOfMemoryError",
            evidence={"buffers": size * slots, "memory": memory[1]},
        )
    elif setting is not None and setting.key not in subject.wrong and size == 256 << 20:
        yield Say(f"'{BUFFER}' = '{setting.value}' is the default", BUFFER, ("leave it out",), severity="info")


def _memory(subject: Subject) -> tuple[tuple[str, int] | None, int]:
    slots = subject.job.get(_SLOTS)
    count = int(slots.value) if slots is not None and slots.value.strip().isdecimal() else 1
    for key in _HEAPS:
        if (setting := subject.job.get(key)) is not None:
            try:
                return (key, parse_memory(setting.value, key)), count
            except BadRequest:
                return None, count
    return None, count


@rule(
    "L-31",
    "info",
    "larger target, same files",
    "target-file-size raised while flushed files are < 1/10 of it†",
    source="paimon-core/src/main/java/org/apache/paimon/mergetree/MergeTreeWriter.java",
    page="learn-paimon/understand-files.mdx",
    samples=True,
)
def target(subject: Subject) -> Iterator[Say]:
    assert subject.seen is not None
    setting, flushed = subject.setting(TARGET), subject.seen.flush_bytes
    if setting is None or setting.key in subject.wrong or flushed is None:
        return
    size = subject.options.target_file_size(subject.keyed)
    if size > (128 if subject.keyed else 256) << 20 and flushed < size / 10:
        yield Say(
            f"'{TARGET}' = '{setting.value}' and a flushed file has {amount(flushed)}: a commit does not wait for a "
            "file to "
            "fill, so a larger target makes none larger",
            TARGET,
            ("lengthen the checkpoint interval, or take fewer buckets",),
            evidence={"flush_bytes": flushed},
        )


@rule(
    "L-34",
    "info",
    "local merge unused",
    "local-merge-buffer-size on a table that a CDC action writes (--cdc), or without a primary key",
    source="paimon-flink/paimon-flink-common/src/main/java/org/apache/paimon/flink/sink/FlinkSinkBuilder.java",
    page=_PAGE,
)
def local_merge(subject: Subject) -> Iterator[Say]:
    for setting in subject.own("local-merge-buffer-size"):
        why = "CDC ingestion does not use it" if subject.around.cdc else ""
        if subject.has_key is False:
            why = "the table has no primary key"
        if why:
            yield Say(f"'{setting.key}' = '{setting.value}' does nothing: {why}", setting.key, ("leave it out",))


# ---- statistics, formats, compression


@rule(
    "L-36",
    "warn",
    "large statistics",
    "metadata.stats-mode full, or > 2 KB of manifest per entry†",
    source=_CORE,
    page="learn-paimon/understand-files.mdx",
)
def statistics(subject: Subject) -> Iterator[Say]:
    key = "metadata.stats-mode"
    setting = subject.setting(key)
    each = None if subject.seen is None else subject.seen.bytes_per_entry
    full = setting is not None and (subject.text(key) or "").lower() == "full"
    heavy = each is not None and each > 2048
    if not full and not heavy:
        return
    parts = []
    if full:
        parts.append(f"'{key}' = '{setting.value}' keeps whole values" if setting is not None else "")
    if heavy and each is not None:
        parts.append(f"a manifest entry takes {amount(each)}")
    yield Say(
        ", and ".join(parts) + ": every plan reads them",
        key,
        ("take 'truncate(16)', the default, or 'none' for tables that nobody filters",),
        evidence={"bytes_per_entry": each},
    )


@rule("L-38", "info", "slow compression", "zstd level > 3 for files of level 0", source=_CORE, page=_PAGE)
def zstd(subject: Subject) -> Iterator[Say]:
    key = "file.compression.zstd-level"
    setting, level = subject.setting(key), subject.options.zstd_level
    if setting is None or level <= 3 or subject.options.file_compression.lower() != "zstd":
        return
    levels = subject.options.get("file.compression.per.level")
    if subject.keyed and isinstance(levels, dict) and "0" in levels:
        return
    yield Say(
        f"'{key}' = '{setting.value}' (default 1) compresses what each commit flushes, and most of it is written "
        "again soon",
        key,
        ("take 1 to 3", "or 'file.compression.per.level' = '0:lz4' for new files" if subject.keyed else "or lz4"),
    )


@rule(
    "L-39",
    "info",
    "Avro files",
    "file.format avro with statistics; error: avro for a level and a timestamp of more than 6 digits",
    source=_VALIDATION,
    page=_PAGE,
)
def avro(subject: Subject) -> Iterator[Say]:
    setting = subject.setting("file.format")
    if (
        setting is not None
        and setting.value.lower() == "avro"
        and (subject.text("metadata.stats-mode") or "").lower() != "none"
    ):
        yield Say(
            f"'file.format' = '{setting.value}' with 'metadata.stats-mode' = "
            f"'{subject.text('metadata.stats-mode')}': statistics "
            "of row files are made by the writer, value by value",
            setting.key,
            ("set 'metadata.stats-mode' = 'none' where nobody filters by value",),
        )
    per_level = subject.options.get("file.format.per.level")
    if subject.schema is None or not isinstance(per_level, dict):
        return
    for level, form in per_level.items():
        wide = [f for f in subject.schema.fields if f.type.is_timestamp and (f.type.precision or 0) > 6]
        if form.lower() == "avro" and wide:
            yield Say(
                f"'file.format.per.level' = '{level}:avro' and column '{wide[0].name}' is {wide[0].type}: Avro has 6 "
                "digits, "
                "Paimon refuses the table",
                "file.format.per.level",
                ("take orc or parquet for that level, or TIMESTAMP(6)",),
                severity="error",
                confidence="proven",
            )
            return


@rule(
    "L-54",
    "warn",
    "many manifests",
    "manifest.merge-min-count > 100 or manifest.target-file-size < 1 mb",
    source="paimon-core/src/main/java/org/apache/paimon/operation/ManifestFileMerger.java",
)
def manifests(subject: Subject) -> Iterator[Say]:
    for key, bad, default in (
        ("manifest.merge-min-count", subject.options.manifest_merge_min_count > 100, "30"),
        ("manifest.target-file-size", subject.options.manifest_target_size < 1 << 20, "8 mb"),
    ):
        setting = subject.setting(key)
        if setting is not None and bad:
            yield Say(
                f"'{key}' = '{setting.value}' (default {default}) leaves many small manifests, and every plan opens "
                "all",
                key,
                ("leave it out",),
                "fewer requests per plan and commit",
            )


@rule(
    "L-58",
    "info",
    "many small splits",
    "source.split.open-file-cost below its 4 mb; warn: and live files are smaller than that†",
    source=_CORE,
    kinds=("table", "hint"),
)
def splits(subject: Subject) -> Iterator[Say]:
    key = "source.split.open-file-cost"
    setting, cost = subject.setting(key), subject.options.split_open_file_cost
    if setting is None or setting.key in subject.wrong or cost >= 4 << 20:
        return
    mean = None
    if subject.seen is not None and subject.seen.live[0] > 0:
        files, size, _ = subject.seen.live
        mean = size / files
    small = mean is not None and mean < 4 << 20
    per_split = subject.options.split_target_size // max(1, cost, round(mean or 0))
    yield Say(
        f"'{key}' = '{setting.value}' (default 4 mb): "
        + (f"with files of {amount(mean or 0)} " if small else "with small files ")
        + f"a split takes up to {per_split:,} of them",
        key,
        ("leave it out, and compact",),
        severity="warn" if small else None,
        evidence={"mean_file_bytes": mean},
    )


# ---- columns


@rule(
    "L-42",
    "error",
    "records without an age",
    "record-level.expire-time without a time field of a legal type",
    source=_VALIDATION,
    page="primary-key-table/compaction.md",
)
def record_age(subject: Subject) -> Iterator[Say]:
    key, field_key = "record-level.expire-time", "record-level.time-field"
    setting, column = subject.setting(key), subject.setting(field_key)
    legal = "INT or BIGINT (seconds or milliseconds) or TIMESTAMP"
    if setting is not None and column is None and subject.keyed:
        yield Say(
            f"'{key}' = '{setting.value}' without '{field_key}': the first write fails",
            key,
            (f"name a column of type {legal}", "rows go in compactions only: a full one removes all that are old"),
        )
    if column is not None and subject.schema is not None:
        if column.value not in subject.schema.names:
            yield Say(
                f"'{field_key}' = '{column.value}' is no column: Paimon refuses the table",
                field_key,
                (f"name a {legal} column",),
            )
        elif (t := subject.schema.field(column.value).type).root not in ("INT", "BIGINT", "TIMESTAMP", "TIMESTAMP_LTZ"):
            yield Say(
                f"'{field_key}' = '{column.value}' is {t}: Paimon refuses the table",
                field_key,
                (f"it has to be {legal}",),
            )


@rule(
    "L-43",
    "error",
    "sequence field that cannot be",
    "sequence.field with first-row, or with keys that may change their partition",
    source=_VALIDATION,
    page="primary-key-table/sequence-rowkind.mdx",
)
def sequence(subject: Subject) -> Iterator[Say]:
    setting = subject.setting("sequence.field")
    if setting is None or not setting.value.strip():
        return
    own = f"'sequence.field' = '{setting.value}'"
    if subject.engine == "first-row":
        yield Say(
            f"{own} does not go with 'merge-engine' = 'first-row': Paimon refuses the table",
            setting.key,
            ("leave it out: the first row that arrives wins",),
        )
    schema = subject.schema
    outside = (
        []
        if schema is None or not schema.primary_keys
        else [p for p in schema.partition_keys if p not in schema.primary_keys]
    )
    if outside:
        yield Say(
            f"{own} needs all partition columns in the primary key, and '{outside[0]}' is not: Paimon refuses the "
            "table",
            setting.key,
            (f"add '{outside[0]}' to the primary key, or leave 'sequence.field' out",),
        )


@rule(
    "L-61",
    "error",
    "table that Paimon refuses",
    "another check of SchemaValidation fails for these columns and options",
    source=_VALIDATION,
)
def refused(subject: Subject) -> Iterator[Say]:
    if subject.schema is None or not subject.exact:
        return
    try:
        normal(subject.name, subject.schema)
    except BadRequest as err:
        said = err.message.removeprefix(f"{subject.name}: ")
        key = next((k for k in subject.settings if f"'{k}'" in said), None)
        yield Say(
            f"Paimon refuses the table, or its first write: {said}",
            key,
            (err.hint or "change the option or the columns that it is about",),
        )


# ---- commits


@rule(
    "L-51",
    "warn",
    "commits without a lock",
    "an object store, no lock or catalog that commits, and > 1 writer†; info for a catalog",
    source="paimon-core/src/main/java/org/apache/paimon/catalog/AbstractCatalog.java",
    page="maintenance/dedicated-compaction.mdx",
    kinds=("table", "catalog"),
)
def locks(subject: Subject) -> Iterator[Say]:
    change = "a REST, Hive or JDBC catalog commits safely; else set 'lock.enabled' = 'true' with a 'lock.type'"
    if subject.kind == "catalog":
        metastore = subject.text("metastore") or "filesystem"
        if metastore == "filesystem" and subject.on_objects and not subject.has("lock.type"):
            yield Say(
                f"'warehouse' on {subject.around.store} without 'lock.type': renames there are not atomic, and one of "
                "two writers may lose its commit",
                "warehouse",
                (change,),
                severity="info",
            )
        return
    if subject.seen is not None and subject.on_objects and subject.seen.concurrent_users:
        users = tuple(sorted(subject.seen.concurrent_users))
        yield Say(
            f"{len(users)} users commit to a table on {subject.around.store}: without a lock of the catalog one may "
            "lose its commit",
            None, (change,), evidence={"users": users}, confidence="consistent with",
        )  # fmt: skip
