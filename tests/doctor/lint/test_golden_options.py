# SPDX-License-Identifier: Apache-2.0
"""No option of the tables that Java wrote is called wrong; those that are odd on purpose are listed."""

from __future__ import annotations

from pathlib import Path

from shoal.catalog.filesystem import Lake
from shoal.doctor.lint.sources import lint_table
from shoal.doctor.lint.subject import Around
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
