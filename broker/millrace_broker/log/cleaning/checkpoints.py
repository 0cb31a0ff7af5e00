"""The file ``cleaner-offset-checkpoint`` of each log directory.

It has the offset up to which each partition is clean, in Kafka's format and place (``checkpoints``). A value may be too
low, which costs a cleaning with little effect. A partition without an entry is dirty from its start. An entry of a
deleted partition may stay until a partition of that name is created again (``drop_deleted``). So a deletion need not
write the file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Set
from pathlib import Path
from typing import Final

from millrace.errors import StorageError
from millrace_broker.log.checkpoints import PartitionKey, read_offsets, write_offsets
from millrace_broker.log.files import Files

_LOG: Final = logging.getLogger(__name__)

CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"


class CleanerCheckpoints:
    """The cleaner checkpoints of all log directories, in memory and on disk. Safe from any thread."""

    def __init__(self, files: Files, directories: list[Path], present: Set[PartitionKey]) -> None:
        """Read the files; ``present`` are the existing partitions.

        A damaged file costs a cleaning from the start, and is no reason to run without a cleaner.
        """
        self._files: Final = files
        self._lock: Final = threading.Lock()
        self._offsets: Final = {path: self._read(path) for path in directories}
        self._gone: Final = {path: set(offsets.keys() - present) for path, offsets in self._offsets.items()}
        for path, gone in self._gone.items():
            for partition in gone:
                del self._offsets[path][partition]

    def _read(self, directory: Path) -> dict[PartitionKey, int]:
        try:
            return read_offsets(self._files, directory / CLEANER_OFFSETS)
        except StorageError as error:
            _LOG.warning("all compacted partitions are cleaned from their starts: %s", error.message)
            return {}

    def get(self, directory: Path, partition: PartitionKey) -> int | None:
        """Return the offset up to which a partition is clean, None if it never was cleaned."""
        return self._offsets[directory].get(partition)

    def put(self, directory: Path, partition: PartitionKey, offset: int) -> None:
        """Set the clean offset of a partition; raises ``StorageError``, and the offset is then only in memory."""
        self._change(directory, lambda offsets: offsets.update({partition: offset}))

    def truncate(self, directory: Path, partition: PartitionKey, end_offset: int) -> None:
        """Lower the clean offset of a partition that was truncated."""
        if (self.get(directory, partition) or 0) > end_offset:
            self.put(directory, partition, end_offset)

    def forget(self, directory: Path, partition: PartitionKey) -> None:
        """Forget a deleted partition; the next write of the file leaves it out."""
        with self._lock:
            if self._offsets[directory].pop(partition, None) is not None:
                self._gone[directory].add(partition)

    def drop_deleted(self, partition: PartitionKey) -> None:
        """Rewrite each file that names a deleted partition of this name, because its entry would count for the new one.

        Raises ``StorageError``.
        """
        for directory, gone in self._gone.items():
            if partition in gone:
                self._change(directory, lambda offsets: None)

    def _change(self, directory: Path, change: Callable[[dict[PartitionKey, int]], object]) -> None:
        with self._lock:
            change(self._offsets[directory])
            write_offsets(self._files, directory / CLEANER_OFFSETS, self._offsets[directory])
            self._gone[directory].clear()
