# SPDX-License-Identifier: Apache-2.0
"""ALTER TABLE as a function: a schema and a list of changes give the next schema.

Agrees with: SchemaManager.generateTableSchema (2.0.0), with its guards. Invariant: a column keeps its id for life and
no id is given twice, so old files are read by id whatever happened to names, places and types; what comes out has
passed the same checks as a new table. Java lets a few paths through that lead nowhere (`element` of a column that is
no ARRAY: nothing happens, or the whole column is dropped); they are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from shoal.errors import BadRequest, NotFound, near
from shoal.format.cast import alter_allows, default_value
from shoal.format.schema import Schema
from shoal.format.types import DataType, Field
from shoal.options import Options
from shoal.table import alter_options, schema_checks
from shoal.table.column_directives import directed, listed, undirected
from shoal.table.field_ids import java_order, numbered
from shoal.table.schema_change import (
    AddColumn,
    Change,
    ColumnChange,
    DropColumn,
    DropPrimaryKey,
    Move,
    RemoveOption,
    RenameColumn,
    SetOption,
    UpdateComment,
    UpdateDefault,
    UpdateNullability,
    UpdatePosition,
    UpdateTableComment,
    UpdateType,
    path_of,
)
from shoal.table.schema_type_checks import is_blob_file

Fields = tuple[Field, ...]
Path = tuple[str, ...]
# They become STRING that may be null and nothing else: Java has no rule for STRING NOT NULL.
_TIMES = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ")


def apply(schema: Schema, changes: Sequence[Change], *, table: str, has_rows: bool, time_ms: int) -> Schema:
    """The schema after `schema`; `has_rows` says that the table has a snapshot, which fixes some options."""
    if not changes:
        raise BadRequest(f"{table}: no change is given", hint="name what to add, drop, rename, set")
    draft = _Draft(table, schema, Options(schema.options, strict=False), has_rows)
    for change in changes:
        draft.take(change)
    made = replace(
        schema,
        id=schema.id + 1,
        fields=draft.fields,
        highest_field_id=draft.highest,
        primary_keys=draft.primary_keys,
        options=java_order(draft.options, draft.new_options),
        comment=draft.comment,
        time_ms=time_ms,
    )
    return schema_checks.normal(table, made)


class _Draft:
    """The schema while changes are taken one after the other. Guards ask the options of before."""

    def __init__(self, table: str, schema: Schema, before: Options, has_rows: bool) -> None:
        self.table = table
        self.fields: Fields = schema.fields
        self.highest = schema.highest_field_id
        self.primary_keys = schema.primary_keys
        self.options = dict(schema.options)
        self.new_options: list[str] = []
        self.comment = schema.comment
        self._partition = schema.partition_keys
        self._old = schema.options
        self._before = before
        self._has_rows = has_rows
        indexed = ("pk-vector", "pk-btree", "pk-bitmap", "pk-full-text")
        self._indexed = {str(c) for i in indexed for c in _listed(before.raw.get(f"{i}.index.columns", ""))}

    def take(self, change: Change) -> None:
        match change:
            case SetOption():
                self._set(change.key, change.value)
            case RemoveOption(key):
                alter_options.check_reset(self.table, self._old, key, has_rows=self._has_rows)
                self.options.pop(key, None)
            case UpdateTableComment(comment):
                self.comment = comment
            case DropPrimaryKey():
                if self._has_rows:
                    raise BadRequest(
                        f"{self.table}: the primary key cannot be dropped once the table has rows",
                        hint="copy the rows to a table without a key",
                    )
                self.primary_keys = ()
            case _:
                self._column(change)

    def _column(self, change: ColumnChange) -> None:
        match change:
            case AddColumn():
                self._add(change, path_of(change.column))
            case DropColumn():
                self._drop(path_of(change.column))
            case RenameColumn():
                self._rename(path_of(change.column), change.to)
            case UpdateType():
                self._retype(change, path_of(change.column))
            case UpdateNullability():
                path = path_of(change.column)
                if change.nullable:
                    self._guard(path, "made nullable", partition=False)
                self._each_type(path, lambda t: self._nullable(t, change.nullable, path))
            case UpdateComment():
                self._each_field(path_of(change.column), lambda f: replace(f, description=change.comment))
            case UpdateDefault():
                self._each_field(path_of(change.column), lambda f: _with_default(f, change.default))
            case UpdatePosition():
                self.fields = self._moved(change.column, change.move)

    # ---- options

    def _set(self, key: str, value: str) -> None:
        old = self._old.get(key)
        if old == value or (old is None and self._says_the_same(key, value)):
            return
        has_key = bool(self.primary_keys)
        alter_options.check_set(self.table, self._old, key, value, has_key=has_key, has_rows=self._has_rows)
        if key not in self.options:
            self.new_options.append(key)
        self.options[key] = value

    def _says_the_same(self, key: str, value: str) -> bool:
        """Options that a schema keeps elsewhere, set to what they are."""
        match key:
            case "primary-key":
                return _listed(value) == self.primary_keys
            case "partition":
                return _listed(value) == self._partition
        return key == "type" and value.lower() == "table"

    # ---- columns

    def _guard(self, path: Path, done: str, *, partition: bool = True, key: bool = True, index: bool = False) -> None:
        """Refuse a change of a column that partitions, keys or indexes hang on."""
        if len(path) > 1:
            return
        name = path[0]
        for holds, what in (
            (partition and name in self._partition, "a partition column"),
            (key and name in self.primary_keys, "part of the primary key"),
            (index and name in self._indexed, "a column of a primary-key index"),
        ):
            if holds:
                raise BadRequest(
                    f"{self.table}: column '{name}' is {what} and cannot be {done}", hint="copy the rows to a new table"
                )

    def _add(self, change: AddColumn, path: Path) -> None:
        if not change.type.nullable:
            raise BadRequest(
                f"{self.table}: new column '{'.'.join(path)}' cannot be NOT NULL", hint="older rows hold null in it"
            )
        t, comment, listing = directed(change.comment, ".".join(path), change.type)
        if listing is not None:
            if len(path) > 1:
                raise BadRequest(
                    f"{self.table}: column '{'.'.join(path)}': a comment directive needs a column of the table",
                    hint="add the member with a plain comment",
                )
            self.options = listed(self.options, listing, path[0])
            self.new_options.append(listing)
        number = self.highest + 1
        t, self.highest = numbered(t, number)
        first = len(path) == 1 and change.move is None and bool(self._before.get("add-column-before-partition"))

        def insert(fields: Fields, name: str) -> Fields:
            names = [f.name for f in fields]
            if name in names:
                raise BadRequest(
                    f"{self.table}: column '{'.'.join(path)}' exists already", hint="take another name, or change it"
                )
            at = len(fields)
            if first:
                at = min((names.index(p) for p in self._partition), default=at)
            if change.move is not None:
                at = _place(self.table, names, change.move)
            return (*fields[:at], Field(number, name, t, comment), *fields[at:])

        self.fields = self._in_fields(self.fields, path, insert)

    def _drop(self, path: Path) -> None:
        self._guard(path, "dropped", index=True)

        def remove(fields: Fields, name: str) -> Fields:
            i = self._index(fields, name, path)
            if len(fields) == 1:
                raise BadRequest(
                    f"{self.table}: '{'.'.join(path)}' is the last column", hint="drop the table, or the whole ROW"
                )
            if len(path) == 1:
                self.options = undirected(self.options, name, fields[i].type)
            return (*fields[:i], *fields[i + 1 :])

        self.fields = self._in_fields(self.fields, path, remove)

    def _rename(self, path: Path, to: str) -> None:
        self._guard(path, "renamed", key=False, index=True)

        def change(fields: Fields, name: str) -> Fields:
            i = self._index(fields, name, path)
            if len(path) == 1 and is_blob_file(fields[i].type):
                raise BadRequest(
                    f"{self.table}: BLOB column '{name}' cannot be renamed", hint="its files are named after it"
                )
            if any(f.name == to for f in fields):
                raise BadRequest(f"{self.table}: column '{'.'.join((*path[:-1], to))}' exists already", hint=None)
            return (*fields[:i], replace(fields[i], name=to), *fields[i + 1 :])

        self.fields = self._in_fields(self.fields, path, change)
        if len(path) == 1:
            self.primary_keys = tuple(to if k == path[0] else k for k in self.primary_keys)
            self.options, new = alter_options.renamed(self.options, path[0], to)
            self.new_options += new

    def _retype(self, change: UpdateType, path: Path) -> None:
        self._guard(path, "changed to another type", index=True)
        explicit = not self._before.get("disable-explicit-type-casting")

        def cast(old: DataType) -> DataType:
            new = change.type.with_nullable(old.nullable) if change.keep_nullability else change.type
            self._nullable(old, new.nullable, path)
            if len(path) == 1 and (is_blob_file(old) or is_blob_file(new)):
                raise BadRequest(f"{self.table}: column '{path[0]}': {old} cannot become {new}, BLOB stays BLOB")
            no_rule = old.root in _TIMES and new.root == "VARCHAR" and not new.nullable
            narrows = old.nullable and not new.nullable and not explicit
            if no_rule or narrows or not alter_allows(old, new, explicit=explicit):
                raise BadRequest(
                    f"{self.table}: column '{'.'.join(path)}': {old} cannot become {new}",
                    hint=None if explicit else "'disable-explicit-type-casting' = 'false' allows more",
                )
            return new

        self._each_type(path, cast)

    def _nullable(self, t: DataType, nullable: bool, path: Path) -> DataType:
        if t.nullable and not nullable and self._before.get("alter-column-null-to-not-null.disabled"):
            raise BadRequest(
                f"{self.table}: column '{'.'.join(path)}' may hold null and cannot become NOT NULL",
                hint="'alter-column-null-to-not-null.disabled' = 'false' allows it; rows with null then fail to read",
            )
        return t.with_nullable(nullable)

    def _moved(self, column: str, move: Move) -> Fields:
        i = self._index(self.fields, column, (column,))
        rest = (*self.fields[:i], *self.fields[i + 1 :])
        # a column that would be its own neighbour, or stay where it is for FIRST and LAST: Java refuses
        stays = move.column == column or (move.to == "first" and i == 0) or (move.to == "last" and i == len(rest))
        if stays:
            raise BadRequest(f"{self.table}: column '{column}' cannot move to where it is", hint=None)
        at = _place(self.table, [f.name for f in rest], move)
        return (*rest[:at], self.fields[i], *rest[at:])

    # ---- the way to a column

    def _index(self, fields: Fields, name: str, path: Path) -> int:
        for i, f in enumerate(fields):
            if f.name == name:
                return i
        raise NotFound(
            f"{self.table}: column '{'.'.join(path)}' does not exist", hint=near(name, [f.name for f in fields])
        )

    def _in_fields(self, fields: Fields, path: Path, edit: Callable[[Fields, str], Fields]) -> Fields:
        """`edit` is given the fields beside the last name of the path."""
        if len(path) == 1:
            return edit(fields, path[0])
        return self._inside(fields, path, lambda t, rest: self._in_type(t, rest, path, edit))

    def _each_field(self, path: Path, edit: Callable[[Field], Field]) -> None:
        def change(fields: Fields, name: str) -> Fields:
            i = self._index(fields, name, path)
            return (*fields[:i], edit(fields[i]), *fields[i + 1 :])

        self.fields = self._in_fields(self.fields, path, change)

    def _inside(self, fields: Fields, path: Path, edit: Callable[[DataType, Path], DataType]) -> Fields:
        i = self._index(fields, path[0], path)
        field = replace(fields[i], type=edit(fields[i].type, path[1:]))
        return (*fields[:i], field, *fields[i + 1 :])

    def _in_type(self, t: DataType, rest: Path, path: Path, edit: Callable[[Fields, str], Fields]) -> DataType:
        if t.root == "ROW":
            return replace(t, fields=self._in_fields(t.fields, rest, edit))
        if len(rest) > 1:
            return self._step(t, rest[0], path, lambda inner: self._in_type(inner, rest[1:], path, edit))
        raise self._no_way(path)

    def _each_type(self, path: Path, edit: Callable[[DataType], DataType]) -> None:
        """The type at the end of the path, which may be an element or a value."""

        def walk(t: DataType, rest: Path) -> DataType:
            if not rest:
                return edit(t)
            if t.root == "ROW":
                return replace(t, fields=self._inside(t.fields, rest, walk))
            return self._step(t, rest[0], path, lambda inner: walk(inner, rest[1:]))

        self.fields = self._inside(self.fields, path, walk)

    def _step(self, t: DataType, name: str, path: Path, edit: Callable[[DataType], DataType]) -> DataType:
        if t.root == "ARRAY" and name == "element" and t.element is not None:
            return replace(t, element=edit(t.element))
        if t.root == "MAP" and name == "value" and t.value is not None:
            return replace(t, value=edit(t.value))
        raise self._no_way(path)

    def _no_way(self, path: Path) -> NotFound:
        return NotFound(
            f"{self.table}: column '{'.'.join(path)}' does not exist",
            hint="inside an ARRAY is 'element', inside a MAP 'value', inside a ROW the name of a member",
        )


def _with_default(field: Field, default: str | None) -> Field:
    if default is not None:
        default_value(default, field.type, field.name)
    return replace(field, default=default)


def _place(table: str, names: Sequence[str], move: Move) -> int:
    """Where to insert among `names`."""
    if move.to in ("first", "last"):
        return 0 if move.to == "first" else len(names)
    if move.column not in names:
        raise NotFound(
            f"{table}: column '{move.column}' does not exist", hint=near(str(move.column), names) or "name a neighbour"
        )
    return names.index(move.column) + (move.to == "after")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(n.strip() for n in text.split(",") if n.strip())
