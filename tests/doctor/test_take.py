# SPDX-License-Identifier: Apache-2.0
"""A look gives every snapshot with its flows, goes on where the last one ended, and notices what went wrong between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import independent_count as independent
import pyarrow as pa
import pyarrow.compute as pc

from shoal.clock import ManualClock
from shoal.doctor.take import Known, take
from shoal.doctor.window import Window
from shoal.store import LocalStore
from shoal.store.cache import Cache
from shoal.store.wrappers import CountingStore
from shoal.table.metadata import Metadata

CELL = ("partition", "bucket", "total_buckets", "level")


def reader(table: Path) -> Metadata:
    return Metadata(LocalStore(table), Cache())


def look(metadata: Metadata, **more: object) -> Window:
    return take(metadata, name="t", clock=ManualClock(), **more)  # type: ignore[arg-type]


def files(state: pa.Table | None) -> dict[tuple[object, ...], tuple[int, int, int]]:
    """(files, bytes, rows) by cell."""
    assert state is not None
    rows = state.to_pylist()
    return {tuple(r[k] for k in CELL): (r["files"], r["bytes"], r["rows"]) for r in rows}


def live(metadata: Metadata, partition: Callable[[bytes], str]) -> dict[tuple[object, ...], tuple[int, int, int]]:
    """The same from the live entries, summed without the doctor."""
    out: dict[tuple[object, ...], tuple[int, int, int]] = {}
    for e in metadata.live(metadata.latest()).to_pylist():
        key = (partition(e["partition"]), e["bucket"], e["total_buckets"], e["level"])
        n, size, rows = out.get(key, (0, 0, 0))
        out[key] = (n + 1, size + e["file_size"], rows + e["row_count"])
    return out


def unpartitioned(_: bytes) -> str:
    return ""


def test_every_snapshot_has_the_flows_of_an_independent_count(table: Path, metadata: Metadata) -> None:
    window = look(metadata)
    wanted = independent.per_snapshot(table)
    assert [s.id for s in window.steps] == [w["id"] for w in wanted]
    rows = window.flows.to_pylist()
    for step, want in zip(window.steps, wanted):
        here = [r for r in rows if r["snapshot"] == step.id]
        for word in ("flush", "rewrite", "upgrade", "removal", "changelog"):
            found = sum(r["files"] for r in here if r["class"] == word and (word, r["change"]) != ("upgrade", -1))
            assert found == want[word], (step.id, word)
        assert step.live_files == sum(want["live"].values()) and step.identity_holds
        assert sum(r["bytes"] for r in here if r["class"] == "rewrite") == want["rewrite_bytes"]
    assert files(window.end) == live(metadata, unpartitioned)
    assert window.complete and not window.events and window.after is None


def test_two_looks_see_what_one_sees(table: Path) -> None:
    whole = look(reader(table))
    cut = len(whole.steps) // 2
    part = Window(
        whole.table, whole.name, whole.steps[:cut], whole.flows.filter(pc.less_equal(whole.flows["snapshot"], cut)),
        whole.start, whole.schemas, whole.stock,
    )  # fmt: skip
    metadata = Metadata(CountingStore(LocalStore(table)), Cache())
    rest = look(metadata, known=Known.of(part))
    assert rest.steps == whole.steps[cut:] and rest.after == part.steps[-1].mark
    assert rest.flows.equals(whole.flows.filter(pc.greater(whole.flows["snapshot"], cut)))
    assert rest.start is not None and rest.start.equals(part.end)
    assert rest.end is not None and rest.end.equals(whole.end) and not rest.events
    nothing = look(metadata, known=Known.of(rest))
    assert not nothing.steps and nothing.end is not None and nothing.end.equals(whole.end)
    assert nothing.after == whole.steps[-1].mark


def test_a_later_look_reads_no_old_manifest(debt_db: Path) -> None:
    first = look(reader(debt_db / "ckpt_1s"))
    store = CountingStore(LocalStore(debt_db / "ckpt_1s"))
    look(Metadata(store, Cache()), known=Known.of(first))
    assert not any(kind in store.calls for kind in ("open", "read_range"))
    assert store.calls.total() <= 12 and store.mutations == 0
