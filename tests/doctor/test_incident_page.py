# SPDX-License-Identifier: Apache-2.0
"""docs/from-60s-to-10s.md shows what the doctor prints today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "dev" / "incident.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run dev/incident and look at what changed:\n{done.stdout}{done.stderr}"
