# SPDX-License-Identifier: Apache-2.0
"""What a Flink job says of itself over REST: its checkpoints, their configuration, Paimon's metrics, back-pressure.

Answers come from a live address or from a folder where they were saved, through one `get`. Agrees with: Flink 2.0.1's
REST API (`/jobs/:id/checkpoints` and below). Invariants: numbers that Flink gives as the text "NaN" are None; the
server remembers ten checkpoints, so polls are joined by id and what was missed is told, not guessed. It gives the same
answer for `refresh-interval` (3 s by default), so the newest checkpoints of a table may be in none yet.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from shoal.clock import Clock
from shoal.errors import BadRequest, Corrupt, NotFound, ShoalError, StorageFailed

Status = Literal["COMPLETED", "FAILED", "IN_PROGRESS"]
TIMEOUT_S = 10
# Flink's default of `web.checkpoints.history`: rows that one answer holds.
HISTORY = 10
_POLL_S, _LEAST_POLL_S = 10.0, 0.5  # between two polls


class Answers(Protocol):
    """Where answers come from."""

    at: str

    def get(self, path: str) -> Any:
        """The JSON of a path below the address; `NotFound` where it is not known."""
        ...


class Rest:
    """A Flink REST address, `http://host:8081`."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(
                f"'{url}' is no Flink address, and no folder",
                hint="give one like http://jobmanager:8081, or a folder of saved answers",
            )
        self.at = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._timeout = timeout_s

    def get(self, path: str) -> Any:
        url = f"{self.at}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=self._timeout) as answer:
                data = answer.read()
        except urllib.error.HTTPError as err:
            if err.code == 404:
                raise NotFound(f"{url}: Flink does not know it") from err
            raise StorageFailed(f"{url}: HTTP {err.code} {err.reason}") from err
        except OSError as err:  # URLError and timeouts too
            reason = getattr(err, "reason", None) or err
            raise StorageFailed(f"{url}: no answer ({reason})", hint="is this the job manager's REST address?") from err
        return _json(data, url)


