# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test: the tables that Java wrote, and what Java reads from them."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The default run tries the same examples every time, so that a red run names a change and not a draw; the slow run
# (dev/test-slow) draws new ones and remembers what failed.
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("new", deadline=None)
settings.load_profile(os.environ.get("SHOAL_EXAMPLES", "same"))

GOLDEN = Path(__file__).parent / "golden"

Unpacked = Callable[[str | Path], Path]
Golden = Callable[[str], Path]
Expected = Callable[[str], tuple[list[tuple[str, str]], list[dict[str, Any]]]]


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests, which stay to the end, out of every full garbage collection."""
    gc.freeze()


def _extract(archive: Path, into: Path) -> None:
    """The files of an archive of ours, with their times. Owners and modes cost more than the bytes and say nothing."""
    made = set()
    with tarfile.open(archive) as tar:
        for member in tar:
            to = into / member.name
            assert ".." not in to.parts and (member.isdir() or member.isfile()), member.name
            folder = to if member.isdir() else to.parent
            if folder not in made:
                folder.mkdir(parents=True, exist_ok=True)
                made.add(folder)
            if member.isfile():
                to.write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]
                os.utime(to, (member.mtime, member.mtime))


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    """`unpacked(archive)`: the folder of an archive, or of one of tests/golden by name, unpacked once however many
    workers ask. Nobody writes into it."""
    base = tmp_path_factory.getbasetemp()
    # workers of pytest-xdist have a folder each inside the session's
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base

    def unpack(archive: str | Path) -> Path:
        path = GOLDEN / f"{archive}.tar.xz" if isinstance(archive, str) else archive
        target = shared / "unpacked" / path.parent.parent.name / path.name.removesuffix(".tar.xz")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(f"{target}.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # the other worker waits
                if not target.exists():
                    own = target.with_name(f"{target.name}.new")
                    _extract(path, own)
                    own.rename(target)
        return target

    return unpack


@pytest.fixture(scope="session")
def golden(unpacked: Unpacked) -> Golden:
    """`golden("engines")`: a warehouse that holds the database `engines` as Java wrote it. Nobody writes into it."""
    return unpacked


@pytest.fixture(scope="session")
def expected(unpacked: Unpacked) -> Expected:
    """`expected("engines.dd_plain.files")`: the columns (name, Flink type) and rows that Java read."""

    def read(name: str) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
        head, *rows = (unpacked("expected") / "expected" / f"{name}.jsonl").read_text().splitlines()
        return [(n, t) for n, t in json.loads(head)["columns"]], [json.loads(r)["row"] for r in rows]

    return read
