# SPDX-License-Identifier: Apache-2.0
"""File indexes that Java 2.0.0 wrote over columns of every type, against the rows of their files.

Invariants: the rows an index names include all that match; for questions that an index answers exactly they are
those rows and no others; damage ends in a typed error. data/file_indexes.tar.xz holds the tables and the SQL they
were made with: NaN, both zeros, blanks behind CHARs, nanoseconds, instants before 1970, a column of nulls.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from shoal.errors import Corrupt, ShoalError, Unsupported
from shoal.format import expression as expressions
from shoal.format import file_index, predicate, schema
from shoal.format.manifest import decode_entries, entries_of
from shoal.format.types import DataType, Field, arrow_schema, to_arrow

TABLES = ("bloom", "bitmap", "bitmap_v1", "bsi", "rng", "rng_big")
KIND = {"bloom": "bloom-filter", "bitmap": "bitmap", "bitmap_v1": "bitmap", "bsi": "bsi"}


@dataclass(frozen=True)
class Indexed:
    """A data file: its index, its rows with their positions, the types it was written with."""

    name: str
    index: bytes
    rows: pa.Table
    fields: dict[str, DataType]

    def found(self, expression: pc.Expression) -> set[int] | None:
        return self.where(predicate.of(expression, self.rows.schema))

    def where(self, node: predicate.Node) -> set[int] | None:
        bitmap = file_index.rows(self.index, node, self.fields, self.rows.num_rows, self.name)
        return None if bitmap is None else set(bitmap)


def matches(files: list[Indexed], expression: pc.Expression) -> list[set[int]]:
    """For each file the positions of its rows that match, by Arrow's own evaluation."""
    part = expressions.read(expression)
    assert part is not None
    names = [*sorted(expressions.columns(part)), "position"]
    every = pa.concat_tables(
        [f.rows.select(names).append_column("file", pa.array([i] * f.rows.num_rows)) for i, f in enumerate(files)]
    )
    out: list[set[int]] = [set() for _ in files]
    found = every.filter(expression)
    for i, at in zip(found["file"].to_pylist(), found["position"].to_pylist()):
        out[i].add(at)
    return out


def load(folder: Path) -> list[Indexed]:
    fields = schema.decode((folder / "schema/schema-0").read_bytes(), "schema-0").fields
    out = []
    for path in sorted((folder / "manifest").glob("manifest-[!l]*")):
        for entry in entries_of(decode_entries(path.read_bytes(), path.name)):
            rows = in_types(pq.read_table(folder / "bucket-0" / entry.file.file_name), fields)
            index = entry.file.embedded_index
            if index is None:
                index = (folder / "bucket-0" / entry.file.extra_files[0]).read_bytes()
            rows = rows.append_column("position", pa.array(range(rows.num_rows), pa.int64()))
            out.append(Indexed(entry.file.file_name, index, rows, {f.name: f.type for f in fields}))
    return out


def in_types(table: pa.Table, fields: tuple[Field, ...]) -> pa.Table:
    plain = [f for f in fields if not f.type.is_nested]
    return table.select([f.name for f in plain]).cast(arrow_schema(plain))


@pytest.fixture(scope="module")
def tables(unpacked: Callable[[Path], Path]) -> dict[str, list[Indexed]]:
    base = unpacked(Path(__file__).parent / "data/file_indexes.tar.xz")
    return {t: load(base / "ix.db" / t) for t in TABLES}


