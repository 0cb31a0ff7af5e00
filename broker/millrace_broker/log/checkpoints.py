"""Checkpoint files: offsets per log directory, and leader epochs per partition.

Kafka's format: a line with the version (0), a line with the number of entries, then one entry per line. A file is
replaced as a whole (``replace_file``), so that a crash leaves the old file or the new one.

The format has no checksum, and a changed digit would move a log's start or truncate its end. So ``<name>.crc32c``
beside the file has the checksums: a line for the new file and a line for the old one. It is written before the file. A
file with another checksum is damaged. A file without a checksum file, written by Kafka or after its removal, is
trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from millrace.errors import StorageError
from millrace.records import checksum
from millrace_broker.log.files import Files, replace_file

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
"""For each partition, the offset before which all records are synced to the disk."""
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
"""For each partition whose log starts inside its first segment, the log start offset."""
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
"""For each partition, the offset before which all in-sync replicas have all records."""
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
CHECKSUMS: Final = ".crc32c"
"""The suffix of the file with a checkpoint's checksum."""

_VERSION: Final = 0

PartitionKey = tuple[str, int]
"""Topic name and partition number."""


def read_offsets(files: Files, path: Path) -> dict[PartitionKey, int]:
    """Read ``topic partition offset`` lines; returns no offsets if there is no file.

    Raises ``StorageError`` for a malformed file.
    """
    offsets = {}
    for line in _read_lines(files, path):
        try:
            topic, partition, offset = line.split(" ")
            offsets[topic, int(partition)] = int(offset)
        except ValueError:
            raise _malformed(path, f"{line!r} is not '<topic> <partition> <offset>'") from None
    return offsets


def write_offsets(files: Files, path: Path, offsets: Mapping[PartitionKey, int]) -> None:
    """Replace the file by one with these offsets."""
    _write_lines(files, path, (f"{topic} {number} {offset}" for (topic, number), offset in sorted(offsets.items())))


def read_epochs(files: Files, path: Path) -> list[tuple[int, int]]:
    """Read ``epoch start-offset`` lines; returns no epochs if there is no file.

    Raises ``StorageError`` for a malformed file.
    """
    epochs = []
    for line in _read_lines(files, path):
        try:
            epoch, offset = map(int, line.split(" "))
        except ValueError:
            raise _malformed(path, f"{line!r} is not '<epoch> <start offset>'") from None
        if not (0 <= epoch < 2**31 and 0 <= offset < 2**63):
            raise _malformed(path, f"{line!r} has a number that no epoch or offset can have")
        epochs.append((epoch, offset))
    return epochs


def write_epochs(files: Files, path: Path, epochs: Iterable[tuple[int, int]]) -> None:
    """Replace the file by one with these epochs and their start offsets."""
    _write_lines(files, path, (f"{epoch} {offset}" for epoch, offset in epochs))


def _read_lines(files: Files, path: Path) -> list[str]:
    data = files.read_bytes(path)
    checksums = files.read_bytes(path.with_name(path.name + CHECKSUMS))
    if data is not None and checksums is not None and _checksum_line(data) not in checksums.splitlines(keepends=True):
        raise _malformed(path, f"its checksum is none of those in {path.name}{CHECKSUMS}")
    if not data:  # Kafka creates an empty file before its first entry
        return []
    lines = data.decode("utf-8", "replace").splitlines()
    if len(lines) < 2 or lines[0].strip() != str(_VERSION):
        raise _malformed(path, f"its first line is not the version {_VERSION}")
    if lines[1].strip() != str(len(lines) - 2):
        raise _malformed(path, f"it announces {lines[1]} entries, but has {len(lines) - 2}")
    return lines[2:]


def _write_lines(files: Files, path: Path, lines: Iterable[str]) -> None:
    entries = list(lines)
    data = "".join(f"{line}\n" for line in [str(_VERSION), str(len(entries)), *entries]).encode()
    before = files.read_bytes(path)
    checksums = [_checksum_line(data)] + ([] if before is None else [_checksum_line(before)])
    replace_file(files, path.with_name(path.name + CHECKSUMS), *checksums)
    replace_file(files, path, data)


def _checksum_line(data: bytes) -> bytes:
    return b"%08x\n" % checksum(data)


def _malformed(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path} is damaged: {why}; restore it, or remove it, and the broker scans the log from its start"
    )
