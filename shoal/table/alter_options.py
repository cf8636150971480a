# SPDX-License-Identifier: Apache-2.0
"""What ALTER TABLE may do to options: which are fixed once a table has rows, and how a renamed column changes them.

Agrees with: SchemaManager.checkAlterTableOption, checkResetTableOption, applyRenameColumnsToOptions (2.0.0).
Invariant: files that lie there already keep their meaning. Java lets some resets through that it refuses as a change
(`deletion-vectors.enabled`, `ignore-delete`, `ignore-update-before`) and then reads wrong rows: refused here.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import BadRequest
from shoal.option_table import lookup
from shoal.options import Options, check

# Options of one column whose value names no column of the table. (Java renames in the value of `nested-key` too,
# where the members of a row stand: not done here.)
_OF_COLUMN = (
    "aggregate-function", "ignore-retract", "distinct", "list-agg-delimiter", "map.storage-layout",
    "map.shared-shredding.max-columns", "map.shared-shredding.column-placement-policy",
)  # fmt: skip
_LISTS = ("bucket-key", "sequence.field")
_BOTH = ("sequence-group", "nested-key")


def check_set(table: str, old: Mapping[str, str], key: str, value: str, *, has_key: bool, has_rows: bool) -> None:
    """Refuse a new value that Java refuses, or that means nothing."""
    if key == "type":
        raise BadRequest(f"{table}: option 'type' cannot be changed", hint="create another table")
    if key == "path":
        raise BadRequest(f"{table}: option 'path' cannot be changed", hint="move the folder and open it there")
    check({key: value}, "create", has_primary_key=has_key)
    if has_rows:
        check_rows(table, old, key, value)


def check_reset(table: str, old: Mapping[str, str], key: str, *, has_rows: bool) -> None:
    """Refuse to take an option away where its default would mean other files."""
    if key in ("type", "path"):
        raise BadRequest(f"{table}: option '{key}' cannot be reset", hint="create another table")
    if not has_rows:
        return
    if key == "bucket":
        raise BadRequest(f"{table}: option 'bucket' cannot be reset on a table with rows", hint="set a number instead")
    check_rows(table, old, key, None)


def check_rows(table: str, old: Mapping[str, str], key: str, value: str | None) -> None:
    """Refuse a change (None takes the option away) that gives rows which exist another meaning."""
    spec = lookup(key)
    if spec is not None and spec.immutable:
        raise BadRequest(
            f"{table}: option '{key}' cannot be changed once the table has rows",
            hint="create a table with the option and copy the rows",
        )
    name = key if spec is None else spec.key
    before, now = Options(old, strict=False), Options({} if value is None else {key: value}, strict=False)
    match name:
        case "bucket":
            if -1 in (before.bucket, now.bucket):
                raise BadRequest(
                    f"{table}: 'bucket' cannot change from {before.bucket} to {now.bucket}",
                    hint="fixed and dynamic buckets do not turn into each other; copy the rows to another table",
                )
        case "deletion-vectors.enabled":
            if before.deletion_vectors != now.deletion_vectors and not before.get("deletion-vectors.modifiable"):
                raise BadRequest(
                    f"{table}: '{key}' cannot change from {_text(before.deletion_vectors)} to "
                    f"{_text(now.deletion_vectors)}: rows may come twice until a full compaction",
                    hint="set 'deletion-vectors.modifiable' = 'true' before, and compact fully after",
                )
        case "ignore-delete" | "ignore-update-before":
            if before.get(name) and not now.get(name):
                raise BadRequest(
                    f"{table}: '{key}' cannot change from true to false", hint="rows that were passed over stay lost"
                )
        case "clustering.columns":
            if "pk-clustering-override" in old:
                raise BadRequest(
                    f"{table}: '{key}' cannot change with 'pk-clustering-override'", hint="create another table"
                )


def _text(value: bool) -> str:
    return "true" if value else "false"


def renamed(options: Mapping[str, str], column: str, to: str) -> tuple[dict[str, str], list[str]]:
    """The options after a column of the table is renamed, and the keys that are new."""
    out, new = dict(options), []

    def names(text: str) -> str:
        return ",".join(to if n.strip() == column else n for n in text.split(","))

    for key in _LISTS:
        if out.get(key, "").strip():
            out[key] = names(out[key])
    for key, value in options.items():
        middle = key.removeprefix("fields.")
        if middle == key:
            continue
        end = next((e for e in (*_OF_COLUMN, *_BOTH) if middle.endswith("." + e)), None)
        if end is None:
            continue
        columns = middle[: -len(end) - 1]
        now = f"fields.{names(columns)}.{end}" if end in _BOTH else f"fields.{to}.{end}"
        if end == "sequence-group":
            value = names(value)
        elif end != "nested-key" and columns != column:
            continue
        del out[key]  # put in again even where nothing changes: Java does so, and its maps keep the order
        out[now] = value
        new.append(now)
    return out, new