def literals(files: list[Indexed], column: str) -> list[pa.Scalar]:
    """Values of a column in any file, and ones a step beside them that may be in none."""
    kind = to_arrow(files[0].fields[column])
    values = pa.chunked_array([c for f in files for c in f.rows[column].chunks]).unique().drop_null()
    if not len(values):
        values = pa.array([0, 7], pa.int32()).cast(kind)
    out = list(values)
    p = pa.types
    if p.is_integer(kind) or p.is_temporal(kind):
        storage = pa.int32() if kind.bit_width == 32 else pa.int64()
        numbers = values.view(storage).to_pylist() if p.is_temporal(kind) else values.to_pylist()
        if p.is_integer(kind):
            high = (1 << (kind.bit_width - 1)) - 1
            near = pa.array([n for v in numbers for n in (v - 1, v + 1) if abs(n) < high] + [high, -high - 1], kind)
        else:
            near = pa.array([n for v in numbers for n in (v - 1, v + 1) if n >= 0 or not p.is_time(kind)], storage)
            near = near.view(kind)
        out += list(near)
    elif p.is_decimal(kind):
        step = Decimal(1).scaleb(-kind.scale)
        out += [pa.scalar(v + s, kind) for v in values.to_pylist() for s in (step, -step)]
    elif p.is_floating(kind):
        numbers = [0.0, -0.0, 0.13, -7.5, 99.0, float("inf"), float("-inf")]
        out = [v for v in out if v.as_py() == v.as_py()] + [pa.scalar(n, kind) for n in numbers]
    elif p.is_string(kind):
        out += [pa.scalar(v + t) for v in values.to_pylist() for t in (" ", "x")] + [pa.scalar("zzz"), pa.scalar("a")]
    elif p.is_binary(kind):
        out += [pa.scalar(v + b"!", kind) for v in values.to_pylist()]
    return out


def leaf(rng: random.Random, column: str, kind: pa.DataType, known: list[pa.Scalar]) -> tuple[str, pc.Expression]:
    """A random condition on a column, with the name of its kind."""
    c = pc.field(column)
    ops: dict[str, Callable[[], pc.Expression]] = {
        "=": lambda: c == rng.choice(known),
        "<>": lambda: c != rng.choice(known),
        "null": lambda: c.is_null(),
        "valid": lambda: c.is_valid(),
    }
    if pa.types.is_floating(kind):
        ops |= {"nan": lambda: pc.is_nan(c), "not nan": lambda: ~pc.is_nan(c)}
    elif not pa.types.is_boolean(kind):
        many = [v.as_py() for v in rng.choices(known, k=4)] if not pa.types.is_temporal(kind) else None
        if many is not None:
            ops |= {"in": lambda: c.isin(pa.array(many, kind)), "not in": lambda: ~c.isin(pa.array(many, kind))}
    if not pa.types.is_boolean(kind):
        ops |= {
            "<": lambda: c < rng.choice(known),
            "<=": lambda: c <= rng.choice(known),
            ">": lambda: c > rng.choice(known),
            ">=": lambda: ~(c < rng.choice(known)),
        }
    name = rng.choice(sorted(ops))
    return name, ops[name]()


BY_ORDER = ("<", "<=", ">", ">=")


def answers(table: str, column: str, kind: str) -> bool:
    """Whether an index of the table is exact for this kind of condition."""
    if table == "bloom":
        return False
    if column == "c":
        return kind in ("null", "valid")  # blanks behind a CHAR: more forms are looked up
    if column == "ts9":
        return kind in ("null", "valid")  # microseconds stand for nanoseconds
    if table.startswith("bitmap"):
        return kind not in BY_ORDER
    return True


@pytest.mark.parametrize("table", TABLES)
def test_rows_of_one_condition(tables: dict[str, list[Indexed]], table: str) -> None:
    files = tables[table]
    indexed = {p.column for p in file_index.decode(files[0].index, "") if "[" not in p.column}
    rng = random.Random(7)
    exact = skipped = 0
    for column in sorted(indexed):
        known = literals(files, column)
        for _ in range(14):
            name, expression = leaf(rng, column, to_arrow(files[0].fields[column]), known)
            node = predicate.of(expression, files[0].rows.schema)
            for f, want in zip(files, matches(files, expression)):
                got = f.where(node)
                assert got is None or want <= got, f"{expression} on {f.name}"
                if answers(table, column, name):
                    assert got == want, f"{expression} on {f.name}"
                    exact += 1
                skipped += got is not None and not got
    assert skipped > 20
    assert exact > 300 or table == "bloom"


