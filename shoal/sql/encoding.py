# SPDX-License-Identifier: Apache-2.0
"""Query results as text or bytes: jsonl, json, csv, a drawn table, Arrow stream, Parquet.

Values are written as the test oracle writes them, so that a result can be compared with Java's: decimals as text with
their full scale, binary as hexadecimal, ISO dates and times without trailing zeros, maps as sorted pairs. Invariant:
memory does not grow with the result; flat and nested columns alike are encoded column by column.
"""

from __future__ import annotations

import json as js
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from shoal.errors import BadRequest, Unsupported, near

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "jsonl", "json", "csv", "arrow", "parquet")

# Rows that are text at one time. Wide rows of 100 KB then still fit Arrow's 2 GB of text.
_ROWS = 4096
_HUGE = (b"HUGEINT", b"UHUGEINT")


def write(
    reader: pa.RecordBatchReader,
    out: BinaryIO,
    form: str,
    *,
    rows: int | None = 100,
    width: int | None = None,
    types: bool = False,
) -> None:
    """A result to a binary file in one of FORMATS. `rows`, `width` and `types` are for the drawn table."""
    match form:
        case "arrow":
            arrow(reader, out)
        case "parquet":
            parquet(reader, out)
        case "jsonl" | "json" | "csv" | "table":
            text: Iterable[str]
            if form == "table":
                text = table(reader, rows=rows, width=width, types=types)
            else:
                text = {"jsonl": jsonl, "json": json, "csv": csv}[form](reader)
            for chunk in text:
                out.write(chunk.encode())
        case _:
            raise BadRequest(f"unknown output '{form}'", hint=near(form, FORMATS) or f"there are {', '.join(FORMATS)}")


def jsonl(reader: pa.RecordBatchReader) -> Iterator[str]:
    """One JSON object a row, columns in order."""
    for lines in _objects(reader):
        yield _joined(lines, "\n") + "\n"


def json(reader: pa.RecordBatchReader) -> Iterator[str]:
    """One JSON array of objects."""
    lead = "[\n"
    for lines in _objects(reader):
        yield lead + _joined(lines, ",\n")
        lead = ",\n"
    yield "[]\n" if lead == "[\n" else "\n]\n"


def csv(reader: pa.RecordBatchReader) -> Iterator[str]:
    """Comma-separated, one header line; null is nothing, an empty text is `""`. Nested values are JSON."""
    import pyarrow.compute as pc

    yield ",".join(_csv_name(n) for n in reader.schema.names) + "\n"
    for batch in _slices(reader):
        columns = [pc.fill_null(_csv_quoted(_plain(a, f)), "") for a, f in zip(batch.columns, batch.schema)]
        if columns:
            yield _joined(pc.binary_join_element_wise(*columns, ","), "\n") + "\n"


