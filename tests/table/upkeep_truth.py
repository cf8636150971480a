# SPDX-License-Identifier: Apache-2.0
"""What Java Paimon 2.0.0 does after commits: which partitions and tags are left, on tables made for it.

`python tests/table/upkeep_truth.py` asks Java (ORACLE names the folder of `oracle-sql`) and writes `data/upkeep.json`;
every case is a table that Java's batch jobs insert into. The same cases for shoal are in test_upkeep_truth.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

FACTS = Path(__file__).parent / "data" / "upkeep.json"

END = {"end-input.check-partition-expire": "true"}
DAY = {"partition.expiration-time": "1 d"} | END
UPDATE = {"partition.expiration-strategy": "update-time"}
DATES = ["2020-01-01", "2020-1-5", "2099-01-01", "abc", "2020-01-01 10:00:00", "2020-13-45", "20200101", "2019-02-30"]
COMPACT_DATES = ["20200101", "20200231", "2020-01-01", "20991231", "2020010", "202001011"]


def _formatter(text: str) -> dict[str, str]:
    return DAY | {"partition.timestamp-formatter": text}


def _pattern(text: str, formatter: str | None = None) -> dict[str, str]:
    return (
        DAY
        | {"partition.timestamp-pattern": text}
        | ({} if formatter is None else {"partition.timestamp-formatter": formatter})
    )


# name: (partition columns, options, batches of partitions)
PARTITIONS: dict[str, tuple[dict[str, str], dict[str, str], list[list[list[Any]]]]] = {
    "dates": ({"dt": "STRING"}, DAY, [[[d] for d in DATES]]),
    "compact_dates": ({"dt": "STRING"}, _formatter("yyyyMMdd"), [[[d] for d in COMPACT_DATES]]),
    "with_time": (
        {"dt": "STRING"}, _formatter("yyyy-MM-dd[ HH:mm]"),
        [[["2020-01-01"], ["2020-01-01 24:00"], ["2020-01-01 25:00"], ["2099-01-01 00:00"], ["2020-01-01 00"]]],
    ),
    "quoted": ({"dt": "STRING"}, _formatter("'day '''yyyy-M-d"), [[["day '2020-1-1"], ["day 2020-1-1"], ["day '2099-1-1"]]]),
    "of_day": ({"dt": "STRING"}, _formatter("yyyyDDD"), [[["2020366"], ["2021366"], ["2021365"], ["2099001"]]]),
    "short_year": ({"dt": "STRING"}, _formatter("yyMMdd"), [[["200101"], ["990101"], ["20200101"]]]),
    "hours": (
        {"dt": "STRING", "hour": "STRING"}, _pattern("$dt $hour:00:00"),
        [[["2020-01-01", "05"], ["2020-01-01", "5"], ["2020-01-01", "x"], ["2099-01-01", "05"], ["2020-01-01", "30"]]],
    ),
    "numbers": (
        {"y": "INT", "m": "INT", "d": "INT"}, _pattern("$y-$m-$d"),
        [[[2020, 1, 5], [2020, 13, 5], [2099, 1, 1], [-5, 1, 1]]],
    ),
    "second_column": ({"kind": "STRING", "dt": "STRING"}, _pattern("$dt"), [[["a", "2020-01-01"], ["b", "2099-01-01"]]]),
    "first_by_default": ({"kind": "STRING", "dt": "STRING"}, DAY, [[["a", "2020-01-01"], ["2020-01-01", "b"]]]),
    "prefix_of_a_name": (
        {"d": "STRING", "dt": "STRING"}, _pattern("$dt"), [[["2020-01-01", "2099-01-01"], ["2020-01-0", "2020-01-01"]]],
    ),
    "pattern_and_formatter": (
        {"dt": "INT", "h": "INT"}, _pattern("$dt $h", "yyyyMMdd H"), [[[20200101, 5], [20200101, 24], [20200101, 25], [20990101, 1]]],
    ),
    "integers": ({"dt": "INT"}, _formatter("yyyyMMdd"), [[[20200101], [20990101], [5]]]),
    "days": ({"dt": "DATE"}, DAY, [[["2020-01-01"], ["2099-01-01"]]]),
    "moments": (
        {"ts": "TIMESTAMP(3)"}, _formatter("yyyy-MM-dd'T'HH:mm[:ss]"),
        [[["2020-01-01 05:06:00"], ["2020-01-01 05:06:07"], ["2020-01-01 05:06:07.5"], ["2099-01-01 00:00:00"]]],
    ),
    "moments_by_default": ({"ts": "TIMESTAMP(3)"}, DAY, [[["2020-01-01 05:06:07"]]]),
    "nulls": ({"dt": "STRING"}, DAY, [[[None], ["2020-01-01"]]]),
    "null_beside": ({"dt": "STRING", "h": "STRING"}, DAY, [[["2020-01-01", None], ["2020-01-02", "5"], [None, "5"]]]),
    "null_in_pattern": ({"dt": "STRING", "h": "STRING"}, _pattern("$dt"), [[["2020-01-01", None], ["2020-01-02", "5"]]]),
    "at_most_two": (
        {"dt": "STRING"}, DAY | {"partition.expiration-max-num": "2"},
        [[["2020-01-03"], ["2020-01-01"], ["2020-01-02"], ["2020-01-10"], ["2020-01-1"]]],
    ),
    "two_at_once": (
        {"dt": "STRING"}, DAY | {"partition.expiration-batch-size": "2"}, [[[f"2020-01-0{i}"] for i in range(1, 6)]],
    ),
    "three_two_at_once": (
        {"dt": "STRING"}, DAY | {"partition.expiration-batch-size": "2", "partition.expiration-max-num": "3"},
        [[[f"2020-01-0{i}"] for i in range(1, 6)], [["2020-02-01"]]],
    ),
    "nothing_old": ({"dt": "STRING"}, DAY, [[["2099-01-01"]], [["2099-01-02"]]]),
    "all_old": ({"dt": "STRING"}, DAY, [[["2020-01-01"]], [["2020-01-02"]]]),
    "again": ({"dt": "STRING"}, DAY, [[["2020-01-01"], ["2099-01-01"]], [["2020-01-01"], ["2099-01-02"]]]),
    "each_commit": (
        {"dt": "STRING"}, {"partition.expiration-time": "1 d", "partition.expiration-check-interval": "0 s"},
        [[["2020-01-01"], ["2099-01-01"]]],
    ),
    "not_yet_checked": ({"dt": "STRING"}, {"partition.expiration-time": "1 d"}, [[["2020-01-01"]]]),
    "write_only": ({"dt": "STRING"}, DAY | {"write-only": "true"}, [[["2020-01-01"]]]),
    "no_time": ({"dt": "STRING"}, END, [[["2020-01-01"]]]),
    "updated": ({"dt": "STRING"}, DAY | UPDATE, [[["2020-01-01"], ["abc"]]]),
    "updated_long_ago": (
        {"dt": "STRING"}, DAY | UPDATE | {"partition.expiration-time": "1 ms"}, [[["2020-01-01"], ["abc"], [None]]],
    ),
    "updated_days": ({"dt": "DATE"}, DAY | UPDATE | {"partition.expiration-time": "1 ms"}, [[["2020-01-01"]]]),
    "keyed": ({"dt": "STRING"}, DAY | {"bucket": "2", "primary-key": "dt,k"}, [[["2020-01-01"], ["2099-01-01"]], [["2020-02-01"], ["2099-01-01"]]]),
}  # fmt: skip

AUTO = {"tag.automatic-creation": "process-time"}
MINUTE = AUTO | {"tag.creation-period-duration": "1 min"}
# name: options; each table gets one commit, then others 40 s apart
TAGS: dict[str, dict[str, str]] = {
    "none": {},
    "daily": AUTO,
    "daily_dense": AUTO | {"tag.period-formatter": "without_dashes"},
    "hourly": AUTO | {"tag.creation-period": "hourly"},
    "hourly_dense": AUTO | {"tag.creation-period": "hourly", "tag.period-formatter": "without_dashes_and_spaces"},
    "two_hours": AUTO | {"tag.creation-period": "two-hours", "tag.creation-delay": "10 min"},
    "elsewhere": AUTO | {"tag.creation-period": "hourly", "sink.process-time-zone": "Asia/Kolkata"},
    "minutes": MINUTE,
    "minutes_late": MINUTE | {"tag.creation-delay": "25 s"},
    "minutes_two": MINUTE | {"tag.num-retained-max": "2"},
    "minutes_one": MINUTE | {"tag.num-retained-max": "1", "snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"},
    "minutes_complete": MINUTE | {"tag.automatic-completion": "true"},
    "half_minutes": AUTO | {"tag.creation-period-duration": "30 s"},
    "minutes_short": MINUTE | {"tag.default-time-retained": "15 s"},
    "minutes_kept": MINUTE | {"tag.default-time-retained": "15 s", "tag.time-expire-enabled": "false"},
    "minutes_success": MINUTE | {"tag.create-success-file": "true"},
    "expires": {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2"},
    "tagged_expires": MINUTE | {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"},
    "write_only": MINUTE | {"write-only": "true", "snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"},
    "batch": {"tag.automatic-creation": "batch"},
    "batch_named": {"tag.automatic-creation": "batch", "tag.batch.customized-name": "nightly"},
    "batch_write_only": {"tag.automatic-creation": "batch", "write-only": "true"},
    "batch_short": {"tag.automatic-creation": "batch", "tag.default-time-retained": "15 s"},
}  # fmt: skip
COMMITS = 5


def _literal(value: Any, type_: str) -> str:
    if value is None:
        return f"CAST(NULL AS {type_})"
    return f"CAST('{str(value).replace(chr(39), chr(39) * 2)}' AS {type_})"


def _with(options: dict[str, str]) -> str:
    return ", ".join(f"'{k}'='{v.replace(chr(39), chr(39) * 2)}'" for k, v in options.items())


def script() -> str:
    """All cases as SQL."""
    out = [
        "CREATE CATALOG p WITH ('type'='paimon', 'warehouse'='${WAREHOUSE}');", "USE CATALOG p;",
        "CREATE DATABASE parts;", "CREATE DATABASE tags;", "SET 'execution.runtime-mode'='batch';",
    ]  # fmt: skip
    for name, options in TAGS.items():
        out.append(f"CREATE TABLE tags.`{name}` (k INT) WITH ({_with({'bucket': '-1'} | options)});")
    for name, (columns, options, _) in PARTITIONS.items():
        fields = ", ".join(f"`{c}` {t}" for c, t in columns.items())
        rest = {"bucket": "-1"} | options
        key = rest.pop("primary-key", None)
        primary = f", PRIMARY KEY ({key}) NOT ENFORCED" if key else ""
        by = ", ".join(f"`{c}`" for c in columns)
        out.append(
            f"CREATE TABLE parts.`{name}` (k INT, {fields}{primary}) PARTITIONED BY ({by}) WITH ({_with(rest)});"
        )
    for i in range(COMMITS):
        # the other tables pass the time between two commits
        for name in TAGS:
            out.append(f"-- @continue\nINSERT INTO tags.`{name}` VALUES ({i});")
        for name, (columns, _, batches) in list(PARTITIONS.items())[i::COMMITS]:
            for batch in batches:
                rows = ", ".join(
                    "(" + ", ".join(["1", *(_literal(v, t) for v, t in zip(row, columns.values()))]) + ")"
                    for row in batch
                )
                out.append(f"-- @continue\nINSERT INTO parts.`{name}` VALUES {rows};")
    for name in PARTITIONS:
        out.append(f"-- @dump parts.{name}.files\nSELECT * FROM parts.`{name}$files`;")
        out.append(f"-- @dump parts.{name}.snapshots\nSELECT * FROM parts.`{name}$snapshots`;")
    for name in TAGS:
        out.append(f"-- @dump tags.{name}.tags\nSELECT * FROM tags.`{name}$tags`;")
        out.append(f"-- @dump tags.{name}.snapshots\nSELECT * FROM tags.`{name}$snapshots`;")
    return "\n".join(out) + "\n"


def _rows(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(x) for x in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [x["row"] for x in lines if "row" in x]


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


class _Watch(Thread):
    """Remembers when each snapshot was made, as it may be gone at the end: one lives until the next commit at least."""

    def __init__(self, warehouse: Path) -> None:
        super().__init__(daemon=True)
        self.warehouse, self.over = warehouse, Event()
        self.seen: dict[str, dict[int, int]] = {name: {} for name in TAGS}

    def run(self) -> None:
        while not self.over.wait(0.3):
            for file in self.warehouse.glob("tags.db/*/snapshot/snapshot-*"):
                times, at = self.seen[file.parts[-3]], int(file.name.removeprefix("snapshot-"))
                if at not in times:
                    with suppress(OSError, ValueError, KeyError):
                        times[at] = json.loads(file.read_text())["timeMillis"]


def main() -> None:
    oracle = Path(os.environ.get("ORACLE", "/work/shared/oracle"))
    with tempfile.TemporaryDirectory(dir=os.environ.get("AT")) as at:
        sql, dumps, warehouse = Path(at) / "a.sql", Path(at) / "dumps", Path(at) / "warehouse"
        sql.write_text(script())
        began = datetime.now(UTC)
        watch = _Watch(warehouse)
        watch.start()
        done = subprocess.run(
            [oracle / "oracle-sql", "--dump-dir", dumps, "-DREADER=core", f"-DWAREHOUSE=file:{warehouse}", sql],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        watch.over.set()
        watch.join()
        errors = [x for x in done.stdout.splitlines() if '"error"' in x]
        facts: dict[str, Any] = {"began_ms": round(began.timestamp() * 1000), "parts": {}, "tags": {}, "errors": errors}
        for name in PARTITIONS:
            facts["parts"][name] = {
                "partitions": sorted({r["partition"] for r in _rows(dumps, f"parts.{name}.files")}),
                "kinds": [s["commit_kind"] for s in sorted(_rows(dumps, f"parts.{name}.snapshots"), key=lambda s: s["snapshot_id"])],
            }  # fmt: skip
        for name in TAGS:
            snapshots = sorted(_rows(dumps, f"tags.{name}.snapshots"), key=lambda s: s["snapshot_id"])
            facts["tags"][name] = {
                "commits": [ms for _, ms in sorted(watch.seen[name].items())],
                "snapshots": {str(s["snapshot_id"]): _ms(s["commit_time"]) for s in snapshots},
                "tags": {t["tag_name"]: t["snapshot_id"] for t in _rows(dumps, f"tags.{name}.tags")},
                "files": sorted(
                    str(f.relative_to(warehouse / "tags.db" / name))
                    for f in (warehouse / "tags.db" / name / "tag").rglob("*") if not f.name.startswith(".") and f.is_file()
                ),
                "data_files": len(list((warehouse / "tags.db" / name / "bucket-0").glob("data-*"))),
            }  # fmt: skip
    FACTS.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    sys.stdout.write(f"{len(errors)} errors\n" + "\n".join(e[:300] for e in errors) + done.stderr[-500:])


if __name__ == "__main__":
    main()