@pytest.mark.parametrize("column", ["ts9", "f", "d"])
@pytest.mark.parametrize("table", TABLES)
def test_values_that_an_index_keeps_in_another_form(tables: dict[str, list[Indexed]], table: str, column: str) -> None:
    """Nanoseconds that an index cuts to microseconds; zeros, which it keeps apart."""
    files = tables[table][:2]
    kind = to_arrow(files[0].fields[column])
    if column == "ts9":
        values = pa.concat_arrays([f.rows[column].combine_chunks() for f in files]).unique().drop_null()
        known = list(values)
    else:
        known = [pa.scalar(0.0, kind), pa.scalar(-0.0, kind)]
    c = pc.field(column)
    for v in known:
        for name, e in {"=": c == v, "<>": c != v, "<": c < v, "<=": c <= v, ">": c > v, ">=": c >= v}.items():
            for f, want in zip(files, matches(files, e)):
                got = f.found(e)
                assert got is None or want <= got, f"{e} on {f.name}"
                if column != "ts9" and table.startswith(("rng", "bitmap")) and answers(table, column, name):
                    assert got == want, f"{e} on {f.name}"


@pytest.mark.parametrize("table", TABLES)
def test_rows_of_combined_conditions(tables: dict[str, list[Indexed]], table: str) -> None:
    files = tables[table]
    columns = sorted(c for c in files[0].rows.column_names if c != "position")
    rng = random.Random(11)
    known = {c: literals(files, c) for c in columns}

    def tree(depth: int) -> pc.Expression:
        if depth == 0:
            column = rng.choice(columns)
            return leaf(rng, column, to_arrow(files[0].fields[column]), known[column])[1]
        a, b = tree(depth - 1), tree(rng.randrange(depth))
        return rng.choice([lambda: a & b, lambda: a | b, lambda: ~(a & b), lambda: ~(a | b), lambda: a & ~b])()

    told = 0
    for _ in range(40):
        expression = tree(rng.choice([1, 1, 2]))
        node = predicate.of(expression, files[0].rows.schema)
        for f, want in zip(files, matches(files, expression)):
            got = f.where(node)
            assert got is None or want <= got, f"{expression} on {f.name}"
            told += got is not None
    assert told > 4


def test_bloom_filters_know_absent_values(tables: dict[str, list[Indexed]]) -> None:
    """2 of 100 absent values may pass, by the rate the tables were made with."""
    passed = asked = 0
    for f in tables["bloom"][:3]:
        present = set(f.rows["i"].to_pylist())
        for v in present:
            assert f.found(pc.field("i") == v) is None
        for v in range(1000, 1400):
            asked += 1
            passed += f.found(pc.field("i") == v) is None
    assert 0 < passed < asked * 0.05


def test_columns_without_an_index_and_other_types_say_nothing(tables: dict[str, list[Indexed]]) -> None:
    f = tables["bsi"][0]
    assert f.found(pc.field("s") == "no such text") is None
    node = predicate.of(pc.field("i") == -1, f.rows.schema)
    assert not file_index.keep(f.index, node, f.fields, f.rows.num_rows, f.name)
    now = {**f.fields, "i": DataType("BIGINT")}  # the column has changed its type since
    assert file_index.keep(f.index, node, now, f.rows.num_rows, f.name)
    assert file_index.keep(f.index, node, {}, f.rows.num_rows, f.name)


def test_char_is_found_whatever_blanks_it_is_read_with(tables: dict[str, list[Indexed]]) -> None:
    """Flink pads CHARs when it writes; ORC takes the blanks away when it reads."""
    for table in ("bloom", "bitmap", "bitmap_v1", "rng"):
        for f in tables[table]:
            for text in set(f.rows["c"].to_pylist()) - {None}:
                for form in (text, text.rstrip(" "), text.rstrip(" ") + " "):
                    found = f.found(pc.field("c") == form)
                    assert found is None or found >= matches([f], pc.field("c") == text)[0]


