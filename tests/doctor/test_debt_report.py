# SPDX-License-Identifier: Apache-2.0
"""What `shoal doctor debt` prints of counts: 80 columns, and numbers that read well."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.doctor.debt import Debt, measure
from shoal.doctor.physical import physical
from shoal.doctor.report import counts, plain_text, size_text
from shoal.doctor.window import Count
from shoal.store import LocalStore
from shoal.store.cache import Cache
from shoal.table.metadata import Metadata


@pytest.fixture
def fast(debt_db: Path) -> Debt:
    return measure(Metadata(LocalStore(debt_db / "ckpt_1s"), Cache()))


def test_text_fits_eighty_columns(metadata: Metadata) -> None:
    found = measure(metadata)
    grown = replace(
        found,
        made={k: Count(c.files * 9_973, c.bytes * 999_983) for k, c in found.made.items()},
        table="s3://" + "x" * 200,
    )
    for text in (plain_text(counts(found, physical(metadata.store)), 80), plain_text(counts(grown), 80)):
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text


def test_the_text_names_the_counts(fast: Debt) -> None:
    text = " ".join(plain_text(counts(fast), 80).split())
    for part in (
        "snapshots 1 to 81 (41 APPEND + 40 COMPACT), 41 commits, one every 1 s",
        "data files 220 371 KiB 9 17.1 KiB 211 354 KiB",
        "changelog 160 257 KiB 160 257 KiB",
        "1,181 files a minute, 19.1 a commit",
        "write amplification 1.56",
        "100 files moved to a higher level, which writes nothing",
    ):
        assert part in text, part


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
