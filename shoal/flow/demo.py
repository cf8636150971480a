# SPDX-License-Identifier: Apache-2.0
"""`shoal demo`: a month of real flights as a change stream into two tables that differ only in the checkpoint clock.

Both jobs replay the same changes on a virtual clock, compaction beside them; then one SQL question is asked of each
table and the doctor compares their files. Invariant: the same span gives the same files and counts on every machine;
only the wall seconds differ. A folder is replaced only when it is a demo and holds nothing else.
"""

from __future__ import annotations

import random
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import shoal
from shoal.clock import ManualClock, ManualScheduler, SystemClock
from shoal.doctor.compare import Comparison, compare
from shoal.doctor.debt import Debt, measure, total
from shoal.doctor.report import size_text
from shoal.doctor.window import Count
from shoal.errors import BadRequest
from shoal.flow.job import Job, JobResult, Progress, run
from shoal.flow.sources.flights import FlightsSource

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.catalog.filesystem import Lake

FOLDER = "./shoal-demo"
# Two virtual hours for a month are about 11 changes a second: checkpoints of a busy table, not of a toy.
START, END, HOURS = date(2013, 1, 1), date(2013, 2, 1), 2.0
CHECKPOINTS_S = (60, 10)
# Snapshots stay for a day, not for an hour: the doctor tells what was made from those that are there, and all of the
# past can be asked.
OPTIONS = {"bucket": 4, "partition.legacy-name": False, "snapshot.time-retained": "1 d"}
QUESTION = (
    "SELECT carrier, count(*) AS flights, round(avg(arr_delay), 1) AS minutes_late FROM {table} "
    "WHERE status = 'arrived' GROUP BY carrier HAVING count(*) >= 100 ORDER BY avg(arr_delay) DESC, carrier LIMIT 5"
)
# Says that a folder is ours to replace.
MARKER = ".shoal-demo"
_SEED = 2013
_DATABASE = "demo"