def utf(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">H", len(raw)) + raw


def container(*parts: tuple[str, str, bytes | None]) -> bytes:
    """A container as FileIndexFormat describes it, one column for each part."""
    heads = sum(4 + len(utf(c)) + len(utf(k)) + 8 for c, k, _ in parts)
    size = 8 + 4 + 4 + 4 + heads + 4
    head, body = b"", b""
    for column, kind, data in parts:
        start = -1 if data is None else size + len(body)
        head += utf(column) + struct.pack(">i", 1) + utf(kind) + struct.pack(">ii", start, len(data or b""))
        body += data or b""
    return struct.pack(">qiii", 1493475289347502, 1, size, len(parts)) + head + struct.pack(">i", 0) + body


def ask(index: bytes, expression: pc.Expression, rows: int = 3) -> bool:
    node = predicate.of(expression, pa.schema([("k", pa.int32()), ("s", pa.string())]))
    return file_index.keep(index, node, {"k": DataType("INT"), "s": DataType("VARCHAR", length=9)}, rows, "x.index")


def test_an_empty_index_holds_no_value() -> None:
    index = container(("k", "bloom-filter", None))
    k = pc.field("k")
    assert not ask(index, k == 1) and not ask(index, k > 1) and not ask(index, k.is_valid())
    assert ask(index, k.is_null()) and ask(index, pc.field("s") == "a")


def test_unknown_kinds_of_index_are_passed_over() -> None:
    assert ask(container(("k", "from-the-future", b"abc"), ("m[a]", "bitmap", b"")), pc.field("k") == 1)


def test_newer_versions_are_not_read() -> None:
    with pytest.raises(Unsupported, match="version 9"):
        ask(container(("k", "bitmap", b"\x09")), pc.field("k") == 1)
    with pytest.raises(Unsupported, match="version 2"):
        ask(container(("k", "bsi", b"\x02\0\0\0\0")), pc.field("k") == 1)
    with pytest.raises(Unsupported, match="version 7"):
        ask(struct.pack(">qiii", 1493475289347502, 7, 24, 0) + bytes(4), pc.field("k") == 1)


def test_an_index_of_another_file_is_damage(tables: dict[str, list[Indexed]]) -> None:
    for table in ("bitmap", "bitmap_v1", "bsi", "rng"):
        f = tables[table][0]
        node = predicate.of(pc.field("i") == 3, f.rows.schema)
        with pytest.raises(Corrupt, match="column 'i'"):
            file_index.rows(f.index, node, f.fields, f.rows.num_rows + 1, "data-1.index")


@pytest.mark.parametrize("table", TABLES)
def test_damage_ends_in_a_typed_error(tables: dict[str, list[Indexed]], table: str) -> None:
    f = tables[table][1]
    rng = random.Random(3)
    node = predicate.of(
        (pc.field("i") == 44) | (pc.field("s") == "ab3") | (pc.field("ts6") > pa.scalar(5, pa.timestamp("us"))),
        f.rows.schema,
    )
    failed = 0
    for _ in range(150):
        raw = bytearray(f.index)
        if rng.random() < 0.5:
            raw = raw[: rng.randrange(len(raw))]
        else:
            for _ in range(4):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            file_index.rows(bytes(raw), node, f.fields, f.rows.num_rows, "x.index")
        except ShoalError as err:
            assert "x.index" in str(err)
            failed += 1
    assert failed > 50


def test_golden_indexes_find_their_rows(golden: Any) -> None:
    """The tables of the golden warehouse: embedded and separate indexes of each kind."""
    asked = 0
    for folder in sorted((golden("formats") / "formats.db").glob("append_index_*")):
        for f in load(folder):
            for column in ("id", "g", "s", "b", "ts"):
                for value in f.rows[column].unique().drop_null().slice(0, 4):
                    expression = pc.field(column) == value
                    found = f.found(expression)
                    assert found is None or found >= matches([f], expression)[0]
                    asked += found is not None
    assert asked > 40
