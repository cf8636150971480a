# SPDX-License-Identifier: Apache-2.0
"""A look inside a `pyarrow.compute.Expression`: its calls, columns and literals.

pyarrow hides the parts of an expression, but pickles it as a record batch: literals and options are its columns, and
the schema's metadata lists the tree in prefix order (`compute::Serialize` of Arrow C++). Substrait, the other way out,
refuses casts, regular expressions and nanoseconds, and with them the whole expression. Invariant: what cannot be read
is None, never a guess.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from struct import unpack_from
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Ref:
    """A column, or a member of a ROW column."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """A function of Arrow by its name. `options` are a struct scalar, or None."""

    name: str
    args: tuple[Part, ...]
    options: pa.Scalar | None = None


Part = Ref | Literal | Call


def read(expression: pc.Expression) -> Part | None:
    """The tree of an expression; None when this pyarrow cannot take it apart."""
    import pyarrow as pa

    try:
        _, (buffer,) = expression.__reduce__()
        batch = pa.ipc.RecordBatchFileReader(buffer).get_batch(0)
    except (pa.ArrowException, TypeError, ValueError):
        return None  # fields by number, functions of the user: pyarrow says "not implemented"
    try:
        return _tree(_metadata(batch.schema), batch)
    except (ValueError, IndexError):
        return None


def columns(part: Part) -> frozenset[str]:
    """The top-level columns that a part reads."""
    found, rest = set(), [part]
    while rest:
        p = rest.pop()
        if isinstance(p, Ref):
            found.add(p.path[0])
        elif isinstance(p, Call):
            rest += p.args
    return frozenset(found)


def _tree(tokens: Sequence[tuple[str, str]], batch: pa.RecordBatch) -> Part:
    """Without recursion: DuckDB and loops over `&` make trees a thousand calls deep."""
    open_calls: list[tuple[str, list[Part], list[pa.Scalar]]] = [("", [], [])]
    i = 0
    while i < len(tokens):
        kind, text = tokens[i]
        i += 1
        if kind == "call":
            open_calls.append((text, [], []))
        elif kind == "end":
            name, args, options = open_calls.pop()
            open_calls[-1][1].append(Call(name, tuple(args), options[0] if options else None))
        elif kind == "options":
            open_calls[-1][2].append(batch.column(int(text))[0])
        elif kind == "literal":
            open_calls[-1][1].append(Literal(batch.column(int(text))[0]))
        elif kind == "field_ref":
            open_calls[-1][1].append(Ref((text,)))
        elif kind == "nested_field_ref":
            path = tokens[i : i + int(text)]
            i += len(path)
            if any(k != "field_ref" for k, _ in path):
                raise ValueError("a member that is not named")
            open_calls[-1][1].append(Ref(tuple(name for _, name in path)))
        else:
            raise ValueError(kind)
    ((_, (part,), _),) = open_calls  # ValueError when a call was not closed
    return part


def _metadata(schema: pa.Schema) -> Sequence[tuple[str, str]]:
    """All pairs of a schema's metadata. `schema.metadata` is a dict and would lose the repeated keys.

    The pairs are read from the C data interface, whose layout is fixed: the third pointer of an ArrowSchema leads to
    an int32 count and, for each key and value, an int32 length and its bytes.
    """
    capsule = schema.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    base = pointer(capsule, b"arrow_schema")
    at = ctypes.c_void_p.from_address(base + 2 * ctypes.sizeof(ctypes.c_void_p)).value
    if not at:
        return []

    def number() -> int:
        nonlocal at
        assert at is not None
        (value,) = unpack_from("=i", ctypes.string_at(at, 4))
        at += 4
        return int(value)

    def text() -> str:
        nonlocal at
        size = number()
        raw = ctypes.string_at(at, size)
        at += size
        return raw.decode()

    return [(text(), text()) for _ in range(number())]