@dataclass(frozen=True, slots=True)
class DemoTable:
    """One of the two tables: how it was written, and its answer to the question."""

    name: str
    checkpoint_s: int
    job: JobResult
    answer: pa.Table

    def to_dict(self) -> dict[str, object]:
        return {
            "name": self.name, "checkpoint_s": self.checkpoint_s, "job": self.job.to_dict(),
            "answer": self.answer.to_pylist(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo found. `str()` fits 80 columns; everything but `wall_s` is the same on every run."""

    folder: str
    start: date
    end: date
    hours: float
    tables: tuple[DemoTable, ...]  # the slower clock first
    comparison: Comparison  # the faster clock against the slower one
    wall_s: float

    @property
    def same_answer(self) -> bool:
        return all(t.answer.equals(self.tables[0].answer) for t in self.tables)

    def __str__(self) -> str:
        return "\n".join((*self._head(), "", *self._answer(), "", *_cost(self.comparison), "", *self._next())) + "\n"

    def _head(self) -> Iterator[str]:
        job, last = self.tables[0].job, self.end - timedelta(days=1)
        yield f"Flights from New York, {self.start} to {last}: {job.rows:,} changes replayed in"
        rate = job.rows / job.clock_s if job.clock_s else 0
        yield f"{job.clock_s / 3600:.1f} virtual hours, {rate:.0f} a second, twice; {self.wall_s:.0f} s in all."

    def _answer(self) -> Iterator[str]:
        yield "Which carriers arrive latest? Asked of both tables in SQL:"
        yield from _wrapped(QUESTION.format(table="<table>"))
        yield "Both say:" if self.same_answer else "THEY DISAGREE, which is a defect of shoal:"
        for t in self.tables[: 1 if self.same_answer else None]:
            if not self.same_answer:
                yield f"  {t.name}:"
            yield f"  {'carrier':8} {'flights':>8} {'minutes late':>13}"
            for row in t.answer.to_pylist():
                yield f"  {row['carrier']:8} {row['flights']:>8,} {row['minutes_late']:>13}"

    def _next(self) -> Iterator[str]:
        where, fast = shlex.quote(self.folder), self.tables[-1].name
        yield f"The tables lie in {self.folder}. What to type next:"
        yield f'  shoal sql -w {where} "SELECT count(*) FROM {fast}"'
        yield f"  shoal table snapshots -w {where} {fast}"
        yield f"  shoal doctor check -w {where} {fast}"
        yield f"  shoal compact run -w {where} {fast} --full"

    def to_dict(self) -> dict[str, object]:
        return {
            "folder": self.folder,
            "start": self.start.isoformat(),
            "end": self.end.isoformat(),
            "hours": self.hours,
            "tables": [t.to_dict() for t in self.tables],
            "same_answer": self.same_answer,
            "comparison": self.comparison.to_dict(),
            "wall_s": self.wall_s,
        }


def demo(
    folder: str = FOLDER,
    *,
    start: date = START,
    end: date = END,
    hours: float = HOURS,
    force: bool = False,
    ask: Callable[[str], bool] | None = None,
    progress: TextIO | None = None,
) -> DemoReport:
    """Replay the flights of `start` to before `end` in `hours` of virtual time into two tables below `folder`.

    A demo that is there already is replaced when `force`, or when `ask` says yes to the question it is given.
    `progress` gets a bar when it is a terminal, a few lines otherwise.
    """
    wall = SystemClock()
    began = wall.monotonic()
    if not hours > 0:
        raise BadRequest(f"{hours} hours is no time to replay anything in")
    source = FlightsSource(start, end, speed=(end - start).days * 24 / hours)
    _make_room(Path(folder), force, ask)
    start_ms = int(datetime.combine(start, datetime.min.time(), UTC).timestamp() * 1000)
    show = _Show(progress)
    tables: list[DemoTable] = []
    debts: list[Debt] = []
    for every in CHECKPOINTS_S:
        name = f"{_DATABASE}.flights_{every}s"
        # A clock of its own: both tables live through the same two hours.
        lake = shoal.open(
            folder, clock=ManualClock(start_ms), scheduler=ManualScheduler, rng=random.Random(_SEED + every)
        )
        job = Job(lake, source, name, name=f"demo-{every}s", checkpoint_s=every, options=OPTIONS)
        with show.step(f"{every} s checkpoints", source.total) as note:
            result = run(job, on_progress=note)
        with show.step(f"asking {name}"):
            tables.append(DemoTable(name, every, result, _ask(lake, name)))
            debts.append(measure(lake.table(name).metadata))
    names = f"{CHECKPOINTS_S[1]} s", f"{CHECKPOINTS_S[0]} s"
    found = compare(debts[1], debts[0], names=names)
    return DemoReport(folder, start, end, hours, tuple(tables), found, wall.monotonic() - began)


def _ask(lake: Lake, name: str) -> pa.Table:
    """The answer to the question, through SQL."""
    from shoal.sql.engine import Engine

    return Engine(lake).query(QUESTION.format(table=name)).read_all()


# ---- the folder ------------------------------------------------------------------------------------------


def _make_room(folder: Path, force: bool, ask: Callable[[str], bool] | None) -> None:
    """An empty folder with our marker. Only a demo is deleted, and only what a demo makes."""
    if folder.exists() and not folder.is_dir():
        raise BadRequest(f"{folder} is a file", hint="name a folder that does not exist yet")
    there = sorted(p.name for p in folder.iterdir()) if folder.exists() else []
    ours = (MARKER, f"{_DATABASE}.db")
    if there:
        other = [name for name in there if name not in ours]
        if MARKER not in there or other:
            what = f"holds {', '.join(other[:3])}" if other else "was not made by the demo"
            raise BadRequest(f"{folder} {what}; it is not replaced", hint="name a folder that does not exist yet")
        if not force and (ask is None or not ask(f"{folder} holds an earlier demo. Replace it?")):
            raise BadRequest(f"{folder} holds an earlier demo", hint="--force replaces it; or name another folder")
        if ours[1] in there:
            shutil.rmtree(folder / ours[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("Made by `shoal demo`, which may replace this folder.\n")


# ---- the report ------------------------------------------------------------------------------------------

_KINDS = (
    ("level-0 data", "level0"), ("compacted data", "compacted"), ("all data files", "data"),
    ("changelog", "changelog"), ("manifests", "manifest"), ("manifest lists", "manifest_list"),
    ("snapshots", "snapshot"), ("all files", None),
)  # fmt: skip


def _cost(c: Comparison) -> Iterator[str]:
    """The doctor's comparison, the slower clock first: files by kind made, live and retained, then what they cost."""
    sides = (c.b, c.names[1]), (c.a, c.names[0])
    yield "What the faster clock cost, says the doctor:"
    yield f"  {'':16}" + "".join(f"{f'a checkpoint every {name}':>30}" for _, name in sides)
    yield f"  {'files':16}" + f"{'made':>12}{'live':>8}{'retained':>10}" * len(sides)
    for label, kind in _KINDS:
        yield (f"  {label:16}" + "".join(_files(d, kind) for d, _ in sides)).rstrip()
    for label, figure in _FIGURES:
        yield f"  {label:20}{figure(sides[0][0]):>26}{figure(sides[1][0]):>30}"
    yield from _wrapped(c.sentence)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 78, initial_indent="  ", subsequent_indent="  ")


def _files(d: Debt, kind: str | None) -> str:
    """Files of one kind (None is all) as three cells: made, live, held only by older snapshots."""
    data = d.made["level0"] + d.made["compacted"]
    made = d.files_made if kind is None else data if kind == "data" else d.made[kind]
    live, retained = _live(d, kind), d.retained
    held = None if retained is None else total(retained.values()) if kind is None else retained.get(kind)
    return f"{made.files:>12,}{_shown(live):>8}{_shown(held):>10}"


def _live(d: Debt, kind: str | None) -> Count | None:
    if d.live is None:
        return None
    match kind:
        case "level0":
            return d.live.level0
        case "data":
            return d.live.data
        case "compacted":
            return d.live.data - d.live.level0
        case None:
            return d.live.data + total(d.live.metadata.values())
    return d.live.metadata.get(kind, Count())


def _shown(count: Count | None) -> str:
    return "" if count is None else f"{count.files:,}"


def _rate(d: Debt) -> str:
    return "-" if d.files_per_minute is None else f"{d.files_per_minute:,.1f}"


def _per_bucket(d: Debt) -> str:
    return "-" if d.buckets is None else f"{d.buckets.mean_files:.1f} on average, {d.buckets.max_files} at most"


def _written(d: Debt) -> str:
    return f"{size_text(d.files_made.bytes)} in {d.commits:,} commits"


def _amplification(d: Debt) -> str:
    return "-" if d.write_amplification is None else f"{d.write_amplification:.2f}"


_FIGURES: Sequence[tuple[str, Callable[[Debt], str]]] = (
    ("files a minute", _rate), ("files per bucket", _per_bucket), ("bytes written", _written),
    ("write amplification", _amplification),
)  # fmt: skip


# ---- what is seen while it works -------------------------------------------------------------------------


class _Show:
    """Steps on a stream: a bar that fills on a terminal, one line a step elsewhere, nothing on None."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @contextmanager
    def step(self, what: str, total_rows: int | None = None) -> Iterator[Callable[[Progress], None]]:
        """A step of the demo; a job's step has a number of rows and reports how far it is."""
        if self._stream is None:
            yield lambda _: None
        elif self._stream.isatty():
            with _bar(self._stream, what, total_rows) as note:
                yield note
        else:
            print(f"{what} ...", file=self._stream, flush=True)
            yield lambda _: None


@contextmanager
def _bar(stream: TextIO, what: str, total_rows: int | None) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description:24}"), BarColumn(24), TaskProgressColumn(), TimeElapsedColumn()
    with Bars(*columns, TextColumn("{task.fields[said]}"), console=Console(file=stream), refresh_per_second=4) as bars:
        task = bars.add_task(what, total=total_rows, said="")

        def note(now: Progress) -> None:
            bars.update(task, completed=now.position, said=f"{now.snapshots:,} snapshots")

        yield note
        bars.update(task, total=total_rows or 1, completed=total_rows or 1)
