# SPDX-License-Identifier: Apache-2.0
"""Jobs in virtual time: killed at every store call, stopped, started again; the table is a prefix of the stream."""

from __future__ import annotations

import random
from datetime import date
from itertools import pairwise

import pyarrow as pa
import pytest
from flights_model import independent_fold

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock, ManualScheduler
from shoal.errors import BadRequest, CommitUnknown, Fenced, NotFound, StorageFailed
from shoal.flow.checkpoint import FINGERPRINT, POSITION
from shoal.flow.job import Job, parse_interval, parse_source, run
from shoal.flow.source import DELETE, INSERT, UPDATE_AFTER, Changes, check_take
from shoal.flow.sources.flights import KEY, FlightsSource
from shoal.store.faults import Died, Fault, FaultyStore
from shoal.store.memory import MemoryStore

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int64())])
# Compacts within a few checkpoints, so that deaths meet compactions too.
OPTIONS = {"bucket": 1, "num-sorted-run.compaction-trigger": 2, "manifest.merge-min-count": 3}
MINUTE = 60.0


class Listed:
    """Changes `(due second, kind, key, value)` as a source."""

    schema, primary_key, partition_by = SCHEMA, ("k",), ()

    def __init__(self, changes: list[tuple[float, int, int, int]], fingerprint: str = "listed") -> None:
        self.changes, self.fingerprint, self.total = changes, fingerprint, len(changes)

    def take(self, position: int, *, until_s: float | None, max_rows: int) -> Changes:
        check_take(position, max_rows, self.total)
        stop = position
        while stop < min(self.total, position + max_rows) and (until_s is None or self.changes[stop][0] <= until_s):
            stop += 1
        taken = self.changes[position:stop]
        return Changes(
            pa.RecordBatch.from_pylist([{"k": k, "v": v} for _, _, k, v in taken], schema=SCHEMA),
            pa.array([kind for _, kind, _, _ in taken], pa.int8()),
            stop,
            self.changes[stop - 1][0] if stop else 0.0,
            self.changes[stop][0] if stop < self.total else None,
        )

    def fold(self, position: int | None = None) -> dict[int, int]:
        """What a table holds after the first `position` changes."""
        table: dict[int, int] = {}
        for _, kind, k, v in self.changes[:position]:
            if kind == DELETE:
                table.pop(k, None)
            else:
                table[k] = v
        return table


def listed(minutes: int, each: int = 5) -> Listed:
    """`each` changes a minute over nine keys: every kind, every key several times."""
    rnd = random.Random(5)
    changes = []
    for i in range(minutes * each):
        kind = rnd.choice([INSERT, UPDATE_AFTER, UPDATE_AFTER, DELETE])
        changes.append((i * MINUTE / each, kind, rnd.randrange(9), i))
    return Listed(changes)


def lake(store) -> Lake:
    return Lake(store, clock=ManualClock(), scheduler=ManualScheduler)


def job(store, source, **given) -> Job:
    return Job(lake(store), source, "d.t", name="job", **{"checkpoint_s": MINUTE, "options": OPTIONS, **given})


def rows(store, snapshot: int | None = None) -> dict[int, int]:
    found = lake(store).table("d.t").scan(snapshot=snapshot).to_arrow().to_pylist()
    out = {r["k"]: r["v"] for r in found}
    assert len(out) == len(found), "a key came twice"
    return out


def snapshots(store):
    metadata = lake(store).table("d.t").metadata
    return [metadata.snapshot(i) for i in metadata.snapshot_ids()]


def positions(store) -> list[int]:
    return [int(s.properties[POSITION]) for s in snapshots(store)]


# ---- crashes ---------------------------------------------------------------------------------------------

CRASHING = listed(5)


def mutations() -> int:
    counted = FaultyStore(MemoryStore())
    run(job(counted, CRASHING))
    assert {s.commit_kind for s in snapshots(counted)} == {"APPEND", "COMPACT"}
    return counted.mutations


@pytest.mark.parametrize(
    "action, step",
    [("die_after", 1), ("die", 3), pytest.param("die", 1, marks=pytest.mark.slow)],  # before a call: after the last one
)
def test_a_job_killed_at_any_store_call_and_started_again_ends_with_each_row_once(action, step):
    for at in range(1, mutations() + 1, step):
        store = MemoryStore()
        with pytest.raises(Died):
            run(job(FaultyStore(store, Fault(action, at=at)), CRASHING))
        run(job(store, CRASHING))
        assert rows(store) == CRASHING.fold(), f"{action} at call {at}"
        assert positions(store) == sorted(positions(store))
        assert positions(store)[-1] == CRASHING.total


