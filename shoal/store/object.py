# SPDX-License-Identifier: Apache-2.0
"""Object stores (S3 and what speaks S3, Google Cloud Storage, Azure) through obstore.

Invariants: `create` is one conditional PUT (`If-None-Match: *`), never a copy or a rename, which objects do
not do atomically; small files are single puts, because conditions do not hold for multi-part uploads
everywhere; keys are the paths, byte for byte, so Java finds what we wrote and the reverse. A Java writer
without a catalog lock does not ask the condition and can still overwrite a snapshot of ours.
"""

from __future__ import annotations

import builtins
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.errors import BadRequest, NotFound, ShoalError, StorageFailed
from shoal.store.base import FileInfo
from shoal.store.paths import checked, folder, hidden

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

READ_AHEAD = 1 << 20
# S3 allows 10 000 parts of a file: 8 MiB parts reach 80 GB. Two in flight bound a sink at about 24 MiB.
_PART = 8 << 20
_PARTS_IN_FLIGHT = 2


class ObjectStore:
    """A store over an obstore store whose own prefix is the root. `uri.open_store` makes one from options."""

    def __init__(self, inner: Any, uri: str) -> None:  # Any: obstore ships its store types as stubs only
        self._inner = inner
        self._uri = uri.rstrip("/")

    def __repr__(self) -> str:
        return f"ObjectStore({self._uri!r})"

    @property
    def uri(self) -> str:
        return self._uri

    def read(self, path: str) -> bytes:
        import obstore

        return self._ask("read", path, lambda: bytes(obstore.get(self._inner, path).bytes()))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        try:
            return self._ranged(path, start, length)
        except StorageFailed:
            if start >= self.size(path):  # stores refuse such a range (416); a file gives nothing
                return b""
            raise

    def _ranged(self, path: str, start: int, length: int) -> bytes:
        import obstore

        return self._ask("read", path, lambda: bytes(obstore.get_range(self._inner, path, start=start, length=length)))

    def open(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.PythonFile(RangedFile(self.size(path), partial(self._ranged, path)), mode="r")

    def size(self, path: str) -> int:
        import obstore

        return int(self._ask("look at", path, lambda: obstore.head(self._inner, path)["size"]))

    def list(self, prefix: str) -> Iterator[FileInfo]:
        return self._walk(folder(prefix))

    def _walk(self, top: str) -> Iterator[FileInfo]:
        """Every object below `top`, without the empty objects that Hadoop and consoles make to show a folder."""
        import obstore

        empty: builtins.list[FileInfo] = []
        folders = {top}
        chunks = iter(obstore.list(self._inner, top or None))
        while chunk := self._ask("list", top, lambda: next(chunks, None)):
            for meta in chunk:
                path = str(meta["path"])
                if any(hidden(part) for part in path[len(top) :].lstrip("/").split("/")):
                    continue
                parent = path.rpartition("/")[0]
                while parent and parent not in folders:
                    folders.add(parent)
                    parent = parent.rpartition("/")[0]
                info = FileInfo(path, int(meta["size"]), int(meta["last_modified"].timestamp() * 1000))
                if info.size:
                    yield info
                else:
                    empty.append(info)
        yield from (info for info in empty if info.path not in folders)

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        import obstore

        top = folder(prefix)
        found = self._ask("list", top, lambda: obstore.list_with_delimiter(self._inner, top or None))
        folders = {str(path).rpartition("/")[2] for path in found["common_prefixes"]}
        files = {path.rpartition("/")[2] for meta in found["objects"] if (path := str(meta["path"])) != top}
        return sorted(n for n in folders if not hidden(n)), sorted(n for n in files if not hidden(n))

    def create(self, path: str, data: bytes) -> bool:
        """Create the file, all or nothing. False when it exists, also when a repeated request of ours made it."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        def once() -> bool:
            try:
                obstore.put(self._inner, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

        return self._ask("create", path, once, missing_is_failure=True)

    def put(self, path: str, data: bytes) -> None:
        import obstore

        self._ask(
            "write", path, lambda: obstore.put(self._inner, path, data, use_multipart=False), missing_is_failure=True
        )

    def sink(self, path: str) -> ObjectSink:
        import obstore

        writer = self._ask(
            "create",
            path,
            lambda: obstore.open_writer(self._inner, path, buffer_size=_PART, max_concurrency=_PARTS_IN_FLIGHT),
            missing_is_failure=True,
        )
        return ObjectSink(self, path, writer)

    def delete(self, path: str) -> None:
        import obstore

        try:
            self._ask("delete", path, lambda: obstore.delete(self._inner, path))
        except NotFound:
            return

    def _ask(self, verb: str, path: str, do: Callable[[], T], *, missing_is_failure: bool = False) -> T:
        """Run one request; what the store answers becomes an error of ours."""
        from obstore.exceptions import BaseError

        if verb != "list":  # a listing may ask for the root
            checked(path)
        shown = f"{self._uri}/{path}" if path else self._uri
        try:
            return do()
        except FileNotFoundError as err:  # what obstore raises for a missing object, or a missing bucket
            if missing_is_failure:
                raise _failed(verb, shown, err) from err
            raise NotFound(f"no file {shown}") from err
        except ValueError as err:
            raise BadRequest(f"'{path}' cannot be an object's key: {_brief(err)}") from err
        except (BaseError, OSError) as err:
            raise _failed(verb, shown, err) from err


class RangedFile(io.RawIOBase):
    """Random access over ranged requests, for pyarrow. Small reads fetch `READ_AHEAD` bytes and keep them."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._fetch = fetch
        self._at = 0
        self._kept = b""
        self._kept_from = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._size - self._at)
        count = left if size is None or size < 0 else min(size, left)
        found = self._take(self._at, count) if count else b""
        self._at += len(found)
        return found

    def _take(self, start: int, count: int) -> bytes:
        skip = start - self._kept_from
        if skip < 0 or skip + count > len(self._kept):
            if count >= READ_AHEAD:
                return self._fetch(start, count)
            # A file that fits is fetched once and whole: a Parquet reader starts at its end.
            self._kept_from = 0 if self._size <= READ_AHEAD else start
            self._kept = self._fetch(self._kept_from, min(READ_AHEAD, self._size - self._kept_from))
            skip = start - self._kept_from
        return self._kept[skip : skip + count]


