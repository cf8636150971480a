# SPDX-License-Identifier: Apache-2.0
"""Histories of the oracle's fuzz, applied by shoal: what Java wrote row by row, written again.

The model is FuzzTable of the oracle: the writer stays open over consecutive writes, every commit waits for the
compactions that it asks for, and an operation that is refused changes nothing. A refusal where Java accepted, or the
other way round, is a finding; so is any exception that is no `ShoalError`. Only shoal's public API is used, so a
compaction is asked for in the buckets that were written to; Java is asked by bucket, for ignored rows too.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from fuzz_filters import expression
from fuzz_values import column

import shoal
from shoal.errors import ShoalError
from shoal.format.schema import Schema
from shoal.format.types import Field, arrow_field, parse
from shoal.table.commit import Commit
from shoal.table.create import schema_of
from shoal.table.delete import delete
from shoal.table.row_changes import By
from shoal.table.schema_change import (
    AddColumn,
    Change,
    DropColumn,
    Move,
    RemoveOption,
    RenameColumn,
    SetOption,
    UpdateComment,
    UpdateNullability,
    UpdatePosition,
    UpdateType,
)  # fmt: skip
from shoal.table.write import Write

KINDS = {"+I": 0, "-U": 1, "+U": 2, "-D": 3}

# What is refused when the table is created here, and in Java by the first writer that comes to it: agreed. Level 0 may
# have another format, then Java gets as far as the first compaction.
LATE_IN_JAVA = "Unrecognized codec"


@dataclass(frozen=True)
class Finding:
    """One operation that went otherwise than in Java."""

    table: str
    op: str
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.table} {self.op}: {self.what}: {self.text}"


@dataclass
class Replay:
    """Applies histories to a new warehouse."""

    warehouse: Path
    memory: int = 256 << 20
    findings: list[Finding] = field(default_factory=list)
    ops: int = 0
    agreed: int = 0
    at: int = -1
    """The operation being applied."""

    def __post_init__(self) -> None:
        self.lake = shoal.open(str(self.warehouse), wide_timestamps=True)
        self._writer: Any = None
        self._writer_key: tuple[Any, ...] = ()

    def table(self, history: Mapping[str, Any]) -> None:
        name = history["table"]
        try:
            self._create(name, history["schema"])
        except ShoalError as err:
            self._refused_table(history, err)
            return
        except Exception:  # noqa: BLE001 - a crash of shoal is a finding
            self.findings.append(Finding(name, "create", "crash", traceback.format_exc()))
            return
        if history.get("refused"):
            self.findings.append(Finding(name, "create", "accepted, refused by Java", history["refused"]))
            return
        for self.at, op in enumerate(history["ops"]):
            if not self._apply(name, op, history["user"]):
                break
        self._close(name)

    def _create(self, name: str, schema: Mapping[str, Any]) -> None:
        columns = [
            Field(i, f["name"], parse(f["type"], f["name"]), f.get("description"), f.get("default"))
            for i, f in enumerate(schema["fields"])
        ]
        made: Schema = schema_of(
            f"fuzz.{name}", columns, schema["primary_keys"], schema["partition_keys"], schema["options"], None,
            self.lake.clock.now_ms(),
        )  # fmt: skip
        assert self.lake.store.create(f"fuzz.db/{name}/schema/schema-0", made.encode())

    def _refused_table(self, history: Mapping[str, Any], err: ShoalError) -> None:
        if history.get("refused"):
            self.agreed += 1
            return
        late = next((o.get("refused") for o in history["ops"] if o["op"] == "write"), None)
        first = history["ops"][0] if history["ops"] else {}
        never = any(LATE_IN_JAVA in o.get("refused", "") for o in history["ops"])
        if late is not None or "refused" in first or never:
            self.agreed += 1
            return
        self.findings.append(Finding(history["table"], "create", "refused, accepted by Java", _text(err)))

    def _apply(self, name: str, op: Mapping[str, Any], user: str) -> bool:
        """Whether the history can go on."""
        self.ops += 1
        what = f"{self.at} {op['op']} {op.get('id', '')}"
        try:
            self._do(name, op, user)
        except ShoalError as err:
            self._close(name)
            if "refused" in op:
                self.agreed += 1
                return True
            self.findings.append(Finding(name, what, "refused, accepted by Java", _text(err)))
            return False
        except Exception:  # noqa: BLE001 - a crash of shoal is a finding
            self._close(name)
            self.findings.append(Finding(name, what, "crash", traceback.format_exc()))
            return False
        if "refused" in op:
            self.findings.append(Finding(name, what, "accepted, refused by Java", op["refused"]))
            return False
        return True

    # ---- operations

    def _do(self, name: str, op: Mapping[str, Any], user: str) -> None:
        kind = op["op"]
        if kind != "write" or op.get("restart"):
            self._close(name)
        t = self.lake.table(f"fuzz.{name}")
        if t.primary_key and t.options.changelog_producer == "full-compaction":
            # Java's core compacts only when it is asked to; it is Flink's sink that counts checkpoints
            t = t.with_options({"full-compaction.delta-commits": 1 << 30})
        if kind == "write":
            self._write(t, op, user)
        elif kind == "overwrite":
            self._overwrite(t, op, user)
        elif kind == "rescale":
            rows = t.scan().to_arrow()
            t = t.alter(options={"bucket": op["bucket"]})
            with Write(t, user, ignore_previous=True) as w:
                w.write(rows, pa.array([0] * rows.num_rows, pa.int8()))
                w.keeper.after(w.committer.overwrite(w.prepare(wait=True), op["id"], None, dynamic=False), op["id"])
        elif kind == "truncate":
            Commit(t, user, t.rng).truncate(None, op["id"])
        elif kind == "drop_partition":
            Commit(t, user, t.rng).drop_partitions([self._spec(t, op["partition"])], op["id"])
        elif kind == "compact":
            t = t.with_options({"write-only": "false"})
            t.maintain.compact(full=bool(op.get("full")), commit_user=user, checkpoint=op["id"])
        elif kind == "compact_manifest":
            t.maintain.compact_manifest()
        elif kind == "delete_where":
            delete(t, expression(op["filter"], t.schema.fields), By(user, op["id"]))
        elif kind == "alter":
            t.alter([change(c) for c in op["changes"]])
        elif kind == "tag":
            t.tags.create(op["name"], snapshot=self._newest(t) - op.get("back", 0))
        elif kind == "delete_tag":
            t.tags.delete(op["name"])
        elif kind == "create_branch":
            t.branches.create(op["branch"], tag=op.get("tag"))
        elif kind == "delete_branch":
            t.branches.delete(op["branch"])
        elif kind == "fast_forward":
            t.branches.fast_forward(op["branch"])
        elif kind == "rollback":
            if op.get("tag") is not None:
                t.rollback(tag=op["tag"])
            else:
                t.rollback(snapshot=self._newest(t) - op["back"])
        elif kind == "expire":
            hour = self.lake.clock.now_ms() - timedelta(hours=1) // timedelta(milliseconds=1)
            t.maintain.expire(retain_min=op["retain_min"], retain_max=op["retain_max"], older_than=hour)
        else:
            raise AssertionError(f"unknown operation {kind}")

    def _write(self, t: Any, op: Mapping[str, Any], user: str) -> None:
        branch = op.get("branch")
        if branch is not None:
            t = t.branch(branch)
        user = op.get("user") or user
        key = (t.name, branch, user, t.schema.id)
        if key != self._writer_key:
            self._close(t.name)
            self._writer, self._writer_key = t.write(commit_user=user), key
        w = self._writer
        if op["rows"]:
            rows, kinds = rows_of(w.table, op["rows"])
            w.write(rows, kinds)
        asked = op.get("compact", "none")
        if w.table.options.write_only:
            asked = "none"
        w.commit(op["id"], compact=None if asked == "none" else asked, wait=True, force_snapshot=True)

    def _overwrite(self, t: Any, op: Mapping[str, Any], user: str) -> None:
        rows, kinds = rows_of(t, op["rows"])
        asked = "none" if t.options.write_only else op.get("compact", "none")
        with Write(t, user, ignore_previous=True) as w:
            w.write(rows, kinds)
            staged = w.prepare(op["id"], compact=None if asked == "none" else asked, wait=True)
            spec = self._spec(t, op.get("partition"))
            done = w.committer.overwrite(staged, op["id"], spec or None, dynamic=bool(op.get("dynamic")))
            w.keeper.after(done, op["id"])

    @staticmethod
    def _spec(t: Any, partition: Mapping[str, Any] | None) -> dict[str, str]:
        """A partition as texts; null is the default partition name."""
        default = t.options.partition_default_name
        return {k: default if v is None else _java_text(v) for k, v in (partition or {}).items()}

    @staticmethod
    def _newest(t: Any) -> int:
        newest = t.metadata.latest_id()
        if newest is None:
            raise shoal.errors.NotFound("the table has no snapshot", hint=None)
        return int(newest)

    def _close(self, name: str) -> None:
        if self._writer is None:
            return
        writer, self._writer, self._writer_key = self._writer, None, ()
        try:
            writer.close()
        except Exception:  # noqa: BLE001 - a crash of shoal is a finding
            self.findings.append(Finding(name, f"{self.at} close", "crash", traceback.format_exc()))


def rows_of(table: Any, rows: Sequence[Mapping[str, Any]]) -> tuple[pa.Table, pa.Array]:
    """The rows of an operation as a table with a schema's columns, and their kinds."""
    fields = table.schema.fields
    arrays = [column([r["row"].get(f.name) for r in rows], f.type, arrow_field(f).type) for f in fields]
    schema = pa.schema([pa.field(f.name, a.type) for f, a in zip(fields, arrays)])
    return pa.Table.from_arrays(arrays, schema=schema), pa.array([KINDS[r["op"]] for r in rows], pa.int8())


def change(c: Mapping[str, Any]) -> Change:
    path = tuple(c["path"]) if "path" in c else ()
    match c["change"]:
        case "add_column":
            move = _move(c["move"]) if c.get("move") is not None else None
            return AddColumn(path, parse(c["type"], path[-1]), None, move)
        case "drop_column":
            return DropColumn(path)
        case "rename_column":
            return RenameColumn(path, c["to"])
        case "update_type":
            return UpdateType(path, parse(c["type"], path[-1]), keep_nullability=True)
        case "update_nullability":
            return UpdateNullability(path, c["nullable"])
        case "update_comment":
            return UpdateComment(path, c["comment"])
        case "update_position":
            return UpdatePosition(path[0], _move(c["move"]))
        case "set_option":
            return SetOption(c["key"], c["value"])
        case "remove_option":
            return RemoveOption(c["key"])
    raise AssertionError(c)


def _move(m: Mapping[str, Any]) -> Move:
    return Move(m["to"], m.get("column"))


def _java_text(v: Any) -> str:
    if isinstance(v, bool):
        return "true" if v else "false"
    return str(v).replace("T", " ") if isinstance(v, str) else json.dumps(v)


def _text(err: ShoalError) -> str:
    return f"{type(err).__name__}: {err.message}"
