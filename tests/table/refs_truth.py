# SPDX-License-Identifier: Apache-2.0
"""What Java Paimon 2.0.0 did to tags, branches, snapshots and consumers, and the same calls for shoal.

`data/refs.tar.xz` holds tables as Java wrote them and, in refs.json, for each scenario the calls, which of them Java
refused, and the files that were there afterwards (texts of metadata files without creation times, names of the rest).
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import ShoalError
from shoal.options import Options
from shoal.store.local import LocalStore
from shoal.table import auto_tags, branches, consumers, rollback, tags
from shoal.table.table import Table

ARCHIVE = Path(__file__).parent / "data" / "refs.tar.xz"
_TEXT = ("tag", "snapshot", "schema", "consumer", "changelog")

_CREATED = re.compile(r'"tagCreateTime" : \[[^]]*\]')

Files = dict[str, str | None]


@cache
def truth() -> dict[str, Any]:
    with tarfile.open(ARCHIVE) as archive:
        member = archive.extractfile("refs/refs.json")
        assert member is not None
        found: dict[str, Any] = json.load(member)
        return found


def unpack(folder: Path) -> Path:
    """The warehouse of base tables."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "refs"


def open_copy(warehouse: Path, base: str, at: Path) -> Table:
    """A copy of a base table that may be changed."""
    shutil.copytree(warehouse / "d.db" / base, at / "d.db" / "t")
    return lake_of(at).table("d.t")


def lake_of(at: Path) -> Lake:
    return Lake(LocalStore(str(at)), clock=ManualClock(1_796_000_000_000), scheduler=ManualScheduler)


def state(root: Path) -> Files:
    """Every file of a table: the text of metadata files, None for the others."""
    out: Files = {}
    for f in sorted(p for p in root.rglob("*") if p.is_file() and not p.name.startswith(".")):
        path = f.relative_to(root).as_posix()
        parts = path.split("/")
        own = parts[2] if parts[0] == "branch" else parts[0]
        out[path] = _CREATED.sub('"tagCreateTime" : [ ]', f.read_text()) if own in _TEXT else None
    return out


def _retain(text: str | None) -> int | None:
    return None if text is None else {"36 h": 129_600_000, "1500 ms": 1500, "0 ms": 0}[text]


CALLS: dict[str, Callable[..., object]] = {
    "create_tag": lambda t, name, at, keep: tags.create_tag(t, name, snapshot=at, retain_ms=_retain(keep)),
    "replace_tag": lambda t, name, at, keep: tags.replace_tag(t, name, snapshot=at, retain_ms=_retain(keep)),
    "create_tag_ts": lambda t, name, ms: tags.create_tag(t, name, timestamp_ms=ms),
    "create_tag_wm": lambda t, name, mark: tags.create_tag(t, name, watermark=mark),
    "rename_tag": tags.rename_tag,
    "delete_tag": tags.delete_tag,
    "expire_tags": lambda t, at: tags.expire_tags(t, older_than=None if at is None else datetime.fromisoformat(at)),
    "create_branch": lambda t, name, tag: branches.create_branch(t, name, tag=tag),
    "rename_branch": branches.rename_branch,
    "delete_branch": branches.delete_branch,
    "fast_forward": branches.fast_forward,
    "rollback_tag": lambda t, name: rollback.rollback(t, tag=name),
    "rollback_snapshot": lambda t, i: rollback.rollback(t, snapshot=i),
    "rollback_ts": lambda t, ms: rollback.rollback(t, timestamp_ms=ms),
    "rollback_wm": lambda t, mark: rollback.rollback(t, watermark=mark),
    "rollback_as_latest_tag": lambda t, name: rollback.rollback_as_latest(t, tag=name),
    "rollback_as_latest_snapshot": lambda t, i: rollback.rollback_as_latest(t, snapshot=i),
    "reset_consumer": lambda t, name, i: consumers.drop(t.store, name) if i is None else consumers.reset(t.store, name, i),
    "clear_consumers": lambda t, including, excluding: consumers.clear(t.store, including, excluding),
}  # fmt: skip


def refused(table: Table, op: list[Any]) -> ShoalError | None:
    """Do one call; the error when it is refused."""
    try:
        CALLS[op[0]](table, *op[1:])
    except ShoalError as err:
        return err
    return None


def replay(warehouse: Path, name: str, at: Path) -> tuple[Files, Files]:
    """(Java's files, shoal's files) after the calls of a scenario; every refusal is compared on the way."""
    scenario = truth()["scenarios"][name]
    table = open_copy(warehouse, scenario["base"], at)
    before = state(at / "d.db" / "t")
    for step in scenario["ops"]:
        err = refused(table, step["op"])
        table.clock.sleep(0.01)
        assert (err is None) == (step["error"] is None), (step, err)
        assert err is None or err.hint, err
    theirs = {p: text for p, text in before.items() if p not in scenario["gone"]} | scenario["changed"]
    return theirs, state(at / "d.db" / "t")


def policy(options: dict[str, str]) -> auto_tags.Policy | None:
    from datetime import UTC

    return auto_tags.policy_of(Options(options, strict=True), UTC)
