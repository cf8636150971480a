# SPDX-License-Identifier: Apache-2.0
"""Several processes commit to one table at the same time: no commit is lost, none comes twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import shoal
from shoal.table.table import Table
from tests.faults.walk import left_over, missing

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
WRITERS = 4
HERE = Path(__file__).parent


def race(
    warehouse: str, name: str, commits: int, options: dict[str, str], writers: int = WRITERS, every: int = 0
) -> Table:
    script = HERE / "racing_writer.py"
    args = [f"{k}={v}" for k, v in options.items()] + [f"every={every}"]
    running = [
        subprocess.Popen([sys.executable, str(script), warehouse, name, str(n), str(commits), *args])
        for n in range(writers)
    ]
    assert [p.wait(timeout=550) for p in running] == [0] * writers
    return shoal.open(warehouse, **options).table(name)


@contextmanager
def compactors(
    warehouse: str, name: str, count: int, options: dict[str, str] | None = None
) -> Iterator[list[tuple[int, int]]]:
    """Processes that compact the table meanwhile; afterwards how often each did, and how often it lost."""
    args = [warehouse, name, *(f"{k}={v}" for k, v in (options or {}).items())]
    running = [
        subprocess.Popen(
            [sys.executable, str(HERE / "racing_compactor.py"), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]  # fmt: skip
    done: list[tuple[int, int]] = []
    for p in running:
        assert p.stdout is not None and p.stdout.readline() == "ready\n"
    yield done
    for p in running:
        out, _ = p.communicate(timeout=300)
        assert p.returncode == 0
        compacted, lost = out.split()
        done.append((int(compacted), int(lost)))


def check(table: Table, commits: int, writers: int = WRITERS) -> None:
    rows = table.scan().to_arrow().to_pylist()
    expected = [{"id": n * 1000 + c, "v": c} for n in range(writers) for c in range(commits)]
    assert sorted(rows, key=lambda r: r["id"]) == expected
    ids = table.metadata.snapshot_ids()
    snapshots = [table.metadata.snapshot(i) for i in ids]
    assert ids == list(range(1, len(ids) + 1))
    appends = [(s.commit_user, s.commit_identifier) for s in snapshots if s.commit_kind == "APPEND"]
    assert sorted(appends) == sorted((f"writer-{n}", c + 1) for n in range(writers) for c in range(commits))
    assert snapshots[-1].total_record_count >= len(expected)
    assert list(missing(table)) == []
    assert left_over(table) == []
    if table.options.changelog_producer == "lookup":
        told = table.changes(0, ids[-1], mode="changelog").to_arrow().to_pylist()
        assert sorted(r["id"] for r in told) == [r["id"] for r in expected]
        assert {r["_VALUE_KIND"] for r in told} == {0}


def test_four_processes_append_to_one_table(tmp_path: Path) -> None:
    lake = shoal.open(str(tmp_path))
    lake.create_table("d.log", SCHEMA, options={"commit.max-retries": 200})
    check(race(str(tmp_path), "d.log", 12, {}), 12)


def test_four_processes_upsert_and_compact_one_table(tmp_path: Path) -> None:
    lake = shoal.open(str(tmp_path))
    lake.create_table(
        "d.t",
        SCHEMA,
        primary_key=["id"],
        options={"bucket": 1, "commit.max-retries": 200, "num-sorted-run.compaction-trigger": 3},
    )
    check(race(str(tmp_path), "d.t", 12, {}), 12)


KINDS: dict[str, tuple[bool, dict[str, object]]] = {
    "append": (False, {}),
    "append, buckets": (False, {"bucket": 2, "bucket-key": "id", "write-only": True}),
    "keys": (True, {"bucket": 2, "write-only": True}),
    "keys, lookup": (True, {"bucket": 1, "write-only": True, "changelog-producer": "lookup"}),
    "keys, vectors": (True, {"bucket": 1, "write-only": True, "deletion-vectors.enabled": True}),
}


def make(warehouse: str, kind: str, options: dict[str, str] | None = None) -> None:
    keyed, own = KINDS[kind]
    shoal.open(warehouse, **(options or {})).create_table(
        "d.t", SCHEMA, primary_key=["id"] if keyed else [],
        options={
            "commit.max-retries": 500, "num-sorted-run.compaction-trigger": 3, "compaction.min.file-num": 4,
            "snapshot.num-retained.min": 10_000, "snapshot.num-retained.max": 10_000, **own,
        },
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["append", "keys"])
def test_eight_processes_commit_a_hundred_times_each(tmp_path: Path, kind: str) -> None:
    make(str(tmp_path), kind)
    check(race(str(tmp_path), "d.t", 100, {}, 8), 100, 8)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_eight_processes_and_a_compactor(tmp_path: Path, kind: str) -> None:
    """Nobody is in the way of the only compactor."""
    make(str(tmp_path), kind)
    with compactors(str(tmp_path), "d.t", 1) as done:
        table = race(str(tmp_path), "d.t", 100, {}, 8, every=20)
    ((compacted, lost),) = done
    assert compacted > 2 and lost == 0
    table.maintain.compact(full=True)
    check(table, 100, 8)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_two_compactors_and_a_writer(tmp_path: Path, kind: str) -> None:
    """The loser gets a conflict, and its files are gone."""
    make(str(tmp_path), kind)
    with compactors(str(tmp_path), "d.t", 2) as done:
        table = race(str(tmp_path), "d.t", 100, {}, 1, every=10)
    assert sum(compacted for compacted, _ in done) > 2
    table.maintain.compact(full=True)
    check(table, 100, 1)


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


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["append", "keys"])
def test_eight_processes_and_a_compactor_on_s3(s3: tuple[str, dict[str, str]], kind: str) -> None:
    warehouse, options = s3[0] + f"-{kind}", s3[1]
    make(warehouse, kind, options)
    with compactors(warehouse, "d.t", 1, options) as done:
        table = race(warehouse, "d.t", 100, options, 8, every=20)
    ((compacted, lost),) = done
    assert compacted > 0 and lost == 0
    check(table, 100, 8)
