# SPDX-License-Identifier: Apache-2.0
"""shoal's views of made fuzz tables, in the format that the oracle dumps Java's (shared/oracle/fuzz.md).

One file for each table and view: a header line, then one line for each row. A refusal (`ShoalError`) is a view that
says `error`; any other exception is a crash, kept apart. Only shoal's public API is used.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from fuzz_filters import expression
from oracle_values import encode

import shoal
from shoal.format.types import DataType

KINDS = ("+I", "-U", "+U", "-D")
KIND_COLUMNS = ("_VALUE_KIND", "rowkind")  # the first column of changes: a number, or its text

Columns = list[tuple[str, str]]
View = tuple[dict[str, Any], Columns | None, Iterable[dict[str, Any]]]  # more of the header, columns, lines


@dataclass(frozen=True)
class Crash:
    table: str
    view: str
    trace: str

    def __str__(self) -> str:
        return f"CRASH {self.table} {self.view}\n{self.trace}"


@dataclass
class Dump:
    """Writes the views of a warehouse into a folder; `only` names the kinds of view (`rows`, `between`, ...)."""

    warehouse: Path
    to: Path
    only: Sequence[str] = ()
    views: int = 0
    errors: int = 0
    crashes: list[Crash] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.to.mkdir(parents=True, exist_ok=True)
        self.lake = shoal.open(str(self.warehouse), wide_timestamps=True)

    def table(self, history: Mapping[str, Any]) -> None:
        """All views of one table."""
        name = history["table"]
        try:
            # Java's dumps come from its core reader, which leaves merging postponed rows on read to Flink
            table = self.lake.table(f"fuzz.{name}").with_options({"postpone.merge-on-read": "false"})
            alive = table.inspect.snapshots().to_pylist()
        except shoal.ShoalError as err:
            refusal = err
            self.write(name, "rows", lambda: self.fail(refusal))
            return
        except Exception:  # noqa: BLE001 - a crash of shoal is a finding, not ours
            self.crashes.append(Crash(name, "open", traceback.format_exc()))
            return
        for view, read in views(self.lake, table, alive, history):
            if not self.only or view.split("-")[0] in self.only:
                self.write(name, view, read)

    @staticmethod
    def fail(err: shoal.ShoalError) -> View:
        raise err

    def write(self, table: str, view: str, read: Callable[[], View]) -> None:
        head: dict[str, Any] = {"view": view}
        lines: list[str] = []
        try:
            more, columns, rows = read()
            head |= more
            if columns is not None:
                head["columns"] = [list(c) for c in columns]
            lines = [json.dumps(r, ensure_ascii=False) for r in rows]
        except shoal.ShoalError as err:
            head["error"] = f"{type(err).__name__}: {err.message}"
            lines = []
            self.errors += 1
        except Exception:  # noqa: BLE001 - a crash of shoal is a finding, not ours
            self.crashes.append(Crash(table, view, traceback.format_exc()))
            return
        self.views += 1
        text = "\n".join([json.dumps(head, ensure_ascii=False), *lines, ""])
        # a string that is no UTF-16 either would be a finding of the comparison, not of the dump
        (self.to / f"{table}.{view}.jsonl").write_text(text, encoding="utf-8", errors="surrogatepass")


def views(
    lake: Any, table: Any, alive: list[dict[str, Any]], history: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], View]]]:
    """Name and reader of each view of a table."""
    yield "schema", lambda: ({}, None, schema_lines(table))
    yield "rows", lambda: rows_of(table.scan())
    yield "snapshots", lambda: ({}, None, snapshot_lines(alive))
    for name in ("files", "partitions"):
        yield name, lambda name=name: system(getattr(table.inspect, name)())
    for s in alive:
        number = s["snapshot_id"]
        yield f"snapshot-{number}", lambda s=s: rows_of(table.scan(snapshot=s["snapshot_id"]), about(s))
    for tag, number in listed(table, "tags", "tag_name", "snapshot_id"):
        yield f"tag-{tag}", lambda tag=tag, n=number: rows_of(table.scan(tag=tag), {"snapshot": n})
    for (branch,) in listed(table, "branches", "branch_name"):
        yield f"branch-{branch}", lambda b=branch: rows_of(table.branch(b).scan())
    if alive:
        yield "stream", lambda: stream(table, alive, audit=False)
        yield "audit_stream", lambda: stream(table, alive, audit=True)
        yield "audit_log", lambda: audit_log(table)
    for n, pair in enumerate(history["views"]["between"]):
        ends = between(alive, pair)
        for mode in ("auto", "diff") if ends else ():
            yield f"between-{n}-{mode}", lambda e=ends, m=mode: changed(table, *e, m)
    for n, f in enumerate(history["views"]["filters"]):
        yield f"filter-{n}", lambda f=f: filtered(table, f["filter"], f["projection"])


# ---- views


def schema_lines(table: Any) -> list[dict[str, Any]]:
    return [{"row": {"id": f.id, "name": f.name, "type": str(f.type)}} for f in table.schema.fields]


def snapshot_lines(alive: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {
        "id": "snapshot_id", "kind": "commit_kind", "identifier": "commit_identifier", "schema": "schema_id",
        "total": "total_record_count", "delta": "delta_record_count", "changelog": "changelog_record_count",
    }  # fmt: skip
    return [{"row": {ours: s[theirs] for ours, theirs in names.items()}} for s in alive]


def about(s: Mapping[str, Any]) -> dict[str, Any]:
    return {"snapshot": s["snapshot_id"], "identifier": s["commit_identifier"], "kind": s["commit_kind"]}


def listed(table: Any, what: str, *columns: str) -> list[tuple[Any, ...]]:
    found = getattr(table.inspect, what)()
    return sorted(zip(*(found.column(c).to_pylist() for c in columns)))


def rows_of(scan: Any, head: Mapping[str, Any] | None = None, *, ordered: bool = False) -> View:
    """The rows of a scan, with the types of the schema it reads."""
    types = {f.name: f.type for f in scan.table.schema.fields}
    columns, lines = typed(scan.to_arrow(), types)
    if not ordered:
        lines.sort(key=repr)
    return dict(head or {}), columns, lines


def typed(
    rows: pa.Table | pa.RecordBatch, types: Mapping[str, DataType], *, keep_rowkind: bool = False
) -> tuple[Columns, list[dict[str, Any]]]:
    """Columns (name, SQL type) and lines. A leading kind column becomes the `op` of each row."""
    names, ops = list(rows.schema.names), None
    if names and names[0] in KIND_COLUMNS and names[0] not in types:
        found = rows.column(0).to_pylist()
        ops = [k if isinstance(k, str) else KINDS[k] for k in found]
        if not keep_rowkind:
            names = names[1:]
    values = [encode(rows.column(n), types.get(n)) for n in names]
    columns = [(n, str(types[n]) if n in types else "STRING") for n in names]
    body = [dict(zip(names, r)) for r in zip(*values)] if names else [{}] * rows.num_rows
    return columns, [{"op": ops[i] if ops else "+I", "row": r} for i, r in enumerate(body)]


def system(rows: pa.Table) -> View:
    """A system table. Only the Arrow types are known, and only strings, numbers and times occur."""
    columns = [(f.name, "STRING" if pa.types.is_string(f.type) else "BIGINT") for f in rows.schema]
    values = [encode(c) for c in rows.columns]
    return {}, columns, [{"op": "+I", "row": dict(zip(rows.column_names, r))} for r in zip(*values)]


def stream(table: Any, alive: list[dict[str, Any]], *, audit: bool) -> View:
    """What a stream gives that starts at the earliest snapshot, up to the newest, in the columns of today."""
    types = {f.name: f.type for f in table.schema.fields}
    columns: Columns = [("rowkind", "STRING")] if audit else []
    columns += [(n, str(t)) for n, t in types.items()]
    lines = []
    options = {"scan.mode": "from-snapshot", "scan.snapshot-id": alive[0]["snapshot_id"]}
    for change in table.with_options(options).follow(until=alive[-1]["snapshot_id"]):
        _, found = typed(change.to_batch(), types, keep_rowkind=audit)
        # Java's audit rows are inserts whatever they tell of
        lines += [{"op": "+I" if audit else x["op"], "snapshot": change.snapshot, "row": x["row"]} for x in found]
    return about(alive[0]), columns, lines


def audit_log(table: Any) -> View:
    types = {f.name: f.type for f in table.schema.fields}
    columns, lines = typed(table.inspect.audit_log().to_arrow(), types, keep_rowkind=True)
    return {}, columns, [{"op": "+I", "row": x["row"]} for x in lines]


def between(alive: list[dict[str, Any]], pair: Sequence[float]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """A range is two numbers from 0 to 1: positions among the commit identifiers that are still alive."""
    last: list[dict[str, Any]] = []
    for s in alive:
        if last and last[-1]["commit_identifier"] == s["commit_identifier"]:
            last[-1] = s
        else:
            last.append(s)
    if len(last) < 2:
        return None
    a = int(pair[0] * (len(last) - 2) + 0.5)
    b = a + 1 + int(pair[1] * (len(last) - 2 - a) + 0.5)
    return last[a], last[b]


def changed(table: Any, start: Mapping[str, Any], end: Mapping[str, Any], mode: str) -> View:
    head = {"mode": mode}
    for name, s in (("from", start), ("to", end)):
        head |= {f"{name}_snapshot": s["snapshot_id"], f"{name}_identifier": s["commit_identifier"]}
    options = {
        "incremental-between": f"{start['snapshot_id']},{end['snapshot_id']}",
        "incremental-between-scan-mode": mode,
    }
    return rows_of(table.with_options(options).scan(), head, ordered=True)


def filtered(table: Any, wanted: Sequence[Sequence[Any]], projection: Sequence[str] | None) -> View:
    where = expression(wanted, table.schema.fields)
    return rows_of(table.scan(where, projection), {"filter": wanted, "projection": projection})
