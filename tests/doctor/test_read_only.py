# SPDX-License-Identifier: Apache-2.0
"""No doctor command changes a table: no mutating call reaches the store, and no right to write is needed.

The commands are those that the command line has, so a new one is tested without being named here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.cli import doctor, warehouse
from shoal.cli.main import main
from shoal.cli.parser import Command
from shoal.errors import BadRequest
from shoal.store import uri
from shoal.store.base import Store
from shoal.store.wrappers import CountingStore

# What a command needs besides a table so that it ends by itself.
MORE = {
    "doctor watch": ["--once"],
    "doctor export": ["--parquet", "{tmp}/out"],
    "doctor verify": ["--plan", "{tmp}/plan.json"],
}
# More lines worth a run, with the options that make a command read more.
AGAIN = {
    "doctor history": [["--rebuild"]],
    "doctor debt": [["--list"]],
    "doctor check": [["--since", "1h", "--html", "-"], ["--prometheus", "-", "--per-bucket"]],
    "doctor forecast": [["--plan-limit", "1s"]],
    "doctor fix": [["--plan", "-"]],
    "doctor fleet": [["--html", "{tmp}/fleet"]],
}
# A command may find the table sick, or that it knows too little of it; but it must have looked.
ENDED = (0, 1, 4)


@pytest.fixture
def lake(debt_db: Path, tmp_path: Path) -> Path:
    return debt_lake(debt_db, tmp_path)


def debt_lake(debt_db: Path, folder: Path) -> Path:
    """A lake with one table and its plan beside it."""
    top = folder / "lake"
    shutil.copytree(debt_db / "ckpt_3s", top / "debt.db" / "ckpt_3s")
    (top / "debt.db" / "ckpt_3s" / "consumer").mkdir()
    (top / "debt.db" / "ckpt_3s" / "consumer" / "consumer-bi").write_text('{"nextSnapshot": 3}')
    main(["doctor", "fix", "-w", str(top), "debt.ckpt_3s", "--plan", str(folder / "plan.json")])  # for `verify`
    return top


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def line(command: Command, lake: Path, tmp_path: Path) -> list[str]:
    """A line of the command: a table, or a database where it asks for one, and what else it needs."""
    words = [*command.words.split(), "-w", str(lake)]
    more = [m.format(tmp=tmp_path) for m in MORE.get(command.words, [])]
    needed = [n for n in command.parser().needed() if not n.startswith(("-", "["))]
    if not needed:
        return [*words, *more]
    names = ["debt" if needed[0].upper().startswith("DATABASE") or needed[0] == "DB" else "debt.ckpt_3s"]
    try:
        command.parser().parse_args([*names, *more])
    except BadRequest as err:
        pytest.fail(f"say in MORE what {command.words} needs: {err.message}")
    return [*words, *names, *more]


def everything(top: Path) -> dict[str, tuple[bytes | None, int]]:
    """Every file and folder with its bytes and times."""
    return {
        str(p.relative_to(top)): (p.read_bytes() if p.is_file() else None, p.stat().st_mtime_ns)
        for p in sorted(top.rglob("*"))
    }


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[CountingStore]:
    """Every store that a command opens."""
    opened: list[CountingStore] = []
    real = uri.open_store

    def open_store(*args: object, **more: object) -> Store:
        store = CountingStore(real(*args, **more))  # type: ignore[arg-type]
        opened.append(store)
        return store

    monkeypatch.setattr(uri, "open_store", open_store)
    assert hasattr(warehouse, "open_lake")  # which asks for it by name when it runs
    return opened


@pytest.mark.parametrize("command", doctor.COMMANDS, ids=lambda c: c.words)
def test_no_command_makes_a_mutating_call(
    command: Command, lake: Path, tmp_path: Path, counted: list[CountingStore], capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(lake)
    for options in ([], *AGAIN.get(command.words, [])):
        code = main([*line(command, lake, tmp_path), *(o.format(tmp=tmp_path) for o in options)])
        assert code in ENDED, capsys.readouterr().err
    if command.needs_warehouse:
        assert counted and sum(s.calls.total() for s in counted) > 0
    assert sum(s.mutations for s in counted) == 0
    assert everything(lake) == before


_NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """As a user who owns nothing: root may write whatever a folder's mode says."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches and may write into; pytest's own are root's alone where root runs it."""
    with tempfile.TemporaryDirectory(prefix="shoal-open-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.fixture
def sealed(debt_db: Path, open_folder: Path) -> Iterator[Path]:
    """A lake without the right to write anywhere in it."""
    top = debt_lake(debt_db, open_folder)
    paths = [top, *top.rglob("*")]
    for p in paths:
        p.chmod(0o555 if p.is_dir() else 0o444)
    with without_rights(), pytest.raises(PermissionError):
        (top / "debt.db" / "ckpt_3s" / "snapshot" / "LATEST").write_text("1")
    yield top
    for p in paths:
        if p.exists():
            p.chmod(0o755 if p.is_dir() else 0o644)


@pytest.mark.parametrize("command", doctor.COMMANDS, ids=lambda c: c.words)
def test_every_command_works_without_the_right_to_write(
    command: Command, sealed: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", str(open_folder / "state"))
    monkeypatch.chdir(open_folder)
    before = everything(sealed)
    with without_rights():
        assert main(line(command, sealed, open_folder)) in ENDED, capsys.readouterr().err
    assert everything(sealed) == before
