# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test: the tables that Java wrote, and what Java reads from them."""

from __future__ import annotations

import gc
import json
import os
import tarfile
import uuid
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

Golden = Callable[[str], Path]
Expected = Callable[[str], tuple[list[tuple[str, str]], list[dict[str, Any]]]]


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests, which stay to the end, out of every full garbage collection."""
    gc.freeze()


def _kept(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo:
    """A member of an archive of ours: no path in it leads out, and its owner is whoever runs the tests."""
    return member.replace(uid=os.getuid(), gid=os.getgid(), uname="", gname="", deep=False)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`unpacked(name)`: the folder of an archive of tests/golden, unpacked once however many workers ask."""
    base = tmp_path_factory.getbasetemp()
    # workers of pytest-xdist have a folder each inside the session's
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base

    def unpack(name: str) -> Path:
        target = shared / "golden" / name
        if not target.exists():
            own = shared / "golden" / f"{name}.{uuid.uuid4().hex}"
            with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
                archive.extractall(own, filter=_kept)
            try:
                own.rename(target)  # the first worker wins; a folder that holds files is never replaced
            except OSError:
                if not target.exists():
                    raise
        return target

    return unpack


@pytest.fixture(scope="session")
def golden(unpacked: Callable[[str], Path]) -> Golden:
    """`golden("engines")`: a warehouse that holds the database `engines` as Java wrote it. Nobody writes into it."""
    return unpacked


@pytest.fixture(scope="session")
def expected(unpacked: Callable[[str], Path]) -> Expected:
    """`expected("engines.dd_plain.files")`: the columns (name, Flink type) and rows that Java read."""

    def read(name: str) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
        head, *rows = (unpacked("expected") / "expected" / f"{name}.jsonl").read_text().splitlines()
        return [(n, t) for n, t in json.loads(head)["columns"]], [json.loads(r)["row"] for r in rows]

    return read