class Saved:
    """A folder of saved answers: `job.json`, `checkpoints-config.json`, `checkpoints-00.json` and later polls, ..."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.at = str(folder)
        if not self.folder.is_dir():
            raise NotFound(f"{folder}: there is no such folder of saved Flink answers")

    def polls(self) -> list[Any]:
        """The answers of `/jobs/:id/checkpoints`, in the order of their names."""
        found = sorted(p for p in self.folder.glob("checkpoints*.json") if re.fullmatch(r"checkpoints(-\d+)?", p.stem))
        return [_json(p.read_bytes(), str(p)) for p in found]

    def named(self, name: str) -> Any:
        """One saved answer, None where it was not saved."""
        path = self.folder / f"{name}.json"
        return _json(path.read_bytes(), str(path)) if path.is_file() else None

    def numbered(self, prefix: str) -> list[Any]:
        found = sorted(self.folder.glob(f"{prefix}-vertex-*.json"))
        return [_json(p.read_bytes(), str(p)) for p in found]


def _json(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as err:
        raise Corrupt(f"{where}: not JSON ({err})") from err


# ---- values ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint. Times in epoch ms, durations in ms, sizes in bytes."""

    id: int
    status: Status
    trigger_ms: int
    ack_ms: int | None  # of the last subtask that answered
    duration_ms: int | None
    state_size: int | None
    savepoint: bool = False
    failed_ms: int | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """How the job takes checkpoints. Times in ms; a minus one of Flink's is None."""

    interval_ms: int | None = None
    timeout_ms: int | None = None
    min_pause_ms: int | None = None
    max_concurrent: int | None = None
    tolerable_failed: int | None = None
    unaligned: bool | None = None
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What is known of one job: every checkpoint that was seen, ascending by id, and how many there were."""

    at: str
    id: str | None = None
    name: str | None = None
    state: str | None = None
    started_ms: int | None = None
    flink: str | None = None
    config: CheckpointConfig = field(default_factory=CheckpointConfig)
    checkpoints: tuple[Checkpoint, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)  # restored, total, in_progress, completed, failed
    durations: Mapping[str, float] = field(default_factory=dict)  # end to end, in ms: min, avg, max, p50 .. p999
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # Paimon's: name, then "subtask.table"
    backpressure: Mapping[str, float] = field(default_factory=dict)  # the highest ratio of each vertex
    dropped: int = 0  # checkpoints that were seen and are not among `checkpoints` any more

    @property
    def missed(self) -> int:
        """Checkpoints that began and that nobody saw: ids that are left out, and those before the first one."""
        ids = [c.id for c in self.checkpoints]
        span = ids[-1] - ids[0] + 1 if ids else 0
        # A job that starts afresh counts from 1; one that was restored goes on from an id that is not told.
        before = ids[0] - 1 if ids and not self.counts.get("restored") else max(0, self._total - span)
        seen = len(ids) + self.dropped
        return min(max(0, self._total - seen), max(0, before + span - seen))

    @property
    def not_begun(self) -> int:
        """Checkpoints that Flink counts as failed but never gave an id, as while its tasks were still starting."""
        begun = len(self.checkpoints) + self.dropped + self.missed
        return min(max(0, self._total - begun), self.counts.get("failed", 0))

    @property
    def _total(self) -> int:
        return self.counts.get("total", 0)

    def metric(self, name: str, table: str | None = None) -> list[float]:
        """The values of a Paimon metric over all subtasks, of one table or of all."""
        return [v for k, v in self.metrics.get(name, {}).items() if table is None or k.partition(".")[2] == table]


def checkpoints_of(answers: Iterable[Any]) -> tuple[Checkpoint, ...]:
    """The checkpoints of several answers: the last word on each, ascending by id."""
    found: dict[int, Checkpoint] = {}
    for answer in answers:
        for row in answer.get("history") or ():
            found[row["id"]] = _checkpoint(row)
    return tuple(found[i] for i in sorted(found))


def _checkpoint(row: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(
        row["id"], row["status"], row["trigger_timestamp"], _when(row.get("latest_ack_timestamp")),
        _when(row.get("end_to_end_duration")), row.get("state_size"), bool(row.get("is_savepoint")),
        _when(row.get("failure_timestamp")), row.get("failure_message"),
    )  # fmt: skip


def _when(ms: int | None) -> int | None:
    return None if ms is None or ms < 0 else ms


def number(value: Any) -> float | None:
    """A number of an answer; Flink writes texts too, "NaN" among them."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def config_of(answer: Mapping[str, Any] | None) -> CheckpointConfig:
    if not answer:
        return CheckpointConfig()
    return CheckpointConfig(
        _when(answer.get("interval")), _when(answer.get("timeout")), _when(answer.get("min_pause")),
        answer.get("max_concurrent"), answer.get("tolerable_failed_checkpoints"), answer.get("unaligned_checkpoints"),
        answer.get("mode"),
    )  # fmt: skip


_METRIC = re.compile(r"(\d+)\..*?\bpaimon\.table\.(.+?)\.(?:commit|compaction|writerBuffer|scan)\.(\w+)$")


def metrics_of(answers: Iterable[Any]) -> dict[str, dict[str, float]]:
    """Paimon's metrics of several vertices: by name, then by subtask and table."""
    found: dict[str, dict[str, float]] = {}
    for answer in answers:
        for row in answer:
            told, value = _METRIC.match(row["id"]), number(row.get("value"))
            if told and value is not None:
                found.setdefault(told[3], {})[f"{told[1]}.{told[2]}"] = value
    return found


def _job(
    at: str, detail: Mapping[str, Any] | None, polls: list[Any], config: Any, flink: Any, metrics: Iterable[Any],
    pressure: Mapping[str, Any],
) -> Job:  # fmt: skip
    last = polls[-1] if polls else {}
    durations = (last.get("summary") or {}).get("end_to_end_duration") or {}
    detail = detail or {}
    return Job(
        at, detail.get("jid"), detail.get("name"), detail.get("state"), _when(detail.get("start-time")),
        (flink or {}).get("flink-version"), config_of(config), checkpoints_of(polls), dict(last.get("counts") or {}),
        {k: n for k, v in durations.items() if (n := number(v)) is not None}, metrics_of(metrics),
        {name: ratio for name, answer in pressure.items() if (ratio := _ratio(answer)) is not None},
    )  # fmt: skip


