"""The log's interface to the file system.

The implementations are the real file system, and one for tests that tears writes and loses power.

Durability is explicit. Written bytes survive the death of the process at once, and that of the machine after
``File.sync``. A created, renamed or removed name survives the death of the machine after ``Files.sync_directory``.

Errors of the operating system are raised as ``StorageError`` with the path, or as ``DiskFullError`` if only space is
missing. A missing file is no error where ``None``, ``False`` or an empty list can express it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from millrace.errors import DiskFullError, EnvironmentProblemError, StorageError

Part = bytes | bytearray | memoryview

TEMPORARY: Final = ".tmp"
"""The suffix of a small file that is being written to replace another; a leftover has no meaning."""

_SAMPLE_BYTES: Final = 128 * 1024
"""The distance of two samples of the page cache, which the kernel fills by as much at once."""
_BUFFERS_MAX: Final = 1024
"""IOV_MAX of Linux: the parts that one system call writes."""


class File(Protocol):
    """An open file. Reads are safe from any thread; it closes with the last reference, or by ``close``."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read up to ``size_bytes`` at ``position``; less only at the end of the file."""
        ...

    def is_cached(self, position: int, size_bytes: int) -> bool:
        """Return whether samples show that a read of these bytes would not wait for a disk."""
        ...

    def write(self, position: int, parts: Sequence[Part]) -> None:
        """Write ``parts`` one after another at ``position``, completely or raise ``StorageError``."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Set the size: truncate, or extend with zeros that take no space."""
        ...

    def size_bytes(self) -> int:
        """Return the present size."""
        ...

    def sync(self) -> None:
        """Make content and size survive a power failure."""
        ...

    def close(self) -> None:
        """Close the file; no thread may read it. Closing again does nothing."""
        ...


class Lock(Protocol):
    """A directory's lock; held until ``release`` or the end of the process."""

    def release(self) -> None:
        """Release the lock."""
        ...