def test_a_job_killed_again_and_again_ends_with_each_row_once():
    store, rnd, deaths = MemoryStore(), random.Random(11), 0
    source = listed(40)
    while True:
        try:
            run(job(FaultyStore(store, Fault(rnd.choice(["die", "die_after"]), at=rnd.randint(3, 45))), source))
        except Died:
            deaths += 1
        else:
            break
    assert deaths > 5
    assert rows(store) == source.fold()
    ids = [s.commit_identifier for s in snapshots(store) if s.commit_kind == "APPEND"]
    assert ids == sorted(set(ids))


def test_every_snapshot_holds_the_stream_up_to_its_position():
    store = MemoryStore()
    run(job(store, CRASHING))
    assert len(set(positions(store))) == 5
    for snapshot in snapshots(store):
        assert rows(store, snapshot.id) == CRASHING.fold(int(snapshot.properties[POSITION]))
        assert snapshot.properties[FINGERPRINT] == "listed"


def test_a_day_of_flights_survives_deaths_and_equals_the_csv():
    day = date(2013, 3, 10), date(2013, 3, 11)
    source, store, rnd = FlightsSource(*day, speed=240), MemoryStore(), random.Random(3)
    flights = {"table_name": "d.flights", "options": {"bucket": 2}}

    def start(on):
        return run(Job(lake(on), source, "d.flights", name="j", checkpoint_s=45.0, options=flights["options"]))

    for _ in range(4):
        with pytest.raises(Died):
            start(FaultyStore(store, Fault("die", at=rnd.randint(4, 30))))
    assert start(store).ended
    found = lake(store).table("d.flights").scan().to_arrow().sort_by([(name, "ascending") for name in KEY])
    assert found.to_pylist() == independent_fold(*day)


# ---- unclear and failing stores --------------------------------------------------------------------------


def test_a_commit_whose_outcome_is_unclear_is_settled_and_the_job_goes_on():
    store = MemoryStore()
    faults = (
        Fault("fail_after", kind="create", path="snapshot-2"),
        Fault("fail", kind="read", path="snapshot-2", times=3),
    )
    faulty = FaultyStore(store, faults)
    assert run(job(faulty, CRASHING)).ended
    assert rows(store) == CRASHING.fold()
    appends = [s for s in snapshots(store) if s.commit_kind == "APPEND"]
    assert [s.commit_identifier for s in appends] == [1, 2, 3, 4, 5]


def test_a_store_that_stays_away_ends_the_job_and_the_next_run_goes_on():
    store = MemoryStore()
    faults = (
        Fault("fail_after", kind="create", path="snapshot-2", times=10**6),
        Fault("fail", kind="read", path="snapshot-2", times=10**6),
    )
    with pytest.raises(CommitUnknown):
        run(job(FaultyStore(store, faults), CRASHING))
    assert run(job(store, CRASHING)).ended
    assert rows(store) == CRASHING.fold()


def test_a_write_that_fails_ends_the_job_with_nothing_of_that_checkpoint_visible():
    store = MemoryStore()
    with pytest.raises(StorageFailed):
        run(job(FaultyStore(store, Fault("fail", path="data-", at=3)), CRASHING))
    assert rows(store) == CRASHING.fold(positions(store)[-1])
    assert run(job(store, CRASHING)).ended
    assert rows(store) == CRASHING.fold()


# ---- start, stop, start ----------------------------------------------------------------------------------


def test_a_stopped_job_commits_what_it_took_and_goes_on_from_there():
    store = MemoryStore()
    clock = ManualClock()
    stopped = run(
        Job(Lake(store, clock=clock, scheduler=ManualScheduler), CRASHING, "d.t", name="job", options=OPTIONS),
        stop=lambda: clock.monotonic() >= 2.5 * MINUTE,
    )
    assert not stopped.ended
    assert clock.monotonic() < 2.6 * MINUTE
    assert stopped.position == positions(store)[-1] == stopped.rows
    assert rows(store) == CRASHING.fold(stopped.position)

    went_on = run(job(store, CRASHING))
    assert went_on.ended
    assert stopped.rows + went_on.rows == CRASHING.total
    assert rows(store) == CRASHING.fold()


def test_a_job_that_is_told_to_stop_at_once_makes_at_most_what_was_due():
    store = MemoryStore()
    result = run(job(store, CRASHING), stop=lambda: True)
    assert (result.rows, result.checkpoints) == (1, 1)


def test_a_job_whose_source_has_ended_makes_no_snapshot():
    store = MemoryStore()
    run(job(store, CRASHING))
    before = len(snapshots(store))
    again = run(job(store, CRASHING))
    assert (again.rows, again.checkpoints, again.ended) == (0, 0, True)
    assert len(snapshots(store)) == before


def test_another_source_is_refused():
    store = MemoryStore()
    run(job(store, CRASHING))
    with pytest.raises(BadRequest, match=r"job 'job' has read \[listed\], not \[other\]"):
        run(job(store, Listed(CRASHING.changes, "other")))


