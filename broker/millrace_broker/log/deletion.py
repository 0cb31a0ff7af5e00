"""Files that left a log: out of its names at once, removed after ``file.delete.delay.ms``.

Whoever is reading such a file goes on in peace, and the wait for the disk that removing a large one costs is nobody's
who appends or asks for a deletion. What still waits when the broker ends is removed at the next start.
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
    """Files and whole directories that wait for their removal; any thread may use it."""

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files: Final = files
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._waiting: list[tuple[float, Path]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Have files or directories, whose names already say that they are deleted, removed after a time."""
        due = self._clock.monotonic() + delay_ms / 1000
        with self._lock:
            self._waiting += [(due, path) for path in paths]

    def rename_segment(self, directory: Path, base_offset: int, delay_ms: int) -> None:
        """Take a segment's files out of the log, to be removed after a time. Raises ``StorageError``."""
        for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT):
            path = directory / segment_file_name(base_offset, suffix)
            if self._files.size_bytes(path) is not None:
                deleted = path.with_name(path.name + DELETED)
                self._files.rename(path, deleted)
                self.add([deleted], delay_ms)

    def remove_due(self) -> None:
        """Remove what has waited long enough. Raises ``StorageError``; what is left is removed at the next start."""
        now = self._clock.monotonic()
        with self._lock:
            due = [path for when, path in self._waiting if when <= now]
            self._waiting = [(when, path) for when, path in self._waiting if when > now]
        for path in due:
            if self._files.is_directory(path):
                self._files.remove_tree(path)
            else:
                self._files.remove(path)
