# SPDX-License-Identifier: Apache-2.0
"""No option of the tables that Java wrote is called wrong; those that are odd on purpose are listed."""

from __future__ import annotations

from pathlib import Path

from shoal.catalog.filesystem import Lake
from shoal.clock import ManualClock
from shoal.doctor.lint.sources import lint_table
from shoal.doctor.lint.subject import Around
from shoal.doctor.take import take
from shoal.store.local import LocalStore

GOLDEN = Path(__file__).parents[2] / "golden"
# table: rules that are right about it
ODD = {
    "changelog.dd_full_compaction": {"L-19"},  # one commit each, so a full compaction at every checkpoint is meant
    "changelog.pu_full": {"L-19"},
    "formats.append_stats_full": {"L-36"},  # statistics in full are what it is for
    "formats.pk_stats_per_level": {"L-36"},
    "formats.manifest_merge": {"L-54"},  # manifests of 2 kb, so that some commits merge them
}


def test_no_option_of_the_golden_tables_is_called_wrong(golden):
    odd, count = {}, 0
    for archive in sorted(GOLDEN.glob("*.tar.xz")):
        name = archive.name.removesuffix(".tar.xz")
        if name == "expected":
            continue
        lake = Lake(LocalStore(str(golden(name))))
        for database in lake.databases():
            for table in lake.tables(database):
                count += 1
                found = lint_table(lake.table(f"{database}.{table}"), around=Around())
                if said := {f.id for f in found if f.severity != "info"}:
                    odd[f"{database}.{table}"] = said
    assert odd == ODD
    assert count >= 212


SEEN = {
    "bucket_modes.pk_cross": {"L-49"},  # 20 or 30 rows a bucket
    "bucket_modes.pk_dynamic": {"L-49"},
    "bucket_modes.pk_dynamic_part": {"L-49"},
    "bucket_modes.pk_rescaled": {"L-06"},  # one partition has its old buckets still
    "bucket_modes.pk_rescaled_proc": {"L-06"},  # sys.rescale left the option as it was
    "debt.ckpt_1s": {"L-25", "L-37"},  # 4 buckets of 4 kb; 1000 snapshots are kept of a year that is asked for
    "debt.ckpt_1s_append": {"L-37"},
    "debt.ckpt_3s": {"L-37"},
    "debt.ckpt_6s": {"L-37"},
    "maint.consumed": {"L-26", "L-28"},  # a consumer that reads no more
}


def test_what_snapshots_of_golden_tables_show(golden):
    """Batch jobs that follow each other have users of their own: that is no second writer."""
    clock = ManualClock(1_900_000_000_000)
    odd = {}
    for name in ("bucket_modes", "debt", "maint"):
        lake = Lake(LocalStore(str(golden(name))))
        for database in lake.databases():
            for each in lake.tables(database):
                table = lake.table(f"{database}.{each}")
                window = take(table.metadata, name=each, clock=clock)
                found = lint_table(table, around=Around(), window=window)
                if said := {f.id for f in found if f.severity != "info"}:
                    odd[f"{database}.{each}"] = said
    assert odd == SEEN
