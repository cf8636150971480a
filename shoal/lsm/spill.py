# SPDX-License-Identifier: Apache-2.0
"""Sorted rows put aside on disk while a merge has more runs than it can hold open.

Invariant: the files have no name, so nothing is left behind whatever ends the process; rows come back in the order in
which they were put aside.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

from shoal.errors import StorageFailed

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
