# SPDX-License-Identifier: Apache-2.0
"""The object store's own parts: ranged reads (no server needed), and S3 against a server (marked `live`)."""

from __future__ import annotations

import gc
import io
import random
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.errors import NotFound, StorageFailed
from shoal.store import open_store
from shoal.store.object import READ_AHEAD, RangedFile
from shoal.store.s3 import s3_store


class Ranges:
    """Serves ranges of `data` and remembers them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def __call__(self, start: int, length: int) -> bytes:
        assert 0 <= start < len(self.data) and length > 0
        self.asked.append((start, length))
        return self.data[start : start + length]


def test_ranged_reads_equal_reads_of_a_plain_file() -> None:
    rng = random.Random(7)
    data = rng.randbytes(3 * READ_AHEAD + 17)
    plain, ranged = io.BytesIO(data), RangedFile(len(data), Ranges(data))
    for _ in range(300):
        if rng.random() < 0.5:
            at = rng.randrange(len(data) + 10)
            assert ranged.seek(at) == plain.seek(at)
        count = rng.choice([0, 1, 100, 70_000, READ_AHEAD, READ_AHEAD + 5])
        assert ranged.read(count) == plain.read(count)
        assert ranged.tell() == plain.tell()


def test_a_small_file_is_fetched_once() -> None:
    ranges = Ranges(bytes(1000))
    file = RangedFile(1000, ranges)
    file.seek(-8, io.SEEK_END)
    file.read(8)
    file.seek(0)
    file.read()
    assert ranges.asked == [(0, 1000)]


def test_small_reads_in_order_share_a_request_and_large_ones_ask_for_what_they_need() -> None:
    size = 4 * READ_AHEAD
    ranges = Ranges(bytes(size))
    file = RangedFile(size, ranges)
    for _ in range(16):
        file.read(READ_AHEAD // 16)
    assert ranges.asked == [(0, READ_AHEAD)]
    file.read(2 * READ_AHEAD)
    assert ranges.asked[1:] == [(READ_AHEAD, 2 * READ_AHEAD)]
    assert len(file.read()) == READ_AHEAD
    assert file.read() == b""


def test_an_unreachable_store_is_a_storage_error() -> None:
    options = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key": "a", "s3.secret-key": "b"}
    store = s3_store("bucket", "x", options, retry_seconds=0)
    for ask in (
        lambda: store.create("a", b""),
        lambda: store.put("a", b""),
        lambda: store.read("a"),
        lambda: store.size("a"),
        lambda: store.delete("a"),
        lambda: store.list_dir(""),
        lambda: list(store.list("")),
    ):
        with pytest.raises(StorageFailed, match=r"cannot \w.* s3://bucket/x") as caught:
            ask()
        assert "reachable" in str(caught.value.hint)
        assert "\n" not in caught.value.message


@pytest.mark.live
def test_keys_are_the_paths_byte_for_byte(s3_bucket: Callable[[], str], s3_options, s3_client) -> None:
    bucket = s3_bucket()
    store = open_store(f"s3a://{bucket}/ware/house", s3_options)
    path = "db.db/t/dt=2024-01-01 00%3A00/bucket-0/数据-1"
    store.put(path, b"x")
    assert [o["Key"] for o in s3_client.list_objects_v2(Bucket=bucket)["Contents"]] == [f"ware/house/{path}"]


@pytest.mark.live
def test_folder_markers_of_hadoop_are_no_files(s3_bucket: Callable[[], str], s3_options, s3_client) -> None:
    bucket = s3_bucket()
    for key in ("db.db/", "db.db/t/", "db.db/t/bucket-0/"):
        s3_client.put_object(Bucket=bucket, Key=key, Body=b"")
    store = open_store(f"s3://{bucket}", s3_options)
    store.put("db.db/t/bucket-0/data-1", b"x")
    store.put("db.db/t/empty", b"")
    assert sorted(i.path for i in store.list("")) == ["db.db/t/bucket-0/data-1", "db.db/t/empty"]
    assert sorted(i.path for i in store.list("db.db/t")) == ["db.db/t/bucket-0/data-1", "db.db/t/empty"]
    assert store.list_dir("db.db") == (["t"], [])
    assert store.list_dir("db.db/t") == (["bucket-0"], ["empty"])
    assert store.list_dir("db.db/t/bucket-0") == ([], ["data-1"])


@pytest.mark.live
def test_a_large_sink_is_a_multi_part_upload_and_reads_back(s3_bucket: Callable[[], str], s3_options) -> None:
    store = open_store(f"s3://{s3_bucket()}", s3_options)
    sink = store.sink("data-1")
    data = random.Random(3).randbytes(1 << 20)
    for _ in range(18):
        sink.write(data)
    sink.close()
    assert store.size("data-1") == 18 << 20
    with store.open("data-1") as file:
        file.seek((17 << 20) - 5)
        assert file.read(10) == data[-5:] + data[:5]


@pytest.mark.live
def test_abort_drops_the_parts_that_were_sent(s3_bucket: Callable[[], str], s3_options, s3_client) -> None:
    bucket = s3_bucket()
    sink = open_store(f"s3://{bucket}", s3_options).sink("data-1")
    for _ in range(18):
        sink.write(bytes(1 << 20))
    assert s3_client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    sink.abort()
    assert "Uploads" not in s3_client.list_multipart_uploads(Bucket=bucket)
    assert s3_client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


@pytest.mark.live
def test_a_sink_let_go_leaves_no_object(s3_bucket: Callable[[], str], s3_options, s3_client) -> None:
    bucket = s3_bucket()
    sink = open_store(f"s3://{bucket}", s3_options).sink("data-1.parquet")
    writer = pq.ParquetWriter(sink, pa.schema([("k", pa.int64())]))
    writer.write_table(pa.table({"k": [1, 2]}))
    del writer, sink
    gc.collect()
    assert s3_client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


@pytest.mark.live
def test_a_missing_bucket_is_a_storage_error_for_writers(s3_options) -> None:
    store = s3_store("no-such-bucket", "x", s3_options, retry_seconds=0)

    def stream() -> None:
        sink = store.sink("a")
        sink.write(b"x")
        sink.close()

    for ask in (lambda: store.create("a", b""), lambda: store.put("a", b""), lambda: list(store.list("")), stream):
        with pytest.raises(StorageFailed) as caught:
            ask()
        assert "bucket" in str(caught.value.hint)


@pytest.mark.live
def test_a_file_that_vanishes_while_it_is_read_is_not_found(s3_bucket: Callable[[], str], s3_options) -> None:
    store = open_store(f"s3://{s3_bucket()}", s3_options)
    store.put("a", bytes(100))
    with store.open("a") as file:
        store.delete("a")
        with pytest.raises(NotFound, match="/a"):
            file.read(10)


@pytest.mark.live
def test_keys_may_come_from_the_environment(
    s3_bucket: Callable[[], str], s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "shoal")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = open_store(f"s3://{s3_bucket()}/x", {})
    assert store.create("a", b"x") is True
    # An endpoint of the options wins over the service's own variable.
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    assert open_store(store.uri, {"s3.endpoint": s3_endpoint}).read("a") == b"x"
