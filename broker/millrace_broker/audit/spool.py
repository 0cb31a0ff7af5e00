"""Disk queue of audit batches, while their topic cannot be written.

Each batch is a file, named by its place in the order. ``first`` and ``remove_first`` take the batches in this order.

Invariants

- The files, also those set aside, have at most ``max_bytes``. Each is counted as at least ``BLOCK_BYTES``.
- A file appears as a whole, and is on the disk when ``append`` returns.
- A file that cannot be read or written to the topic is set aside and kept, and the next ones are read.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from millrace_broker.audit.events import AuditBatch
from millrace_broker.log.files import Files, replace_file

_logger: Final = logging.getLogger(__name__)

BLOCK_BYTES: Final = 4096
_SUFFIX: Final = ".json"
_DAMAGED: Final = ".damaged"


class AuditSpool:
    """Directory of batches; see the module. It is for one thread at a time."""

    def __init__(self, directory: Path, files: Files, max_bytes: int) -> None:
        self.directory: Final = directory
        self._files: Final = files
        self._max_bytes: Final = max_bytes
        self._sizes: Final[dict[int, int]] = {}
        """Counted sizes of the files, by their numbers in ascending order."""
        self.size_bytes = 0
        self.damaged = 0
        """Files that were set aside since the start."""
        self._damaged_bytes = 0
        """Counted sizes of all files that were set aside, also before the start."""
        self._next_number = 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._sizes)

    def open(self) -> None:
        """Find the batches of an earlier run. Raises ``StorageError``."""
        for name in self._files.names(self.directory):
            number = name.removesuffix(_DAMAGED).removesuffix(_SUFFIX)
            if not number.isdecimal():
                continue
            # No batch takes the number of one that was set aside, whose file it would replace.
            self._next_number = max(self._next_number, int(number) + 1)
            if name.endswith(_SUFFIX):
                self._count(int(number), self._files.size_bytes(self.directory / name) or 0)
        self._damaged_bytes = self._measured_damaged_bytes()

    def append(self, batch: AuditBatch) -> bool:
        """Append a batch; return False if it would exceed the bound. Raises ``StorageError``."""
        data = batch.encode()
        if not self._has_room(max(len(data), BLOCK_BYTES)):
            return False
        self._files.make_directory(self.directory)
        number = self._next_number
        replace_file(self._files, self._path(number), data)
        self._next_number = number + 1
        self._count(number, len(data))
        return True

    def _has_room(self, size_bytes: int) -> bool:
        free_bytes = self._max_bytes - self.size_bytes - size_bytes
        if self._damaged_bytes > free_bytes >= 0:
            self._damaged_bytes = self._measured_damaged_bytes()  # an administrator may have removed files
        return self._damaged_bytes <= free_bytes

    def _measured_damaged_bytes(self) -> int:
        sizes = (
            self._files.size_bytes(self.directory / name)
            for name in self._files.names(self.directory)
            if name.endswith(_DAMAGED)
        )
        return sum(max(size, BLOCK_BYTES) for size in sizes if size is not None)

    def first(self) -> AuditBatch | None:
        """Return the first batch; None if there is none. Raises ``StorageError``."""
        while self._sizes:
            path = self._path(next(iter(self._sizes)))
            data = self._files.read_bytes(path)
            try:
                if data is None:
                    raise ValueError("the file is gone")
                return AuditBatch.decode(data)
            except ValueError as error:
                _logger.error("rows of the audit cannot be read, and are kept in %s%s: %s", path, _DAMAGED, error)
                self.set_aside_first()
        return None

    def set_aside_first(self) -> None:
        """Keep the first batch under another name, from which nothing reads it. Raises ``StorageError``."""
        number = next(iter(self._sizes))
        path = self._path(number)
        self.damaged += 1
        if self._files.size_bytes(path) is not None:
            self._files.rename(path, path.with_name(path.name + _DAMAGED))
            self._damaged_bytes += self._sizes[number]
        self._forget_first()

    def remove_first(self) -> None:
        """Remove the first batch. Raises ``StorageError``."""
        self._files.remove(self._path(next(iter(self._sizes))))
        self._forget_first()

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:020}{_SUFFIX}"

    def _count(self, number: int, size_bytes: int) -> None:
        self._sizes[number] = max(size_bytes, BLOCK_BYTES)
        self.size_bytes += self._sizes[number]

    def _forget_first(self) -> None:
        self.size_bytes -= self._sizes.pop(next(iter(self._sizes)))
