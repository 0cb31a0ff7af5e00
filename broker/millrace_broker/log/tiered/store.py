"""The remote store: an interface for objects in folders.

``ArrowStore`` implements it over Arrow's file systems. The log relies on these properties: once written, an object is
visible to all readers, never changes, and is in every later listing. ``publish`` is atomic. A failed ``write`` may
leave any part of an object, which is later removed as an orphan.

Every failure of the store is a ``RemoteStorageError``, except that a missing object is ``None`` or not in a list. All
calls block, so none may run in the event loop.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from millrace.errors import RemoteStorageError
from millrace.segments.remote import child_uri, open_file_system
from millrace_broker.log.files import Part

_UNFINISHED: Final = ".unfinished"


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object in a folder. ``modified_ms`` is its write time, in ms since 1970."""

    name: str
    size_bytes: int
    modified_ms: int


class RemoteFile(Protocol):
    """An object opened for reading, from any thread. It closes with the last reference."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read a range; less only at the end of the object. Raises ``RemoteStorageError``.

        Memory for ``size_bytes`` is allocated beforehand, even if fewer bytes exist.
        """
        ...

    def size_bytes(self) -> int:
        """Return the object's size. Raises ``RemoteStorageError``."""
        ...


class RemoteStore(Protocol):
    """A remote store. Objects are addressed by ``folder`` and ``name``."""

    def list(self, folder: str) -> list[RemoteObject]:
        """Return the objects of a folder, in the order of their names; empty when there is no such folder."""
        ...

    def open(self, folder: str, name: str) -> RemoteFile | None:
        """Open an object for reading; returns None if it does not exist."""
        ...

    def write(self, folder: str, name: str, parts: Iterable[Part]) -> None:
        """Write an object of any size, durably."""
        ...

    def publish(self, folder: str, name: str, data: bytes) -> None:
        """Write a small object, durably and atomically."""
        ...

    def remove(self, folder: str, name: str) -> None:
        """Remove an object; a missing one is no error."""
        ...

    def remove_folder(self, folder: str) -> None:
        """Remove a folder and its content; a missing one is no error."""
        ...

    def uri(self, folder: str, name: str) -> str:
        """Return the URI under which others can read an object."""
        ...


class ArrowStore:
    """A store at a URI, over Arrow's file systems.

    The schemes are ``file://``, ``s3://``, ``gs://`` and ``hdfs://``. The store connects at its first use, so that a
    broker starts while its store is not reachable.
    """

    def __init__(self, uri: str) -> None:
        self._uri: Final = uri
        self._opened: tuple[Any, str] | None = None

    def _at(self, folder: str, name: str = "") -> tuple[Any, str]:
        if self._opened is None:
            file_system, root = open_file_system(self._uri)
            self._opened = file_system, root.rstrip("/")
        file_system, root = self._opened
        return file_system, "/".join(part for part in (root, folder, name) if part) or "/"

    def list(self, folder: str) -> list[RemoteObject]:
        """Return the objects of a folder, by name."""
        from pyarrow.fs import FileSelector, FileType

        with self._errors("list", folder):
            file_system, path = self._at(folder)
            found = file_system.get_file_info(FileSelector(path, allow_not_found=True))
            return sorted(
                (
                    RemoteObject(info.base_name, info.size, (info.mtime_ns or 0) // 1_000_000)
                    for info in found
                    if info.type == FileType.File
                ),
                key=lambda item: item.name,
            )

    def open(self, folder: str, name: str) -> RemoteFile | None:
        """Open an object for reading."""
        with self._errors("open", folder, name):
            file_system, path = self._at(folder, name)
            try:
                return _ArrowFile(file_system.open_input_file(path), self.uri(folder, name))
            except FileNotFoundError:
                return None

    def write(self, folder: str, name: str, parts: Iterable[Part]) -> None:
        """Write an object, durably."""
        with self._errors("write", folder, name):
            file_system, path = self._at(folder, name)
            if not self._puts_whole(folder):  # object stores have no folders
                file_system.create_dir(self._at(folder)[1], recursive=True)
            with file_system.open_output_stream(path) as stream:
                for part in parts:
                    stream.write(part)
            self._sync(path)

    def publish(self, folder: str, name: str, data: bytes) -> None:
        """Write a small object atomically."""
        if self._puts_whole(folder):
            self.write(folder, name, [data])
            return
        self.write(folder, name + _UNFINISHED, [data])
        with self._errors("write", folder, name):
            file_system, path = self._at(folder, name)
            file_system.move(path + _UNFINISHED, path)
            self._sync(path)

    def _puts_whole(self, folder: str) -> bool:
        """Return whether the store writes objects atomically, as object stores do."""
        with self._errors("open", folder):
            return self._at(folder)[0].type_name in ("s3", "gcs")

    def _sync(self, path: str) -> None:
        """Make a file on a local file system survive a power failure; other stores do so themselves."""
        if self._opened is None or self._opened[0].type_name != "local":
            return
        for each in (Path(path), Path(path).parent, Path(path).parent.parent):
            descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, folder: str, name: str) -> None:
        """Remove an object."""
        with self._errors("remove", folder, name), contextlib.suppress(FileNotFoundError):
            file_system, path = self._at(folder, name)
            file_system.delete_file(path)

    def remove_folder(self, folder: str) -> None:
        """Remove a folder and its content."""
        with self._errors("remove", folder), contextlib.suppress(FileNotFoundError):
            file_system, path = self._at(folder)
            file_system.delete_dir(path)

    def uri(self, folder: str, name: str) -> str:
        """Return the URI of an object."""
        return child_uri(self._uri, f"{folder}/{name}")

    @contextlib.contextmanager
    def _errors(self, action: str, folder: str, name: str = "") -> Iterator[None]:
        with _store_errors(action, child_uri(self._uri, f"{folder}/{name}")):
            yield


class _ArrowFile:
    def __init__(self, file: Any, uri: str) -> None:
        self._file: Final = file
        self._uri: Final = uri

    def read(self, position: int, size_bytes: int) -> bytes:
        with _store_errors("read", self._uri):
            data: bytes = self._file.read_at(size_bytes, position)
            return data

    def size_bytes(self) -> int:
        with _store_errors("read", self._uri):
            size_bytes: int = self._file.size()
            return size_bytes


@contextlib.contextmanager
def _store_errors(action: str, uri: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise RemoteStorageError(f"cannot {action} {uri}: it does not exist") from None
    except (OSError, pa.ArrowException) as error:
        raise RemoteStorageError(f"cannot {action} {uri} ({error}): check the remote store") from error
