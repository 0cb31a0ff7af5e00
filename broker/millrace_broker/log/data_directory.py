"""A log directory's own files: whose it is, whether it is in use, and whether it was left in order.

``.lock``                held (flock) by the broker that uses the directory
``meta.properties``      Kafka's version 0: ``broker.id`` and ``cluster.id``; written at the first start
``.kafka_cleanshutdown`` there exactly while the broker is down after a clean stop: removed before anything is appended,
                         written after everything has been synced
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millrace.errors import EnvironmentProblemError
from millrace_broker.log.checkpoints import RECOVERY_POINTS, Partition, read_offsets, write_offsets
from millrace_broker.log.files import TEMPORARY, Files, Lock, replace_file

META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class DataDirectory:
    """One of the broker's log directories, locked."""

    path: Path
    files: Files
    was_clean: bool
    _lock: Lock
    _kept: set[Partition] = field(default_factory=set)
    """Partitions whose checkpoints stay as they were found."""

    @classmethod
    def open(cls, path: Path, *, broker_id: int, cluster_id: str, files: Files) -> DataDirectory:
        """Make the directory if need be, lock it and check that it is this broker's.

        Takes the clean-shutdown marker away: from now on the directory counts as in use.

        Raises ``EnvironmentProblemError`` when another process holds it or it belongs to another broker or cluster, and
        ``StorageError`` when it cannot be written.
        """
        files.make_directory(path)
        lock = files.lock(path / LOCK)
        try:
            for name in files.names(path):
                if name.endswith(TEMPORARY):  # a small file that was being replaced
                    files.remove(path / name)
            _check_owner(files, path, broker_id, cluster_id)
            was_clean = files.size_bytes(path / CLEAN_SHUTDOWN) is not None
            if was_clean:
                files.remove(path / CLEAN_SHUTDOWN)
                files.sync_directory(path)
        except BaseException:
            lock.release()
            raise
        return cls(path, files, was_clean, lock)

    def read_checkpoint(self, name: str) -> dict[Partition, int]:
        """Read a checkpoint of offsets; raises ``StorageError`` when it is damaged."""
        return read_offsets(self.files, self.path / name)

    def recovery_point(self, partition: Partition) -> int | None:
        """The offset before which a partition was synced; None when there is no checkpoint at all.

        A partition that the checkpoint does not name was made since it was written.
        """
        if self.files.size_bytes(self.path / RECOVERY_POINTS) is None:
            return None
        return self.read_checkpoint(RECOVERY_POINTS).get(partition, 0)

    def keep_checkpoints(self, partition: Partition) -> None:
        """Leave what the checkpoints say of a partition as it is, for it could not be loaded."""
        self._kept.add(partition)

    def write_checkpoint(self, name: str, offsets: dict[Partition, int]) -> None:
        """Replace a checkpoint of offsets, but for what is to be kept of it."""
        kept = {}
        if self._kept:
            kept = {key: offset for key, offset in self.read_checkpoint(name).items() if key in self._kept}
        write_offsets(self.files, self.path / name, kept | offsets)

    def mark_clean(self) -> None:
        """Say that all is synced and nothing will be appended: the next start need not recover.

        Does nothing while a partition could not be loaded, so that the next start looks at that again.
        """
        if self._kept:
            return
        replace_file(self.files, self.path / CLEAN_SHUTDOWN, json.dumps({"version": 0, "brokerEpoch": -1}).encode())

    def release(self) -> None:
        """Unlock."""
        self._lock.release()


def read_meta_properties(files: Files, directory: Path) -> dict[str, str]:
    """Read whose directory it is; empty when it is nobody's yet."""
    text = (files.read_bytes(directory / META_PROPERTIES) or b"").decode("utf-8", "replace")
    pairs = (line.partition("=") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _check_owner(files: Files, directory: Path, broker_id: int, cluster_id: str) -> None:
    found = read_meta_properties(files, directory)
    if not found:
        files.sync_directory(directory.parent)  # the directory may have been made just now
        lines = ["#", "version=0", f"broker.id={broker_id}", f"cluster.id={cluster_id}"]
        replace_file(files, directory / META_PROPERTIES, "".join(f"{line}\n" for line in lines).encode())
        return
    owner = found.get("broker.id", found.get("node.id"))
    if owner != str(broker_id):
        raise EnvironmentProblemError(
            f"{directory} belongs to broker {owner} ({META_PROPERTIES}), this is broker {broker_id}: "
            "set broker.id to that, or use another data directory"
        )
    if found.get("cluster.id", cluster_id) != cluster_id:
        raise EnvironmentProblemError(
            f"{directory} belongs to cluster {found['cluster.id']} ({META_PROPERTIES}), this broker is of cluster "
            f"{cluster_id}: use another data directory"
        )
