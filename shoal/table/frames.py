# SPDX-License-Identifier: Apache-2.0
"""How rows that can be streamed are handed over: as Arrow, pandas, Polars, DuckDB.

Invariant: everything comes from one `to_batches`, so every front end sees the same rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.errors import MissingExtra

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class Frames(ABC):
    """What every scan ends in."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Arrow schema of the result."""

    @abstractmethod
    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, streamed. Memory follows the table's budget, not its size."""

    def to_reader(self) -> pa.RecordBatchReader:
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_arrow(self) -> pa.Table:
        """The whole result in memory."""
        import pyarrow as pa

        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def to_pandas(self) -> pd.DataFrame:
        try:
            import pandas  # noqa: F401
        except ImportError as err:
            raise MissingExtra("to_pandas needs pandas", hint="pip install 'shoal[pandas]'") from err
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        try:
            import polars
        except ImportError as err:
            raise MissingExtra("to_polars needs polars", hint="pip install 'shoal[polars]'") from err
        return polars.from_arrow(self.to_arrow())

    def to_duckdb(self, name: str = "t") -> duckdb.DuckDBPyRelation:
        """A DuckDB relation over the result, on a connection of its own."""
        import duckdb

        connection = duckdb.connect()
        connection.register(name, self.to_arrow())
        return connection.table(name)
