# SPDX-License-Identifier: Apache-2.0
"""One blob column of a range of rows, out of the blob files that hold parts and versions of it.

Agrees with: BlobFallbackRecordReader, BlobFormatReader (2.0.0). Invariant: a row's value is in the newest file that
does not hold a placeholder for it, null when all do; which file that is comes from the indexes alone, and only the
values of rows that are wanted are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import Corrupt
from shoal.format.blob import FRAME, NULL, PLACEHOLDER, check_size, read_index, read_records, value_column
from shoal.format.datafile import DataFile
from shoal.format.types import Field

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from shoal.store.base import Store


class BlobColumn:
    """The column over rows `first` to `first + total` of the table. Opening it reads the indexes of its files."""

    def __init__(
        self,
        field: Field,
        files: Sequence[DataFile],
        first: int,
        total: int,
        locate: Callable[[DataFile], tuple[Store, str]],
        *,
        descriptors: bool = False,
    ) -> None:
        self._field = field
        self._descriptors = descriptors
        self._places = [locate(f) for f in files]
        self._file = np.zeros(total, np.int32)
        self._start = np.zeros(total, np.int64)
        self._length = np.full(total, PLACEHOLDER, np.int64)
        covered = np.zeros(total, bool)
        for i in sorted(range(len(files)), key=lambda i: -files[i].max_sequence):
            store, path = self._places[i]
            index = read_index(store, path)
            if len(index) != files[i].row_count:
                raise Corrupt(
                    f"{path} holds {len(index)} rows where its metadata says {files[i].row_count}", hint="it is damaged"
                )
            at = (files[i].first_row_id or 0) - first
            if at < 0 or at + len(index) > total:
                raise Corrupt(f"{path} holds rows outside the range of the files beside it", hint="restore the file")
            open_ = np.flatnonzero(self._length[at : at + len(index)] == PLACEHOLDER)
            self._file[at + open_] = i
            self._start[at + open_] = index.starts[open_]
            self._length[at + open_] = index.lengths[open_]
            covered[at : at + len(index)] = True
        if not covered.all():
            raise Corrupt(
                f"no blob file holds '{field.name}' of row {first + int(np.argmin(covered))}",
                hint="a file was removed by hand; restore it",
            )
        self._length[self._length == PLACEHOLDER] = NULL

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """Bytes of the values up to and with each row; none to read when descriptors are wanted."""
        return np.cumsum(np.zeros_like(self._length) if self._descriptors else np.maximum(self._length, 0))

    def take(self, start: int, stop: int, keep: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """The values of rows `start` to `stop`, without those that `keep` leaves out."""
        rows = np.arange(start, stop) if keep is None else start + np.flatnonzero(keep)
        if self._descriptors and self._field.type.root == "BLOB":
            return self._described(rows)
        where = self._where(rows) if self._descriptors else None
        return value_column(self._payloads(rows), self._field.type, self._path, where)

    def records(self, start: int, stop: int) -> list[bytes | None]:
        """What the files hold of rows `start` to `stop`, whatever it stands for; None is null."""
        return self._payloads(np.arange(start, stop))

    def _payloads(self, rows: npt.NDArray[np.int64]) -> list[bytes | None]:
        length = self._length[rows]
        check_size(int(length.max(initial=0)), f"column '{self._field.name}'")
        payloads: list[bytes | None] = [None] * len(rows)
        for i, (store, path) in enumerate(self._places):
            mine = np.flatnonzero((self._file[rows] == i) & (length >= 0))
            for at, value in zip(mine.tolist(), read_records(store, path, self._start[rows[mine]], length[mine])):
                payloads[at] = value
        return payloads

    @property
    def _path(self) -> str:
        return self._places[0][1]

    def _where(self, rows: npt.NDArray[np.int64]) -> list[tuple[str, int]]:
        uris = [f"{store.uri.rstrip('/')}/{path}" for store, path in self._places]
        return [(uris[f], s + 4) for f, s in zip(self._file[rows].tolist(), self._start[rows].tolist())]

    def _described(self, rows: npt.NDArray[np.int64]) -> pa.Array:
        import pyarrow as pa

        from shoal.format.blob import Descriptor

        lengths = self._length[rows].tolist()
        return pa.array(
            [None if n < 0 else Descriptor(*w, n - FRAME).encode() for w, n in zip(self._where(rows), lengths)],
            pa.binary(),
        )
