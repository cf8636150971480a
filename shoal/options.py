# SPDX-License-Identifier: Apache-2.0
"""Every option of Paimon 2.0.0: its type, its default, and what shoal does when a table sets it.

`lookup` finds an option, `Options` is the typed view of one table's options that the engine works with, and `problems`
and `check` say what a set of options asks for that shoal does not do.

Invariant: an option that would change the result of a read or a write is either done or refused, never passed over;
a value equal to the default never triggers anything.

Agrees with: CoreOptions, SchemaValidation.validateBucket (2.0.0)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Literal, cast

from shoal.errors import BadRequest, ShoalError, Unsupported
from shoal.option_table import OptionSpec as OptionSpec
from shoal.option_table import all_options as all_options
from shoal.option_table import known, nearest
from shoal.option_table import lookup as lookup
from shoal.option_values import Value, shown
from shoal.option_values import parse_duration as parse_duration
from shoal.option_values import parse_memory as parse_memory

Kind = Literal["unknown", "bad-value", "refuses-read", "refuses-write", "upkeep", "note"]
Purpose = Literal["create", "read", "write", "hint"]

_ELSEWHERE = frozenset({"catalog", "rest", "jdbc", "hive", "filesystem", "cdc"})  # scopes that mean nothing on a table
_LONG_MAX = (1 << 63) - 1
_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to say about one option that is set."""

    kind: Kind
    key: str
    value: str
    message: str
    hint: str | None = None
    spec: OptionSpec | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """A typed view of a table's options. With `strict`, unknown keys and bad values are refused at once.

    >>> Options({"num-sorted-run.compaction-trigger": "4"}, strict=True).stop_trigger
    7
    """

    raw: Mapping[str, str]
    strict: InitVar[bool] = field(kw_only=True)
    _parsed: dict[str, Value] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self, strict: bool) -> None:
        object.__setattr__(self, "raw", MappingProxyType(dict(self.raw)))
        if strict:
            for key, text in self.raw.items():
                _parse(known(key), key, text)

    def get(self, key: str) -> Value:
        """The typed value of an option, or its default. `key` may be an older key or match a pattern."""
        if key not in self._parsed:
            self._parsed[key] = self._get(key)
        return self._parsed[key]

    def _get(self, key: str) -> Value:
        spec = known(key)
        for name in (key,) if spec.patterned else (spec.key, *spec.old_keys):
            if (text := self.raw.get(name)) is not None:
                return spec.parse(text, name)
        if spec.type == "map":
            prefix = spec.key + "."
            return {k.removeprefix(prefix): v for k, v in self.raw.items() if k.startswith(prefix)}
        return spec.default_value()

    def is_set(self, key: str) -> bool:
        """Whether the table sets this option, under this key or an older one."""
        spec = known(key)
        if spec.patterned:
            return key in self.raw
        if spec.type == "map" and any(name.startswith(spec.key + ".") for name in self.raw):
            return True
        return any(name in self.raw for name in (spec.key, *spec.old_keys))

    # Every key below has the type its helper casts to; tests/test_options.py reads each property.

    def _int(self, key: str) -> int:
        return cast(int, self.get(key))

    def _some_int(self, key: str) -> int | None:
        return cast("int | None", self.get(key))

    def _bool(self, key: str) -> bool:
        return cast(bool, self.get(key))

    def _str(self, key: str) -> str:
        return cast(str, self.get(key))

    def _columns(self, key: str) -> tuple[str, ...]:
        return cast("tuple[str, ...]", self.get(key))

    # structure

    @property
    def bucket(self) -> int:
        return self._int("bucket")

    @property
    def bucket_key(self) -> tuple[str, ...]:
        return self._columns("bucket-key")

    @property
    def bucket_function(self) -> str:
        return self._str("bucket-function.type")

    @property
    def dynamic_bucket_rows(self) -> int:
        return self._int("dynamic-bucket.target-row-num")

    @property
    def dynamic_bucket_max(self) -> int:
        """Most buckets of a partition with dynamic buckets, -1 for no limit."""
        return self._int("dynamic-bucket.max-buckets")

    @property
    def primary_key(self) -> tuple[str, ...]:
        return self._columns("primary-key")

    @property
    def partition(self) -> tuple[str, ...]:
        return self._columns("partition")

    @property
    def partition_default_name(self) -> str:
        return self._str("partition.default-name")

    @property
    def partition_legacy_name(self) -> bool:
        return self._bool("partition.legacy-name")

    # merging

    @property
    def merge_engine(self) -> str:
        return self._str("merge-engine")

    @property
    def sequence_field(self) -> tuple[str, ...]:
        return self._columns("sequence.field")

    @property
    def sequence_ascending(self) -> bool:
        return self._str("sequence.field.sort-order") == "ascending"

    @property
    def ignore_delete(self) -> bool:
        return self._bool("ignore-delete")

    @property
    def row_tracking(self) -> bool:
        return self._bool("row-tracking.enabled")

    @property
    def data_evolution(self) -> bool:
        return self._bool("data-evolution.enabled")

    @property
    def needs_lookup(self) -> bool:
        """Whether compactions look up the old row of a key, so that its newest compacted row holds all older ones."""
        lookup = self.changelog_producer == "lookup" or self._bool("force-lookup")
        return lookup or self.deletion_vectors or self.merge_engine == "first-row"

    @property
    def blob_as_descriptor(self) -> bool:
        return self._bool("blob-as-descriptor")

    @property
    def deletion_vectors(self) -> bool:
        return self._bool("deletion-vectors.enabled")

    @property
    def deletion_vectors_merge_on_read(self) -> bool:
        return self._bool("deletion-vectors.merge-on-read")

    @property
    def changelog_producer(self) -> str:
        return self._str("changelog-producer")

    # files

    @property
    def file_format(self) -> str:
        return self._str("file.format")

    @property
    def formats_by_level(self) -> dict[int, str]:
        """Levels whose files have another format than `file.format`."""
        formats = cast("Mapping[str, str]", self.get("file.format.per.level") or {})
        return {int(level): kind.lower() for level, kind in formats.items() if kind.lower() != self.file_format}

    @property
    def file_compression(self) -> str:
        return self._str("file.compression")

    @property
    def zstd_level(self) -> int:
        return self._int("file.compression.zstd-level")

    @property
    def file_block_size(self) -> int | None:
        return self._some_int("file.block-size")

    @property
    def data_file_prefix(self) -> str:
        return self._str("data-file.prefix")

    def target_file_size(self, primary_key: bool) -> int:
        """Bytes at which a data file is closed; the default depends on the kind of table."""
        size = self._some_int("target-file-size")
        return (128 if primary_key else 256) << 20 if size is None else size

    @property
    def target_file_rows(self) -> int | None:
        """Rows at which a data file is closed; None where the size alone decides."""
        rows = self._some_int("target-file-row-num")
        return None if rows is None or rows >= _LONG_MAX else rows

    @property
    def write_only(self) -> bool:
        return self._bool("write-only")

    @property
    def write_buffer_size(self) -> int:
        return self._int("write-buffer-size")

    @property
    def write_buffer_spillable(self) -> bool:
        return self._bool("write-buffer-spillable")

    @property
    def write_buffer_spill_disk(self) -> int:
        """Bytes on disk from which a full buffer becomes files."""
        return self._int("write-buffer-spill.max-disk-size")

    @property
    def write_buffer_for_append(self) -> bool:
        return self._bool("write-buffer-for-append")

    @property
    def write_max_writers_to_spill(self) -> int:
        return self._int("write-max-writers-to-spill")

    @property
    def spill_compression(self) -> str | None:
        """The codec of spilled rows; None when the table says nothing."""
        return self._str("spill-compression") if self.is_set("spill-compression") else None

    @property
    def spill_zstd_level(self) -> int:
        return self._int("spill-compression.zstd-level")

    @property
    def local_merge_buffer_size(self) -> int | None:
        return self._some_int("local-merge-buffer-size")

    @property
    def rowkind_field(self) -> str | None:
        value = self.get("rowkind.field")
        return None if value is None else str(value)

    @property
    def ignore_update_before(self) -> bool:
        return self._bool("ignore-update-before")

    @property
    def sequences_from_snapshot(self) -> bool:
        """Whether a writer's sequence numbers go on from a property of the newest snapshot."""
        return self._str("write.sequence-number-init-mode") == "snapshot"

    @property
    def bucket_append_ordered(self) -> bool:
        return self._bool("bucket-append-ordered")

    def stats_mode(self, column: str | None = None) -> str:
        """'none', 'counts', 'full' or 'truncate(n)': for one column, or for the table."""
        own = self.get(f"fields.{column}.stats-mode") if column is not None else None
        return cast("str | None", own) or self._str("metadata.stats-mode")

    def column_stats_mode(self, column: str) -> str | None:
        """The mode of one column, where it has one of its own."""
        return cast("str | None", self.get(f"fields.{column}.stats-mode"))

    @property
    def stats_dense_store(self) -> bool:
        return self._bool("metadata.stats-dense-store")

    # compaction

    @property
    def compaction_trigger(self) -> int:
        return self._int("num-sorted-run.compaction-trigger")

    @property
    def stop_trigger(self) -> int:
        """Sorted runs that hold the writer back: never fewer than start a compaction."""
        trigger, stop = self.compaction_trigger, self._some_int("num-sorted-run.stop-trigger")
        return max(trigger, min(trigger + 3, _INT_MAX) if stop is None else stop)

    @property
    def num_levels(self) -> int:
        levels = self._some_int("num-levels")
        return min(self.compaction_trigger + 1, _INT_MAX) if levels is None else levels

    @property
    def size_ratio(self) -> int:
        return self._int("compaction.size-ratio")

    @property
    def max_size_amplification(self) -> int:
        return self._int("compaction.max-size-amplification-percent")

    @property
    def small_file_ratio(self) -> float:
        return cast(float, self.get("compaction.small-file-ratio"))

    @property
    def optimization_interval_ms(self) -> int | None:
        return self._some_int("compaction.optimization-interval")

    @property
    def total_size_threshold(self) -> int | None:
        return self._some_int("compaction.total-size-threshold")

    @property
    def incremental_size_threshold(self) -> int | None:
        return self._some_int("compaction.incremental-size-threshold")

    @property
    def offpeak_start(self) -> int:
        return self._int("compaction.offpeak.start.hour")

    @property
    def offpeak_end(self) -> int:
        return self._int("compaction.offpeak.end.hour")

    @property
    def offpeak_ratio(self) -> int:
        return self._int("compaction.offpeak-ratio")

    @property
    def compaction_min_file_num(self) -> int:
        return self._int("compaction.min.file-num")

    @property
    def compaction_delete_ratio(self) -> float:
        return cast(float, self.get("compaction.delete-ratio-threshold"))

    @property
    def compaction_file_limit(self) -> int:
        return self._int("compaction.file-num-limit")

    @property
    def force_rewrite_all(self) -> bool:
        return self._bool("compaction.force-rewrite-all-files")

    @property
    def force_compact(self) -> bool:
        return self._bool("commit.force-compact")

    # manifests and commits

    @property
    def manifest_format(self) -> str:
        return self._str("manifest.format").lower()

    @property
    def manifest_compression(self) -> str:
        return self._str("manifest.compression")

    @property
    def manifest_target_size(self) -> int:
        return self._int("manifest.target-file-size")

    @property
    def manifest_merge_min_count(self) -> int:
        return self._int("manifest.merge-min-count")

    @property
    def manifest_full_threshold(self) -> int:
        return self._int("manifest.full-compaction-threshold-size")

    @property
    def commit_max_retries(self) -> int:
        return self._int("commit.max-retries")

    @property
    def commit_min_retry_wait_ms(self) -> int:
        return self._int("commit.min-retry-wait")

    @property
    def commit_max_retry_wait_ms(self) -> int:
        return self._int("commit.max-retry-wait")

    @property
    def commit_timeout_ms(self) -> int | None:
        """None when a commit may take as long as it needs."""
        return self._some_int("commit.timeout")

    @property
    def commit_user_prefix(self) -> str | None:
        return cast("str | None", self.get("commit.user-prefix"))

    @property
    def ignore_empty_commit(self) -> bool | None:
        """None when the kind of writer decides."""
        return cast("bool | None", self.get("snapshot.ignore-empty-commit"))

    # reading

    @property
    def scan_mode(self) -> str:
        return self._str("scan.mode")

    @property
    def scan_bucket(self) -> int | None:
        return self._some_int("scan.bucket")

    @property
    def orc_legacy_ltz(self) -> bool:
        """Whether local-zoned timestamps lie in ORC files as plain ones."""
        return self._bool("orc.timestamp-ltz.legacy.type")

    @property
    def file_index_read(self) -> bool:
        return self._bool("file-index.read.enabled")

    @property
    def split_target_size(self) -> int:
        return self._int("source.split.target-size")

    @property
    def split_open_file_cost(self) -> int:
        return self._int("source.split.open-file-cost")


