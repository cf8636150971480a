# SPDX-License-Identifier: Apache-2.0
"""Incidents that Paimon 2.0.0's Java writer lived through on a virtual checkpoint clock, as facts for tests.

`python make_incidents.py WRITER [NAME ...]` runs the harness `WRITER` (called with a JSON file of one table's spec) and
writes `data/incidents/NAME.json.gz`. A table has one planted cause, named by `cause`, or none. All write 100 rows a
second over 50,000 uniform keys into Avro files, seed 42, unless they say otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASE: dict[str, Any] = {"keys": 50_000, "rate": 100, "format": "avro", "seed": 42}
FOLDER = Path(__file__).parent / "data" / "incidents"


@dataclass(frozen=True)
class Java:
    """One table: the harness's arguments, the planted cause, and what the user says of freshness."""

    cause: str | None
    spec: dict[str, Any]
    slo_ms: int | None = None


def _options(**values: str) -> dict[str, str]:
    return {name.replace("__", ".").replace("_", "-"): value for name, value in values.items()}


_SOON = _options(snapshot__time_retained="10 min")
_SPREAD = {"partitions": 7, "partition_mode": "time", "buckets": 2, "interval": 60, "minutes": 60}

INCIDENTS: dict[str, Java] = {
    # D1
    "d1_change": Java("D1", {"buckets": 4, "phases": [{"minutes": 40, "interval": 60}, {"minutes": 15, "interval": 10}]}),
    "d1_30to5": Java(
        "D1", {"buckets": 8, "format": "parquet", "phases": [{"minutes": 20, "interval": 30}, {"minutes": 4, "interval": 5}]}
    ),
    "d1_1s": Java("D1", {"buckets": 4, "interval": 1, "minutes": 3}),
    # D2
    "d2_16": Java("D2", {"buckets": 16, "interval": 60, "minutes": 30}),
    "d2_64": Java("D2", {"buckets": 64, "interval": 60, "minutes": 25, "seed": 43}),
    "d2_128": Java("D2", {"buckets": 128, "interval": 10, "minutes": 5, "format": "parquet"}),
    # D3
    "d3_input": Java("D3", {"buckets": 4, "interval": 60, "minutes": 40, "producer": "input"}),
    "d3_lookup": Java("D3", {"buckets": 4, "interval": 30, "minutes": 20, "producer": "lookup"}),
    "d3_consumer": Java(
        None, {"buckets": 4, "producer": "input", "phases": [
            {"minutes": 10, "interval": 60}, {"minutes": 30, "interval": 60, "consumer": {"id": "bi"}}]},
    ),
    # D4
    "d4_skew": Java("D4", {"groups": 50, "group_share": 0.8, "buckets": 8, "interval": 60, "minutes": 40}),
    "d4_60": Java("D4", {"groups": 200, "group_share": 0.6, "buckets": 4, "interval": 60, "minutes": 40}),
    "d4_16": Java("D4", {"groups": 1000, "group_share": 0.5, "buckets": 16, "interval": 30, "minutes": 20}),
    "d4_healthy": Java(None, {"dist": "power:3", "buckets": 8, "interval": 60, "minutes": 40}),
    # D5
    "d5_slow": Java("D5", {"buckets": 4, "interval": 10, "minutes": 20, "compact_mb_s": 0.02}),
    "d5_high": Java(
        "D5", {"options": _options(num_sorted_run__stop_trigger="100"), "buckets": 4, "interval": 10, "minutes": 20,
               "compact_mb_s": 0.02},
    ),
    "d5_dv": Java(
        "D5", {"options": _options(deletion_vectors__enabled="true"), "buckets": 4, "interval": 10, "minutes": 15,
               "compact_mb_s": 0.02, "wait": False},
    ),
    # D6
    "d6_consumer": Java(
        "D6", {"options": _SOON, "buckets": 2, "expiry": True, "rate": 20, "phases": [
            {"minutes": 15, "interval": 30}, {"minutes": 45, "interval": 30, "consumer": {"id": "audit"}}]},
    ),
    "d6_limit": Java(
        "D6", {"options": _SOON | _options(snapshot__expire__limit="1"), "buckets": 4, "interval": 10, "minutes": 40,
               "expiry": True, "rate": 50},
    ),
    "d6_min": Java(
        "D6", {"options": _SOON | {"snapshot.num-retained.min": "200"}, "buckets": 2, "interval": 60, "minutes": 180,
               "expiry": True, "rate": 10},
    ),
    "d6_healthy": Java(None, {"options": _SOON, "buckets": 4, "interval": 60, "minutes": 60, "expiry": True}),
    # D7
    "d7_none": Java("D7", {"buckets": 2, "interval": 60, "minutes": 60, "compaction": False}),
    "d7_append": Java(
        "D7", {"buckets": -1, "primary_key": False, "interval": 60, "minutes": 50, "compaction": False}
    ),
    "d7_compactor": Java(
        None, {"compactor": {"every": 20, "user": "compactor", "batch": True}, "buckets": 2, "interval": 60,
               "minutes": 90, "compaction": False},
    ),
    # D8
    "d8_late": Java("D8", _SPREAD | {"late_share": 0.05}),
    "d8_late20": Java("D8", {"partitions": 10, "partition_mode": "time", "late_share": 0.2, "buckets": 4,
                             "interval": 30, "minutes": 50}),
    "d8_healthy": Java(None, _SPREAD),
    # on top of something that is all right
    "d1_read": Java("D1", {"buckets": 4, "producer": "input", "phases": [
        {"minutes": 35, "interval": 60}, {"minutes": 10, "interval": 10, "consumer": {"id": "bi"}}]}),
    "d4_days": Java("D4", {"partitions": 3, "partition_mode": "time", "groups": 300, "group_share": 0.7, "buckets": 6,
                           "interval": 60, "minutes": 50}),
    "d5_fast": Java("D5", {"buckets": 4, "interval": 10, "minutes": 15, "compact_mb_s": 0.06, "rate": 300}),
    "d6_write_only": Java("D6", {"options": _SOON, "compactor": {"every": 10, "user": "compactor", "batch": True},
                                 "buckets": 2, "interval": 60, "minutes": 90, "compaction": False}),
    "d8_many": Java("D8", {"partitions": 24, "partition_mode": "time", "late_share": 0.3, "buckets": 2,
                           "interval": 30, "minutes": 45}),
    # healthy
    "h_append": Java(None, {"buckets": -1, "primary_key": False, "interval": 60, "minutes": 45}),
    "h_full": Java(None, {"buckets": 4, "producer": "full-compaction", "delta_commits": 10, "phases": [
        {"minutes": 10, "interval": 60}, {"minutes": 40, "interval": 60, "consumer": {"id": "bi"}}]}),
    "h_deletes": Java(None, {"buckets": 4, "interval": 60, "minutes": 40, "deletes": 0.3}),
    "h_rate": Java(None, {"buckets": 4, "format": "parquet", "phases": [
        {"minutes": 25, "interval": 60, "rate": 10}, {"minutes": 25, "interval": 60, "rate": 500}]}),
    "h_dv": Java(None, {"options": _options(deletion_vectors__enabled="true"), "buckets": 4, "interval": 60,
                        "minutes": 40}),
    "h_day": Java(None, {"buckets": 2, "interval": 120, "minutes": 1440, "rate": 5, "expiry": True}),
    "h_uniform": Java(None, {"partitions": 5, "buckets": 2, "interval": 60, "minutes": 40}),
    "h_restart": Java(
        None, {"buckets": 4, "phases": [
            {"minutes": 20, "interval": 60}, {"minutes": 20, "interval": 60, "restart": True},
            {"minutes": 20, "interval": 60, "rate": 400}]},
    ),
}  # fmt: skip


def make(writer: str, name: str, warehouse: Path) -> None:
    from make_facts import write

    from shoal.doctor.take import take
    from shoal.store import LocalStore
    from shoal.store.cache import Cache
    from shoal.table.metadata import Metadata

    spec = BASE | INCIDENTS[name].spec
    table = warehouse / "d.db" / name
    if not table.exists():
        told = warehouse / f"{name}.json"
        told.write_text(json.dumps(spec | {"quiet": True, "warehouse": str(warehouse), "table": f"d.{name}"}))
        subprocess.run([writer, str(told)], check=True, stdout=subprocess.DEVNULL)
    FOLDER.mkdir(parents=True, exist_ok=True)
    write(take(Metadata(LocalStore(table), Cache())), {"spec": spec}, FOLDER / f"{name}.json.gz")


def main(writer: str, *names: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names or INCIDENTS:
            make(writer, name, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
