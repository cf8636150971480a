# SPDX-License-Identifier: Apache-2.0
"""What every store promises, asked of each of them."""

from __future__ import annotations

import gc
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.errors import BadRequest, NotFound, ShoalError
from shoal.store import Store

TABLE = pa.table({"k": list(range(1000)), "v": [f"value {i}" for i in range(1000)]})
SNAPSHOT = "db.db/t/snapshot/snapshot-1"


def paths(store: Store, prefix: str) -> list[str]:
    return sorted(info.path for info in store.list(prefix))


def test_what_was_put_is_read_back(store: Store) -> None:
    store.put("a/b/c", b"hello")
    assert store.read("a/b/c") == b"hello"
    assert store.size("a/b/c") == 5


def test_put_replaces(store: Store) -> None:
    store.put("hint", b"a longer one")
    store.put("hint", b"2")
    assert store.read("hint") == b"2"


def test_create_makes_the_file_once(store: Store) -> None:
    assert store.create(SNAPSHOT, b"first") is True
    assert store.create(SNAPSHOT, b"second") is False
    assert store.read(SNAPSHOT) == b"first"


def test_create_does_not_replace_a_put_file(store: Store) -> None:
    store.put("a", b"put")
    assert store.create("a", b"created") is False
    assert store.read("a") == b"put"


def test_a_deleted_file_can_be_created_again(store: Store) -> None:
    store.create("a", b"1")
    store.delete("a")
    assert store.create("a", b"2") is True


def test_an_empty_file_is_a_file(store: Store) -> None:
    store.put("t/empty", b"")
    assert store.size("t/empty") == 0
    assert store.read("t/empty") == b""
    assert paths(store, "t") == ["t/empty"]


def test_one_of_many_threads_creates(store: Store) -> None:
    wins: list[tuple[int, int]] = []
    start = threading.Barrier(8)

    def race(me: int) -> None:
        start.wait()
        for n in range(10):
            if store.create(f"race/{n}", str(me).encode()):
                wins.append((n, me))

    threads = [threading.Thread(target=race, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(n for n, _ in wins) == list(range(10))
    assert all(store.read(f"race/{n}") == str(me).encode() for n, me in wins)


@pytest.mark.parametrize("ask", ["read", "size", "open"])
def test_a_missing_file_is_not_found_and_named(store: Store, ask: str) -> None:
    with pytest.raises(NotFound, match="no/such/file"):
        getattr(store, ask)("no/such/file")


def test_a_range_of_a_missing_file_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match="no/such"):
        store.read_range("no/such", 0, 10)


def test_a_folder_is_not_a_file(store: Store) -> None:
    store.put("a/b", b"x")
    for ask in (store.read, store.size, store.open):
        with pytest.raises(NotFound):
            ask("a")


def test_deleting_a_missing_file_or_a_full_folder_changes_nothing(store: Store) -> None:
    store.put("a/b", b"x")
    store.delete("a")
    store.delete("a/c")
    store.delete("z/z")
    store.delete("a/b/c")
    assert paths(store, "") == ["a/b"]


def test_ranges_end_at_the_end_of_the_file(store: Store) -> None:
    store.put("a", b"0123456789")
    assert store.read_range("a", 2, 3) == b"234"
    assert store.read_range("a", 7, 100) == b"789"
    assert store.read_range("a", 10, 5) == b""
    assert store.read_range("a", 50, 5) == b""
    assert store.read_range("a", 3, 0) == b""


def test_list_is_recursive_and_knows_sizes(store: Store) -> None:
    for path in ("t/a", "t/dt=2024-01-01 00%3A00/bucket-0/data-1", "tt/x", "t-2/x", "u"):
        store.put(path, path.encode())
    assert {i.path: i.size for i in store.list("t")} == {"t/a": 3, "t/dt=2024-01-01 00%3A00/bucket-0/data-1": 39}
    assert paths(store, "t/") == paths(store, "t")
    assert len(paths(store, "")) == 5
    assert all(i.modified_ms > 1_700_000_000_000 for i in store.list(""))


def test_list_of_a_missing_folder_is_empty(store: Store) -> None:
    store.put("a/file", b"")
    assert paths(store, "b") == []
    assert paths(store, "a/file") == []
    assert store.list_dir("b") == ([], [])
    assert store.list_dir("a/file") == ([], [])


def test_list_dir_names_folders_and_files_sorted(store: Store) -> None:
    for path in ("t/z", "t/b/1", "t/b/2", "t/a/deep/1", "t/c", "top"):
        store.put(path, b"x")
    assert store.list_dir("t") == (["a", "b"], ["c", "z"])
    assert store.list_dir("") == (["t"], ["top"])
    assert store.list_dir("t/a/") == (["deep"], [])


def test_listings_leave_hidden_names_out(store: Store) -> None:
    store.put("t/.snapshot-1.0.tmp", b"half")
    store.put("t/.hidden/x", b"x")
    store.put("t/snapshot-1", b"x")
    assert paths(store, "") == ["t/snapshot-1"]
    assert store.list_dir("t") == ([], ["snapshot-1"])
    assert store.read("t/.snapshot-1.0.tmp") == b"half"


def test_files_may_be_deleted_while_they_are_listed(store: Store) -> None:
    for n in range(20):
        store.put(f"t/{n % 3}/{n}", b"x")
    for info in store.list("t"):
        store.delete(info.path)
    assert paths(store, "t") == []


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "", "a//b", "./a", "a/", "a\0b", ".."])
def test_a_path_that_leaves_the_root_is_refused(store: Store, path: str) -> None:
    for ask in (store.read, store.size, store.open, store.delete, store.sink):
        with pytest.raises(BadRequest):
            ask(path)
    for write in (store.create, store.put):
        with pytest.raises(BadRequest):
            write(path, b"x")
    with pytest.raises(BadRequest):
        store.read_range(path, 0, 1)


