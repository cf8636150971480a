# SPDX-License-Identifier: Apache-2.0
"""No table that Java made as an example is told to be sick, but for those that are: each is here with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.clock import ManualClock
from shoal.doctor.diagnose.case import case
from shoal.doctor.diagnose.rules import diagnose
from shoal.doctor.take import take
from shoal.store import LocalStore
from shoal.store.cache import Cache
from shoal.table.metadata import Metadata

TABLES = (Path(__file__).parents[1] / "golden" / "tables.txt").read_text().split()
DATABASES = sorted({t.split(".")[0] for t in TABLES})
# What is said of a table, above info, and why it is right.
ODD = {
    # the seed's incident in small: a checkpoint each second, with a changelog for nobody
    "debt.ckpt_1s": {"D1", "D3"},
    "debt.ckpt_1s_append": {"D1"},  # the same clock
    # two tags that nothing ends keep three files that were replaced since: three times what is live
    "maint.tagged": {"D15"},
}


@pytest.mark.parametrize("database", DATABASES)
def test_nothing_above_info_is_said_of_a_golden_table(database: str, golden) -> None:
    for name in (t.split(".")[1] for t in TABLES if t.startswith(f"{database}.")):
        metadata = Metadata(LocalStore(golden(database) / f"{database}.db" / name), Cache())
        found = diagnose(case(take(metadata, name=f"{database}.{name}", clock=ManualClock())))
        loud = {f.id: f.says for f in found if f.severity != "info"}
        assert loud.keys() == ODD.get(f"{database}.{name}", set()), (name, loud)
