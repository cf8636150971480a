# SPDX-License-Identifier: Apache-2.0
"""What the rules look at: one set of options with what is known around it.

A `Subject` is a table as its schema or its CREATE TABLE says, a hint, a catalog, or the configuration of a Flink job.
What is not known is None: a rule that needs it then says nothing.

Invariant: `options` holds only values that Java can read, so that a value that one rule calls wrong is no other rule's
premise; `has` and `value` speak of what was written, right or wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, cast

from shoal.errors import BadRequest
from shoal.option_table import lookup
from shoal.option_values import parse_duration
from shoal.options import Options

if TYPE_CHECKING:
    from shoal.doctor.lint.seen import Seen
    from shoal.format.schema import Schema

Kind = Literal["table", "hint", "catalog", "job"]
INTERVAL = "execution.checkpointing.interval"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a text stands: lines and columns count from 1."""

    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Setting:
    """One option as it was written. `place` is None where there is no text, as in a schema file."""

    key: str
    value: str
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Around:
    """What no option says: how fresh readers want the rows, where the table lies, what writes it."""

    slo_ms: int | None = None
    store: str | None = None  # the scheme of its address: file, hdfs, s3, oss, ...
    cdc: bool = False  # rows come from a CDC action, not from SQL
    streaming: bool | None = None  # how the job runs


@dataclass(frozen=True)
class Subject:
    """One set of options. `name` is the table, the catalog, or the file of a configuration."""

    kind: Kind
    name: str
    settings: Mapping[str, Setting]
    schema: Schema | None = None  # None: columns and keys are not known
    exact: bool = True  # False: nested types of the schema are stand-ins
    job: Mapping[str, Setting] = field(default_factory=dict)  # the Flink configuration, where there is one
    around: Around = Around()
    seen: Seen | None = None  # what snapshots show; rules that need it say nothing without
    before: Mapping[str, str] | None = None  # options before an ALTER
    place: Place | None = None

    # ---- what was written

    def has(self, key: str) -> bool:
        """Whether the option is set, under this key or an older one, readable or not."""
        return self.setting(key) is not None

    def setting(self, key: str) -> Setting | None:
        spec = lookup(key)
        names = (key,) if spec is None or spec.patterned else (spec.key, *spec.old_keys)
        return next((self.settings[n] for n in names if n in self.settings), None)

    @cached_property
    def wrong(self) -> Mapping[str, BadRequest]:
        """Keys whose value Java cannot read, with why."""
        out = {}
        for key, setting in self.settings.items():
            spec = lookup(key)
            if spec is None or (spec.type == "map" and key != spec.key):
                continue
            if self.kind == "catalog" and key == "type":
                continue  # there it names the kind of catalog
            try:
                spec.parse(setting.value, key)
            except BadRequest as err:
                out[key] = err
        return out

    # ---- what it means

    @cached_property
    def options(self) -> Options:
        """The typed view: values that can be read, defaults for the others."""
        raw = {k: s.value for k, s in self.settings.items() if k not in self.wrong}
        return Options(raw, strict=False)

    def flag(self, key: str) -> bool:
        return bool(self.options.get(key))

    def number(self, key: str) -> int | None:
        """An int, long, size in bytes or duration in ms; None when it is unset and has no default."""
        return cast("int | None", self.options.get(key))

    def real(self, key: str) -> float:
        return cast(float, self.options.get(key))

    def text(self, key: str) -> str | None:
        value = self.options.get(key)
        return None if value is None else str(value)

    @property
    def has_key(self) -> bool | None:
        """Whether the table has a primary key; None when that is not known."""
        return None if self.schema is None else bool(self.schema.primary_keys)

    @property
    def keyed(self) -> bool:
        """Whether options of the merge tree act: the table has a primary key, or nothing says that it has none."""
        return self.has_key is not False

    @property
    def producer(self) -> str:
        return self.options.changelog_producer

    @property
    def engine(self) -> str:
        return self.options.merge_engine

    # ---- what is around it

    @property
    def interval_ms(self) -> int | None:
        """Time between checkpoints: as the job says, else as the snapshots show."""
        return self.job_ms(INTERVAL) or (None if self.seen is None else self.seen.interval_ms)

    def job_ms(self, key: str) -> int | None:
        """A duration of the job's configuration; None when it is unset or cannot be read."""
        setting = self.job.get(key)
        if setting is None:
            return None
        try:
            return parse_duration(setting.value, key)
        except BadRequest:
            return None

    @property
    def on_objects(self) -> bool:
        """Whether the table lies in an object store, whose folders are prefixes."""
        return (self.around.store or "") in OBJECT_STORES

    def own(self, *keys: str) -> Iterator[Setting]:
        """Those of the options that are set."""
        for key in keys:
            if (setting := self.setting(key)) is not None:
                yield setting


# schemes whose FileIO says isObjectStore() in the release
OBJECT_STORES = ("s3", "s3a", "s3n", "oss", "cosn", "obs", "gs", "abfs", "abfss", "wasb", "wasbs")


def settings_of(options: Mapping[str, str]) -> dict[str, Setting]:
    """Options without places."""
    return {k: Setting(k, v) for k, v in options.items()}


def scheme_of(uri: str | None) -> str | None:
    """The scheme of an address; a plain path is a file.

    >>> scheme_of("s3://bucket/lake"), scheme_of("/data/lake"), scheme_of(None)
    ('s3', 'file', None)
    """
    if not uri:
        return None
    head, found, _ = uri.partition(":")
    return head.lower() if found and head.isalnum() and len(head) > 1 else "file"
