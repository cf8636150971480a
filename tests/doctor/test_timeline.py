# SPDX-License-Identifier: Apache-2.0
"""The timeline: what its lanes hold against tables of named files, its changes, and how it is drawn."""

from __future__ import annotations

import dataclasses
import json
import random
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from test_flink import facts, sample, steps  # noqa: F401  (a fixture)
from toy import WROTE, File, Toy, runs, steady_table

import shoal
from shoal.doctor.flink import saved_job
from shoal.doctor.query_log import Query, query_log
from shoal.doctor.timeline import Timeline, timeline
from shoal.doctor.timeline_svg import svg
from shoal.doctor.timeline_text import columns, text
from shoal.doctor.window import Event, Holder, IndexFacts, SchemaFacts, Stock, Window, flow_fields, state_fields

HOUR = 3_600_000
EARLY, LATE, BUCKETS = 60, 240, 4


def faster_table() -> Toy:
    """60 checkpoints of 60 s, then 240 of 10 s; all runs become one at every fifth."""
    toy, at = Toy({"bucket": "4", "changelog-producer": "input"}), 0
    for n in range(1, EARLY + LATE + 1):
        seconds = 60 if n <= EARLY else 10
        at += seconds * 1000
        new = [File(b, 10 * seconds) for b in range(BUCKETS)]
        told = [("changelog", File(b, 10 * seconds)) for b in range(BUCKETS)]
        toy.commit(*[("flush", f) for f in new], *told, at=at, identifier=n)
        if n % 5 == 0:
            gone = [("removal", f) for f in toy.live]
            toy.commit(*gone, *[("rewrite", File(b, 5000, 5)) for b in range(BUCKETS)], at=at + 30, kind="COMPACT",
                       identifier=n)  # fmt: skip
    return toy


@pytest.fixture(scope="module")
def faster() -> Toy:
    return faster_table()


@pytest.fixture(scope="module")
def found(faster: Toy) -> Timeline:
    return timeline(faster.window())


def points(t: Timeline, lane: str, name: str) -> list[tuple[int, float]]:
    return list(next(s for s in t.lane(lane).series if s.name == name).points)


def bare(own: list, **more: object) -> Window:
    """A window of snapshots without files."""
    schema = SchemaFacts(0, 0, {}, (), ("k",), ("k",))
    stock = Stock(own[-1].time_ms, own[0].id, own[-1].id, (), IndexFacts({}, 0, 0), 0, 0)
    own = [dataclasses.replace(s, wrote=WROTE) for s in own]
    window = Window("x", "d.t", tuple(own), flow_fields().empty_table(), state_fields().empty_table(), (schema,), stock)
    return dataclasses.replace(window, **more)


# ---- what changed


def test_the_interval_is_told_first_and_the_slope_moved_after_it(found: Timeline) -> None:
    assert [c.says for c in found.changes] == ["interval 60→10 s", "flush/min x6.0", "bytes/file x0.17"]
    interval = found.changes[0]
    assert (interval.act, interval.before, interval.after) == (True, 60.0, 10.0)
    assert interval.at_ms == 60 * 60_000 + 10_000  # the first checkpoint that came after 10 s
    assert found.text.startswith("01:00 interval 60→10 s; 01:00 flush/min x6.0")
    (turn,) = found.turns  # live files and merge debt hardly depend on the interval
    assert (turn.stock, turn.changes) == ("files made", (0,))
    # 4 files, 4 changelog files and 4 metadata files a checkpoint, and a compaction's 4 + 4 at every fifth
    assert turn.before == pytest.approx(12 + 8 / 5, rel=0.05) and turn.ratio == pytest.approx(6, rel=0.02)
    assert turn.factors == "x6.0 = x6.0 commits · x1.0 buckets · x1.0 files"
    assert found.turn_text(turn).startswith("files made +14 → +82 a minute (x6.0) after 01:00 interval 60→10 s;")
    assert found.stocks == ("files made", "live files", "merge debt")


