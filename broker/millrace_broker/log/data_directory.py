"""A log directory's own files: whose it is, whether it is in use, and whether it was left in order.

``.lock``                held (flock) by the broker that uses the directory
``meta.properties``      Kafka's version 0: ``broker.id`` and ``cluster.id``; written at the first start
``.kafka_cleanshutdown`` there exactly while the broker is down after a clean stop: removed before anything is appended,
                         written after everything has been synced
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.errors import EnvironmentProblemError
from millrace_broker.log.checkpoints import Partition, read_offsets, write_offsets
from millrace_broker.log.files import Files, Lock, replace_file

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

    def write_checkpoint(self, name: str, offsets: dict[Partition, int]) -> None:
        """Replace a checkpoint of offsets."""
        write_offsets(self.files, self.path / name, offsets)

    def mark_clean(self) -> None:
        """Say that all is synced and nothing will be appended: the next start need not recover."""
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