def test_a_listing_outside_the_root_is_refused(store: Store) -> None:
    with pytest.raises(BadRequest):
        list(store.list("../x"))
    with pytest.raises(BadRequest):
        store.list_dir("a/..")


def test_odd_names_are_kept_as_they_are(store: Store) -> None:
    names = ["dt=2024-01-01 00%3A00%3A00", "a+b&c=d", "~x", "数据", "[1]{2}^#?*|<>\"`'"]
    for name in names:
        assert store.create(f"odd/{name}/f", name.encode())
    assert store.list_dir("odd")[0] == sorted(names)
    for name in names:
        assert store.read(f"odd/{name}/f") == name.encode()


def test_a_sink_appears_at_close(store: Store) -> None:
    sink = store.sink("t/bucket-0/data-1")
    assert (sink.closed, sink.writable(), sink.readable(), sink.seekable()) == (False, True, False, False)
    assert sink.write(b"hello ") == 6
    assert sink.write(memoryview(b"world")) == 5
    sink.flush()
    assert sink.tell() == 11
    sink.close()
    sink.close()
    assert sink.closed
    assert store.read("t/bucket-0/data-1") == b"hello world"
    with pytest.raises(ValueError):
        sink.write(b"more")


def test_an_empty_sink_makes_an_empty_file(store: Store) -> None:
    store.sink("t/empty").close()
    assert store.size("t/empty") == 0


def test_an_aborted_sink_leaves_nothing(store: Store) -> None:
    sink = store.sink("t/data-1")
    sink.write(b"x" * 100)
    sink.abort()
    sink.abort()
    sink.close()
    assert sink.closed
    assert paths(store, "t") == []
    with pytest.raises(NotFound):
        store.size("t/data-1")


def test_abort_after_close_keeps_the_file(store: Store) -> None:
    sink = store.sink("t/data-1")
    sink.write(b"x")
    sink.close()
    sink.abort()
    assert store.read("t/data-1") == b"x"


def test_parquet_goes_out_through_a_sink_and_comes_back_through_open(store: Store) -> None:
    sink = store.sink("t/data-1.parquet")
    pq.write_table(TABLE, sink, row_group_size=100)
    sink.close()
    with store.open("t/data-1.parquet") as file:
        assert file.size() == store.size("t/data-1.parquet")
        assert pq.read_table(file) == TABLE
    with store.open("t/data-1.parquet") as file:
        found = pq.ParquetFile(file, pre_buffer=True).read(columns=["k"], use_threads=True)
        assert found == TABLE.select(["k"])


def test_open_seeks_and_reads_like_a_file(store: Store) -> None:
    data = bytes(range(256)) * 20
    store.put("a", data)
    with store.open("a") as file:
        file.seek(-10, 2)
        assert file.read(4) == data[-10:-6]
        assert file.tell() == len(data) - 6
        assert file.read(100) == data[-6:]
        assert file.read(5) == b""
        file.seek(3)
        assert file.read() == data[3:]
        assert file.read_at(7, 100) == data[100:107]


def test_a_parquet_writer_let_go_after_abort_leaves_nothing(store: Store) -> None:
    sink = store.sink("t/data-1.parquet")
    writer = pq.ParquetWriter(sink, TABLE.schema)
    writer.write_table(TABLE)
    sink.abort()
    del writer
    gc.collect()
    assert paths(store, "t") == []


def test_errors_are_ours(store: Store) -> None:
    with pytest.raises(ShoalError):
        store.read("missing")
    assert ":" in store.uri