def test_the_name_of_another_writer_is_refused():
    store = MemoryStore()
    run(job(store, CRASHING), stop=lambda: True)
    with lake(store).table("d.t").write(commit_user="job") as writer:
        writer.upsert([{"k": 1, "v": 1}])
        writer.commit(checkpoint=7)
    with pytest.raises(BadRequest, match="has no position"):
        run(job(store, CRASHING))


def test_snapshots_of_other_writers_do_not_hide_the_position():
    store = MemoryStore()
    stopped = run(job(store, CRASHING), stop=lambda: True)
    with lake(store).table("d.t").write() as writer:
        writer.upsert([{"k": 100, "v": 1}])
        writer.commit()
    went_on = run(job(store, CRASHING))
    assert went_on.rows == CRASHING.total - stopped.rows
    assert rows(store) == CRASHING.fold() | {100: 1}


def test_two_jobs_write_one_table_beside_each_other():
    store = MemoryStore()
    other = Listed([(due, kind, k + 50, v) for due, kind, k, v in CRASHING.changes], "other")
    run(job(store, CRASHING), stop=lambda: True)
    second = Job(lake(store), other, "d.t", name="second", checkpoint_s=MINUTE)
    run(second)
    run(job(store, CRASHING))
    assert rows(store) == CRASHING.fold() | other.fold()


def test_a_second_run_of_a_job_is_fenced_off():
    store, ran = MemoryStore(), []

    def overtaken() -> bool:
        if not ran:
            ran.append(run(job(store, CRASHING)))
        return False

    with pytest.raises(Fenced, match="committed by another run"):
        run(job(store, CRASHING), stop=overtaken)
    assert ran[0].ended
    assert rows(store) == CRASHING.fold()


def test_a_job_whose_snapshots_have_expired_must_be_told_where_to_begin():
    store = MemoryStore()
    run(job(store, CRASHING))
    with lake(store).table("d.t").write() as writer:
        writer.upsert([{"k": 100, "v": 1}])
        writer.commit()
    gone = snapshots(store)[:-1]
    for snapshot in gone:
        store.delete(f"d.db/t/snapshot/snapshot-{snapshot.id}")
    with pytest.raises(BadRequest, match="older snapshots have expired"):
        run(job(store, CRASHING))
    assert run(job(store, CRASHING, start=CRASHING.total - 2)).rows == 2


# ---- the checkpoint clock --------------------------------------------------------------------------------


def test_checkpoints_without_rows_make_no_snapshot():
    store = MemoryStore()
    seen = []
    source = Listed([(0.0, INSERT, 1, 1), (10 * MINUTE, INSERT, 2, 2)])
    result = run(job(store, source, options={"bucket": 1}), on_progress=seen.append)
    assert (result.checkpoints, result.snapshots) == (10, 2)
    assert [p.position for p in seen] == [1] * 9 + [2]


def test_snapshot_times_follow_the_checkpoint_clock():
    store = MemoryStore()
    run(job(store, CRASHING))
    times = [s.time_ms for s in snapshots(store) if s.commit_kind == "APPEND"]
    assert {b - a for a, b in pairwise(times[:-1])} == {60_000}


def test_rows_that_are_all_due_are_written_without_waiting():
    store, clock = MemoryStore(), ManualClock()
    source = Listed([(0.0, INSERT, i, i) for i in range(100)])
    result = run(Job(Lake(store, clock=clock, scheduler=ManualScheduler), source, "d.t", name="j", options=OPTIONS))
    assert (result.rows, result.checkpoints, clock.monotonic()) == (100, 1, 0.0)


def test_compactions_run_between_two_checkpoints():
    store = MemoryStore()
    run(job(store, CRASHING))
    kinds = [s.commit_kind for s in snapshots(store)]
    assert kinds.count("APPEND") == 5
    assert "COMPACT" in kinds


def test_a_run_on_threads_and_the_machines_clock_gives_the_same_rows():
    store = MemoryStore()
    source = Listed([(0.0, kind, k, v) for _, kind, k, v in CRASHING.changes])
    assert run(Job(Lake(store), source, "d.t", name="job", options=OPTIONS)).ended
    assert rows(store) == CRASHING.fold()


# ---- the table -------------------------------------------------------------------------------------------


def test_the_table_is_made_with_the_keys_of_the_source():
    store = MemoryStore()
    source = FlightsSource(date(2013, 1, 1), date(2013, 1, 2), speed=3600)
    run(Job(lake(store), source, "d.t", name="j", options={"bucket": 2}), stop=lambda: True)
    schema = lake(store).table("d.t").schema
    assert (schema.primary_keys, schema.partition_keys) == (KEY, ("flight_date",))


