# SPDX-License-Identifier: Apache-2.0
"""Parquet files closed as Java closes them: by the size that their rows have before compression.

shoal compresses what waits before it closes a file, so none of its own tables has files that are small for this.
Agrees with: ParquetBulkWriter.reachTargetSize (2.0.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from shoal.format.data import ParquetWriter


@contextmanager
def closed_before_compression() -> Iterator[None]:
    with patch.object(ParquetWriter, "settle", lambda writer: None):
        yield