def test_a_steady_table_has_no_change() -> None:
    t = timeline(steady_table(300, buckets=4).window())
    assert (t.changes, t.turns, t.text) == ((), (), "")
    assert "No change in this time" in text(t)


def test_acts_stand_in_order_and_a_slope_is_told_after_the_one_nearest_before_it() -> None:
    """The option comes an hour before; what moved the slope of live files is that compaction was taken away."""
    toy, at = Toy({"bucket": "2"}), 0
    for n in range(1, 241):
        at += 30_000
        toy.commit(*[("flush", File(b, 100)) for b in range(2)], at=at, identifier=n)
        if n <= 120 and n % 5 == 0:
            gone = [("removal", f) for f in toy.live]
            toy.commit(*gone, *[("rewrite", File(b, 5000, 5)) for b in range(2)], at=at + 30, kind="COMPACT",
                       identifier=n)  # fmt: skip
    first = SchemaFacts(0, 0, {"bucket": "2"}, (), ("k",), ("k",))
    kept = dataclasses.replace(
        first, id=1, time_ms=30 * 60_000, options={"bucket": "2", "snapshot.time-retained": "2h"}
    )
    alone = dataclasses.replace(kept, id=2, time_ms=HOUR + 5_000, options={**kept.options, "write-only": "true"})
    t = timeline(dataclasses.replace(toy.window(), schemas=(first, kept, alone)))
    acts = [c for c in t.changes if c.act]
    assert [c.says for c in acts] == ["snapshot.time-retained unset→2h", "write-only unset→true"]
    moved = {turn.stock: [t.changes[i].says for i in turn.changes] for turn in t.turns}
    assert moved["live files"] == moved["merge debt"] == ["write-only unset→true"]
    live = next(turn for turn in t.turns if turn.stock == "live files")
    assert live.after == pytest.approx(4)  # 2 buckets, 2 checkpoints a minute


def test_schema_buckets_restarts_and_events_are_acts() -> None:
    own = [facts(n, "APPEND", i, n * 10_000) for n, i in enumerate([*range(1, 31), *range(25, 61)], 1)]
    schemas = (
        SchemaFacts(0, 0, {}, (), ("k",), ("k", "v")), SchemaFacts(1, 150_000, {}, (), ("k",), ("k", "w", "x")),
    )  # fmt: skip
    rows = [
        {"snapshot": n, "class": "flush", "change": 1, "partition": "", "bucket": 0, "level": 0, "files": 1,
         "total_buckets": 4 if n < 40 else 16}
        for n in range(1, len(own) + 1)
    ]  # fmt: skip
    import pyarrow as pa

    flows = pa.Table.from_pylist(rows, schema=flow_fields())
    window = bare(own, schemas=schemas, flows=flows, start=None, events=(Event(500_000, "rollback", "to 50", 50),))
    acts = [(c.at_ms, c.kind, c.says) for c in timeline(window).changes if c.act]
    assert acts == [
        (150_000, "schema", "column +w +x -v"), (310_000, "restart", "restart: checkpoint 30→25"),
        (400_000, "buckets", "buckets 4→16"), (500_000, "event", "rollback: to 50"),
    ]  # fmt: skip
    assert [t.kind for t in timeline(window).lane("acts").ticks] == ["schema", "restart", "buckets", "event"]


def test_a_level_that_moved_is_told_once_with_its_ratio() -> None:
    toy = Toy()
    for n in range(1, 81):  # a reader meets 3 files, from the 41st on 6
        live = list(toy.live)
        toy.commit(*[("removal", f) for f in live], *[("flush", File(b, 9)) for b in range(3 if n <= 40 else 6)],
                   at=n * 60_000)  # fmt: skip
    plans = [c for c in timeline(toy.window()).changes if c.kind == "files_per_plan"]
    assert [(c.at_ms, c.says) for c in plans] == [(41 * 60_000, "files per plan x2.0")]