class ObjectSink:
    """A multi-part upload: the object appears at `close`; see `base.Sink`."""

    def __init__(self, store: ObjectStore, path: str, writer: Any) -> None:  # Any: obstore.WritableFile is a stub
        self.closed = False
        self._store = store
        self._path = path
        self._writer = writer
        self._written = 0
        self._aborted = False

    def write(self, data: bytes | memoryview, /) -> int:
        count = memoryview(data).nbytes
        if self._aborted:  # a Parquet writer that is let go after an abort still writes its footer
            return count
        if self.closed:
            raise ValueError("write to a closed file")
        try:
            self._ask("write", lambda: self._writer.write(data))
        except ShoalError:
            self.closed = self._aborted = True
            raise
        self._written += count
        return count

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        pass  # parts go out when they are full; a smaller part than the store's minimum would be refused

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._ask("write", self._writer.close)

    def abort(self) -> None:
        """Drop the upload and its parts. After a crash the bucket's own rule for unfinished uploads drops them."""
        if not self.closed:
            self.closed = self._aborted = True
            # obstore's writer has no abort of its own: leaving its `with` block by an error is one.
            stop = InterruptedError("aborted")
            self._ask("abort", lambda: self._writer.__exit__(type(stop), stop, None))

    def _ask(self, verb: str, do: Callable[[], object]) -> None:
        self._store._ask(verb, self._path, do, missing_is_failure=True)

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return not self.closed

    def seekable(self) -> bool:
        return False


def _brief(err: BaseException) -> str:
    """obstore's message without its debug dump and the server's XML, of which the code is kept."""
    text = str(err)
    first = text.split("\n", 1)[0].split(": <?xml", 1)[0]
    code = text.partition("<Code>")[2].partition("</Code>")[0]
    return f"{first[:300]} ({code})" if code and len(code) < 60 else first[:300]


def _failed(verb: str, shown: str, err: BaseException) -> StorageFailed:
    from obstore.exceptions import NotSupportedError, PermissionDeniedError, UnauthenticatedError

    brief = _brief(err)
    hint = None
    if isinstance(err, PermissionDeniedError | UnauthenticatedError) or "InvalidAccessKeyId" in brief:
        hint = "check the keys (s3.access-key, s3.secret-key or AWS_ACCESS_KEY_ID ...) and what they may do"
    elif "NoSuchBucket" in brief or isinstance(err, FileNotFoundError):
        hint = "create the bucket first, or check its name"
    elif verb == "create" and (isinstance(err, NotSupportedError) or "501" in brief or "NotImplemented" in brief):
        hint = "this server cannot create a file only once (If-None-Match), which commits need"
    elif "sending request" in brief or "builder error" in brief:
        hint = "is the endpoint (s3.endpoint) right and reachable?"
    return StorageFailed(f"cannot {verb} {shown}: {brief}", hint=hint)
