# SPDX-License-Identifier: Apache-2.0
"""A later look reads few manifest lists, and sees what one that reads them all sees."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from made_tables import Made, files

from shoal.doctor.take import Known, take
from shoal.doctor.window import Window
from shoal.format.manifest import decode_list, encode_list
from shoal.store.base import Store
from shoal.store.cache import Cache
from shoal.store.wrappers import CountingStore
from shoal.table.metadata import Metadata


class Paths(CountingStore):
    """Counts how often each file is read."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.paths: Counter[str] = Counter()

    def read(self, path: str) -> bytes:
        self.paths[path] += 1
        return super().read(path)


def later(made: Made, first: Window) -> tuple[Window, Counter[str]]:
    """A look that goes on from another one, and the files it read."""
    store = Paths(made.table.store)
    window = take(Metadata(store, Cache()), name="d.t", clock=made.clock, known=Known.of(first))
    return window, store.paths


def facts(made: Made, snapshot: int) -> dict[str, object]:
    found: dict[str, object] = json.loads(made.table.store.read(f"snapshot/snapshot-{snapshot}"))
    return found


def lists(made: Made, window: Window, which: str, read: Counter[str]) -> list[int]:
    """The snapshots whose list of one kind was read."""
    name = {s.id: facts(made, s.id)[f"{which}ManifestList"] for s in window.steps}
    assert all(n == 1 for path, n in read.items() if "-list-" in path), "a list was read twice"
    return [i for i, n in name.items() if f"manifest/{n}" in read]


def same(rest: Window, whole: Window) -> None:
    cut = len(whole.steps) - len(rest.steps)
    assert rest.steps == whole.steps[cut:] and not rest.gaps
    wanted = [r for r in whole.flows.to_pylist() if r["snapshot"] > whole.steps[cut - 1].id]
    assert rest.flows.to_pylist() == wanted
    assert rest.end is not None and rest.end.equals(whole.end)


def test_one_base_list_tells_the_lists_of_all_commits_before_it() -> None:
    made = Made(**{"manifest.merge-min-count": 1000})
    made.commits(2)
    first = made.look()
    made.commits(30)
    rest, read = later(made, first)
    same(rest, made.look())
    still = [s.id for s in rest.steps if s.delta_records == 0]  # compactions that dropped no row
    assert lists(made, rest, "base", read) == [rest.steps[-1].id]
    assert lists(made, rest, "delta", read) == sorted({*still, rest.steps[-1].id})
    assert len(rest.steps) > len(still) + 20


@pytest.mark.parametrize("every", [2, 3, 7, 30])
def test_commits_that_merge_manifests_are_found_by_reading(every: int) -> None:
    made = Made(**{"manifest.merge-min-count": every})
    made.commits(2)
    first = made.look()
    made.commits(40)
    rest, read = later(made, first)
    same(rest, made.look())
    merged = [s.id for s in rest.steps if s.wrote["merged-manifest"].files]
    assert merged and set(merged) <= set(lists(made, rest, "base", read))


def test_a_base_list_in_another_order_is_not_believed() -> None:
    made = Made(**{"manifest.merge-min-count": 1000})
    made.commits(2)
    first = made.look()
    for rows in (5, 9, 17, 30, 3, 21):
        made.commits(1, rows)
    last = made.look().steps[-1].id
    snap = facts(made, last)
    path = f"manifest/{snap['baseManifestList']}"
    metas = decode_list(made.table.store.read(path), path)
    turned = [*metas[:-3], metas[-2], metas[-3], metas[-1]]
    data = encode_list(turned, "zstd")
    made.table.store.put(path, data)
    snap["baseManifestListSize"] = len(data)
    made.table.store.put(f"snapshot/snapshot-{last}", json.dumps(snap).encode())
    rest, read = later(made, first)
    same(rest, made.look())
    assert lists(made, rest, "delta", read) == [s.id for s in rest.steps]


def test_an_idle_commit_and_one_of_several_manifests_are_not_mixed_up() -> None:
    """Together they have as many manifests as snapshots."""
    made = Made(**{"manifest.merge-min-count": 1000, "snapshot.ignore-empty-commit": "false"})
    made.commits(2)
    first = made.look()
    made.commits(3)
    with made.table.write(commit_user="w") as w:
        w.commit(checkpoint=100)
    made.at = 100
    made.table = made.table.alter(options={"manifest.target-file-size": "1 b"})
    made.commits(3, 60)
    window = made.look()
    idle = [s.id for s in window.steps if s.delta_records == 0 and not s.wrote["delta-manifest"].files]
    assert idle, "an idle commit makes a snapshot"
    rest, _ = later(made, first)
    same(rest, window)


def test_the_first_look_misses_a_list_that_is_gone_and_a_later_one_what_it_must_read() -> None:
    made = Made(**{"manifest.merge-min-count": 1000})
    made.commits(2)
    first = made.look()
    made.commits(6)
    gone = first.steps[-1].id + 3
    whole = made.look()
    made.table.store.delete(f"manifest/{facts(made, gone)['baseManifestList']}")
    anew = take(Metadata(made.table.store, Cache()), clock=made.clock)
    assert [(g.first, g.last, g.kind) for g in anew.gaps] == [(gone, gone, "missing")]
    rest, _ = later(made, first)
    same(rest, whole)  # what it tells is told by others
    last = whole.steps[-1].id
    made.table.store.delete(f"manifest/{facts(made, last)['deltaManifestList']}")
    rest, _ = later(made, first)
    assert [(g.first, g.last, g.kind) for g in rest.gaps] == [(last, last, "missing")]
    assert rest.steps == whole.steps[2:-1]


def test_a_manifest_that_is_gone_is_a_gap_for_a_later_look_too() -> None:
    made = Made(**{"manifest.merge-min-count": 1000})
    made.commits(2)
    first = made.look()
    made.commits(6)
    gone = first.steps[-1].id + 3
    path = f"manifest/{facts(made, gone)['deltaManifestList']}"
    name = decode_list(made.table.store.read(path), path)[0].file_name
    made.table.store.delete(f"manifest/{name}")
    rest, _ = later(made, first)
    assert [(g.first, g.last, g.kind) for g in rest.gaps] == [(gone, gone, "missing")]
    assert gone not in [s.id for s in rest.steps]
    assert [e.kind for e in rest.events] == ["blind"] and rest.end is None  # the newest snapshot names it too


def test_manifests_of_many_bytes_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.doctor import walk

    monkeypatch.setattr(walk, "_TOGETHER_BYTES", 1)
    monkeypatch.setattr(walk, "_SPAN", 5)
    made = Made()
    made.commits(2)
    first = made.look()
    made.commits(23)
    rest, _ = later(made, first)
    monkeypatch.undo()
    same(rest, made.look())
    assert files(rest.end) == made.live()
