# SPDX-License-Identifier: Apache-2.0
"""What only a disk does: races between processes, a full disk, missing rights, missing hard links, a crash."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import race_worker

from shoal.errors import NotFound, StorageFailed
from shoal.store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "lake")


def everything(store: LocalStore) -> list[str]:
    """Every name on disk, hidden ones too."""
    return sorted(str(p.relative_to(store.root)) for p in Path(store.root).rglob("*") if p.is_file())


def fails_with(number: int):
    def fail(*_args: object, **_kwargs: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def test_one_of_four_processes_creates_each_of_200_files(store: LocalStore) -> None:
    processes, files = 4, 200
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(processes)
    racers = [spawn.Process(target=race_worker.race, args=(store.root, n, files, start)) for n in range(processes)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0
        racer.close()
    won: Counter[int] = Counter()
    for report in Path(store.root).glob("won-*"):
        me = report.name.split("-")[1]
        for n in report.read_text().split():
            won[int(n)] += 1
            assert store.read(f"race/snapshot-{n}").startswith(f"{me} {n} ".encode())
    assert won == Counter(dict.fromkeys(range(files), 1))
    assert len(everything(store)) == files + processes


def test_no_temporary_file_stays_after_create_and_put(store: LocalStore) -> None:
    store.create("t/snapshot-1", b"1")
    store.create("t/snapshot-1", b"2")
    store.put("t/LATEST", b"1")
    assert everything(store) == ["t/LATEST", "t/snapshot-1"]


def test_a_temporary_file_of_a_crash_is_not_listed(store: LocalStore) -> None:
    store.create("t/snapshot-1", b"1")
    Path(store.root, "t", ".snapshot-2.0b5f.tmp").write_bytes(b"half")
    assert [i.path for i in store.list("")] == ["t/snapshot-1"]
    assert store.list_dir("t") == ([], ["snapshot-1"])
    assert store.create("t/snapshot-2", b"2") is True


@pytest.mark.parametrize("write", ["create", "put"])
def test_a_disk_that_fills_up_leaves_nothing_half_written(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    store.put("t/LATEST", b"old")
    monkeypatch.setattr(os, "write", fails_with(errno.ENOSPC))
    for path in ("t/LATEST", "t/new"):
        with pytest.raises(StorageFailed, match=r"no space left on .*lake/t") as caught:
            getattr(store, write)(path, b"new bytes")
        assert caught.value.hint is not None
    assert everything(store) == ["t/LATEST"]
    assert store.read("t/LATEST") == b"old"


def test_a_disk_that_fills_up_under_a_sink_removes_the_file(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = store.sink("t/data-1")
    sink.write(b"some")
    monkeypatch.setattr(os, "write", fails_with(errno.EDQUOT))
    with pytest.raises(StorageFailed, match="no space left on"):
        sink.write(b"more")
    assert sink.closed
    sink.close()
    assert everything(store) == []


def test_a_full_disk_reaches_the_caller_through_a_parquet_writer(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = store.sink("t/data-1.parquet")
    monkeypatch.setattr(os, "write", fails_with(errno.ENOSPC))
    with pytest.raises(StorageFailed, match="no space left on"):
        pq.write_table(pa.table({"k": [1, 2, 3]}), sink)
    assert everything(store) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[LocalStore]:
    """A file system of 64 KiB, which root may mount."""
    at = tmp_path / "small"
    at.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(at)], capture_output=True)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip("may not mount a file system")
    yield LocalStore(at)
    subprocess.run(["umount", str(at)], check=True)


def test_a_really_full_disk_leaves_nothing_half_written(small_disk: LocalStore) -> None:
    small_disk.put("a", b"x" * 20_000)
    for write in (small_disk.create, small_disk.put):
        with pytest.raises(StorageFailed, match="no space left on"):
            write("b", b"x" * 100_000)
    with pytest.raises(StorageFailed, match="no space left on"):
        small_disk.put("a", b"y" * 100_000)
    sink = small_disk.sink("data-1")
    with pytest.raises(StorageFailed, match="no space left on"):
        sink.write(b"x" * 100_000)
    assert everything(small_disk) == ["a"]
    assert small_disk.read("a") == b"x" * 20_000
    assert small_disk.create("b", b"x" * 20_000) is True


@pytest.fixture
def forbidden() -> Iterator[LocalStore]:
    """A store with a file `locked/a`, whose folder this process may neither read nor change."""
    # not in tmp_path: pytest's own folders are closed to the user that root becomes below
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        store = LocalStore(Path(top) / "lake")
        store.put("locked/a", b"x")
        locked = Path(store.root, "locked")
        locked.chmod(0)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield store
        finally:
            if root:
                os.seteuid(0)
            locked.chmod(0o755)


def test_missing_rights_are_named_with_a_hint(forbidden: LocalStore) -> None:
    for ask in (
        lambda: forbidden.read("locked/a"),
        lambda: forbidden.size("locked/a"),
        lambda: forbidden.open("locked/a"),
        lambda: forbidden.create("locked/b", b""),
        lambda: forbidden.put("locked/a", b""),
        lambda: forbidden.sink("locked/c"),
        lambda: forbidden.delete("locked/a"),
        lambda: forbidden.list_dir("locked"),
        lambda: list(forbidden.list("")),
    ):
        with pytest.raises(StorageFailed, match=r"locked.*Permission denied") as caught:
            ask()
        assert "owner and mode" in str(caught.value.hint)


def test_other_errors_of_the_disk_are_storage_errors(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", fails_with(errno.EIO))
    with pytest.raises(StorageFailed, match=r"cannot create .*t/a: Input/output error"):
        store.create("t/a", b"x")
    assert everything(store) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_hard_links_create_still_makes_the_file_once(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", fails_with(number))
    assert store.create("t/snapshot-1", b"first") is True
    assert store.create("t/snapshot-1", b"second") is False
    assert everything(store) == ["t/snapshot-1"]
    assert store.read("t/snapshot-1") == b"first"


def test_without_hard_links_a_full_disk_leaves_nothing(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", fails_with(errno.EPERM))
    real = os.write
    writes = 0

    def write(fd: int, data: memoryview) -> int:
        nonlocal writes
        writes += 1
        if writes == 2:  # the first one fills the temporary file
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StorageFailed, match="no space left on"):
        store.create("t/snapshot-1", b"first")
    assert everything(store) == []


def test_a_link_whose_answer_was_lost_counts_as_ours(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def twice(source: str, target: str) -> None:
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "link", twice)
    assert store.create("t/snapshot-1", b"first") is True
    monkeypatch.undo()
    assert store.create("t/snapshot-1", b"second") is False


def test_short_writes_are_continued(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    store.put("a", b"0123456789")
    assert store.read("a") == b"0123456789"


def test_a_sink_refuses_a_name_that_exists(store: LocalStore) -> None:
    store.put("t/data-1", b"x")
    with pytest.raises(StorageFailed, match="exists already"):
        store.sink("t/data-1")
    assert store.read("t/data-1") == b"x"


def test_a_sink_let_go_leaves_a_file_and_no_warning(store: LocalStore) -> None:
    sink = store.sink("t/data-1")
    sink.write(b"part")
    del sink
    assert store.read("t/data-1") == b"part"


def test_deleting_an_empty_folder_removes_it(store: LocalStore) -> None:
    store.put("db.db/t/a", b"x")
    store.delete("db.db/t")
    store.delete("db.db/t/a")
    store.delete("db.db/t")
    store.delete("db.db/t")
    assert store.list_dir("db.db") == ([], [])


def test_a_long_name_has_room_for_its_temporary_name(store: LocalStore) -> None:
    name = "n" * 250
    assert store.create(name, b"x") is True
    assert store.create("数" * 80, b"x") is True
    assert store.size(name) == 1


def test_a_file_where_a_folder_should_be_is_a_storage_error(store: LocalStore) -> None:
    store.put("a", b"x")
    for write in (store.create, store.put):
        with pytest.raises(StorageFailed):
            write("a/b", b"x")
    with pytest.raises(NotFound):
        store.read("a/b")
    with pytest.raises(StorageFailed):
        store.put("c/d", b"x") or store.put("c", b"x")


def test_a_new_file_follows_the_umask(store: LocalStore) -> None:
    before = os.umask(0o027)
    try:
        store.create("a", b"x")
    finally:
        os.umask(before)
    assert os.stat(Path(store.root, "a")).st_mode & 0o777 == 0o640


def test_uri_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LocalStore("lake").uri == f"file:{tmp_path}/lake"
    assert LocalStore("/").uri == "file:/"