# ---- lanes


def test_the_interval_of_each_commit(found: Timeline) -> None:
    values = [v for _, v in points(found, "interval", "by snapshots")]
    assert values == [60.0] * (EARLY - 1) + [10.0] * LATE


def test_bars_add_up_to_the_files_of_their_snapshots() -> None:
    rng, toy, at, made = random.Random(5), Toy(), 0, 0
    for n in range(1, 200):
        at += rng.choice([1_000, 10_000, 11_000, 90_000])
        files = [File(rng.randrange(8), 10) for _ in range(rng.randrange(6))]
        toy.commit(*[("flush", f) for f in files], at=at, identifier=n)
        made += len(files) if n > 1 else 0
    for bins in (7, 44, 120):
        t = timeline(toy.window(), bins=bins)
        lane = t.lane("flows")
        assert lane.bin_ms is not None
        added = sum(v for _, v in points(t, "flows", "flush")) * lane.bin_ms / 60_000
        assert made - 0.001 <= added <= made + len(toy.done[0].rows) + 0.001


def test_files_a_minute_have_no_comb(found: Timeline) -> None:
    flush = points(found, "flows", "flush")
    half = [v for at, v in flush if at + (found.lane("flows").bin_ms or 0) < EARLY * 60_000]
    assert set(map(round, half)) == {4} and flush[-2][1] == pytest.approx(24)
    assert points(found, "flows", "changelog") == flush


def test_crests_and_troughs_are_those_of_the_worst_bucket(faster: Toy, found: Timeline) -> None:
    size = found.lane("flows").bin_ms or 0
    crests, troughs = points(found, "runs", "crest"), points(found, "runs", "trough")
    before = [0] * BUCKETS
    for (at, crest), (_, trough) in zip(crests, troughs, strict=True):
        here = [d for d in faster.done if at <= d.time_ms < at + size]
        seen = [[before[b], *(runs(d, "", b) for d in here)] for b in range(BUCKETS)]
        assert (crest, trough) == (max(map(max, seen)), max(map(min, seen)))
        before = [values[-1] for values in seen]
    assert found.lane("runs").levels == {"trigger": 5.0, "stop": 8.0}


def test_stocks_live_and_retained(faster: Toy) -> None:
    held = Holder("consumer", "bi", 100, 0)
    window = faster.window(earliest=80, holders=(held, Holder("tag", "v1", 20, 0)), taken_ms=2 * HOUR)
    t = timeline(window, bins=10_000)  # nothing is thinned
    assert points(t, "stocks", "live") == [(d.time_ms, len(d.live)) for d in faster.done]
    retained = points(t, "stocks", "retained")
    kept = [d for d in faster.done if d.id >= 80]
    dead = sum(row[0] == "removal" for d in kept[1:] for row in d.rows)
    assert retained[-1][1] == dead + sum(row[0] == "changelog" for d in kept for row in d.rows)
    assert retained[0][0] == kept[0].time_ms
    pins = [(tick.kind, tick.label) for tick in t.lane("pins").ticks]
    assert pins[0] == ("earliest", "earliest snapshot 80")
    assert pins[1:] == [("consumer", "consumer bi next reads 100"), ("tag", "tag v1 holds 20")]


def test_a_long_line_keeps_its_crests() -> None:
    toy = steady_table(400, buckets=3)
    live = [len(d.live) for d in toy.done]
    thin = points(timeline(toy.window(), bins=20), "stocks", "live")
    assert len(thin) <= 2 * 20 + 2 < len(live)
    assert (max(v for _, v in thin), min(v for _, v in thin), thin[-1][1]) == (max(live), min(live), live[-1])


def test_a_lane_without_points_says_why() -> None:
    t = timeline(steady_table(30).window())
    assert "known to Flink alone" in t.lane("durations").note and t.lane("acts").note == "none in this time"
    append = timeline(Toy({}, keys=()).window())
    assert "no snapshot" in append.lane("commits").note and "no primary key" in append.lane("runs").note
    for lane in (*t.lanes, *append.lanes):
        assert not lane.empty or lane.note


