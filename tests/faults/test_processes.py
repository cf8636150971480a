"""Several processes commit to one table at the same time: no commit is lost, none comes twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import shoal
from shoal.table.table import Table

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
WRITERS = 4


def race(warehouse: str, name: str, commits: int, options: dict[str, str]) -> Table:
    script = Path(__file__).with_name("racing_writer.py")
    args = [f"{k}={v}" for k, v in options.items()]
    running = [
        subprocess.Popen([sys.executable, str(script), warehouse, name, str(n), str(commits), *args])
        for n in range(WRITERS)
    ]
    assert [p.wait(timeout=100) for p in running] == [0] * WRITERS
    return shoal.open(warehouse, **options).table(name)


def check(table: Table, commits: int) -> None:
    rows = table.scan().to_arrow().to_pylist()
    expected = [{"id": n * 1000 + c, "v": c} for n in range(WRITERS) for c in range(commits)]
    assert sorted(rows, key=lambda r: r["id"]) == expected
    ids = table.metadata.snapshot_ids()
    snapshots = [table.metadata.snapshot(i) for i in ids]
    assert ids == list(range(1, len(ids) + 1))
    appends = [(s.commit_user, s.commit_identifier) for s in snapshots if s.commit_kind == "APPEND"]
    assert sorted(appends) == sorted((f"writer-{n}", c + 1) for n in range(WRITERS) for c in range(commits))
    assert snapshots[-1].total_record_count >= len(expected)


def test_four_processes_append_to_one_table(tmp_path: Path) -> None:
    lake = shoal.open(str(tmp_path))
    lake.create_table("d.log", SCHEMA, options={"commit.max-retries": 200})
    check(race(str(tmp_path), "d.log", 25, {}), 25)


def test_four_processes_upsert_and_compact_one_table(tmp_path: Path) -> None:
    lake = shoal.open(str(tmp_path))
    lake.create_table(
        "d.t",
        SCHEMA,
        primary_key=["id"],
        options={"bucket": 1, "commit.max-retries": 200, "num-sorted-run.compaction-trigger": 3},
    )
    check(race(str(tmp_path), "d.t", 25, {}), 25)


@pytest.fixture
def s3() -> Iterator[tuple[str, dict[str, str]]]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "s3.endpoint": f"http://{host}:{port}",
        "s3.access-key": "a",
        "s3.secret-key": "b",
        "s3.region": "us-east-1",
        "s3.path.style.access": "true",
    }
    client = boto3.client(
        "s3",
        endpoint_url=options["s3.endpoint"],
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="warehouse")
    yield "s3://warehouse/lake", options
    server.stop()


@pytest.mark.live
def test_four_processes_append_to_one_table_on_s3(s3: tuple[str, dict[str, str]]) -> None:
    warehouse, options = s3
    shoal.open(warehouse, **options).create_table("d.log", SCHEMA, options={"commit.max-retries": 200})
    check(race(warehouse, "d.log", 10, options), 10)
