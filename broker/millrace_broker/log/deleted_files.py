"""Deleted files of a log, removed after ``file.delete.delay.ms``.

A deleted file is renamed at once, and its readers continue. Appends and deletions do not wait for the disk, which may
take long to remove a large file. Files that still wait when the broker stops are removed at the next start.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from millrace.segments.names import DELETED, SEGMENT_SUFFIXES, SNAPSHOT, segment_file_name
from millrace_broker.log.files import Files
from millrace_broker.runtime import Clock


class DeletedFiles:
    """Files and directories that wait for their removal.

    Any thread may use this class.
    """

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files: Final = files
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._waiting: list[tuple[float, Path]] = []

    def add(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Schedule the removal of files or directories; their names already mark them as deleted."""
        due = self._clock.monotonic() + delay_ms / 1000
        with self._lock:
            self._waiting += [(due, path) for path in paths]

    def rename_segment(self, directory: Path, base_offset: int, delay_ms: int) -> None:
        """Rename a segment's files and schedule their removal. Raises ``StorageError``."""
        for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT):
            path = directory / segment_file_name(base_offset, suffix)
            if self._files.size_bytes(path) is not None:
                deleted = path.with_name(path.name + DELETED)
                self._files.rename(path, deleted)
                self.add([deleted], delay_ms)

    def remove_due(self) -> None:
        """Remove files whose delay is over. Raises ``StorageError``; the next start removes the remaining files."""
        now = self._clock.monotonic()
        with self._lock:
            due = [path for when, path in self._waiting if when <= now]
            self._waiting = [(when, path) for when, path in self._waiting if when > now]
        for path in due:
            if self._files.is_directory(path):
                self._files.remove_tree(path)
            else:
                self._files.remove(path)
