"""Detection of disk failures under log directories, in every file operation.

Each operation is passed on, and its errors are raised unchanged. If an error says that the *disk* fails, ``on_fault``
is called too. A full disk has not failed: the write is refused and undone, and works again once there is space. A
single file that is missing or not accessible is no disk failure either.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from millrace.errors import StorageError
from millrace_broker.log.files import File, Files, Lock, Part

_FAULTS: Final = frozenset(
    (
        errno.EIO,
        errno.EROFS,
        errno.ENODEV,
        errno.ENXIO,
        errno.ESTALE,
        errno.EUCLEAN,
        errno.EBADMSG,
        errno.EREMOTEIO,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ENOMEDIUM,
    )
)

_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))

OnFault = Callable[[Path, StorageError], None]
"""Called with the path and the error, in the thread of the operation; it must not block."""


_P = ParamSpec("_P")
_T = TypeVar("_T")


def is_fault(error: StorageError) -> bool:
    """Return whether an error says that the disk does not work."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _FAULTS


def is_full(error: StorageError) -> bool:
    """Return whether an error says that there is no space left."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL


def _watched(
    operation: Callable[Concatenate[WatchedFiles, Path, _P], _T],
) -> Callable[Concatenate[WatchedFiles, Path, _P], _T]:
    @wraps(operation)
    def watched(self: WatchedFiles, path: Path, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return operation(self, path, *args, **kwargs)
        except StorageError as error:
            if is_fault(error):
                self.on_fault(path, error)
            raise

    return watched


class WatchedFile:
    """An open file on a watched disk."""

    def __init__(self, file: File, path: Path, on_fault: OnFault) -> None:
        self._file: Final = file
        self._path: Final = path
        self._on_fault: Final = on_fault

    def read(self, position: int, size_bytes: int) -> bytes:
        """See ``File``."""
        try:
            return self._file.read(position, size_bytes)
        except StorageError as error:
            self._report(error)
            raise

    def is_cached(self, position: int, size_bytes: int) -> bool:
        """See ``File``."""
        return self._file.is_cached(position, size_bytes)

    def write(self, position: int, parts: Sequence[Part]) -> None:
        """See ``File``."""
        try:
            self._file.write(position, parts)
        except StorageError as error:
            self._report(error)
            raise

    def truncate(self, size_bytes: int) -> None:
        """See ``File``."""
        try:
            self._file.truncate(size_bytes)
        except StorageError as error:
            self._report(error)
            raise

    def size_bytes(self) -> int:
        """See ``File``."""
        try:
            return self._file.size_bytes()
        except StorageError as error:
            self._report(error)
            raise

    def sync(self) -> None:
        """See ``File``."""
        try:
            self._file.sync()
        except StorageError as error:
            self._report(error)
            raise

    def close(self) -> None:
        """See ``File``."""
        self._file.close()

    def _report(self, error: StorageError) -> None:
        if is_fault(error):
            self._on_fault(self._path, error)


class WatchedFiles:
    """A file system that reports disk failures."""

    def __init__(self, files: Files, on_fault: OnFault) -> None:
        self._files: Final = files
        self.on_fault: Final = on_fault

    @_watched
    def open(self, path: Path, *, create: bool = False) -> WatchedFile:
        """See ``Files``."""
        return WatchedFile(self._files.open(path, create=create), path, self.on_fault)

    @_watched
    def open_read_only(self, path: Path) -> WatchedFile | None:
        """See ``Files``."""
        file = self._files.open_read_only(path)
        return None if file is None else WatchedFile(file, path, self.on_fault)

    @_watched
    def map(self, path: Path) -> memoryview | None:
        """See ``Files``."""
        return self._files.map(path)

    @_watched
    def read_bytes(self, path: Path) -> bytes | None:
        """See ``Files``."""
        return self._files.read_bytes(path)

    @_watched
    def names(self, directory: Path) -> list[str]:
        """See ``Files``."""
        return self._files.names(directory)

    def is_directory(self, path: Path) -> bool:
        """See ``Files``."""
        return self._files.is_directory(path)

    @_watched
    def size_bytes(self, path: Path) -> int | None:
        """See ``Files``."""
        return self._files.size_bytes(path)

    @_watched
    def modified_ms(self, path: Path) -> int | None:
        """See ``Files``."""
        return self._files.modified_ms(path)

    @_watched
    def forget_cached(self, path: Path) -> None:
        """See ``Files``."""
        self._files.forget_cached(path)

    @_watched
    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        """See ``Files``."""
        self._files.set_modified_ms(path, time_ms)

    @_watched
    def rename(self, source: Path, target: Path) -> None:
        """See ``Files``."""
        self._files.rename(source, target)

    @_watched
    def remove(self, path: Path) -> None:
        """See ``Files``."""
        self._files.remove(path)

    @_watched
    def make_directory(self, path: Path) -> None:
        """See ``Files``."""
        self._files.make_directory(path)

    @_watched
    def remove_tree(self, path: Path) -> None:
        """See ``Files``."""
        self._files.remove_tree(path)

    @_watched
    def sync_directory(self, path: Path) -> None:
        """See ``Files``."""
        self._files.sync_directory(path)

    @_watched
    def lock(self, path: Path) -> Lock:
        """See ``Files``."""
        return self._files.lock(path)
