# SPDX-License-Identifier: Apache-2.0
"""The changes that ALTER TABLE knows, as values; `changes` makes the list from keywords.

A column is its name, or a tuple that leads into it: `("address", "zip")` is a member of a ROW, `("tags", "element")`
the element of an ARRAY, `("prices", "value")` the value of a MAP, `("orders", "element", "total")` a member of the rows
in an ARRAY. Agrees with: SchemaChange (2.0.0). Invariant: a change says what should become of the newest schema,
whichever that is by the time it is applied, so a lost race is applied again as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from shoal.errors import BadRequest, Corrupt
from shoal.format.types import DataType, from_arrow, parse, parse_atomic

if TYPE_CHECKING:
    import pyarrow as pa

    # A type as a user gives it: "DECIMAL(10, 2)", an Arrow type, the object of a schema file, or a DataType.
    TypeLike: TypeAlias = str | Mapping[str, object] | pa.DataType | DataType

Column = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Where a column goes among its neighbours."""

    to: Literal["first", "last", "after", "before"]
    column: str | None = None


FIRST, LAST = Move("first"), Move("last")


def after(column: str) -> Move:
    return Move("after", column)


def before(column: str) -> Move:
    return Move("before", column)


@dataclass(frozen=True, slots=True)
class AddColumn:
    column: Column
    type: DataType
    comment: str | None = None
    move: Move | None = None


@dataclass(frozen=True, slots=True)
class DropColumn:
    column: Column


@dataclass(frozen=True, slots=True)
class RenameColumn:
    column: Column
    to: str


@dataclass(frozen=True, slots=True)
class UpdateType:
    column: Column
    type: DataType
    keep_nullability: bool = False


@dataclass(frozen=True, slots=True)
class UpdateNullability:
    column: Column
    nullable: bool


@dataclass(frozen=True, slots=True)
class UpdateComment:
    column: Column
    comment: str | None


@dataclass(frozen=True, slots=True)
class UpdatePosition:
    """Only for columns of the table: members of a ROW keep their order."""

    column: str
    move: Move


@dataclass(frozen=True, slots=True)
class UpdateDefault:
    """The value that a row without the column, or with null in it, gets; None takes the default away."""

    column: Column
    default: str | None


@dataclass(frozen=True, slots=True)
class SetOption:
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class RemoveOption:
    key: str


@dataclass(frozen=True, slots=True)
class UpdateTableComment:
    comment: str | None


@dataclass(frozen=True, slots=True)
class DropPrimaryKey:
    """Only while the table has no snapshot."""


ColumnChange = (
    AddColumn | DropColumn | RenameColumn | UpdateType | UpdateNullability | UpdateComment | UpdatePosition
    | UpdateDefault
)  # fmt: skip
Change = ColumnChange | SetOption | RemoveOption | UpdateTableComment | DropPrimaryKey


def path_of(column: Column) -> tuple[str, ...]:
    """The way to a column: its name, then members, `element`, `value`."""
    path = (column,) if isinstance(column, str) else tuple(column)
    if not path:
        raise BadRequest("a schema change names no column", hint='name it as "a", or ("a", "member") inside a ROW')
    return path


def type_of(value: TypeLike, column: str = "?") -> DataType:
    """A type as users give it."""
    if isinstance(value, DataType):
        return value
    if isinstance(value, str):
        return parse_atomic(value)
    if isinstance(value, Mapping):
        try:
            return parse(value, f"column '{column}'")
        except Corrupt as err:  # not a file's fault but the caller's
            raise BadRequest(err.message, hint=err.hint) from err
    return from_arrow(value, column=column)


def changes(
    *,
    drop: Iterable[Column] = (),
    rename: Mapping[Column, str] | None = None,
    add: Mapping[Column, TypeLike] | None = None,
    types: Mapping[Column, TypeLike] | None = None,
    nullable: Mapping[Column, bool] | None = None,
    defaults: Mapping[Column, object] | None = None,
    comments: Mapping[Column, str | None] | None = None,
    move: Mapping[str, Move] | None = None,
    options: Mapping[str, object] | None = None,
    reset: Sequence[str] = (),
    comment: str | None = None,
) -> list[Change]:
    """The changes that keywords ask for, in the order of the keywords here: a later one sees the new names.

    `types` keeps whether a column may be null; `comment` is the table's.

    >>> changes(rename={"a": "b"}, add={"c": "INT"}, options={"bucket": 4})[0]
    RenameColumn(column='a', to='b')
    """
    made: list[Change] = [DropColumn(c) for c in ([drop] if isinstance(drop, str) else drop)]
    made += [RenameColumn(c, to) for c, to in (rename or {}).items()]
    made += [AddColumn(c, type_of(t, path_of(c)[-1])) for c, t in (add or {}).items()]
    made += [UpdateType(c, type_of(t, path_of(c)[-1]), keep_nullability=True) for c, t in (types or {}).items()]
    made += [UpdateNullability(c, may) for c, may in (nullable or {}).items()]
    made += [UpdateDefault(c, None if v is None else option_text(v)) for c, v in (defaults or {}).items()]
    made += [UpdateComment(c, text) for c, text in (comments or {}).items()]
    made += [UpdatePosition(c, to) for c, to in (move or {}).items()]
    made += [SetOption(k, option_text(v)) for k, v in (options or {}).items()]
    made += [RemoveOption(k) for k in ([reset] if isinstance(reset, str) else reset)]
    if comment is not None:
        made.append(UpdateTableComment(comment))
    return made


def modified(column: Column, old: DataType, new: DataType) -> list[Change]:
    """The changes that turn a column's type into another, member by member: what SQL's MODIFY of a ROW means.

    Members are matched by name and keep their order; a MAP keeps its keys. Agrees with: NestedSchemaUtils (2.0.0).
    """
    path = path_of(column)
    made: list[Change] = []
    if old.root in ("ROW", "ARRAY", "MAP", "MULTISET") and old.root != new.root:
        raise BadRequest(f"column '{'.'.join(path)}': {old} cannot become {new}", hint=f"it stays a {old.root}")
    match old.root:
        case "ROW":
            made = _modified_row(path, old, new)
        case "ARRAY" | "MULTISET":
            assert old.element is not None and new.element is not None
            made = modified((*path, "element"), old.element, new.element)
        case "MAP":
            assert old.value is not None and new.value is not None
            if old.key != new.key:
                raise BadRequest(f"column '{'.'.join(path)}': keys {old.key} cannot become {new.key}", hint=None)
            made = modified((*path, "value"), old.value, new.value)
        case _ if not old.same_as(new):
            made = [UpdateType(path, new)]
    if old.nullable != new.nullable:
        made.append(UpdateNullability(path, new.nullable))
    return made


def _modified_row(path: tuple[str, ...], old: DataType, new: DataType) -> list[Change]:
    had = {f.name: f for f in old.fields}
    kept = [f.name for f in new.fields if f.name in had]
    if kept != [n for n in had if n in kept]:
        raise BadRequest(f"column '{'.'.join(path)}': its members must keep their order", hint=", ".join(had))
    made: list[Change] = [DropColumn((*path, n)) for n in had if n not in kept]
    for i, f in enumerate(new.fields):
        if f.name not in had:
            move = after(new.fields[i - 1].name) if i else FIRST
            made.append(AddColumn((*path, f.name), f.type, f.description, move))
            continue
        if had[f.name].description != f.description:
            made.append(UpdateComment((*path, f.name), f.description))
        made += modified((*path, f.name), had[f.name].type, f.type)
    return made


def option_text(value: object) -> str:
    """A value as schema files keep it."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
