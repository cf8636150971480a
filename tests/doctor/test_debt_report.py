# SPDX-License-Identifier: Apache-2.0
"""What `shoal doctor check` prints: the verdict first, 80 columns, and the same numbers as the JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_debt_counts import synthetic

from shoal.doctor.compare import compare
from shoal.doctor.debt import Debt, Identity, debt, measure
from shoal.doctor.physical import physical
from shoal.doctor.report import check_text, comparison_text, judge, size_text, to_json
from shoal.doctor.take import take
from shoal.doctor.window import Count, Gap
from shoal.store import LocalStore, MemoryStore
from shoal.store.cache import Cache
from shoal.table.metadata import Metadata


@pytest.fixture
def fast(debt_db: Path) -> Debt:
    return measure(Metadata(LocalStore(debt_db / "ckpt_1s"), Cache()))


@pytest.fixture
def slow(debt_db: Path) -> Debt:
    return measure(Metadata(LocalStore(debt_db / "ckpt_6s"), Cache()))


def test_the_verdict_comes_first_and_the_golden_tables_are_well(metadata: Metadata) -> None:
    found = measure(metadata)
    verdict = judge(found)
    assert verdict.ok and verdict.exit_code == 0
    assert check_text(found, width=200).splitlines()[0] == verdict.lines[0]
    assert verdict.lines[0].startswith("well: ")


def test_text_fits_eighty_columns(metadata: Metadata, fast: Debt, slow: Debt) -> None:
    found = measure(metadata)
    grown = replace(
        found,
        made={k: Count(c.files * 9_973, c.bytes * 999_983) for k, c in found.made.items()},
        table="s3://" + "x" * 200,
    )
    for text in (check_text(found, physical(metadata.store)), check_text(grown), comparison_text(compare(fast, slow))):
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text


def test_the_text_names_the_counts(fast: Debt) -> None:
    text = " ".join(check_text(fast).split())
    for part in (
        "at most 4 sorted runs in one; writers wait above 8",
        "snapshots 1 to 81 (41 APPEND + 40 COMPACT), 41 commits, one every 1 s",
        "data files 220 371 KiB 9 17.1 KiB 211 354 KiB",
        "changelog 160 257 KiB 160 257 KiB",
        "1,181 files a minute, 19.1 a commit",
        "write amplification 1.56",
        "100 files moved to a higher level, which writes nothing",
    ):
        assert part in text, part


def test_the_comparison_has_two_columns_and_a_ratio(fast: Debt, slow: Debt) -> None:
    lines = [line.split() for line in comparison_text(compare(fast, slow)).splitlines()]
    assert ["1", "s", "6", "s", "ratio"] in lines
    assert ["all", "files", "made", "785", "134", "5.86x"] in lines
    assert ["files", "a", "minute", "1,181", "203", "5.81x", "+978"] in lines


def test_runs_over_the_stop_trigger_are_unwell() -> None:
    found = debt(synthetic(buckets=3, level0=9))
    verdict = judge(found)
    assert not verdict.ok and verdict.exit_code == 1
    assert verdict.lines[0] == (
        "unwell: 3 buckets over 8 sorted runs, where writers wait (the worst has 9); compaction is behind"
    )
    assert judge(debt(synthetic(3, 9, {"num-sorted-run.stop-trigger": "20"}))).ok
    only = judge(debt(synthetic(3, 9, {"write-only": "true"})))
    assert "dedicated compaction" in only.lines[0]


def test_runs_over_the_compaction_trigger_are_only_noted() -> None:
    verdict = judge(debt(synthetic(buckets=1, level0=7)))
    assert verdict.ok
    assert "1 bucket over 5 sorted runs: a compaction is due" in verdict.lines


def test_an_identity_that_does_not_hold_is_unwell(fast: Debt) -> None:
    assert not judge(replace(fast, identity=Identity(81, (7,), 9, 9))).ok
    verdict = judge(replace(fast, identity=Identity(81, (), 10, 9)))
    assert verdict.lines[0] == "unwell: the manifest lists say 10 live files, the manifests hold 9"


def test_expired_snapshots_are_noted_and_missing_files_are_unwell(fast: Debt) -> None:
    expired = judge(replace(fast, gaps=(Gap(1, 4, "expired", "gone"),)))
    assert expired.ok and "4 snapshots expired unseen: what they made is not counted" in expired.lines
    missing = judge(replace(fast, gaps=(Gap(8, 8, "missing", "manifest-1 is missing"),), live=None, buckets=None))
    assert not missing.ok and "snapshot 8 has not expired" in missing.lines[0]


def test_an_empty_table_is_well() -> None:
    empty = debt(take(Metadata(MemoryStore("empty"), Cache())))
    assert check_text(empty) == "well: the table has no snapshot yet\n"


def test_json_carries_the_verdict(fast: Debt, slow: Debt) -> None:
    out = json.loads(to_json(fast))
    assert out["verdict"]["ok"] is True and out["made"]["level0"]["files"] == 160
    assert json.loads(to_json(compare(fast, slow)))["ratios"]["made.total.files"]["a"] == 785


def test_importing_the_doctor_imports_neither_pyarrow_nor_rich() -> None:
    code = "import sys, shoal.doctor.report; print([m for m in ('pyarrow', 'numpy', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (1023 << 10, "1,023 KiB"), (128 << 20, "128 MiB")],
)
def test_sizes_read_well(size: int, text: str) -> None:
    assert size_text(size) == text
