# SPDX-License-Identifier: Apache-2.0
"""Files in a folder of this machine (or of a mounted file system).

`create` writes a hidden temporary file beside the target and links it to the final name. Invariants: `link`
never replaces, so exactly one creator wins, also between processes; a final name holds a whole file from its
first moment (only `sink` files, whose names nobody else knows, grow in place); after an error nothing
half-written stays. A crash can leave a `.NAME.<uuid>.tmp`, which no listing shows. Nothing is fsynced, as in
Java Paimon: a crashed process loses nothing, a power cut may lose the last seconds.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shoal.errors import NotFound, ShoalError, StorageFailed
from shoal.store.base import FileInfo
from shoal.store.paths import checked, folder, hidden, join

if TYPE_CHECKING:
    import pyarrow as pa

# How file systems say that they have no hard links (FAT and many FUSE mounts, some network shares).
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# A file name ends at 255 bytes: 48 characters of at most 4 bytes leave room for the UUID.
_NAME_IN_TEMP = 48
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class LocalStore:
    """A store below the folder `root`, which need not exist yet."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.path.expanduser(os.fspath(root)))
        self._base = self.root.rstrip("/") + "/"

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    @property
    def uri(self) -> str:
        return f"file:{self.root}"

    def read(self, path: str) -> bytes:
        at = self._base + checked(path)
        try:
            with open(at, "rb", buffering=0) as file:
                return file.readall()
        except OSError as err:
            raise _read_failed("read", at, err) from err

    def read_range(self, path: str, start: int, length: int) -> bytes:
        at = self._base + checked(path)
        try:
            with open(at, "rb", buffering=0) as file:
                file.seek(start)
                found = file.read(length)
                while found and len(found) < length and (more := file.read(length - len(found))):
                    found += more
                return found
        except OSError as err:
            raise _read_failed("read", at, err) from err

    def open(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        at = self._base + checked(path)
        try:
            # Not a memory map: its pages count as resident until it is closed. Reading 267 MiB of Parquet
            # in order ended at 400 MB that way, at 244 MB this way.
            return pa.OSFile(at, "rb")
        except OSError as err:
            if os.path.isdir(at):
                raise _missing(at) from err
            raise _read_failed("open", at, err) from err

    def size(self, path: str) -> int:
        at = self._base + checked(path)
        try:
            found = os.stat(at)
        except OSError as err:
            raise _read_failed("look at", at, err) from err
        if stat.S_ISDIR(found.st_mode):
            raise _missing(at)
        return found.st_size

    def list(self, prefix: str) -> Iterator[FileInfo]:
        return self._walk(folder(prefix))

    def _walk(self, top: str) -> Iterator[FileInfo]:
        pending = [top]
        while pending:
            here = pending.pop()
            for entry in self._entries(here):
                path = join(here, entry.name)
                try:
                    if entry.is_dir():
                        pending.append(path)
                        continue
                    found = entry.stat()
                except FileNotFoundError:
                    continue  # deleted since the folder was read
                except OSError as err:
                    raise _failed("look at", entry.path, err) from err
                yield FileInfo(path, found.st_size, found.st_mtime_ns // 1_000_000)

    def list_dir(self, prefix: str) -> tuple[builtins.list[str], builtins.list[str]]:
        folders: builtins.list[str] = []
        files: builtins.list[str] = []
        for entry in self._entries(folder(prefix)):
            (folders if entry.is_dir() else files).append(entry.name)
        return sorted(folders), sorted(files)

    def _entries(self, prefix: str) -> builtins.list[os.DirEntry[str]]:
        at = self._base + prefix
        try:
            with os.scandir(at) as entries:
                return [entry for entry in entries if not hidden(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as err:
            raise _failed("list", at, err) from err

    def create(self, path: str, data: bytes) -> bool:
        at = self._base + checked(path)
        try:
            temp = _write_temp(at, data)
            try:
                os.link(temp, at)
            except FileExistsError:
                # A network file system may lose the answer and link twice; our second link is the proof.
                return os.stat(temp).st_nlink == 2
            except OSError as err:
                if err.errno not in _NO_LINKS:
                    raise
                return _create_in_place(at, data)
            finally:
                _discard(temp)
        except OSError as err:
            raise _failed("create", at, err) from err
        return True

    def put(self, path: str, data: bytes) -> None:
        at = self._base + checked(path)
        try:
            temp = _write_temp(at, data)
            try:
                os.replace(temp, at)
            except BaseException:
                _discard(temp)
                raise
        except OSError as err:
            raise _failed("write", at, err) from err

    def sink(self, path: str) -> LocalSink:
        at = self._base + checked(path)
        try:
            return LocalSink(at, _open_new(at))
        except FileExistsError as err:
            raise StorageFailed(
                f"{at} exists already", hint="a streamed file needs a name of its own (a UUID)"
            ) from err
        except OSError as err:
            raise _failed("create", at, err) from err

    def delete(self, path: str) -> None:
        """Remove the file; a missing one is no error. A folder goes when it is empty, and stays otherwise."""
        at = self._base + checked(path)
        try:
            os.unlink(at)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as err:
            if not os.path.isdir(at):
                raise _failed("delete", at, err) from err
            _remove_folder(at)


class LocalSink:
    """A file growing in place; see `base.Sink`. Written unbuffered: columnar writers hand over whole pages."""

    def __init__(self, at: str, fd: int) -> None:
        self.closed = False
        self._at = at
        self._fd = fd
        self._written = 0
        self._aborted = False

    def write(self, data: bytes | memoryview, /) -> int:
        if self._aborted:
            # A Parquet writer that is let go after an abort still writes its footer.
            return memoryview(data).nbytes
        if self.closed:
            raise ValueError("write to a closed file")
        try:
            count = _write_all(self._fd, data)
        except OSError as err:
            self.abort()
            raise _failed("write", self._at, err) from err
        self._written += count
        return count

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            os.close(self._fd)
        except OSError as err:  # network file systems report a full disk here
            _discard(self._at)
            raise _failed("write", self._at, err) from err

    def abort(self) -> None:
        if self.closed:
            return
        self.closed = self._aborted = True
        with contextlib.suppress(OSError):  # the file is dropped; what it held does not matter
            os.close(self._fd)
        _discard(self._at)

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return not self.closed

    def seekable(self) -> bool:
        return False

    def __del__(self) -> None:
        if not self.closed:  # let go without close, as by a crash: the file stays, and nothing refers to it
            self.closed = True
            os.close(self._fd)


def _open_new(at: str) -> int:
    for _ in range(3):  # an empty folder may be removed between our mkdir and our open
        try:
            return os.open(at, _NEW, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(at), exist_ok=True)
    return os.open(at, _NEW, 0o666)


def _write_temp(at: str, data: bytes) -> str:
    parent, _, name = at.rpartition("/")
    temp = f"{parent}/.{name[:_NAME_IN_TEMP]}.{uuid.uuid4()}.tmp"
    _fill(temp, _open_new(temp), data)
    return temp


def _create_in_place(at: str, data: bytes) -> bool:
    """Create without hard links: still exactly one winner, but a reader may meet the file while it grows."""
    try:
        fd = os.open(at, _NEW, 0o666)
    except FileExistsError:
        return False
    _fill(at, fd, data)
    return True


def _fill(at: str, fd: int, data: bytes) -> None:
    """Write `data` and close, or remove the file."""
    try:
        try:
            _write_all(fd, data)
        finally:
            os.close(fd)
    except BaseException:
        _discard(at)
        raise


def _write_all(fd: int, data: bytes | memoryview) -> int:
    view = memoryview(data).cast("B")
    done = os.write(fd, view)
    while done < len(view):
        done += os.write(fd, view[done:])
    return done


def _discard(at: str) -> None:
    with contextlib.suppress(OSError):  # hidden, or named by nobody: it costs space and nothing else
        os.unlink(at)


def _remove_folder(at: str) -> None:
    try:
        os.rmdir(at)
    except FileNotFoundError:
        return
    except OSError as err:
        if err.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _failed("delete", at, err) from err


def _missing(at: str) -> NotFound:
    return NotFound(f"no file {at}")


def _read_failed(verb: str, at: str, err: OSError) -> ShoalError:
    return _missing(at) if isinstance(err, _MISSING) else _failed(verb, at, err)


def _failed(verb: str, at: str, err: OSError) -> StorageFailed:
    why = err.strerror or str(err)
    if err.errno in _FULL:
        return StorageFailed(
            f"no space left on {os.path.dirname(at)}: cannot {verb} {at} ({why})",
            hint="free disk space or raise the quota, then run it again; nothing half-written was left",
            definite=True,
        )
    if err.errno in _FORBIDDEN:
        return StorageFailed(
            f"cannot {verb} {at}: {why}",
            hint=f"check owner and mode of {os.path.dirname(at)}, and that it is not mounted read-only",
            definite=True,
        )
    return StorageFailed(f"cannot {verb} {at}: {why}")
