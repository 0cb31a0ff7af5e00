"""A log directory's own files: owner, lock, clean-shutdown marker.

* ``.lock``  held (flock) by the broker that uses the directory
* ``meta.properties``  Kafka's version 0: ``broker.id`` and ``cluster.id``; written at the first start
* ``.kafka_cleanshutdown``  exists only while the broker is down after a clean stop; removed before the first append,
  written after all logs are synced
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millrace.errors import EnvironmentProblemError, MillraceError, StorageError
from millrace_broker.log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    PartitionKey,
    read_offsets,
    write_offsets,
)
from millrace_broker.log.files import TEMPORARY, Files, Lock, replace_file

META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
AUDIT_SPOOL: Final = "audit-spool"
"""The directory beside those of partitions that holds the audit rows which could not be written."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class DataDirectory:
    """A locked log directory of the broker.

    ``recovery_points``, ``log_start_offsets`` and ``high_watermarks`` are the checkpoints as found at start. Without a
    recovery-point file it is unknown what was synced. ``failure`` is the reason why the directory is no longer used.
    """

    path: Path
    files: Files
    was_clean: bool
    recovery_points: dict[PartitionKey, int] | None
    log_start_offsets: dict[PartitionKey, int]
    high_watermarks: dict[PartitionKey, int]
    _lock: Lock
    failure: MillraceError | None = None
    must_write_recovery_points: bool = False
    """True if the last write of the recovery points failed, so that the disk may have higher ones."""
    _kept: set[PartitionKey] = field(default_factory=set)
    """Partitions whose checkpoints stay as they were found."""
    _gone: set[PartitionKey] = field(default_factory=set)
    """Deleted partitions that the checkpoints on the disk may still name."""
    _written: dict[str, dict[PartitionKey, int]] = field(default_factory=dict)
    """The last written content of each checkpoint; unchanged content is not written again."""

    @classmethod
    def open(cls, path: Path, *, broker_id: int, cluster_id: str, files: Files) -> DataDirectory:
        """Create the directory if necessary, lock it and check that it belongs to this broker.

        Removes the clean-shutdown marker, because the directory is in use from now on.

        Raises ``EnvironmentProblemError`` when another process holds the lock, or the directory belongs to another
        broker or cluster. Raises ``StorageError`` when the directory cannot be read or written, or a checkpoint is
        damaged.
        """
        files.make_directory(path)
        lock = files.lock(path / LOCK)
        try:
            for name in files.names(path):
                if name.endswith(TEMPORARY):  # a leftover of an interrupted replacement
                    files.remove(path / name)
            _check_owner(files, path, broker_id, cluster_id)
            has_points = files.size_bytes(path / RECOVERY_POINTS) is not None
            recovery_points = read_offsets(files, path / RECOVERY_POINTS) if has_points else None
            log_start_offsets = read_offsets(files, path / LOG_START_OFFSETS)
            high_watermarks = _read_high_watermarks(files, path)
            was_clean = files.size_bytes(path / CLEAN_SHUTDOWN) is not None
            if was_clean:
                files.remove(path / CLEAN_SHUTDOWN)
                files.sync_directory(path)
        except BaseException:
            lock.release()
            raise
        return cls(path, files, was_clean, recovery_points, log_start_offsets, high_watermarks, lock)

    def recovery_point(self, partition: PartitionKey) -> int | None:
        """Return the offset before which a partition was synced; None if that is unknown for all partitions.

        A partition that the checkpoint does not name was created after its last write.
        """
        return None if self.recovery_points is None else self.recovery_points.get(partition, 0)

    def fail(self, error: MillraceError) -> None:
        """Stop using the directory; later calls report the first error."""
        if self.failure is None:
            self.failure = error
            _LOG.error("log directory %s is offline: %s", self.path, error.message)

    def keep_checkpoints(self, partition: PartitionKey) -> None:
        """Keep the checkpoints of a partition unchanged, because it could not be loaded."""
        self._kept.add(partition)

    def write_checkpoints(
        self,
        recovery_points: dict[PartitionKey, int],
        high_watermarks: dict[PartitionKey, int],
        log_start_offsets: dict[PartitionKey, int],
    ) -> None:
        """Replace the checkpoints whose offsets changed, except kept entries. Raises ``StorageError``."""
        kept_points = {key: (self.recovery_points or {}).get(key, 0) for key in self._kept}
        kept_starts = {key: self.log_start_offsets[key] for key in self._kept & self.log_start_offsets.keys()}
        self.must_write_recovery_points = True
        self._write(RECOVERY_POINTS, kept_points | recovery_points)
        self.must_write_recovery_points = False
        self.write_high_watermarks(high_watermarks)
        self._write(LOG_START_OFFSETS, kept_starts | log_start_offsets)
        self._gone.clear()

    def write_high_watermarks(self, high_watermarks: dict[PartitionKey, int]) -> None:
        """Replace the checkpoint of high watermarks, except kept entries. Raises ``StorageError``."""
        kept = {key: self.high_watermarks[key] for key in self._kept & self.high_watermarks.keys()}
        self._write(HIGH_WATERMARKS, kept | high_watermarks)

    def has_log_start(self, partition: PartitionKey) -> bool:
        """Return whether the checkpoint on the disk has a log start offset of a partition."""
        return partition in self._written.get(LOG_START_OFFSETS, self.log_start_offsets)

    def _write(self, name: str, offsets: dict[PartitionKey, int]) -> None:
        if offsets != self._written.get(name):
            self._written.pop(name, None)  # in case the write fails
            write_offsets(self.files, self.path / name, offsets)
            self._written[name] = offsets

    def forget(self, partition: PartitionKey) -> None:
        """Take note that a partition was deleted. The next write of the checkpoints leaves it out.

        The checkpoints must be written before the partition is created again (``names_gone``). Otherwise the old
        entries would count for the new partition after a crash.
        """
        self._gone.add(partition)
        for offsets in (self.recovery_points, self.log_start_offsets, self.high_watermarks):
            if offsets is not None:
                offsets.pop(partition, None)

    def forget_others(self, present: Set[PartitionKey]) -> None:
        """Forget all partitions of the checkpoints that are not in ``present``."""
        named = {*(self.recovery_points or ()), *self.log_start_offsets, *self.high_watermarks}
        for partition in named - present:
            self.forget(partition)

    def names_gone(self, partition: PartitionKey) -> bool:
        """Return whether the checkpoints may name a deleted partition."""
        return partition in self._gone

    def mark_clean(self) -> None:
        """Write the clean-shutdown marker, so that the next start skips recovery.

        All logs are synced and take no more appends. Does nothing while a partition could not be loaded, so that the
        next start loads it again.
        """
        if not self._kept:
            content = json.dumps({"version": 0, "brokerEpoch": -1}).encode()
            replace_file(self.files, self.path / CLEAN_SHUTDOWN, content)

    def release(self) -> None:
        """Unlock the directory."""
        self._lock.release()


