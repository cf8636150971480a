# SPDX-License-Identifier: Apache-2.0
"""Rules about keys and values by themselves: unknown, gone, renamed, of another system, unreadable, fixed.

Agrees with: ConfigOption.fallbackKeys, Options.getOptional, SchemaManager.checkAlterTableOption (2.0.0). Invariant: a
key gets a finding from one of L-01, L-02, L-05 and L-62 at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from shoal.doctor.lint.rules import Say, rule
from shoal.doctor.lint.subject import Setting, Subject
from shoal.doctor.lint.words import elsewhere, near_in_meaning, removed
from shoal.errors import BadRequest
from shoal.option_table import known_mistake, lookup, nearest
from shoal.option_values import shown
from shoal.table.alter_options import check_reset, check_rows

_CORE = "paimon-api/src/main/java/org/apache/paimon/CoreOptions.java"
_OPTIONS = "paimon-api/src/main/java/org/apache/paimon/options/Options.java"
_ALTER = "paimon-core/src/main/java/org/apache/paimon/schema/SchemaManager.java"
_CONFIGURATIONS = "maintenance/configurations.mdx"
# What catalogs and engines put into a schema's options by themselves; readers use it, nobody looks it up by a constant.
OF_ENGINES = (
    "owner", "comment", "provider", "external", "is_managed_location", "createdAt", "createdBy", "updatedAt",
    "updatedBy", "paimon_location", "transient_lastDdlTime", "location", "type", "uuid",
)  # fmt: skip
_CATALOG_SCOPES = frozenset({"catalog", "rest", "jdbc", "hive", "cdc"})

NOTHING_NEAR = ("leave it out",)
Status = Literal["known", "removed", "job", "other", "unknown"]


def status(key: str, kind: str = "table") -> Status:
    """What a key is: the one question that L-01, L-02, L-05 and L-62 share."""
    if lookup(key) is not None or key in OF_ENGINES:
        return "known"
    if removed(key) is not None:
        return "removed"
    if kind == "catalog" and key.startswith(("table-default.", "spark.", "hadoop.", "fs.", "hive.", "dfs.")):
        return "known"
    if (owner := elsewhere(key)) is not None:
        return "job" if owner.owner in ("a Flink job", "a Spark session") else "other"
    return "unknown"


def _with(subject: Subject, wanted: Status) -> Iterator[Setting]:
    for key, setting in subject.settings.items():
        if status(key, subject.kind) == wanted:
            yield setting


def _pair(setting: Setting) -> str:
    return f"'{setting.key}' = {shown(setting.key, setting.value)}"


@rule(
    "L-01",
    "error",
    "unknown option",
    "no release of Paimon has the key",
    source=_CORE,
    page=_CONFIGURATIONS,
    kinds=("table", "hint", "catalog"),
)
def unknown(subject: Subject) -> Iterator[Say]:
    for setting in _with(subject, "unknown"):
        yield Say(
            f"{_pair(setting)}: Paimon has no such option, it is stored and ignored", setting.key, hint(setting.key)
        )


def hint(key: str) -> tuple[str, ...]:
    """What to do about an unknown key: what was meant, the nearest spelling, or the nearest meaning."""
    alike, close = near_in_meaning(key, 0.75), None
    if known_mistake(key) or not alike:
        close = nearest(key)
        alike = near_in_meaning(key, 0.6)
    if close is not None:
        return (close,)
    return ("did you mean " + " or ".join(f"'{k}'" for k in alike) + "?",) if alike else NOTHING_NEAR


@rule(
    "L-02",
    "warn",
    "option of older releases",
    "an older release has the key, 2.0.0 has not",
    source=_CORE,
    page=_CONFIGURATIONS,
    kinds=("table", "hint", "catalog"),
)
def gone(subject: Subject) -> Iterator[Say]:
    for setting in _with(subject, "removed"):
        old = removed(setting.key)
        assert old is not None
        span = old.first if old.first == old.last else f"{old.first} to {old.last}"
        yield Say(
            f"{_pair(setting)}: Paimon {span} had this option, 2.0.0 ignores it",
            setting.key,
            (old.instead,),
            evidence={"first": old.first, "last": old.last},
        )


@rule(
    "L-03",
    "info",
    "older name of an option",
    "the key is an older name; error when the new one says something else",
    source=_OPTIONS,
    kinds=("table", "hint", "catalog"),
)
def renamed(subject: Subject) -> Iterator[Say]:
    for key, setting in subject.settings.items():
        spec = lookup(key)
        if spec is None or spec.patterned or key == spec.key or key not in spec.old_keys:
            continue
        new = subject.settings.get(spec.key)
        if new is None:
            yield Say(f"{_pair(setting)}: the option is called '{spec.key}' now", key, (f"rename it to '{spec.key}'",))
        elif _same(subject, setting, new):
            yield Say(f"{_pair(setting)}: '{spec.key}' says the same already", key, ("leave the older name out",))
        else:
            yield Say(
                f"{_pair(setting)} is ignored, since its new name '{spec.key}' is set to {shown(spec.key, new.value)}",
                key,
                (f"keep one of them, as '{spec.key}'",),
                severity="error",
                confidence="proven",
            )


def _same(subject: Subject, one: Setting, other: Setting) -> bool:
    spec = lookup(one.key)
    if spec is None or {one.key, other.key} & subject.wrong.keys():
        return one.value == other.value
    return spec.parse(one.value) == spec.parse(other.value)


# Values that have a better answer than the list of all values.
_MEANT = {
    ("metadata.stats-mode", "truncate"): "write the length: 'truncate(16)' is the default",
    ("scan.snapshot-id", "latest"): "leave it out for the newest snapshot, for streams take 'scan.mode' = 'latest'",
    ("lookup.cache", "partial"): "'AUTO' looks rows up by key where the join allows it",
    ("bucket", "0"): "give a number of buckets, -1 to let the engine choose, -2 to postpone",
}  # fmt: skip


def meant(key: str, value: str) -> str | None:
    """What to write instead of a value that is often written and never right."""
    return _MEANT.get((key, value.strip().lower()))


@rule(
    "L-04",
    "error",
    "unreadable value",
    "the value has another type, is none of the allowed ones, or out of range",
    source=_CORE,
    page=_CONFIGURATIONS,
    kinds=("table", "hint", "catalog"),
)
def unreadable(subject: Subject) -> Iterator[Say]:
    for key, err in subject.wrong.items():
        change = meant(key, subject.settings[key].value) or err.hint
        if change is None and (spec := lookup(key)) is not None and spec.default is not None:
            change = f"the default is '{spec.default}'"
        yield Say(
            err.message,
            key,
            (change,) if change else (),
            effect="CREATE TABLE takes it, the first job that reads the option fails",
        )
    bucket = subject.setting("bucket")
    if bucket is not None and bucket.key not in subject.wrong:
        number = subject.options.bucket
        if number == 0 or number < -2:
            yield Say(
                f"'bucket' = '{bucket.value}' must be at least 1, or -1, or -2", bucket.key, (_MEANT["bucket", "0"],)
            )
        elif number == -2 and subject.has_key is False:
            yield Say(f"'bucket' = '{bucket.value}': postponed buckets need a primary key", bucket.key, ("take -1",))


@rule(
    "L-05",
    "error",
    "setting of a job",
    "a key of Flink's or Spark's own configuration stands in table options",
    page="maintenance/write-performance.md",
    kinds=("table", "hint", "catalog"),
)
def of_a_job(subject: Subject) -> Iterator[Say]:
    for setting in _with(subject, "job"):
        owner = elsewhere(setting.key)
        assert owner is not None
        yield Say(f"{_pair(setting)} belongs to {owner.owner}, a table ignores it", setting.key, (owner.use,))


@rule(
    "L-62",
    "error",
    "option of another system",
    "a key of Hive, Hudi, Iceberg, Kafka or Flink's API stands in table options",
    page=_CONFIGURATIONS,
    kinds=("table", "hint", "catalog"),
)
def of_another_system(subject: Subject) -> Iterator[Say]:
    for setting in _with(subject, "other"):
        owner = elsewhere(setting.key)
        assert owner is not None
        change = nearest(setting.key) or owner.use
        yield Say(
            f"{_pair(setting)} belongs to {owner.owner}, Paimon ignores it", setting.key, (change,) if change else ()
        )


@rule(
    "L-63",
    "warn",
    "option of a catalog",
    "a key that only catalogs read stands in table options",
    source="paimon-api/src/main/java/org/apache/paimon/options/CatalogOptions.java",
    page=_CONFIGURATIONS,
)
def of_a_catalog(subject: Subject) -> Iterator[Say]:
    if "connector" in subject.settings:
        return  # a temporary table opens its own catalog with them
    for key, setting in subject.settings.items():
        spec = lookup(key)
        if spec is not None and key not in OF_ENGINES and _CATALOG_SCOPES.issuperset(spec.scope.split(",")):
            yield Say(
                f"{_pair(setting)}: only a catalog or a pipeline reads this option", key, ("set it in CREATE CATALOG",)
            )


@rule(
    "L-06",
    "error",
    "fixed option changed",
    "ALTER changes an option that is fixed once rows exist; partitions have another number of buckets than 'bucket'†",
    source=_ALTER,
    page="maintenance/rescale-bucket.md",
)
def fixed(subject: Subject) -> Iterator[Say]:
    yield from _altered(subject)
    if subject.seen is None or subject.options.bucket < 1 or "bucket" in subject.wrong:
        return
    for total, partitions in subject.seen.total_buckets.items():
        if total not in (subject.options.bucket, -1, -2) and total > 0:
            yield Say(
                f"'bucket' = '{subject.options.bucket}', and {len(partitions)} partition(s) such as "
                f"'{partitions[0] or 'the whole table'}' have {total} buckets: streaming writes into them are refused",
                "bucket",
                (
                    "rewrite these partitions: INSERT OVERWRITE of their own rows, or CALL sys.rescale",
                    f"or set 'bucket' back to {total}",
                ),
                evidence={"buckets": total, "partitions": len(partitions)},
                confidence="proven",
            )


def _altered(subject: Subject) -> Iterator[Say]:
    if subject.before is None:
        return
    now = {k: s.value for k, s in subject.settings.items()}
    for key in {**subject.before, **now}:
        old, new = subject.before.get(key), now.get(key)
        if old == new or key in subject.wrong or lookup(key) is None:
            continue
        before = {k: v for k, v in subject.before.items() if k not in subject.wrong}
        try:
            if new is None or key in ("type", "path"):
                check_reset(subject.name, before, key, has_rows=True)
            else:
                check_rows(subject.name, before, key, new)
        except BadRequest as err:
            say = f"changing '{key}' from {_or_default(old)} to {_or_default(new)} is refused once the table has rows"
            yield Say(say, key, (err.hint,) if err.hint else (), evidence={"before": old, "after": new})


def _or_default(value: str | None) -> str:
    return "the default" if value is None else f"'{value}'"
