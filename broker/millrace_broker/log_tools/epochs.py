"""Check of leader epochs in batch headers against the partition's epoch checkpoint.

The checksum does not cover the leader epoch.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.errors import StorageError
from millrace.records import BatchHeader
from millrace_broker.log.checkpoints import LEADER_EPOCHS, read_epochs
from millrace_broker.log.files import OsFiles
from millrace_broker.log.leader_epochs import LeaderEpochs

_POSITION: Final = 12
_EPOCH: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class WrongEpoch:
    """Batch whose leader epoch does not match its offset."""

    position: int
    offset: int
    found: int
    expected: int

    def __str__(self) -> str:
        return f"has leader epoch {self.found}, {LEADER_EPOCHS} says {self.expected}"


def known_epochs(directory: Path) -> LeaderEpochs:
    """Return the partition's leader epochs; none if the checkpoint is damaged or missing."""
    try:
        return LeaderEpochs(read_epochs(OsFiles(), directory / LEADER_EPOCHS))
    except (StorageError, ValueError):
        return LeaderEpochs()


def wrong_epoch(epochs: LeaderEpochs, position: int, header: BatchHeader) -> WrongEpoch | None:
    """Return the error in a batch's leader epoch; None if it is right or cannot be checked."""
    expected, found = epochs.epoch_of(header.base_offset), header.partition_leader_epoch
    if expected is None or found == expected or found == -1:
        return None
    return WrongEpoch(position, header.base_offset, found, expected)


def write_epoch(path: Path, wrong: WrongEpoch) -> None:
    """Write the correct leader epoch into a batch's header, and flush it."""
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), _EPOCH.pack(wrong.expected), wrong.position + _POSITION)
        os.fsync(file.fileno())