def _read_high_watermarks(files: Files, path: Path) -> dict[PartitionKey, int]:
    """Read the high watermarks; returns none if the file is damaged, because too low values do no harm."""
    try:
        return read_offsets(files, path / HIGH_WATERMARKS)
    except StorageError as error:
        _LOG.warning("%s; the stored high watermarks are ignored", error.message)
        return {}


def read_meta_properties(files: Files, directory: Path) -> dict[str, str]:
    """Read the owner of a directory; returns an empty mapping if it has none yet."""
    text = (files.read_bytes(directory / META_PROPERTIES) or b"").decode("utf-8", "replace")
    pairs = (line.partition("=") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _check_owner(files: Files, directory: Path, broker_id: int, cluster_id: str) -> None:
    found = read_meta_properties(files, directory)
    if not found:
        files.sync_directory(directory.parent)  # the directory may be new
        lines = ["#", "version=0", f"broker.id={broker_id}", f"cluster.id={cluster_id}"]
        replace_file(files, directory / META_PROPERTIES, "".join(f"{line}\n" for line in lines).encode())
        return
    owner = found.get("broker.id", found.get("node.id"))
    if owner != str(broker_id):
        raise EnvironmentProblemError(
            f"{directory} belongs to broker {owner} ({META_PROPERTIES}), but this is broker {broker_id}: set "
            f"broker.id={owner}, or use another data directory"
        )
    if found.get("cluster.id", cluster_id) != cluster_id:
        raise EnvironmentProblemError(
            f"{directory} belongs to cluster {found['cluster.id']} ({META_PROPERTIES}), but this broker belongs to "
            f"cluster {cluster_id}: use another data directory"
        )


def make_directory(directory: Path) -> None:
    """Create a data directory. Raises ``EnvironmentProblemError`` when that fails or the directory is not writable."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblemError(f"cannot create the data directory {directory}: {error.strerror}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise EnvironmentProblemError(
            f"the data directory {directory} is not writable for this user: change its owner, or set log.dirs"
        )