def arrow(reader: pa.RecordBatchReader, out: BinaryIO) -> None:
    """The Arrow IPC stream format."""
    import pyarrow as pa

    with pa.ipc.new_stream(out, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def parquet(reader: pa.RecordBatchReader, out: BinaryIO) -> None:
    """A Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetWriter(out, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    except pa.ArrowNotImplementedError as err:
        raise Unsupported(f"Parquet cannot hold this result: {err}", hint="CAST the column to STRING") from err


def table(
    reader: pa.RecordBatchReader, *, rows: int | None = 100, width: int | None = None, types: bool = False
) -> Iterator[str]:
    """A table drawn for people: the first `rows` rows, and how many there are. `width` is the terminal's."""
    shown: list[pa.RecordBatch] = []
    total = kept = 0
    for batch in reader:
        if rows is None or kept < rows:
            shown.append(batch if rows is None else batch.slice(0, rows - kept))
            kept += shown[-1].num_rows
        total += batch.num_rows
    if reader.schema.names:
        yield _drawn(reader.schema, shown, width, types)
    unit = "row" if total == 1 else "rows"
    yield f"{total:,} {unit}\n" if kept == total else f"first {kept:,} of {total:,} {unit}\n"


# ---- drawing


def _drawn(schema: pa.Schema, shown: Iterable[pa.RecordBatch], width: int | None, types: bool) -> str:
    import pyarrow as pa
    from rich.cells import cell_len

    p = pa.types
    right = [p.is_integer(t) or p.is_floating(t) or p.is_decimal(t) for t in schema.types]
    head = [[_visible(f.name) for f in schema]]
    if types:
        head.append([_type_text(f) for f in schema])
    columns: list[list[str]] = [[] for _ in schema]
    for batch in shown:
        # texts one by one, because their width on a terminal is not their length; there are `rows` at most
        for cells, values, f in zip(columns, batch.columns, batch.schema):
            cells += ["NULL" if v is None else _visible(v) for v in _plain(values, f).to_pylist()]
    wide = [max(map(cell_len, (*titles, *cells))) for titles, cells in zip(zip(*head), columns)]
    least = [min(w, max(8, *map(cell_len, titles))) for w, titles in zip(wide, zip(*head))]
    wide = _narrowed(wide, least, width)
    lines = [_line(titles, wide, right) for titles in head]
    lines.append("─" * (sum(wide) + 2 * (len(wide) - 1)))
    lines += [_line(row, wide, right) for row in zip(*columns)]
    return "".join(f"{line}\n" for line in lines)


def _narrowed(wide: list[int], least: list[int], width: int | None) -> list[int]:
    """Column widths that fit a terminal: the widest gives way first, none below its least. If that is not enough the
    lines are longer than the terminal, which reads better than columns of a letter or two."""
    if width is None:
        return wide
    room = width - 2 * (len(wide) - 1)
    wide = [min(w, max(room, low)) for w, low in zip(wide, least)]
    while sum(wide) > room:
        slack, i = max((w - low, i) for i, (w, low) in enumerate(zip(wide, least)))
        if slack == 0:
            break
        wide[i] -= 1
    return wide


def _line(row: Iterable[str], wide: list[int], right: list[bool]) -> str:
    from rich.cells import cell_len, set_cell_size

    cells = []
    for text, w, at_right in zip(row, wide, right):
        size = cell_len(text)
        if size > w:
            text, size = set_cell_size(text, w - 1) + "…", w
        cells.append(" " * (w - size) + text if at_right else text + " " * (w - size))
    return "  ".join(cells).rstrip()


def _visible(text: str) -> str:
    """Control characters spelled out: a value must not move the cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\u3000" else js.dumps(c)[1:-1] for c in text)


def _type_text(f: pa.Field) -> str:
    from shoal.format.types import from_arrow

    try:
        return "HUGEINT" if _is_huge(f) else str(from_arrow(f.type).with_nullable(True))
    except BadRequest:
        return str(f.type)


# ---- rows from columns


def _slices(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        for at in range(0, batch.num_rows, _ROWS):
            yield batch.slice(at, _ROWS)


def _objects(reader: pa.RecordBatchReader) -> Iterator[pa.Array]:
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = [js.dumps(n, ensure_ascii=False) + ":" for n in reader.schema.names]
    for batch in _slices(reader):
        parts: list[Any] = []
        for i, (key, column, f) in enumerate(zip(keys, batch.columns, batch.schema)):
            parts += [("{" if i == 0 else ",") + key, _json(column, _is_huge(f))]
        yield pc.binary_join_element_wise(*parts, "}", "") if parts else pa.array(["{}"] * batch.num_rows)


def _joined(lines: pa.Array, between: str) -> str:
    """All rows in one text, without a Python string for each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    return str(pc.binary_join(whole, between)[0].as_py())


def _csv_quoted(column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    needs = pc.match_substring_regex(column, r'(?s)^$|[",\r\n]')
    if not pc.any(needs).as_py():
        return column
    return pc.if_else(needs, _wrapped('"', pc.replace_substring(column, '"', '""'), '"'), column)


def _csv_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if not name or any(c in name for c in '",\r\n') else name


# ---- one column


def _is_huge(f: pa.Field) -> bool:
    return bool(f.metadata) and f.metadata.get(b"shoal.sql-type") in _HUGE


def _plain(column: pa.Array, f: pa.Field) -> pa.Array:
    """A column as text without quotes, for csv and the drawn table; null stays null."""
    import pyarrow as pa

    column = _unwrapped(column)
    text = _quoted_text(column.type)
    if text is not None:
        return text(column)
    encoded = _json(column, _is_huge(f))
    if pa.types.is_nested(column.type):
        return _with_nulls(encoded, column)
    import pyarrow.compute as pc

    return _with_nulls(pc.utf8_trim(encoded, '"'), column)


def _with_nulls(text: pa.Array, column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string())) if column.null_count else text


def _unwrapped(column: pa.Array) -> pa.Array:
    """The values behind dictionaries and extension types."""
    import pyarrow as pa

    if isinstance(column, pa.ExtensionArray):
        return _unwrapped(column.storage)
    return _unwrapped(column.dictionary_decode()) if pa.types.is_dictionary(column.type) else column


def _quoted_text(t: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """How values of a type become text, for types that JSON has as text; strings need escapes on top."""
    import pyarrow as pa

    p = pa.types
    if p.is_string(t) or p.is_large_string(t) or p.is_string_view(t):
        return lambda a: a.cast(pa.string())
    if p.is_decimal(t):
        return _decimal_text
    if p.is_binary(t) or p.is_large_binary(t) or p.is_binary_view(t) or p.is_fixed_size_binary(t):
        return _hex_text
    if p.is_date(t):
        return _date_text
    if p.is_time(t) or p.is_timestamp(t):
        return _clock_text
    return None


def _json(column: pa.Array, huge: bool = False) -> pa.Array:
    """A column as JSON fragments, none of them null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _unwrapped(column)
    t, p = column.type, pa.types
    text = _quoted_text(t)
    if text is not None:
        out = text(column)
        if p.is_string(t) or p.is_large_string(t) or p.is_string_view(t):
            out = _escaped(out)
        if not (huge and p.is_decimal(t)):
            out = _wrapped('"', out, '"')
    elif p.is_boolean(t) or p.is_integer(t):
        out = column.cast(pa.string())
    elif p.is_floating(t):
        out = _float_json(column)
    elif p.is_struct(t):
        out = _struct_json(column)
    elif p.is_map(t):
        out = _map_json(column)
    elif p.is_list(t) or p.is_large_list(t) or p.is_fixed_size_list(t):
        out = _list_json(column)
    elif p.is_null(t):
        return pa.array(["null"] * len(column), pa.string())
    else:
        # intervals, durations and unions: rare, and Arrow has no kernels that turn them to text
        out = pa.array([None if v is None else js.dumps(_any_text(v)) for v in column.to_pylist()], pa.string())
    return pc.fill_null(out, "null")


def _any_text(value: object) -> str:
    import pyarrow as pa

    if isinstance(value, pa.MonthDayNano):
        parts = [(value.months, "months"), (value.days, "days"), (value.nanoseconds / 1e9, "seconds")]
        return " ".join(f"{n:g} {unit}" for n, unit in parts if n) or "0 seconds"
    return str(value)


def _wrapped(before: str, text: pa.Array, after: str) -> pa.Array:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(before, text, after, "")


_SHORT = {'"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROLS = "".join(map(chr, range(32))) + "\x7f\u2028\u2029"


def _escaped(text: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    special = pc.match_substring_regex(text, '["\\\\\\x00-\\x1f\\x7f\u2028\u2029]')
    if not pc.any(special).as_py():
        return text
    text = pc.replace_substring(text, "\\", "\\\\")
    for c in '"' + _CONTROLS:
        if pc.any(pc.match_substring(text, c)).as_py():
            text = pc.replace_substring(text, c, _SHORT.get(c) or f"\\u{ord(c):04x}")
    return text


def _float_json(column: pa.Array) -> pa.Array:
    """The shortest text that reads back to the same value of the column's width; what JSON has not is quoted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    text = column.cast(pa.string())
    whole = pc.match_substring_regex(text, r"^-?\d+$")
    text = pc.if_else(whole, _wrapped("", text, ".0"), text)
    finite = pc.is_finite(column)
    if pc.all(finite).as_py() is not False:
        return text
    odd = pc.if_else(pc.is_nan(column), '"NaN"', pc.if_else(pc.greater(column, 0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(finite, text, odd)


def _decimal_text(column: pa.Array) -> pa.Array:
    """Plain digits with the full scale. Arrow's own text turns small values into 1E-10."""
    import pyarrow as pa
    import pyarrow.compute as pc

    t = column.type
    if t.precision > 38 or t.scale < 0:
        # no 128-bit form to take the digits from; DuckDB and Paimon have no such decimals
        return pa.array([None if v is None else f"{v:f}" for v in column.to_pylist()], pa.string())
    digits = column.cast(pa.decimal128(t.precision, t.scale)).view(pa.decimal128(38, 0)).cast(pa.string())
    if t.scale == 0:
        return digits
    sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), t.scale + 1, "0")
    whole, part = pc.utf8_slice_codeunits(padded, 0, -t.scale), pc.utf8_slice_codeunits(padded, -t.scale)
    return pc.binary_join_element_wise(sign, whole, ".", part, "")


def _hex_text(column: pa.Array) -> pa.Array:
    """Two digits a byte: all bytes at once, and the offsets doubled."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pc.fill_null(pc.binary_length(column.cast(pa.large_binary())), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(sizes * 2, out=offsets[1:])
    whole = pa.ListArray.from_arrays(
        pa.array([0, len(column)], pa.int32()), pc.fill_null(column.cast(pa.binary()), b"")
    )
    data = pc.binary_join(whole, b"")[0].as_py() if len(column) else b""
    text = pa.StringArray.from_buffers(len(column), pa.py_buffer(offsets), pa.py_buffer(data.hex().encode()))
    return _with_nulls(text, column)


def _date_text(column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    # Java puts a sign before years of five digits
    return pc.replace_substring_regex(column.cast(pa.date32()).cast(pa.string()), r"^(\d{5,}-)", r"+\1")


def _clock_text(column: pa.Array) -> pa.Array:
    """Times and timestamps, ISO. Like Java: LocalDateTime cuts single zeros, Instant cuts them by threes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    t = column.type
    instant = pa.types.is_timestamp(t) and t.tz is not None
    text = (column.cast(pa.timestamp(t.unit, "UTC")) if instant and t.tz != "UTC" else column).cast(pa.string())
    if pa.types.is_timestamp(t):
        text = pc.replace_substring_regex(text, r"^(\d{5,}-)", r"+\1")
        text = pc.replace_substring(text, " ", "T", max_replacements=1)
    if t.unit == "s":
        return text
    if instant:
        return pc.replace_substring_regex(text, r"\.?(?:000)+Z$", "Z")
    return pc.replace_substring_regex(text, r"\.?0+$", "")


# ---- nested columns


def _struct_json(column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    parts: list[Any] = []
    for i, (f, member) in enumerate(zip(column.type, column.flatten())):
        parts += [("{" if i == 0 else ",") + js.dumps(f.name, ensure_ascii=False) + ":", _json(member)]
    text = pc.binary_join_element_wise(*parts, "}", "") if parts else pa.array(["{}"] * len(column), pa.string())
    return _with_nulls(text, column)


def _list_json(column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return _bracketed(column, pc.list_value_length(column), _json(pc.list_flatten(column)))


def _map_json(column: pa.Array) -> pa.Array:
    """`[key, value]` pairs, sorted by their text like the oracle's."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.offset:
        column = column.take(pa.array(range(len(column))))  # keys and items know nothing of a slice
    entries = pa.ListArray.from_arrays(
        column.offsets, pa.StructArray.from_arrays([column.keys, column.items], ["k", "v"]), mask=column.is_null()
    )
    keys, values = pc.list_flatten(entries).flatten()
    pairs = pc.binary_join_element_wise("[", _json(keys), ",", _json(values), "]", "")
    rows = pa.table({"row": pc.list_parent_indices(entries), "pair": pairs})
    pairs = rows.sort_by([("row", "ascending"), ("pair", "ascending")]).column("pair").combine_chunks()
    return _bracketed(column, pc.list_value_length(entries), pairs)


def _bracketed(column: pa.Array, lengths: pa.Array, items: pa.Array) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False), out=offsets[1:])
    text = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), ",")
    return _with_nulls(_wrapped("[", text, "]"), column)
