# SPDX-License-Identifier: Apache-2.0
"""Lookup files that compactions keep beside their data files: Java's bytes, one for each file, gone with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import Conflict, Unsupported
from shoal.format.datafile import DataFile
from shoal.format.manifest import entries_of
from shoal.format.types import DataType
from shoal.store.memory import MemoryStore
from shoal.table.table import Table
from tests.faults.walk import left_over, missing
from tests.table.lookup_tables import KINDS, PAIR, STORED, entries, rows_of

COUNT = 300
# SHA-256 of the file that Java's compaction of the same rows makes (tests/interop/test_java_stored_lookups.py)
JAVA = {
    "value": "47f773221cfe327ec3aabc4758dc8f4d59c771e8b08656c2c30afee9511bd133",
    "nested": "e203df166dd82b4772ad44eaf024ecf1fff3eb8748032cbb21d1f587c0fa7396",
    "two keys": "b39cd7ad3f15a77b34be54587117aa2f6604b05a2a1731fc052a58837ddb40db",
    "empty": "c5f2ea0fb96090d170df7fde2835ac33bd830117a7c7936271bf9873f1b6f92a",
    "position": "7e16c2c13f96b881d069d83d572ccaef10da307490b8c6e0e61242bcb7a308ce",
    "position and value": "0c5b0cc2fee7b8d0db60d5cb2d94a0ef887c1f0671581253c5b8149052d96656",
    "summed": "e8e4a52e9ca736ed1b7f605861acc5084cf846e346ef1baccef1384e1e72d26c",
}


def make(store: Any = None, schema: pa.Schema = PAIR, key: tuple[str, ...] = ("k",), **options: object) -> Table:
    named = {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}
    lake = Lake(store or MemoryStore(), clock=ManualClock(1_767_225_600_000), scheduler=ManualScheduler)
    return lake.create_table("d.t", schema, primary_key=list(key), options={**STORED, **named})


def add(t: Table, start: int, stop: int, **more: Any) -> None:
    rows = [{"p": "x", "t": "t", "k": k, "v": f"v{k}"} | more for k in range(start, stop)]
    with t.write() as w:
        w.upsert(rows)
        w.commit()


def live(t: Table) -> Iterator[tuple[DataFile, list[str]]]:
    """The files of the newest snapshot, each with the lookup files beside it."""
    for e in entries_of(t.metadata.live(t.metadata.latest())):
        yield e.file, [x for x in e.file.extra_files if x.endswith(".lookup")]


def stored(t: Table) -> list[str]:
    return sorted(f.path for f in t.store.list("") if f.path.endswith(".lookup"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_are_those_of_java(kind: str) -> None:
    schema, key, parts, options = KINDS[kind]
    lake = Lake(MemoryStore(), clock=ManualClock(1_767_225_600_000), scheduler=ManualScheduler)
    t = lake.create_table("d.t", schema, primary_key=key, partition_by=parts, options={**STORED, **options})
    with t.write() as w:
        w.upsert(rows_of(schema, COUNT))
        w.commit()
    t.maintain.compact(full=True)
    ((file, (name,)),) = live(t)
    (path,) = [p for p in stored(t) if p.endswith(name)]
    data = t.store.read(path)
    content = {"nested": "value", "two keys": "value", "summed": "value"}.get(kind, kind.replace(" ", "-"))
    assert name.startswith(f"{file.file_name}.") and name.endswith(f".{len(data)}.{content}.v1.lookup")
    assert hashlib.sha256(data).hexdigest() == JAVA[kind]
    assert len(list(entries(data))) == COUNT


USES: dict[str, dict[str, object]] = {
    "lookup": {"changelog_producer": "lookup"},
    "lookup, zstd": {"changelog_producer": "lookup", "lookup__cache_spill_compression": "zstd"},
    "lookup, lz4": {"changelog_producer": "lookup", "lookup__cache_spill_compression": "lz4"},
    "lookup, moved files": {"changelog_producer": "lookup", "target_file_size": "1 b"},
    "first row": {"merge_engine": "first-row"},
    "deletion vectors": {"deletion_vectors__enabled": True},
    "dynamic buckets": {"changelog_producer": "lookup", "bucket": -1},
    "write only": {"changelog_producer": "lookup", "write_only": True},
}


@pytest.mark.parametrize("name", USES)
def test_every_compacted_file_has_one_that_goes_with_it(name: str) -> None:
    t = make(**USES[name])
    for step in range(6):
        add(t, step * 3, step * 3 + 40, v="again" * step)
        if step % 2 and name != "first row":
            with t.write() as w:
                w.delete([{"k": step}])
                w.commit()
        t.maintain.compact(full=step == 3)
        for file, names in live(t):
            assert len(names) == (file.level > 0), file
            for n in names:
                (path,) = [p for p in stored(t) if p.endswith(n)]
                found = list(entries(t.store.read(path)))
                assert len(found) == file.row_count
                assert n.startswith(f"{file.file_name}.") and f".{t.store.size(path)}." in n
        assert list(missing(t)) == []
        assert left_over(t) == []
    assert any(names for _, names in live(t))
    t.maintain.expire(retain_min=1, retain_max=1, older_than=t.clock.now_ms() + 1)
    assert [p.rpartition("/")[2] for p in stored(t)] == sorted(n for _, names in live(t) for n in names)
    t.maintain.compact(full=True)
    rows = t.scan().to_arrow().num_rows
    if t.options.bucket > 0:
        t.maintain.rescale(2)
        t = t.with_schema(t.metadata.schema(t.metadata.latest_schema_id() or 0))
        assert all(len(names) == 1 for _, names in live(t))
    assert t.scan().to_arrow().num_rows == rows
    t.overwrite(pa.Table.from_pylist([], schema=PAIR), dynamic=False)
    t.maintain.expire(retain_min=1, retain_max=1, older_than=t.clock.now_ms() + 1)
    assert stored(t) == []
    assert left_over(t) == []


def test_a_key_finds_its_row() -> None:
    t = make(changelog_producer="lookup")
    add(t, 0, 100)
    t.maintain.compact(full=True)
    (path,) = stored(t)
    found = dict(entries(t.store.read(path)))
    # a row kind and null bits, then the number; at the end of the value sequence number and kind
    for k in range(100):
        value = found[bytes(2) + k.to_bytes(8, "little")]
        assert f"v{k}".encode() in value
        assert int.from_bytes(value[-9:-1], "little") == k
        assert value[-1] == 2


def test_levels_below_the_threshold_get_none() -> None:
    t = make(changelog_producer="lookup", lookup__remote_file__level_threshold=5, num_sorted_run__compaction_trigger=5)
    add(t, 0, 3000)
    t.maintain.compact(full=True)
    for step in range(4):
        add(t, step, step + 1)
    levels = {file.level: len(names) for file, names in live(t)}
    assert levels.pop(5) == 1
    assert set(levels.values()) == {0} and min(levels) > 0


@pytest.mark.parametrize(
    "options",
    [{}, {"changelog_producer": "full-compaction"}, {"changelog_producer": "input"}, {"lookup__remote_file__enabled": False}],
)  # fmt: skip
def test_tables_that_look_nothing_up_get_none(options: dict[str, object]) -> None:
    t = make(**options)
    add(t, 0, 10)
    t.maintain.compact(full=True)
    assert stored(t) == []


def test_what_cannot_be_written_is_told_before_there_are_rows() -> None:
    kind = DataType("VECTOR", element=DataType("FLOAT"), length=3)
    vectors = make(schema=pa.schema([pa.field("k", pa.int64(), False)]), changelog_producer="lookup")
    vectors = vectors.alter(add={"e": kind})
    row = [{"k": 1, "e": [1.0, 2.0, 3.0]}]
    cases = [
        (vectors, row, "'lookup.remote-file.enabled' takes no column of type VECTOR"),
        (make(changelog_producer="lookup", lookup__cache_spill_compression="lzo"), [{"k": 1}], "'lzo' is not supported"),
    ]  # fmt: skip
    for t, rows, message in cases:
        with pytest.raises(Unsupported, match=message):
            t.write()
        late = t.with_options({"write-only": True})
        with late.write() as w:
            w.upsert(rows)
            w.commit()
        with pytest.raises(Unsupported, match=message):
            late.maintain.compact(full=True)
        assert t.scan().to_arrow().num_rows == 1
        t.with_options({"lookup.remote-file.enabled": False}).maintain.compact(full=True)
        assert stored(t) == []


def test_a_file_of_an_older_schema_that_only_moves_gets_none() -> None:
    """Its readers would take the values for those of its own schema."""
    t = make(changelog_producer="lookup", target_file_size="1 b")
    with t.with_options({"write-only": True}).write() as w:
        w.upsert([{"k": 1, "v": "a"}])
        w.commit()
    t = t.alter(add={"extra": "INT"})
    t.maintain.compact()
    assert [(file.level, names) for file, names in live(t)] == [(5, [])]
    t.maintain.compact(full=True)
    assert t.scan().to_arrow().to_pylist() == [{"p": None, "t": None, "k": 1, "v": "a", "extra": None}]


@pytest.mark.parametrize("target", ["128 mb", "1 b"])
def test_a_compaction_that_comes_to_nothing_leaves_none(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    t = make(changelog_producer="lookup", target_file_size=target)
    late = t.with_options({"write-only": True})
    add(late, 0, 10)
    from shoal.table import maintain

    publish = maintain.publish

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(maintain, "publish", publish)
        t.with_schema(t.schema).maintain.compact(full=True)
        return publish(*args)

    monkeypatch.setattr(maintain, "publish", meanwhile)
    with pytest.raises(Conflict):
        t.maintain.compact(full=True)
    assert len(stored(t)) == 1
    assert left_over(t) == []