def _ratio(answer: Any) -> float | None:
    ratios = [n for s in answer.get("subtasks") or () if (n := number(s.get("ratio"))) is not None]
    return max(ratios, default=None)


def saved_job(folder: str | Path) -> Job:
    """The job of a folder of saved answers; `NotFound` where there is no checkpoint answer among them."""
    saved = Saved(folder)
    polls = saved.polls()
    if not polls:
        raise NotFound(
            f"{folder}: there is no checkpoints.json or checkpoints-00.json", hint="save /jobs/ID/checkpoints"
        )
    detail = saved.named("job")
    names = [v["name"] for v in (detail or {}).get("vertices", ())]
    pressure = {
        (names[i] if i < len(names) else str(i)): a for i, a in enumerate(saved.numbered("backpressure"))
    }  # fmt: skip
    return _job(
        saved.at, detail, polls, saved.named("checkpoints-config"), saved.named("config"),
        saved.numbered("paimon-metrics"), pressure,
    )  # fmt: skip


# ---- a live job ------------------------------------------------------------------------------------------

_PAIMON = (
    "lastCommitDuration", "commitDuration_mean", "commitDuration_p95", "commitDuration_p99", "commitDuration_max",
    "lastCommitAttempts", "compactionThreadBusy", "avgCompactionTime", "compactionQueuedCount", "maxLevel0FileCount",
    "compactionTotalCount", "numWriters", "bufferPreemptCount", "usedWriteBufferSizeByte", "totalWriteBufferSizeByte",
)  # fmt: skip


class LiveJob:
    """A running job, polled. Each `poll` gives what is known by then, checkpoints of earlier polls included."""

    def __init__(self, answers: Answers, job: str | None = None, table: str | None = None) -> None:
        """`job` is its id or its name; without one it is the only running job, or the only one that writes `table`."""
        self._answers = answers
        self._id = _chosen(answers, job, table)
        self._history: dict[int, Any] = {}

    def look(self) -> Any:
        """Remember the checkpoints that Flink tells of now: one request. The answer, as Flink gave it."""
        answer = self._answers.get(f"jobs/{self._id}/checkpoints")
        for row in answer.get("history") or ():
            self._history[row["id"]] = row
        return answer

    def poll(self) -> Job:
        answer = self.look()
        get, path = self._answers.get, f"jobs/{self._id}"
        detail = get(path)
        whole = {**answer, "history": [self._history[i] for i in sorted(self._history)]}
        vertices = [(v["id"], v["name"]) for v in detail.get("vertices", ())]
        return _job(
            self._answers.at, detail, [whole], get(f"{path}/checkpoints/config"), get("config"),
            [self._metrics(f"{path}/vertices/{v}/metrics") for v, _ in vertices],
            {name: get(f"{path}/vertices/{v}/backpressure") for v, name in vertices},
        )  # fmt: skip

    def forget(self) -> None:
        """Forget what Flink itself has forgotten: whoever kept each poll needs it no more."""
        for i in sorted(self._history)[:-HISTORY]:
            del self._history[i]

    def config(self) -> CheckpointConfig:
        return config_of(self._answers.get(f"jobs/{self._id}/checkpoints/config"))

    def _metrics(self, path: str) -> Any:
        known = [m["id"] for m in self._answers.get(path) or ()]
        wanted = [m for m in known if ".paimon." in m and m.rpartition(".")[2] in _PAIMON]
        if not wanted:
            return []
        return self._answers.get(f"{path}?get={urllib.parse.quote(','.join(wanted))}")