def test_commits_of_several_users() -> None:
    toy = Toy()
    for n in range(1, 61):
        toy.commit(("flush", File(0, 10)), at=n * 10_000, identifier=n)
        toy.commit(at=n * 10_000 + 5000, kind="COMPACT", user="compactor", identifier=n)
    rows = {s.name: sum(v for _, v in s.points) for s in timeline(toy.window(), bins=12).lane("commits").series}
    assert rows == {"APPEND me": 60, "COMPACT compacto": 60}


# ---- with Flink


def test_joined_with_a_job_by_checkpoint_id(sample: Path) -> None:  # noqa: F811
    t = timeline(bare(steps(sample)), None, saved_job(sample))
    assert t.join is not None
    assert (t.join.identifiers, t.join.matched, t.join.of_failed, t.join.missed) == (12, 12, 0, 0)
    assert (t.join.late_p50_ms, t.join.offset_ms) == (15.5, 6)
    assert [v for _, v in points(t, "durations", "ack to commit")][:3] == [298, 50, 16]
    assert points(t, "durations", "checkpoint")[0] == (1795991336140, 651)
    assert t.lane("durations").levels == {"commit p99, Flink's metric": 327.0}
    assert t.lane("interval").levels == {"configured": 5.0}
    assert [round(v) for _, v in points(t, "interval", "by Flink")] == [5] * 11
    assert "12 of 12 checkpoints with snapshots are known to Flink" in text(t)


def test_failed_checkpoints_and_their_bursts(sample: Path) -> None:  # noqa: F811
    folder = sample / "failed-checkpoints"
    t = timeline(bare(steps(folder)), None, saved_job(folder))
    assert t.join is not None and t.join.of_failed == 15
    failures = [c.says for c in t.changes if c.kind == "failures"]
    assert failures[:2] == ["checkpoints 1 to 2 failed", "checkpoints 4 to 9 failed"]
    ticks = [tick.kind for tick in t.lane("interval").ticks]
    assert ticks.count("burst") == 6 and ticks.count("failed") == sum(
        c.status == "FAILED" for c in saved_job(folder).checkpoints
    )


def test_checkpoints_after_the_last_answer_are_told_apart_from_missed_ones(sample: Path) -> None:  # noqa: F811
    job = saved_job(sample)
    early = replace(job, checkpoints=job.checkpoints[:9], counts={"total": 9, "restored": 0, "failed": 0})
    t = timeline(bare(steps(sample)), None, early)
    assert t.join is not None
    assert (t.join.identifiers, t.join.matched, t.join.missed, t.join.newer) == (9, 9, 0, 3)
    assert t.to_dict()["join"]["newer"] == 3 and "3 are newer than its last answer" in " ".join(text(t).split())


def test_a_job_of_another_table_is_not_joined(sample: Path, found: Timeline, faster: Toy) -> None:  # noqa: F811
    t = timeline(faster.window(), None, saved_job(sample))
    assert t.join is not None and t.join.user is None
    assert "nothing is joined" in text(t)


# ---- query logs


def test_query_times_that_moved(faster: Toy) -> None:
    queries = [Query(n * 300_000, 800 + n % 3 if n < 15 else 2400 + n % 3, 10 if n < 15 else 30) for n in range(1, 25)]
    t = timeline(faster.window(), None, None, queries)
    asked = [(c.at_ms, c.says) for c in t.changes if c.kind.startswith(("query", "files_per_query"))]
    assert asked == [(15 * 300_000, "query time x3.0"), (15 * 300_000, "files per query x3.0")]
    assert points(t, "queries", "query ms")[0] == (300_000, 801)


