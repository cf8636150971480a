# SPDX-License-Identifier: Apache-2.0
"""`shoal table`: which tables there are, and what is in one. Reads only; `list` needs no Arrow."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from shoal.cli.output import Cell, note, show_json, show_pairs, show_table
from shoal.cli.parser import Command, Parser, table_argument
from shoal.cli.warehouse import open_lake, open_table

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.format.snapshot import Snapshot
    from shoal.table.table import Table


def _list(args: Namespace) -> int:
    lake = open_lake(args)
    databases = [args.database] if args.database else lake.databases()
    names = [(database, table) for database in databases for table in lake.tables(database)]
    if args.output == "json":
        show_json([{"database": database, "table": table} for database, table in names])
        return 0
    for database, table in names:
        print(f"{database}.{table}")
    if not names:
        note(f"no tables in {args.database or lake.store.uri}")
    return 0


def _list_arguments(parser: Parser) -> None:
    parser.add_argument("database", metavar="DB", nargs="?", help="only the tables of this database")


# ---- show ------------------------------------------------------------------------------------------------


def _show(args: Namespace) -> int:
    table = open_table(args)
    facts = _facts(table)
    if args.output == "json":
        show_json(facts)
        return 0
    snapshot = facts["snapshot"]
    print(table.name)
    show_pairs({
        "location": facts["location"],
        "comment": facts["comment"] or None,
        "schema": str(facts["schema_id"]),
        "primary key": ", ".join(facts["primary_key"]) or "none: an append table",
        "partition by": ", ".join(facts["partition_by"]) or None,
        "snapshot": f"{snapshot['id']}, {snapshot['kind']} by {snapshot['commit_user']} at {local(snapshot['time_ms'])}"
        if snapshot
        else "none yet",
        "files": facts["files"],
        "rows": f"{facts['rows']:,} before merging" if table.primary_key else facts["rows"],
        "bytes": facts["bytes"],
    })  # fmt: skip
    print()
    described = any(c["description"] for c in facts["columns"])
    heads = ["column", "type", *(["description"] if described else [])]
    show_table(heads, [[c["name"], c["type"], c["description"]][: len(heads)] for c in facts["columns"]])
    if facts["options"]:
        print()
        # a value that is all digits is still text: it must read as it is written in WITH (...)
        show_table(["option", "value"], [[key, f"{value}"] for key, value in sorted(facts["options"].items())])
    return 0


def _facts(table: Table) -> dict[str, Any]:  # JSON
    """What `show` says, as the stable JSON of `-o json`."""
    schema, newest = table.schema, table.metadata.latest()
    live = table.metadata.live(newest)
    return {
        "table": table.name,
        "location": table.store.uri,
        "comment": schema.comment,
        "schema_id": schema.id,
        "columns": [{"name": f.name, "type": str(f.type), "description": f.description} for f in schema.fields],
        "primary_key": list(schema.primary_keys),
        "partition_by": list(schema.partition_keys),
        "options": dict(schema.options),
        "snapshot": _snapshot(newest),
        "files": live.num_rows,
        "rows": _sum(live, "row_count"),
        "bytes": _sum(live, "file_size"),
    }


def _snapshot(snapshot: Snapshot | None) -> dict[str, Any] | None:
    if snapshot is None:
        return None
    return {
        "id": snapshot.id, "kind": snapshot.commit_kind, "commit_user": snapshot.commit_user,
        "commit_identifier": snapshot.commit_identifier, "time_ms": snapshot.time_ms,
    }  # fmt: skip


def local(epoch_ms: int) -> str:
    """A time of this machine's zone, to the second."""
    from datetime import datetime

    return f"{datetime.fromtimestamp(epoch_ms // 1000).astimezone():%Y-%m-%d %H:%M:%S %z}"


# ---- system tables ---------------------------------------------------------------------------------------


def _files(args: Namespace) -> int:
    table = open_table(args)
    found = table.inspect.files()
    if args.output == "json":
        show_json(found.to_pylist())
        return 0
    columns = {
        "partition": "partition", "bucket": "bucket", "level": "level", "file": "file_path", "rows": "record_count",
        "bytes": "file_size_in_bytes",
    }  # fmt: skip
    if not table.schema.partition_keys:
        del columns["partition"]
    rows = _rows(found, list(columns.values()))
    name = list(columns).index("file")
    show_table(list(columns), [[*row[:name], str(row[name]).rpartition("/")[2], *row[name + 1 :]] for row in rows])
    _count(found.num_rows, "live file", _sum(found, "file_size_in_bytes"))
    return 0


def _snapshots(args: Namespace) -> int:
    found = open_table(args).inspect.snapshots()
    if args.output == "json":
        show_json(found.to_pylist())
        return 0
    columns = {
        "snapshot": "snapshot_id", "kind": "commit_kind", "time": "commit_time", "rows": "total_record_count",
        "change": "delta_record_count", "user": "commit_user",
    }  # fmt: skip
    rows = _rows(found, list(columns.values()))
    # an id is a name, not a quantity: no separators
    show_table(list(columns), [[str(row[0]), *row[1:]] for row in rows])
    _count(found.num_rows, "snapshot")
    return 0


def _rows(table: pa.Table, names: list[str]) -> list[list[Cell]]:
    columns = [table.column(name).to_pylist() for name in names]
    return [[_cell(value) for value in row] for row in zip(*columns)]


def _cell(value: Any) -> Cell:  # what Arrow's to_pylist gives
    if value is None or isinstance(value, int | float | str):
        return value
    return str(value).partition(".")[0]  # a time, to the second


def _count(count: int, noun: str, size: int | None = None) -> None:
    note(f"{count:,} {noun}{'' if count == 1 else 's'}" + ("" if size is None else f", {size:,} bytes"))


COMMANDS = (
    Command(
        "table list", "names of the tables, one a line", "shoal table list -w /data/warehouse", _list, _list_arguments
    ),
    Command(
        "table show", "columns, keys, options, and how much is in it",
        "shoal table show -w /data/warehouse shop.orders", _show, table_argument,
    ),
    Command(
        "table files", "the live data files of the newest snapshot",
        "shoal table files -w /data/warehouse shop.orders\n"
        "shoal table files -w /data/warehouse shop.orders -o json | jq '.[].file_path'",
        _files, table_argument,
    ),
    Command(
        "table snapshots", "the snapshots that have not expired",
        "shoal table snapshots -w /data/warehouse shop.orders", _snapshots, table_argument,
    ),
)  # fmt: skip


def _sum(table: pa.Table, column: str) -> int:
    import pyarrow.compute as pc

    return pc.sum(table.column(column)).as_py() or 0