def problems(mapping: Mapping[str, str], *, has_primary_key: bool) -> list[Problem]:
    """What is wrong with these options, or asks for something shoal does not do, in the order of the mapping."""
    return [
        problem for key, text in mapping.items() for problem in _problems_of(key, text, has_primary_key=has_primary_key)
    ]


def check(mapping: Mapping[str, str], purpose: Purpose, *, has_primary_key: bool) -> None:
    """Raise for the first option that stands in the way of creating, reading or writing a table.

    Creating, and a `hint` (options for one read), refuse unknown keys and bad values. A table that Java made with a
    strange key still opens; a bad value stops it only where the option cannot be passed over.
    """
    for problem in problems(mapping, has_primary_key=has_primary_key):
        if error := _error(problem, purpose):
            raise error


def _problems_of(key: str, text: str, *, has_primary_key: bool) -> Iterator[Problem]:
    spec = lookup(key)
    if spec is None:
        yield Problem("unknown", key, text, f"no option '{key}'", nearest(key))
        return
    if not spec.patterned and key != spec.key and key in spec.old_keys:
        yield Problem("note", key, text, f"'{key}' is the older name of '{spec.key}'", f"use '{spec.key}'", spec)
    if _ELSEWHERE.issuperset(spec.scope.split(",")):
        yield Problem("note", key, text, f"'{key}' is set on a catalog; on a table it does nothing", None, spec)
        return
    try:
        parsed = _parse(spec, key, text)
        _check_structure(spec, key, text, has_primary_key=has_primary_key)
    except BadRequest as err:
        yield Problem("bad-value", key, text, err.message, err.hint, spec)
        return
    if spec.honoured or parsed == spec.default_value() or parsed in spec.fine:
        return
    if spec.only == "pk" and not has_primary_key:
        yield Problem("note", key, text, f"'{key}' acts on tables with a primary key only", None, spec)
    else:
        yield _asks_for_more(spec, key, text)


