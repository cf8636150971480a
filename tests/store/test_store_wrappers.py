# SPDX-License-Identifier: Apache-2.0
"""The wrappers: what is counted, what is refused, what fails and when."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.clock import ManualClock
from shoal.errors import BadRequest, NotFound, ShoalError, StorageFailed
from shoal.store import LocalStore, MemoryStore, Store
from shoal.store.faults import Died, Fault, FaultyStore
from shoal.store.wrappers import CountingStore, ReadOnlyStore


def stream(store: Store, path: str, *chunks: bytes) -> None:
    sink = store.sink(path)
    for chunk in chunks:
        sink.write(chunk)
    sink.close()


def five_changes(store: Store) -> None:
    """put, create, sink, put, delete."""
    store.put("a", b"old")
    store.create("b", b"1")
    stream(store, "c", b"12345678", b"abcdefgh")
    store.put("a", b"new")
    store.delete("b")


def files(store: Store) -> dict[str, bytes]:
    return {info.path: store.read(info.path) for info in store.list("")}


# -- counting


def test_calls_and_bytes_are_counted() -> None:
    store = CountingStore(MemoryStore())
    store.put("a", b"12345")
    store.create("b", b"123")
    store.create("b", b"123456789")
    stream(store, "c", b"12", b"3")
    store.read("a")
    store.read_range("a", 1, 2)
    store.size("a")
    list(store.list(""))
    store.list_dir("")
    with store.open("a") as file:
        file.seek(2)
        file.read(2)
    store.delete("a")
    once = ("put", "sink", "read", "read_range", "size", "list", "list_dir", "open", "delete")
    assert store.calls == {"create": 2, **dict.fromkeys(once, 1)}
    assert (store.mutations, store.bytes_written, store.bytes_read) == (5, 5 + 3 + 3, 5 + 2 + 2)
    store.reset()
    assert (store.mutations, store.bytes_read, store.bytes_written) == (0, 0, 0)


def test_reading_one_column_counts_fewer_bytes() -> None:
    store = CountingStore(MemoryStore())
    sink = store.sink("t.parquet")
    table = pa.table({"k": list(range(20_000)), "v": [f"long text {i}" for i in range(20_000)]})
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    sink.close()
    assert store.bytes_written == store.size("t.parquet")
    with store.open("t.parquet") as file:
        pq.read_table(file, columns=["k"])
    assert 0 < store.bytes_read < store.bytes_written


def test_a_missing_file_is_counted_and_still_not_found() -> None:
    store = CountingStore(MemoryStore())
    with pytest.raises(NotFound):
        store.read("a")
    assert store.calls["read"] == 1


# -- read-only


def test_a_read_only_store_reads_and_changes_nothing() -> None:
    inner = MemoryStore("lake")
    inner.put("t/a", b"12345")
    store = ReadOnlyStore(inner)
    assert (store.uri, store.read("t/a"), store.read_range("t/a", 1, 2), store.size("t/a")) == (
        "memory:lake",
        b"12345",
        b"23",
        5,
    )
    assert store.open("t/a").read() == b"12345"
    assert (store.list_dir(""), [i.path for i in store.list("")]) == ((["t"], []), ["t/a"])
    for change in (
        lambda: store.create("t/b", b""),
        lambda: store.put("t/a", b""),
        lambda: store.sink("t/c"),
        lambda: store.delete("t/a"),
    ):
        with pytest.raises(BadRequest, match=r"memory:lake/t/.: the store was opened read-only"):
            change()
    assert files(inner) == {"t/a": b"12345"}


# -- faults

DONE = {"a": b"new", "c": b"12345678abcdefgh"}


def test_without_a_plan_nothing_fails() -> None:
    store = FaultyStore(MemoryStore())
    five_changes(store)
    assert files(store) == DONE
    assert store.mutations == 5


@pytest.mark.parametrize(
    ("at", "left"),
    [
        (1, {}),
        (2, {"a": b"old"}),
        (3, {"a": b"old", "b": b"1", "c": b"12345678abcd"}),
        (4, {"a": b"old", "b": b"1", "c": b"12345678abcdefgh"}),
        (5, {"a": b"new", "b": b"1", "c": b"12345678abcdefgh"}),
    ],
)
@pytest.mark.parametrize("disk", [False, True])
def test_death_before_the_nth_change_leaves_the_changes_before_it(
    at: int, left: dict[str, bytes], disk: bool, tmp_path: Path
) -> None:
    inner = LocalStore(tmp_path) if disk else MemoryStore()
    store = FaultyStore(inner, Fault("die", at))
    with pytest.raises(Died):
        five_changes(store)
    assert store.dead
    assert files(inner) == left


def test_a_death_without_partial_files_leaves_no_file_at_the_sinks_path() -> None:
    inner = MemoryStore()
    with pytest.raises(Died):
        five_changes(FaultyStore(inner, Fault("die", 3), partial=False))
    assert files(inner) == {"a": b"old", "b": b"1"}


def test_death_after_the_nth_change_leaves_it_done() -> None:
    left = []
    for at in range(1, 6):
        inner = MemoryStore()
        with pytest.raises(Died):
            five_changes(FaultyStore(inner, Fault("die_after", at)))
        left.append(files(inner))
    assert left == [
        {"a": b"old"},
        {"a": b"old", "b": b"1"},
        {"a": b"old", "b": b"1", "c": b"12345678abcdefgh"},
        {"a": b"new", "b": b"1", "c": b"12345678abcdefgh"},
        DONE,
    ]


def test_failing_means_nothing_happened_and_the_next_try_works() -> None:
    for at in range(1, 6):
        inner = MemoryStore()
        store = FaultyStore(inner, Fault("fail", at))
        with pytest.raises(StorageFailed):
            five_changes(store)
        assert ("c" in files(inner)) == (at > 3)
        five_changes(store)
        assert files(inner) == DONE


def test_failing_after_means_it_happened() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, Fault("fail_after", kind="create", path="snapshot-2"))
    assert store.create("snapshot-1", b"1") is True
    with pytest.raises(StorageFailed, match="create snapshot-2"):
        store.create("snapshot-2", b"2")
    assert store.create("snapshot-2", b"2") is False
    assert inner.read("snapshot-2") == b"2"


def test_the_nth_call_of_a_kind_fails_for_as_many_times_as_planned() -> None:
    store = FaultyStore(MemoryStore(), Fault("fail", at=2, kind="read", times=2))
    store.put("a", b"x")
    outcomes = []
    for _ in range(5):
        try:
            outcomes.append(store.read("a"))
        except StorageFailed:
            outcomes.append(None)
    assert outcomes == [b"x", None, None, b"x", b"x"]


def test_several_faults_count_on_their_own() -> None:
    store = FaultyStore(MemoryStore(), [Fault("fail", kind="put"), Fault("die", kind="delete", at=2)])
    with pytest.raises(StorageFailed):
        store.put("a", b"")
    store.put("a", b"")
    store.delete("a")
    with pytest.raises(Died):
        store.delete("a")


def test_nothing_happens_after_death() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, Fault("die", kind="put"))
    store.create("a", b"1")
    sink = store.sink("open")
    sink.write(b"first")
    with pytest.raises(Died):
        store.put("a", b"2")
    for call in (
        lambda: store.read("a"),
        lambda: store.read_range("a", 0, 1),
        lambda: store.open("a"),
        lambda: store.size("a"),
        lambda: store.list(""),
        lambda: store.list_dir(""),
        lambda: store.create("b", b""),
        lambda: store.put("a", b""),
        lambda: store.sink("c"),
        lambda: store.delete("a"),
        sink.close,
        sink.abort,
    ):
        with pytest.raises(Died):
            call()
    sink.write(b"into the void")
    assert files(inner) == {"a": b"1"}


def test_a_parquet_writer_may_be_let_go_after_death(tmp_path: Path) -> None:
    inner = LocalStore(tmp_path)
    store = FaultyStore(inner, Fault("die", kind="put"))
    table = pa.table({"k": [1, 2, 3]})
    writer = pq.ParquetWriter(store.sink("data-1"), table.schema)
    writer.write_table(table)
    with pytest.raises(Died):
        store.put("a", b"")
    before = inner.size("data-1")
    del writer
    gc.collect()
    assert inner.size("data-1") == before


def test_died_is_not_caught_by_handlers_of_exceptions() -> None:
    assert not issubclass(Died, Exception)
    assert not issubclass(Died, ShoalError)


def test_a_stall_waits_on_the_clock_and_goes_on() -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(), Fault("stall", at=2, seconds=30), clock=clock)
    store.put("a", b"1")
    assert clock.monotonic() == 0
    stream(store, "b", b"2")
    assert clock.monotonic() == 30
    assert files(store) == {"a": b"1", "b": b"2"}


def test_an_aborted_sink_is_no_change() -> None:
    store = FaultyStore(MemoryStore(), Fault("fail", 1))
    sink = store.sink("a")
    sink.write(b"x")
    sink.abort()
    sink.close()
    assert store.mutations == 0
    with pytest.raises(StorageFailed):
        store.put("a", b"")


def test_the_same_changes_count_the_same_in_both_wrappers() -> None:
    counting = CountingStore(MemoryStore())
    faulty = FaultyStore(counting)
    five_changes(faulty)
    assert counting.mutations == faulty.mutations == 5


def test_one_of_many_threads_meets_the_fault() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, Fault("fail", at=50))
    failed = []

    def work(me: int) -> None:
        for n in range(20):
            try:
                store.put(f"{me}/{n}", b"")
            except StorageFailed:
                failed.append((me, n))

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 1
    assert store.mutations == 160
    assert len(files(inner)) == 159


@pytest.mark.parametrize("fault", [{"action": "dye"}, {"action": "die", "kind": "crate"}])
def test_an_unknown_fault_is_refused_with_a_hint(fault: dict[str, str]) -> None:
    with pytest.raises(BadRequest) as caught:
        Fault(**fault)
    assert caught.value.hint in ("did you mean 'die'?", "did you mean 'create'?")
