# SPDX-License-Identifier: Apache-2.0
"""Every name of the articles' list gets its verdict, and the two large DDLs give exactly their findings.

`data/seed-config-lint.json` is the list of names, each checked against Paimon 2.0.0 (sources, and real runs where its
note says "checked"); `seed1.sql` and `seed2.sql` are the DDLs with the keys that the articles have.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shoal.doctor.lint.names import judge
from shoal.doctor.lint.sources import lint_text
from shoal.doctor.lint.subject import Around

DATA = Path(__file__).parent / "data"
ROWS = json.loads((DATA / "seed-config-lint.json").read_text())["names"]
# the value that the article gives, where the name is right and the value is not
VALUES = {"metadata.stats-mode": "truncate", "lookup.cache": "partial", "scan.snapshot-id": "LATEST"}


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["name"])
def test_a_name_gets_its_verdict(row):
    name, wanted = row["name"], row["verdict"]
    if wanted == "real, wrong value":
        assert judge(name).verdict == "real"
        name = f"{name}={VALUES[name]}"
    assert judge(name).verdict == wanted


# in the list's own words or as the documentation has it
MEANS = {
    "compaction.duration": "batch compaction",
    "ALTER TABLE t RESCALE BUCKETS TO 32": "sys.rescale",
    "OPTIMIZE TABLE t PURGE": "compaction",
    "_deleted_": "rowkind",
    "ReplacingMergeTree": "deduplicate",
    "Spark/Doris DATEV2 vs DATEDAY": "cast",
    "slotSharingGroup": "DataStream API",
    "system.files.table_name": "partition",
    "bucket-shuffle.enabled": "'shuffle'",
    "bucket-shuffle.threshold": "'shuffle'",
    "full-compaction.strategy": "full-compaction.delta-commits",
    "streaming-source.consume-order": "scan.mode",
    "streaming-source": "scan.mode",
    "lookup.cache": "AUTO",
    "metadata.stats-mode": "truncate(",
}


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r["verdict"] not in ("real", "real, not checked")], ids=lambda r: r["name"]
)
def test_a_wrong_name_comes_with_the_right_one(row):
    name = row["name"]
    said = judge(f"{name}={VALUES[name]}" if name in VALUES else name).use
    right = row["use"].removeprefix("no such thing; ")
    words = re.findall(r"[\w$]+(?:[.\-][\w\-]+)+|[a-z]+[A-Z]\w+|t\$\w+|\w{5,}", right)
    wanted = MEANS.get(name) or words[0]
    assert wanted.lower() in said.lower()


def findings(name: str) -> list[tuple[int, str, str, object]]:
    found = lint_text((DATA / name).read_text(), name, around=Around())
    return [(f.scope["line"], f.id, f.severity, f.scope.get("option")) for f in found]


def test_the_ddl_of_the_first_article_only_lacks_a_brake():
    assert findings("seed1.sql") == [(12, "L-60", "warn", "num-sorted-run.stop-trigger")]


def test_the_ddl_of_the_second_article_gives_exactly_its_findings():
    assert findings("seed2.sql") == [
        (15, "L-01", "error", "format"),
        (19, "L-02", "warn", "compaction.max.file-num"),
        (20, "L-01", "error", "compaction.target.file-size"),
        (21, "L-04", "error", "metadata.stats-mode"),
        (22, "L-01", "error", "metadata.stats-truncate-length"),
        (23, "L-20", "warn", "changelog-producer"),
        (24, "L-01", "error", "full-compaction.strategy"),
        (25, "L-67", "warn", "full-compaction.delta-commits"),
        (26, "L-05", "error", "sink.savepoint-timeout"),
        (35, "L-62", "error", "streaming-source"),
        (36, "L-62", "error", "streaming-source.monitor-interval"),
        (37, "L-62", "error", "streaming-source.consume-order"),
        (38, "L-04", "error", "scan.snapshot-id"),
        (41, "L-65", "error", "compact.partition"),
        (41, "L-65", "error", "compact.mode"),
        (42, "L-66", "error", None),
    ]