def _asks_for_more(spec: OptionSpec, key: str, text: str) -> Problem:
    said = f"'{key}' = {shown(key, text)} ({spec.doc})"
    keep = [f"'{value}'" for value in dict.fromkeys((spec.default, *spec.fine)) if value]
    hint = f"leave '{key}' out" + (f" or set it to {' or '.join(keep)}" if keep else "")
    match spec.handling:
        case "read":
            return Problem(
                "refuses-read", key, text, f"{said} is not done yet and changes what a read returns", hint, spec
            )
        case "write":
            return Problem(
                "refuses-write", key, text, f"{said} is not done yet and changes what a write makes", hint, spec
            )
        case "upkeep":
            return Problem("upkeep", key, text, f"{said}: shoal does not do this by itself yet", None, spec)
        case _:
            return Problem("note", key, text, f"{said} has no effect here", None, spec)


def _error(problem: Problem, purpose: Purpose) -> ShoalError | None:
    handling = problem.spec.handling if problem.spec else None
    match problem.kind:
        case "unknown" if purpose in ("create", "hint"):
            return BadRequest(problem.message, hint=problem.hint)
        case "bad-value" if purpose in ("create", "hint") or handling == "read":
            return BadRequest(problem.message, hint=problem.hint)
        case "bad-value" if purpose == "write" and handling in ("write", "honoured"):
            return BadRequest(problem.message, hint=problem.hint)
        case "refuses-read" | "refuses-write" if purpose == "create":
            return Unsupported(problem.message, hint=problem.hint)
        case "refuses-read":
            return Unsupported(problem.message, hint="use Flink or Spark for this table")
        case "refuses-write" if purpose == "write":
            return Unsupported(problem.message, hint="this table can be read here; write it with Flink or Spark")
        case _:
            return None


def _check_structure(spec: OptionSpec, key: str, text: str, *, has_primary_key: bool) -> None:
    if spec.key == "bucket":
        bucket = spec.parse(text, key)
        if bucket not in (-1, -2) and cast(int, bucket) < 1:
            raise BadRequest(f"'{key}' = '{text}' must be at least 1, or -1", hint="-1 lets the engine choose")
        if bucket == -2 and not has_primary_key:
            raise BadRequest(f"'{key}' = '{text}' needs a primary key", hint="give a number of buckets, or -1")
    if spec.key == "changelog-producer" and not has_primary_key and spec.parse(text, key) != "none":
        raise BadRequest(f"'{key}' = '{text}' needs a primary key", hint=f"leave '{key}' out")


def _parse(spec: OptionSpec, key: str, text: str) -> Value:
    if spec.type == "map" and key != spec.key and key not in spec.old_keys:
        return {key.removeprefix(spec.key + "."): text}  # one pair of the map as a key of its own
    return spec.parse(text, key)