def pause_s(config: CheckpointConfig) -> float:
    """How long one may wait between two looks and miss no checkpoint."""
    interval = (config.interval_ms or 10_000) / 1000
    return min(_POLL_S, max(_LEAST_POLL_S, interval * HISTORY / 5))


def follow(live: LiveJob, *, clock: Clock, for_s: float = 0.0) -> Job:
    """Look for so long, often enough that no checkpoint is forgotten between two looks; then poll."""
    end = clock.monotonic() + for_s
    live.look()
    pause = pause_s(live.config())
    while (left := end - clock.monotonic()) > 0:
        clock.sleep(min(left, pause))
        live.look()
    return live.poll()


_ENDED = ("FINISHED", "CANCELED", "FAILED")


class JobLog:
    """The jobs that write some tables, asked again and again: at a REST address, or once for all in saved answers.

    `only`: one table is looked at, so a job that is named, or the only one, is its; else a table has the job whose
    vertices name it, or none.
    """

    def __init__(self, source: Answers | Job, job: str | None = None, *, only: bool = True) -> None:
        self._source, self._wanted, self._only = source, job, only
        self._live: dict[str, LiveJob] = {}
        self._pauses: dict[str, float] = {}

    def job(self, table: str) -> Job | None:
        """What is known now of the job that writes `table`; a job that was restarted under another id is found."""
        if isinstance(self._source, Job):
            return self._source if self._only else None
        for again in (True, False):
            live = self._live.get(table) or self._find(self._source, table)
            if live is None:
                return None
            try:
                found = live.poll()
            except NotFound:
                self._live.pop(table, None)
                self._pauses.pop(table, None)
                if not again:
                    raise
                continue
            live.forget()
            if found.state in _ENDED:  # another one may take its place
                self._live.pop(table, None)
                self._pauses.pop(table, None)
            else:
                self._live[table], self._pauses[table] = live, pause_s(found.config)
            return found
        return None

    def glance(self) -> None:
        """Remember the checkpoints that jobs tell of now, a request for each job. One that gives no answer is asked
        by the next `job`, which tells."""
        for live in self._live.values():
            with contextlib.suppress(ShoalError):
                live.look()

    @property
    def pause_s(self) -> float | None:
        """How long one may wait between two looks and miss no checkpoint; None where nothing is missed by waiting."""
        return min(self._pauses.values(), default=None)

    def _find(self, answers: Answers, table: str) -> LiveJob | None:
        if self._only:
            return LiveJob(answers, self._wanted, table)
        short = table.rpartition(".")[2]
        running = [j for j in answers.get("jobs/overview").get("jobs", ()) if j.get("state") == "RUNNING"]
        wanted = [j for j in running if self._wanted is None or self._wanted in (j["jid"], j["name"])]
        writers = [j["jid"] for j in wanted if _writes(answers, j["jid"], short)]
        if len(writers) > 1:
            raise BadRequest(f"{answers.at}: several jobs write {table}: {', '.join(writers)}", hint="name one: --job")
        return LiveJob(answers, writers[0], table) if writers else None


def _chosen(answers: Answers, job: str | None, table: str | None) -> str:
    jobs = [j for j in answers.get("jobs/overview").get("jobs", ()) if j.get("state") == "RUNNING" or job == j["jid"]]
    if job is not None:
        found = [j for j in jobs if job in (j["jid"], j["name"])]
    else:
        short = None if table is None else table.rpartition(".")[2]
        found = jobs if len(jobs) == 1 else [j for j in jobs if short and _writes(answers, j["jid"], short)]
    if len(found) == 1:
        return str(found[0]["jid"])
    running = ", ".join(f"{j['jid']} ({j['name']})" for j in jobs) or "none"
    what = f"no running job '{job}'" if job is not None else "which job writes the table is not clear"
    raise BadRequest(f"{answers.at}: {what}; running: {running}", hint="name one with --job")


def _writes(answers: Answers, job: str, table: str) -> bool:
    names = [v["name"] for v in answers.get(f"jobs/{job}").get("vertices", ())]
    return any(re.search(rf"(?:Writer|Committer)\b.*: {re.escape(table)}\b", n) for n in names)
