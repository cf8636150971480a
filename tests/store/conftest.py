# SPDX-License-Identifier: Apache-2.0
"""Stores to test: a folder, memory, the wrappers around memory, and (marked `live`) an S3 server of our own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.store import LocalStore, MemoryStore, Store
from shoal.store.faults import FaultyStore
from shoal.store.wrappers import CountingStore

KEYS = {"s3.access-key": "shoal", "s3.secret-key": "secret", "s3.region": "us-east-1"}


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def s3_client(s3_endpoint: str):  # boto3 makes its client types at run time
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=s3_endpoint,
        region_name="us-east-1",
        aws_access_key_id="shoal",
        aws_secret_access_key="secret",
    )
    yield client
    client.close()


@pytest.fixture(scope="session")
def s3_bucket(s3_client) -> Callable[[], str]:
    numbers = itertools.count(1)

    def new() -> str:
        name = f"lake-{next(numbers)}"
        s3_client.create_bucket(Bucket=name)
        return name

    return new


@pytest.fixture
def s3_options(s3_endpoint: str) -> dict[str, str]:
    return {"s3.endpoint": s3_endpoint, **KEYS}


@pytest.fixture(params=["local", "memory", "counting", "faulty", pytest.param("s3", marks=pytest.mark.live)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(tmp_path / "lake")
    if request.param == "memory":
        return MemoryStore("lake")
    if request.param == "counting":
        return CountingStore(MemoryStore("lake"))
    if request.param == "faulty":
        return FaultyStore(LocalStore(tmp_path / "lake"))
    from shoal.store.s3 import s3_store

    bucket = request.getfixturevalue("s3_bucket")()
    return s3_store(bucket, "ware/house", request.getfixturevalue("s3_options"), retry_seconds=0)
