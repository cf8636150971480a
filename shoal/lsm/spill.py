# SPDX-License-Identifier: Apache-2.0
"""Rows put aside on disk: runs of a merge that has more than it can hold open, and what a write buffer cannot hold.

Invariant: the files have no name, so nothing is left behind whatever ends the process; rows come back in the order in
which they were put aside.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from shoal.errors import StorageFailed, Unsupported

if TYPE_CHECKING:
    import pyarrow as pa


class Spill:
    """Files of one merge, gone when the block is left."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *_: object) -> None:
        for f in self._files:
            f.close()

    def keep(self, batches: Iterator[pa.RecordBatch]) -> Callable[[int], Iterator[pa.RecordBatch]]:
        """Write the batches out; what comes back reads the very same ones, whatever number of rows it is asked for."""
        import pyarrow as pa
        import pyarrow.ipc as ipc

        file = tempfile.TemporaryFile(prefix="shoal-merge-", dir=self._folder)  # noqa: SIM115 - closed by __exit__
        self._files.append(file)
        writer: Any = None
        try:
            for batch in batches:
                if writer is None:
                    options = ipc.IpcWriteOptions(compression="lz4")
                    writer = ipc.new_stream(pa.PythonFile(file, "w"), batch.schema, options=options)
                writer.write_batch(batch, None)
            if writer is not None:
                writer.close()
        except OSError as err:
            raise StorageFailed(
                f"cannot put rows aside in {tempfile.gettempdir()}: {err}",
                hint="a merge of many runs needs room there; set TMPDIR to a larger disk, or compact the table",
            ) from err
        return lambda _: _again(file, writer is not None)


def _again(file: IO[bytes], any_rows: bool) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.ipc as ipc

    if not any_rows:
        return
    file.seek(0)
    yield from ipc.open_stream(pa.PythonFile(file, "r"))


# ---- many stretches of rows in one file ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows that were put aside together. `open` reads them again, as often as wanted and beside other readers."""

    open: Callable[[int], Iterator[pa.RecordBatch]]
    rows: int
    bytes: int
    """Their size in memory."""


def held(batches: Iterable[pa.RecordBatch]) -> Kept:
    """Rows that stay in memory, beside others that are on disk."""
    every = list(batches)
    return Kept(lambda _: iter(every), sum(b.num_rows for b in every), sum(b.nbytes for b in every))


class Shelf:
    """One nameless file that takes stretches of rows one after the other. `close` gives its room back."""

    def __init__(self, codec: str | None = None, level: int | None = None, folder: str | None = None) -> None:
        self._codec, self._level, self._folder = codec, level, folder
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self.size = 0

    def put(self, batches: Iterable[pa.RecordBatch]) -> Kept:
        """Write the batches behind what is there."""
        import pyarrow as pa
        import pyarrow.ipc as ipc

        if self._file is None:
            # nobody can open it: it goes with the process, whatever ends that
            self._file = tempfile.TemporaryFile(prefix="shoal-rows-", dir=self._folder)  # noqa: SIM115
        start, rows, size = self.size, 0, 0
        sink, writer = pa.PythonFile(_Tail(self._file, start), "w"), None
        try:
            for batch in batches:
                if writer is None:
                    codec = None if self._codec is None else pa.Codec(self._codec, self._level)
                    writer = ipc.new_stream(sink, batch.schema, options=ipc.IpcWriteOptions(compression=codec))
                writer.write_batch(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
            if writer is not None:
                writer.close()
            self._file.flush()
        except OSError as err:
            raise StorageFailed(
                f"cannot put rows aside in {tempfile.gettempdir()}: {err}",
                hint="a write buffer that is full needs room there; set TMPDIR to a larger disk, or commit more often",
            ) from err
        self.size = self._file.tell()
        file, lock, end = self._file, self._lock, self.size
        return Kept(lambda _: _stretch(file, lock, start, end), rows, size)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self.size = None, 0


class _Tail:
    """Writes behind `start`, whatever a failed write has left there."""

    closed = False

    def __init__(self, file: IO[bytes], start: int) -> None:
        self._file = file
        file.seek(start)
        file.truncate()

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        pass


class _Part:
    """A stretch of the file, to be read on its own: readers share the file and its lock, not their place in it."""

    closed = False

    def __init__(self, file: IO[bytes], lock: threading.Lock, start: int, end: int) -> None:
        self._file, self._lock, self._at, self._end = file, lock, start, end

    def read(self, count: int = -1) -> bytes:
        left = self._end - self._at
        count = left if count < 0 else min(count, left)
        with self._lock:
            self._file.seek(self._at)
            data = self._file.read(count)
        self._at += len(data)
        return data

    def close(self) -> None:
        pass


def _stretch(file: IO[bytes], lock: threading.Lock, start: int, end: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.ipc as ipc

    if end > start:
        yield from ipc.open_stream(pa.PythonFile(_Part(file, lock, start, end), "r"))


def spill_codec(name: str | None, level: int | None) -> tuple[str | None, int | None]:
    """The codec of `spill-compression`, and its level.

    What is not set is not compressed: rows are read back at once, and lz4 would take a fifth of the time of a write.
    """
    match (name or "none").lower():
        case "none":
            return None, None
        case "lz4":
            return "lz4", None
        case "zstd":
            return "zstd", level
    raise Unsupported(f"'spill-compression' = '{name}' is not supported", hint="use zstd, lz4 or none")
