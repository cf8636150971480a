# SPDX-License-Identifier: Apache-2.0
"""Planning by partition where there are more entries than the cache holds: only what is wanted is decoded."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from oracle_values import multiset, rows_of

import shoal
from shoal import Corrupt
from shoal.format import avro, manifest
from shoal.table import metadata

TABLES = (
    "bucket_modes.pk_fixed_4_part", "bucket_modes.ap_unaware_part", "dv.pk_dv_part", "bucket_modes.pk_dynamic_part",
    "types.part_multi",
)  # fmt: skip


def manifests(folder: Path) -> list[bytes]:
    return [f.read_bytes() for f in sorted(folder.glob("manifest-*")) if "list" not in f.name]


@pytest.mark.parametrize("name", TABLES)
def test_entries_of_unwanted_partitions_are_passed_over_and_the_others_are_whole(
    name: str, golden: Callable[[str], Path]
) -> None:
    database, table = name.split(".")
    for data in manifests(golden(database) / f"{database}.db" / table / "manifest"):
        whole = manifest.decode_entries(data, "m")
        partitions = whole.column("partition").to_pylist()
        keep = {p: i % 2 == 0 for i, p in enumerate(sorted(set(partitions)))}
        some = manifest.decode_many([(data, "m")], keep)[1][0]
        assert some.equals(whole.filter(pa.array([keep[p] for p in partitions])))


@pytest.mark.parametrize("name", TABLES)
def test_a_filter_by_partition_gives_the_same_rows(
    name: str, golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "_MANY", 0)
    warehouse = str(golden(name.split(".")[0]))
    column = shoal.open(warehouse).table(name).schema.partition_keys[0]
    rows = shoal.open(warehouse).table(name).scan().to_arrow()
    for value in {*rows.column(column).to_pylist()}:
        where = pc.field(column).is_null() if value is None else pc.field(column) == value
        table = shoal.open(warehouse).table(name)
        for _ in range(2):  # decoded, then from the cache
            found = table.scan(where).to_arrow()
            assert multiset(rows_of(found), found.schema) == multiset(rows_of(rows.filter(where)), rows.schema)


def test_two_long_lists_of_partitions_are_not_taken_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "_MANY", 0)
    schema = pa.schema([("p", pa.int32()), ("k", pa.int32())])
    table = shoal.open(str(tmp_path)).create_table(
        "d.t", schema, primary_key=["p", "k"], partition_by=["p"], options={"bucket": 1}
    )
    with table.write() as w:
        w.upsert(pa.table({"p": range(60), "k": range(60)}, schema=schema))
        w.commit()
    ends = [*range(20), *range(40, 60)]
    for middle in (25, 30):  # as text both are [0, 1, ..., 58, 59]
        wanted = sorted([*ends, middle])
        found = table.scan(pc.field("p").isin(wanted)).to_arrow().column("p").to_pylist()
        assert sorted(found) == wanted


def test_damage_in_a_record_that_is_passed_over_is_told(golden: Callable[[str], Path]) -> None:
    data = manifests(golden("bucket_modes") / "bucket_modes.db" / "pk_fixed_4_part" / "manifest")[0]
    schema, blocks = avro.container(data, "m")
    plain = avro.write_container(schema, [raw for _, raw in blocks], "null")  # one record a block: enough to cut
    keep = dict.fromkeys(manifest.decode_entries(data, "m").column("partition").to_pylist(), False)
    rng = random.Random(3)
    told = 0
    for _ in range(200):
        at = rng.randrange(len(plain) // 2, len(plain))
        broken = plain[:at] + bytes([plain[at] ^ 1 << rng.randrange(8)]) + plain[at + 1 :]
        try:
            manifest.decode_many([(broken, "m")], keep)
        except Corrupt as err:
            told += "m" in err.message
        except KeyError:
            continue  # another partition than any there is
    assert told > 20
