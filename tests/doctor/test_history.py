# SPDX-License-Identifier: Apache-2.0
"""What was seen comes out as it went in, whoever put it there; what is old grows coarse, as time alone decides."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from made_tables import Made, files

from shoal.clock import ManualClock, ManualScheduler
from shoal.doctor.history_file import check_outside, default_path
from shoal.doctor.history_store import HistoryStore
from shoal.doctor.take import UNKNOWN, Known
from shoal.doctor.watch import Look, look_and_keep, watch
from shoal.doctor.window import Window
from shoal.errors import BadRequest, Corrupt, NotFound, StorageFailed, Unsupported

HOUR = 3_600_000


@pytest.fixture
def history(tmp_path: Path) -> Iterator[HistoryStore]:
    with HistoryStore(tmp_path / "h.sqlite") as store:
        yield store


def differences(a: Window, b: Window, *apart: str) -> list[str]:
    out = []
    for f in fields(a):
        x, y = getattr(a, f.name), getattr(b, f.name)
        same = x.equals(y) if isinstance(x, pa.Table) and isinstance(y, pa.Table) else x == y
        out += [] if same or f.name in apart else [f.name]
    return out


def test_a_window_comes_out_as_it_went_in(history: HistoryStore) -> None:
    made = Made()
    made.commits(9)
    made.table.tags.create("keep", snapshot=2)
    window = made.look()
    history.append(window)
    assert not differences(history.window(window.table), window)
    assert history.tables() == {window.table: "d.t"}


@pytest.mark.parametrize("seed", range(6))
def test_looks_of_any_length_make_one_history(history: HistoryStore, seed: int) -> None:
    rng, made = random.Random(seed), Made(seed=seed)
    for _ in range(8):
        made.commits(rng.randint(0, 4))
        look_and_keep(made.table, history, clock=made.clock)
    whole = made.look()
    kept = history.window(whole.table)
    assert not differences(kept, whole, "stock")
    assert kept.end is not None and kept.end.equals(whole.end) and files(kept.end) == made.live()


def test_a_part_of_the_history_begins_with_the_state_there(history: HistoryStore) -> None:
    made = Made()
    made.commits(5)
    look_and_keep(made.table, history, clock=made.clock)
    middle = history.window(made.table.store.uri)
    made.commits(6)
    look_and_keep(made.table, history, clock=made.clock)
    last = middle.steps[-1].id
    late = history.window(made.table.store.uri, last + 1)
    assert late.start is not None and late.start.equals(middle.end) and late.after == middle.steps[-1].mark
    assert files(late.end) == made.live() and late.steps[0].id == last + 1
    early = history.window(made.table.store.uri, None, last)
    assert not differences(early, middle)
    assert history.window(made.table.store.uri, since_ms=late.steps[0].time_ms).steps == late.steps


def test_a_rollback_takes_what_is_gone_out_of_the_history(history: HistoryStore) -> None:
    made = Made()
    made.commits(6)
    look_and_keep(made.table, history, clock=made.clock)
    made.table.rollback(snapshot=3)
    look_and_keep(made.table, history, clock=made.clock)
    kept = history.window(made.table.store.uri)
    assert [s.id for s in kept.steps] == [1, 2, 3] and files(kept.end) == made.live()
    made.commits(5)
    look_and_keep(made.table, history, clock=made.clock)
    kept, whole = history.window(made.table.store.uri), made.look()
    assert kept.steps == whole.steps and kept.flows.equals(whole.flows) and files(kept.end) == made.live()
    assert [e.kind for e in kept.events] == ["rollback"]


def test_a_table_made_anew_begins_anew(history: HistoryStore) -> None:
    made, other = Made(), Made(seed=8)
    made.commits(6)
    look_and_keep(made.table, history, clock=made.clock)
    other.clock.sleep(900)
    other.commits(2)
    look_and_keep(other.table, history, clock=other.clock)
    kept = history.window(other.table.store.uri)
    assert kept.steps == other.look().steps and kept.end is not None and files(kept.end) == other.live()


def test_what_expired_unseen_is_a_gap_in_the_history_and_states_go_on_behind_it(history: HistoryStore) -> None:
    made = Made()
    made.commits(4)
    look_and_keep(made.table, history, clock=made.clock)
    made.commits(10)
    made.table.maintain.expire(retain_min=1, retain_max=3, older_than=made.clock.now_ms() + 1)
    look_and_keep(made.table, history, clock=made.clock)
    made.commits(2)
    look_and_keep(made.table, history, clock=made.clock)
    kept = history.window(made.table.store.uri)
    assert len(kept.gaps) == 1 and files(kept.end) == made.live()


def test_two_processes_that_look_leave_what_one_would(history: HistoryStore, tmp_path: Path) -> None:
    made = Made()
    made.commits(4)
    uri = made.table.store.uri
    with HistoryStore(tmp_path / "h.sqlite") as other:
        known = [h.known(uri) for h in (history, other)]
        assert known[0].last is None
        first, short = made.look(known[0]), made.look(known[1])
        history.append(first)
        other.append(short)  # the same again
        made.commits(2)
        slow = made.look(history.known(uri))
        made.commits(2)
        fast = made.look(other.known(uri))
        other.append(fast)
        history.append(slow)  # later, but it saw less
        assert history.window(uri).steps == made.look().steps
        made.commits(1)
        look_and_keep(made.table, other, clock=made.clock)
        assert files(history.window(uri).end) == made.live()


def test_delete_the_history_and_rebuild_it_and_the_rows_are_the_same(tmp_path: Path) -> None:
    made = Made()
    with HistoryStore(tmp_path / "a.sqlite") as watched:
        for _ in range(7):
            made.commits(2)
            look_and_keep(made.table, watched, clock=made.clock)
        made.table.maintain.expire(retain_min=1, retain_max=9, older_than=made.clock.now_ms() + 1)
        uri, earliest = made.table.store.uri, made.table.metadata.earliest_id()
        with HistoryStore(tmp_path / "b.sqlite") as anew:
            look_and_keep(made.table, anew, clock=made.clock)
            a, b = watched.window(uri, earliest), anew.window(uri)
            # what lay before the earliest cannot be told again: which base manifests it rewrote
            plain = {"merged-manifest", "index-manifest"}
            for x, y in zip(a.steps, b.steps, strict=True):
                first = x.id == earliest
                wrote = [{k: v for k, v in s.wrote.items() if not first or k not in plain} for s in (x, y)]
                assert replace(x, wrote=wrote[0]) == replace(y, wrote=wrote[1])
            assert a.flows.equals(b.flows) and files(a.start) == files(b.start) and files(a.end) == made.live()


# ---- ages -------------------------------------------------------------------------------------------------


def aged(history: HistoryStore, made: Made, looks: int, apart_s: float) -> None:
    for _ in range(looks):
        made.commits(1)
        look_and_keep(made.table, history, clock=made.clock)
        made.clock.sleep(apart_s)


def totals(trend: pa.Table) -> dict[tuple[str, int], tuple[int, int, int]]:
    sums = trend.group_by(["class", "change"]).aggregate([("files", "sum"), ("bytes", "sum"), ("rows", "sum")])
    names = ("class", "change", "files_sum", "bytes_sum", "rows_sum")
    return {(c, k): (f, b, r) for c, k, f, b, r in zip(*(sums.column(n).to_pylist() for n in names))}


def test_old_snapshots_become_sums_and_nothing_is_lost(history: HistoryStore) -> None:
    made = Made()
    aged(history, made, 20, 4 * 3600)
    uri = made.table.store.uri
    before, whole = history.trend(uri), history.window(uri)
    history.roll_up(made.clock.now_ms())
    kept = history.window(uri)
    cut = (made.clock.now_ms() - 48 * HOUR) // 300_000 * 300_000
    assert [s.id for s in kept.steps] == [s.id for s in whole.steps if s.time_ms >= cut]
    assert 0 < len(kept.steps) < len(whole.steps)
    assert kept.end is not None and kept.end.equals(whole.end)
    assert history.trend(uri).equals(before)
    look_and_keep(made.table, history, clock=made.clock)
    assert history.known(uri).last == whole.steps[-1].mark
    history.roll_up(made.clock.now_ms() + 40 * 24 * HOUR)
    late = history.trend(uri)
    assert totals(late) == totals(before) and set(late["span_ms"].to_pylist()) == {HOUR, 300_000}
    assert len(history.window(uri).steps) == 1  # the newest, which the next look goes on from
    history.roll_up(made.clock.now_ms() + 500 * 24 * HOUR)
    assert sum(t[0] for t in totals(history.trend(uri)).values()) < sum(t[0] for t in totals(before).values())


def test_how_often_it_was_rolled_up_does_not_matter(tmp_path: Path) -> None:
    made = Made()
    with HistoryStore(tmp_path / "a.sqlite") as often, HistoryStore(tmp_path / "b.sqlite") as once:
        for _ in range(24):
            made.commits(1)
            for history in (often, once):
                look_and_keep(made.table, history, clock=made.clock)
            often.roll_up(made.clock.now_ms())
            made.clock.sleep(3 * 24 * 3600 + 977)
        now, uri = made.clock.now_ms(), made.table.store.uri
        for history in (often, once):
            history.roll_up(now)
        assert often.trend(uri).equals(once.trend(uri))
        assert not differences(often.window(uri), once.window(uri), "stock")


def test_facts_that_no_window_holds_are_kept_beside_it(history: HistoryStore) -> None:
    history.record("memory:t", "finding", 5, "D1", {"severity": "warn"})
    history.record("memory:t", "finding", 9, "D2", [1])
    history.record("memory:t", "sentinel", 9, "a", 2.5)
    assert history.records("memory:t", "finding") == [(5, "D1", {"severity": "warn"}), (9, "D2", [1])]
    assert history.records("memory:t", "finding", 6) == [(9, "D2", [1])]


# ---- the file ---------------------------------------------------------------------------------------------


def test_a_newer_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    HistoryStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(Unsupported, match=r"h\.sqlite has version 9") as err:
        HistoryStore(path)
    assert err.value.hint and "upgrade" in err.value.hint


def test_a_damaged_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    path.write_bytes(b"this is no database, whatever its name says" * 40)
    with pytest.raises(Corrupt, match=r"h\.sqlite is damaged"):
        HistoryStore(path)
    assert path.read_bytes().startswith(b"this is no")


def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(BadRequest, match="another program"):
        HistoryStore(path)


def test_a_place_that_cannot_be_written_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="cannot open the history"):
        HistoryStore(tmp_path / "file" / "h.sqlite")


def test_an_unknown_table_has_no_history(history: HistoryStore) -> None:
    with pytest.raises(NotFound, match="no history of memory:none"):
        history.window("memory:none")
    assert history.known("memory:none").last is None


def test_the_history_never_lies_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="lies inside"):
        check_outside(tmp_path / "lake" / "d.db" / "t" / "h.sqlite", f"file:{tmp_path}/lake/d.db/t")
    check_outside(tmp_path / "h.sqlite", f"file:{tmp_path}/lake")
    check_outside(tmp_path / "h.sqlite", "s3://bucket/lake")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "shoal" / "doctor.sqlite"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_path().is_absolute() and default_path().parts[-2:] == ("shoal", "doctor.sqlite")


# ---- watching ---------------------------------------------------------------------------------------------


def test_a_watch_looks_at_its_pace_and_goes_on_where_it_was(history: HistoryStore) -> None:
    made, seen, times = Made(), [], []
    for look in watch(
        lambda: [made.table], history, clock=made.clock, scheduler=ManualScheduler(), every_s=30
    ):  # fmt: skip
        assert look.window is not None
        times.append(made.clock.monotonic())
        seen.append([s.id for s in look.window.steps])
        if len(seen) == 4:
            break
        made.commits(2)  # takes 20 s
    assert times == [0, 30, 60, 90]
    assert [i for ids in seen for i in ids] == [s.id for s in history.window(made.table.store.uri).steps]


def test_a_watch_tells_of_a_table_that_cannot_be_read_and_goes_on(history: HistoryStore) -> None:
    made, broken = Made(), Made(seed=3)
    made.commits(2)
    broken.commits(3)
    for name in broken.table.store.list_dir("manifest")[1]:
        broken.table.store.put(f"manifest/{name}", b"garbage")
    looks: list[Look] = []
    for table in (broken, made):
        looks += watch(
            lambda table=table: [table.table], history, clock=made.clock, scheduler=ManualScheduler(), every_s=1,
            once=True,
        )  # fmt: skip
    assert isinstance(looks[0].trouble, Corrupt) and "SH-CORRUPT" in looks[0].line()
    assert looks[1].window is not None and "snapshot 2 (+2), +4 flush, live 4" in looks[1].line()
    assert looks[1].to_dict()["snapshots"] == len(looks[1].window.steps)


def test_a_watch_needs_a_pace(history: HistoryStore) -> None:
    with pytest.raises(BadRequest, match="every 0 s"):
        next(watch(list, history, clock=ManualClock(), scheduler=ManualScheduler(), every_s=0))


def test_known_after_a_window_is_known_after_the_history(history: HistoryStore) -> None:
    made = Made()
    made.commits(5)
    window = made.look()
    history.append(window)
    kept, mine = history.known(window.table), Known.of(window)
    assert (kept.last, kept.last_ms, kept.schemas, kept.small_size) == (
        mine.last, mine.last_ms, mine.schemas, mine.small_size,
    )  # fmt: skip
    assert kept.state is not None and kept.state.equals(mine.state)
    assert kept.mark_of(3) == window.steps[2].mark and UNKNOWN.mark_of(3) is None
    assert pc.sum(kept.state["files"]).as_py() == window.steps[-1].live_files
