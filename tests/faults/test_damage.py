# SPDX-License-Identifier: Apache-2.0
"""A damaged or missing file ends in one typed error that names it; never in wrong rows, a hang or a crash.

Every kind of file of Java's golden tables is cut off and has bits turned over. Some flips no reader can see, since the
bytes have no checksum (a letter of a column's name in a schema file, a value in an uncompressed page): they are
counted, and may not become more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from damage_model import KINDS, Damage, Outcomes, block_ends, run, with_version

import shoal

HERE = Path(__file__).parent
FAST, FULL = 20, 200

# The most flips in a hundred that no reader can see: bytes without a checksum. Names and options in JSON files, index
# manifests (their size is written nowhere), statistics; ORC and Avro blocks, more where they are not compressed; bits
# of file indexes. 0 for the rest: deletion vectors, blobs and manifests are checked, and Java's Parquet pages have a CRC.
SILENT = {
    "schema": 12, "consumer": 6, "statistics": 40, "index manifest": 10, "orc": 15, "append orc": 45, "avro": 20,
    "append avro": 85, "avro changelog": 12, "parquet": 2, "append parquet": 2, "changelog": 2, "bitmap index": 3,
    "range-bitmap index": 4, "bloom index": 4,
}  # fmt: skip
FAULTS = ("crash", "hang", "memory")


@pytest.fixture(scope="module")
def damage_of(golden: Any) -> Any:
    @cache
    def make(name: str) -> Damage:
        return Damage(KINDS[name], golden(KINDS[name].table.split(".")[0]))

    return make


def check(name: str, cuts: Outcomes, flips: Outcomes) -> None:
    for found in (cuts, flips):
        faults = [e for how in FAULTS for e in found.examples.get(how, [])]
        assert not faults, "\n".join(faults)
    wrong = cuts.examples.get("silent", []) + cuts.examples.get("other", [])
    assert not wrong, "\n".join(wrong)
    if KINDS[name].needed:
        # a file that is cut off and still gives the right rows would be one that nobody reads
        assert cuts.counts["named"], cuts.counts
    silent, total = flips.counts["silent"], flips.counts.total()
    allowed = SILENT.get(name, 0) * total / 100 + (2 if name in SILENT else 0)
    print(f"{name}: {silent} of {total} flips change rows silently")
    assert silent <= allowed, "\n".join(flips.examples["silent"])


@pytest.mark.parametrize("name", KINDS)
def test_damage_is_a_typed_error_or_changes_nothing(name: str, damage_of: Any) -> None:
    damage = damage_of(name)
    check(name, run(damage, damage.cuts(FAST)), run(damage, damage.flips(FAST)))


@pytest.mark.parametrize("name", ["manifest list", "manifest", "avro", "append avro", "avro changelog"])
def test_an_avro_file_cut_between_two_blocks_is_not_taken_for_a_shorter_one(name: str, damage_of: Any) -> None:
    """Its bytes are a whole Avro file; what refers to it knows how long it was, or how many rows it had."""
    damage = damage_of(name)
    out = run(damage, ((f"cut to {at}", damage.whole[:at]) for at in block_ends(damage.whole)))
    assert out.counts["named"] == out.counts.total() > 0, out.examples


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_much_damage_within_limits_of_time_and_memory(name: str, golden: Any) -> None:
    folder = golden(KINDS[name].table.split(".")[0])
    call = [sys.executable, HERE / "damage_model.py", name, folder, str(FULL), str(FULL)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {k: Outcomes(Counter(v["counts"]), v["examples"]) for k, v in json.loads(done.stdout).items()}
    print(name, {k: dict(v.counts) for k, v in found.items()})
    check(name, found["cuts"], found["flips"])


@pytest.mark.parametrize("name", [n for n, kind in KINDS.items() if kind.needed])
def test_a_missing_file_is_named(name: str, damage_of: Any) -> None:
    damage = damage_of(name)
    if name in ("snapshot", "consumer"):
        # the newest snapshot or a consumer that is not there was never there
        assert damage.read(None) != damage.right
        return
    with pytest.raises((shoal.Corrupt, shoal.NotFound)) as caught:
        damage.read(None)
    if name == "schema":
        assert "dd_seq" in caught.value.message
    elif name == "tag":
        assert "keep-1" in caught.value.message
    else:
        assert Path(damage.path).name in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("name", [n for n, kind in KINDS.items() if not kind.needed])
def test_a_missing_hint_or_writer_index_changes_nothing(name: str, damage_of: Any) -> None:
    damage = damage_of(name)
    assert damage.read(None) == damage.right


@pytest.mark.parametrize("name", ["schema", "snapshot", "tag"])
def test_a_newer_version_in_a_json_file_is_refused(name: str, damage_of: Any) -> None:
    damage = damage_of(name)
    newer = damage.whole.replace(b'"version" : 3', b'"version" : 99')
    assert newer != damage.whole
    refused(damage, newer)


@pytest.mark.parametrize("name", ["manifest list", "manifest", "index manifest"])
def test_a_newer_version_of_a_manifest_record_is_refused(name: str, damage_of: Any) -> None:
    damage = damage_of(name)
    good, newer = (with_version(damage.whole, v) for v in (1 if name == "index manifest" else 2, 99))
    assert damage.read(good, damage.of_size(len(good))) == damage.right
    refused(damage, newer, damage.of_size(len(newer)))


@pytest.mark.parametrize("name, at", [("bitmap index", 11), ("bloom index", 11), ("blob", -1)])
def test_a_newer_version_of_an_index_or_blob_file_is_refused(name: str, at: int, damage_of: Any) -> None:
    damage = damage_of(name)
    newer = bytearray(damage.whole)
    newer[at] = 99
    refused(damage, bytes(newer))


def refused(damage: Damage, newer: bytes, also: dict[str, bytes] | None = None) -> None:
    with pytest.raises((shoal.Corrupt, shoal.Unsupported), match=r"newer|version") as caught:
        damage.read(newer, also)
    assert Path(damage.path).name in caught.value.message