def test_query_logs(tmp_path: Path) -> None:
    csv = tmp_path / "q.csv"
    csv.write_text(
        "time,table,duration,files\n2026-11-02T00:00:01Z,d.t,1.5,7\n1793577600,,350 ms,\n2026-11-02,d.u,1,1\n"
    )
    assert query_log(csv, "d.t") == (Query(1793577600000, 350.0), Query(1793577601000, 1500.0, 7))
    lines = tmp_path / "q.jsonl"
    lines.write_text(
        '{"time": 1793577600000, "table": "t", "duration_ms": 12}\n{"time": 1793577601, "duration": "2 min"}\n'
    )
    assert query_log(lines, "d.t") == (Query(1793577600000, 12.0), Query(1793577601000, 120_000.0))
    lines.write_text('[{"time": "2026-11-02T02:00:00+02:00", "duration": 1}]')
    assert query_log(lines, "d.t") == (Query(1793577600000, 1000.0),)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("time,duration\nyesterday,1\n", "row 1: 'yesterday' is no time"),
        ("time,duration\n1,1\n1,soon\n", "row 2: 'soon' is no duration"),
        ("time,files\n1,1\n", "no columns 'time' and 'duration' in its first line"),
        ("a,b\n", "no columns 'time' and 'duration' in its first line"),
        ('[{"time": 1}]', "row 1: no duration"),
        ("time,duration,files\n1,1,many\n", "row 1: files 'many' is not a number"),
        ("[1]", "no object"),
        ("{", "not JSON"),
    ],
)
def test_a_query_log_that_cannot_be_read_is_refused(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "q"
    path.write_text(content)
    with pytest.raises(shoal.BadRequest, match=says):
        query_log(path, "d.t")
    with pytest.raises(shoal.NotFound):
        query_log(tmp_path / "nothing", "d.t")


# ---- drawn


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_text_fits_its_width(faster: Toy, width: int) -> None:
    window = faster.window(holders=(Holder("tag", "a" * 200, 20, 0),))
    drawn = text(timeline(window, bins=columns(width)), width)
    assert max(map(len, drawn.splitlines())) <= width
    for lane in ("checkpoint interval", "files made a minute", "sorted runs", "expiry and pins", "reads"):
        assert lane in drawn


def test_a_row_of_text_shows_the_step(faster: Toy) -> None:
    window = faster.window()
    row = next(s for s in text(timeline(window, bins=columns(80))).splitlines() if "by snapshots" in s)
    cells = row[19 : 19 + columns(80)]
    assert cells.count("█") + cells.count("▂") >= columns(80) - 1
    assert cells.strip().lstrip("█").rstrip("▂") == "" and row.split()[-2:] == ["10", "60"]


def test_a_picture_is_well_formed_and_the_same_each_time(faster: Toy) -> None:
    window = dataclasses.replace(faster.window(holders=(Holder("tag", "<&\"'", 20, 0),)), name="db.<t>")
    for width in (420, 960):
        one = svg(timeline(window), width)
        assert one == svg(timeline(window), width)
        root = ET.fromstring(one)
        assert root.get("viewBox", "").startswith(f"0 0 {width} ") and "http" not in one.replace(
            "http://www.w3.org/2000/svg", ""
        )
        texts = " ".join(e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text"))
        assert "db.<t>" in texts and "interval 60→10 s" in texts and "tag <&\"'" in texts


def test_json_is_a_contract(found: Timeline) -> None:
    out = json.loads(json.dumps(found.to_dict()))
    assert out["schema"] == "shoal.doctor.timeline/1"
    assert [lane["id"] for lane in out["lanes"]] == [
        "interval", "commits", "flows", "runs", "stocks", "durations", "pins", "acts", "queries",
    ]  # fmt: skip
    assert out["changes"][0] == {
        "at_ms": 3_610_000, "kind": "interval", "says": "interval 60→10 s", "snapshot": 73, "before": 60.0,
        "after": 10.0, "ratio": pytest.approx(1 / 6),
    }  # fmt: skip
    assert out["turns"][0]["says"] == found.turn_text(found.turns[0]) and out["join"] is None
