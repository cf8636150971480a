# SPDX-License-Identifier: Apache-2.0
"""Every field of the doctor's JSON with its types, seen in documents of tables that between them have all of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from make_facts import read
from toy import File, Toy

from shoal.doctor.checkup import Checkup, checkup
from shoal.doctor.finding import Finding
from shoal.doctor.fleet import Fleet, Patient
from shoal.doctor.flink import Checkpoint, Job
from shoal.doctor.forecast import Plan as Timed
from shoal.doctor.forecast import Prices, planning
from shoal.doctor.model import model
from shoal.doctor.query_log import Query
from shoal.doctor.timeline import timeline
from shoal.doctor.verify import verify
from shoal.doctor.watch import Look
from shoal.doctor.window import Event, Gap, Holder, IndexFacts, Window
from shoal.errors import NotFound

# Ends of paths whose names depend on the table.
FREE = (
    "debt.made", "debt.retained", "debt.snapshots", "debt.files_per_minute", "live.levels", "live.metadata",
    "flows.made", "flows.files_per_minute", "metadata.index_files", "segments[].medians", "model.trends", ".job",
    "readings", "lanes[].levels",
)  # fmt: skip
# Objects that come again and again, told by their names.
SHAPES = (
    ("files", "bytes", "rows"), ("value", "low", "high"), ("per_minute", "low", "high", "points", "exact"),
    ("now", "most", "mean_per_snapshot", "mean_at_checkpoint_ends"),
)  # fmt: skip
DATA = Path(__file__).parent / "data"
_TYPES = {str: "text", bool: "true or false", int: "number", float: "number", type(None): "null"}


def table() -> Window:
    """A table that changes its clock, stops being compacted, and is held by a consumer and a tag."""
    toy = Toy({"bucket": "4", "changelog-producer": "input", "snapshot.time-retained": "1 min", "write-only": "true"})
    for n in range(1, 121):
        at = n * 60_000 if n <= 60 else 60 * 60_000 + (n - 60) * 10_000
        new = [File(b, 9000) for b in range(4)]
        toy.commit(*[("flush", f) for f in new], ("changelog", File(0, 9000)), at=at, identifier=n)
        if n % 5 == 0 and n < 100:
            merged = [("rewrite", File(b, 45000, level=5)) for b in range(4)]
            toy.commit(*[("removal", f) for f in toy.live], *merged, at=at + 20, kind="COMPACT", identifier=n)
    held = (Holder("consumer", "bi", 20, None), Holder("tag", "spring", 10, None))
    window = replace(toy.window(holders=held, taken_ms=at + 1000), name="shop.orders")
    index = IndexFacts({"HASH": window.steps[0].manifests}, 0, 0)
    return replace(window, stock=replace(window.stock, index=index))


def job() -> Job:
    """The job that writes `table`, as Flink tells of it: two of its checkpoints failed."""
    done = [
        Checkpoint(n, "FAILED" if n in (30, 31) else "COMPLETED", s.time_ms - 500, s.time_ms - 10, 490, 1000, False,
                   s.time_ms if n in (30, 31) else None, "expired" if n in (30, 31) else None)
        for n, s in ((s.identifier, s) for s in table().steps if s.kind == "APPEND")
    ]  # fmt: skip
    counts = {"total": 120, "completed": 118, "failed": 2, "restored": 0}
    return Job("http://flink", "j", "ingest", "RUNNING", checkpoints=tuple(done), counts=counts)


def timelines() -> list[dict[str, Any]]:
    """With a job and without, with queries, and of a table that has no snapshot."""
    asked = [Query(s.time_ms, 5.0, s.id) for s in table().steps[::9]]
    old = table().schemas[0]
    other = replace(old, id=1, time_ms=3_700_000, options={**old.options, "changelog-producer": "none"})
    changed = replace(table(), schemas=(old, other))
    found = [timeline(changed, None, job(), asked), timeline(table(), None, Job("http://flink")), timeline(table())]
    return [t.to_dict() for t in (*found, timeline(Toy().window()))]


def looks() -> list[dict[str, Any]]:
    """Of a table with a job and without, of one that has no snapshot, and where one could not be read."""
    window, gone = table(), NotFound("gone")
    met = replace(
        window, gaps=(Gap(1, 2, "expired", ""),), events=(Event(1, "rollback", "", 3), Event(1, "expired", ""))
    )
    made = [
        Look("d.t", 1, met, job=job()), Look("d.t", 1, window, job=Job("http://flink")), Look("d.t", 1, window),
        Look("d.t", 1, window, job_trouble=gone), Look("d.t", 1, replace(window, start=None, steps=())),
        Look("d.t", 1, Toy().window()), Look("d.t", 1, None, gone),
    ]  # fmt: skip
    return [look.to_dict() for look in made]


@functools.cache
def documents() -> dict[str, list[dict[str, Any]]]:
    """JSON by schema."""
    prices = Prices(put_per_1000=1, gigabyte_month=1)
    windows = [table(), read(DATA / "virtual-writer-none-10s.json.gz")[0], Toy().window()]
    found = [checkup(w, slo_ms=30_000) for w in windows]
    every = tuple(Finding(f"D{n}", "", "error", "supported", {}, {}, "", snapshots=(1,)) for n in range(1, 18))
    sick = Checkup(found[0].case, every)
    models = [model(w, prices=prices) for w in windows]
    timed = planning(
        [Timed(n, n, n) for n in (1, 2, 3)], manifest_bytes=1, entries=1, bytes_per_day=1, entries_per_day=1, limit_s=9
    )
    assert timed is not None
    step = {"step": "compact-now", "time_ms": 1, "what": "", "snapshot": 1, "schema_id": 0}
    out: dict[str, list[dict[str, Any]]] = {
        "shoal.doctor.check/1": [c.to_dict() for c in (*found, sick)],
        "shoal.doctor.forecast/1": [
            {
                "schema": "", "table": "", "address": "", "stalls": [b.stall.to_dict() for b in m.buckets if b.stall],
                "requests": None if m.requests is None else m.requests.to_dict(),
                "steady": None if m.steady is None else m.steady.to_dict(), "planning": timed.to_dict(),
            }
            for m in models
        ],
        "shoal.doctor.fix/1": [{**sick.plan.to_dict(), "applied": [step]}],
        "shoal.doctor.verify/1": [verify(sick.plan, found[0].case).to_dict()],
        "shoal.doctor.fleet/1": [
            Fleet((Patient("a", sick), Patient("b", found[2]), Patient("c", None, NotFound("gone")))).to_dict()
        ],
        "shoal.doctor.timeline/1": timelines(),
        "shoal.doctor.watch/1": looks(),
    }  # fmt: skip
    return {k: json.loads(json.dumps(v, allow_nan=False)) for k, v in out.items()}


def paths(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """(path, type) of everything in a document."""
    if at.endswith((".evidence", ".scope", ".arguments")):
        yield at, "names with values"
    elif isinstance(value, Mapping) and tuple(value) in SHAPES:
        yield at, f"{{{', '.join(value)}}}"
    elif isinstance(value, Mapping):
        free = at.endswith(FREE)
        for key, inner in value.items():
            yield from paths(inner, f"{at}.{'*' if free else key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{at}[]")
    else:
        yield at, _TYPES[type(value)]


def fields() -> dict[str, dict[str, set[str]]]:
    """By schema, the types of each path. The plan and the model inside a check stand alone or are told once."""
    out: dict[str, dict[str, set[str]]] = {}
    for schema, some in documents().items():
        mine = out.setdefault(schema, {})
        for one in some:
            for path, kind in paths(one):
                if schema == "shoal.doctor.check/1" and path.startswith("fix."):
                    continue
                if schema == "shoal.doctor.fleet/1" and path.startswith("tables[].findings[]."):
                    continue
                mine.setdefault(path, set()).add(kind)
    return out


def json_table() -> str:
    """All fields as Markdown, for docs/doctor-json.md."""
    lines = []
    for schema, mine in fields().items():
        lines += [f"\n## `{schema}`\n", "| field | is |", "|---|---|"]
        if schema == "shoal.doctor.check/1":
            lines.append("| `fix` | a whole `shoal.doctor.fix/1` |")
        if schema == "shoal.doctor.fleet/1":
            lines.append("| `tables[].findings[]` | as in a check |")
        lines += [
            f"| `{path}` | {' or '.join(sorted(kinds, key=lambda k: (k == 'null', k)))} |"
            for path, kinds in mine.items()
        ]
    return "\n".join(lines) + "\n\n"