class Files(Protocol):
    """A file system."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; ``create`` makes a missing file."""
        ...

    def open_read_only(self, path: Path) -> File | None:
        """Open for reading; None when there is no such file."""
        ...

    def map(self, path: Path) -> memoryview | None:
        """Map a whole file read-only until the last view is released; None when there is no such file."""
        ...

    def forget_cached(self, path: Path) -> None:
        """Drop a file from the page cache, except for pages that are not written back yet."""
        ...

    def read_bytes(self, path: Path) -> bytes | None:
        """Read a whole (small) file; None when there is none."""
        ...

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted; empty when there is no such directory."""
        ...

    def is_directory(self, path: Path) -> bool:
        """Return whether ``path`` is a directory."""
        ...

    def size_bytes(self, path: Path) -> int | None:
        """Return a file's size; None when there is none."""
        ...

    def modified_ms(self, path: Path) -> int | None:
        """Return when a file was last modified, in ms since 1970; None when there is none."""
        ...

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        """Set the time of a file's last modification."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename, atomically replacing a file of the target's name."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is no error."""
        ...

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents; an existing one is no error."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content; a missing one is no error."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory survive a power failure."""
        ...

    def lock(self, path: Path) -> Lock:
        """Take the exclusive lock file ``path``.

        Raises ``EnvironmentProblemError`` when another process holds it.
        """
        ...


def replace_file(files: Files, path: Path, *parts: Part, suffix: str = TEMPORARY) -> None:
    """Replace a file as a whole: write beside it, sync, rename, sync the directory."""
    beside = path.with_name(path.name + suffix)
    file = files.open(beside, create=True)
    try:
        file.truncate(0)
        file.write(0, parts)
        file.sync()
    finally:
        file.close()
    files.rename(beside, path)
    files.sync_directory(path.parent)


class OsFile:
    """An open file of the operating system."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read up to ``size_bytes`` at ``position``."""
        try:  # no context manager here, because it costs as much as a read from the page cache
            data = os.pread(self._descriptor, size_bytes, position)
            while data and len(data) < size_bytes:
                more = os.pread(self._descriptor, size_bytes - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _storage_error("read", self._path, error) from error
        return data

    def is_cached(self, position: int, size_bytes: int) -> bool:
        """Ask the kernel for single bytes without a wait. They count as absent on file systems that cannot do that."""
        sample, last = bytearray(1), position + size_bytes - 1
        try:
            for at in (*range(position, last, _SAMPLE_BYTES), last):
                os.preadv(self._descriptor, [sample], at, os.RWF_NOWAIT)
        except OSError:  # BlockingIOError, or EOPNOTSUPP of some file systems
            return False
        return True

    def write(self, position: int, parts: Sequence[Part]) -> None:
        """Write ``parts`` completely, or raise ``StorageError``."""
        try:  # no context manager here either
            for first in range(0, len(parts), _BUFFERS_MAX):
                position = self._write_some(position, parts[first : first + _BUFFERS_MAX])
        except OSError as error:
            raise _storage_error("write", self._path, error) from error

    def _write_some(self, position: int, parts: Sequence[Part]) -> int:
        size_bytes = sum(map(len, parts))
        written = os.pwritev(self._descriptor, parts, position)
        if written < size_bytes:  # a signal, or the disk is nearly full; in that case the next call raises
            rest = memoryview(b"".join(parts))[written:]
            while rest:
                count = os.pwrite(self._descriptor, rest, position + size_bytes - len(rest))
                if count == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                rest = rest[count:]
        return position + size_bytes

    def truncate(self, size_bytes: int) -> None:
        """Set the size."""
        with _storage_errors("truncate", self._path):
            os.ftruncate(self._descriptor, size_bytes)

    def map(self) -> memoryview:
        """Map the whole file read-only until the last view is released. The file may be closed before."""
        try:
            if os.fstat(self._descriptor).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise _storage_error("map", self._path, error) from error

    def size_bytes(self) -> int:
        """Return the present size."""
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise _storage_error("stat", self._path, error) from error

    def sync(self) -> None:
        """Call fdatasync, which also writes the size, but not the times."""
        with _storage_errors("sync", self._path):
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close; closing again does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class _OsLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OsFiles:
    """The file system of the operating system."""

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        """Open for reading and writing."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with _storage_errors("open", path):
            return OsFile(path, os.open(path, flags, 0o644))

    def open_read_only(self, path: Path) -> OsFile | None:
        """Open for reading."""
        return self._open_to("open", path)

    def _open_to(self, action: str, path: Path) -> OsFile | None:
        """Open for reading. Errors say that ``action`` has failed."""
        try:  # no context manager in operations that the loading of each log needs
            return OsFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _storage_error(action, path, error) from error

    def map(self, path: Path) -> memoryview | None:
        """Map a whole file."""
        file = self._open_to("map", path)
        if file is None:
            return None
        try:
            return file.map()
        finally:
            file.close()

    def forget_cached(self, path: Path) -> None:
        """Drop a file's clean pages; the kernel also counts pages that it failed to write as clean."""
        with _storage_errors("read", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def read_bytes(self, path: Path) -> bytes | None:
        """Read a whole file."""
        file = self._open_to("read", path)
        if file is None:
            return None
        try:
            return file.read(0, file.size_bytes())
        finally:
            file.close()

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _storage_error("list", directory, error) from error

    def is_directory(self, path: Path) -> bool:
        """Return whether ``path`` is a directory."""
        return path.is_dir()

    def size_bytes(self, path: Path) -> int | None:
        """Return a file's size."""
        status = self._status(path)
        return None if status is None else status.st_size

    def modified_ms(self, path: Path) -> int | None:
        """Return when a file was last modified."""
        status = self._status(path)
        return None if status is None else status.st_mtime_ns // 1_000_000

    def _status(self, path: Path) -> os.stat_result | None:
        try:
            return os.stat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _storage_error("stat", path, error) from error

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        """Set when a file counts as last modified."""
        with _storage_errors("set the time of", path):
            os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing the target."""
        with _storage_errors("rename", source):
            os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        with _storage_errors("remove", path):
            path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents."""
        with _storage_errors("make directory", path):
            path.mkdir(parents=True, exist_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content."""
        with _storage_errors("remove", path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: Path) -> None:
        """Call fsync on a directory."""
        with _storage_errors("sync", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def lock(self, path: Path) -> Lock:
        """Take an advisory lock (flock), with this process's id in the file for administrators."""
        with _storage_errors("lock", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                os.close(descriptor)
                raise EnvironmentProblemError(
                    f"{path.parent} is in use by another broker{f' (process {holder})' if holder else ''}: stop that "
                    "broker, or use another data directory"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
            return _OsLock(descriptor)


@contextlib.contextmanager
def _storage_errors(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _storage_error(action, path, error) from error


def _storage_error(action: str, path: Path, error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"cannot {action} {path}: {error.strerror}: free space on that disk")
    return StorageError(f"cannot {action} {path}: {error.strerror}")
