# SPDX-License-Identifier: Apache-2.0
"""The four debt tables that Java wrote: the same 1,200 rows at checkpoints of 1, 3 and 6 seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.store import LocalStore
from shoal.store.cache import Cache
from shoal.table.metadata import Metadata

TABLES = ("ckpt_1s", "ckpt_3s", "ckpt_6s", "ckpt_1s_append")


@pytest.fixture(scope="session")
def debt_db(golden: Callable[[str], Path]) -> Path:
    """The unpacked database; nobody writes into it."""
    return golden("debt") / "debt.db"


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, debt_db: Path) -> Path:
    return debt_db / str(request.param)


@pytest.fixture
def own_table(debt_db: Path, tmp_path: Path) -> Path:
    """A copy of one table that a test may damage."""
    return Path(shutil.copytree(debt_db / "ckpt_3s", tmp_path / "ckpt_3s"))


@pytest.fixture
def metadata(table: Path) -> Metadata:
    return Metadata(LocalStore(table), Cache())
