"""Deleted partitions whose folders must still be removed from the remote store.

A text file in the first data directory keeps them over a restart, in the form of a checkpoint. It has a line with the
version, ``0``, a line with the number of entries, and a line with each folder's name. It is written before the
partition's own directory is removed.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

from millrace.errors import StorageError
from millrace_broker.log.files import Files, replace_file
from millrace_broker.log.tiered.store import RemoteStore

REMOTE_DELETIONS: Final = "remote-deletions"
_VERSION: Final = "0"
_LOG: Final = logging.getLogger(__name__)


class RemoteDeletions:
    """The folders to remove. Raises ``StorageError`` when its file is damaged or cannot be written."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files: Final = files
        self._path: Final = directory / REMOTE_DELETIONS
        self._lock: Final = threading.Lock()
        self._folders: tuple[str, ...] = self._read()

    def __len__(self) -> int:
        return len(self._folders)

    def __contains__(self, folder: str) -> bool:
        return folder in self._folders

    def _read(self) -> tuple[str, ...]:
        lines = (self._files.read_bytes(self._path) or b"").decode("utf-8", "replace").splitlines()
        if not lines:
            return ()
        if len(lines) < 2 or lines[0] != _VERSION or lines[1] != str(len(lines) - 2):
            raise StorageError(
                f"{self._path} is damaged: restore it, or remove it and the folders of deleted topics in the store"
            )
        return tuple(lines[2:])

    def _write(self, folders: tuple[str, ...]) -> None:
        lines = [_VERSION, str(len(folders)), *folders]
        replace_file(self._files, self._path, "".join(f"{line}\n" for line in lines).encode())
        self._folders = folders

    def add(self, folder: str) -> None:
        """Add a folder, durably."""
        with self._lock:
            if folder not in self._folders:
                self._write((*self._folders, folder))

    def carry_out(self, store: RemoteStore) -> int:
        """Remove the folders; returns how many. Raises ``RemoteStorageError``; a later call retries the rest."""
        count = 0
        for folder in self._folders:
            store.remove_folder(folder)
            with self._lock:
                self._write(tuple(other for other in self._folders if other != folder))
            _LOG.info("removed %s from the remote store", folder)
            count += 1
        return count