def test_a_table_with_a_key_needs_buckets_and_is_not_made_without():
    store = MemoryStore()
    with pytest.raises(BadRequest, match="needs a number of buckets"):
        run(job(store, CRASHING, options={}))
    with pytest.raises(NotFound):
        lake(store).table("d.t")


def test_a_missing_table_is_not_made_when_that_is_not_wanted():
    with pytest.raises(NotFound):
        run(job(MemoryStore(), CRASHING, create=False))


@pytest.mark.parametrize(
    "given, message",
    [
        ({"options": {"bucket": 3}}, "d.t exists with bucket = 1, not = 3"),
        ({"primary_key": ["v"]}, r"d.t exists with primary key \(k\), not \(v\)"),
        ({"partition_by": ["v"]}, r"d.t exists with partition none, not \(v\)"),
    ],
)
def test_a_table_that_is_there_must_be_as_it_was_asked_for(given, message):
    store = MemoryStore()
    run(job(store, CRASHING), stop=lambda: True)
    with pytest.raises(BadRequest, match=message):
        run(job(store, CRASHING, **given))


@pytest.mark.parametrize("given", [{"name": ""}, {"checkpoint_s": 0}, {"checkpoint_s": float("nan")}])
def test_a_job_without_name_or_interval_is_refused(given):
    with pytest.raises(BadRequest):
        Job(lake(MemoryStore()), CRASHING, "d.t", **{"name": "j", **given})


def test_the_result_can_be_read_by_people_and_scripts():
    result = run(job(MemoryStore(), CRASHING))
    assert str(result).startswith("d.t: 25 rows in 5 checkpoints and ")
    assert str(result).endswith("the source has ended")
    assert result.to_dict() | {"rows": 25, "ended": True, "position": 25} == result.to_dict()


def test_a_job_goes_on_and_says_so_when_upkeep_fails():
    """A tag that cannot be read stops expiry, as what it needs is not known, and nothing else."""
    store = MemoryStore()
    run(job(store, listed(3)))
    store.put("d.db/t/tag/tag-odd", b"{")
    retained = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"}
    lake(store).table("d.t").alter(options=retained)
    seen = []
    result = run(job(store, listed(6), options={}), on_progress=seen.append)
    assert result.ended and result.rows == 15
    assert result.upkeep_failures == result.checkpoints
    assert "tag-odd" in (result.upkeep_failure or "")
    assert str(result).endswith(f"upkeep failed after 3 of 3 checkpoints, last: {result.upkeep_failure}")
    assert seen[-1].upkeep_failure == result.upkeep_failure
    assert result.to_dict()["upkeep_failures"] == result.upkeep_failures
    well = run(job(MemoryStore(), CRASHING))
    assert (well.upkeep_failures, well.upkeep_failure) == (0, None)


# ---- texts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, seconds", [("10s", 10.0), ("1 min", 60.0), ("500ms", 0.5), ("2 h", 7200.0)])
def test_intervals_are_read(text, seconds):
    assert parse_interval(text) == seconds


@pytest.mark.parametrize("text", ["10", "0s", "soon", "", "1.5s", "-1s", "10 parsecs"])
def test_intervals_that_are_unclear_are_refused(text):
    with pytest.raises(BadRequest):
        parse_interval(text)


def test_flights_are_named_by_their_days():
    source = parse_source("flights:2013-01-01..2013-01-03", speed=3600)
    assert isinstance(source, FlightsSource)
    assert (source.start, source.end, source.speed) == (date(2013, 1, 1), date(2013, 1, 3), 3600)


@pytest.mark.parametrize(
    "text", ["flights", "flights:", "flights:2013-01-01", "flights:a..b", "flights:2013-02-01..2013-01-01"]
)
def test_flights_of_no_days_are_refused(text):
    with pytest.raises(BadRequest):
        parse_source(text)


@pytest.mark.parametrize("given", [{"time_column": "updated_at"}, {"kind_column": "k"}, {"rows_per_second": 5.0}])
def test_flights_keep_their_own_columns_and_pace(given):
    with pytest.raises(BadRequest, match="their own"):
        parse_source("flights:2013-01-01..2013-01-02", **given)


def test_anything_else_names_files(tmp_path):
    (tmp_path / "a.csv").write_text("k,v\n1,2\n")
    (tmp_path / "b.csv").write_text("k,v\n3,4\n")
    source = parse_source([str(tmp_path / "*.csv")], primary_key=["k"])
    assert source.take(0, until_s=None, max_rows=9).rows.to_pylist() == [{"k": 1, "v": 2}, {"k": 3, "v": 4}]
    assert source.primary_key == ("k",)
    with pytest.raises(BadRequest, match="a source of their own"):
        parse_source([str(tmp_path / "a.csv"), "flights:2013-01-01..2013-01-02"])
