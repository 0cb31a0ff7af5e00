"""The leader epochs of a log with their file, Kafka's ``LeaderEpochFileCache``.

Invariants:

- The file is written before the first append of an epoch. A crash may lose an epoch without records only.
- ``epochs`` gets an epoch only after the file has it. It is replaced, so that readers need no lock.
- On a full disk the file may keep epochs that are forgotten. The next append writes it, and a start forgets them again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from millrace.errors import DiskFullError
from millrace_broker.log.checkpoints import CHECKSUMS, LEADER_EPOCHS, write_epochs
from millrace_broker.log.files import Files
from millrace_broker.log.leader_epochs import LeaderEpochs

_LOG: Final = logging.getLogger(__name__)


class LeaderEpochFileCache:
    """The leader epochs of one log. The caller of a mutator holds the partition's lock."""

    def __init__(self, epochs: LeaderEpochs, files: Files, directory: Path) -> None:
        self.epochs = epochs
        """The start offsets of the leader epochs; only this class replaces it."""
        self.has_unwritten = False
        """True if the file must be written before the next append."""
        self._files: Final = files
        self._path = directory / LEADER_EPOCHS

    def move_to(self, directory: Path) -> None:
        """Use the file of another directory, which has the same epochs."""
        self._path = directory / LEADER_EPOCHS

    def begin(self, epoch: int, start_offset: int) -> None:
        """Begin an epoch in memory. ``assign`` writes it before its first append."""
        epochs = LeaderEpochs(self.epochs.entries)
        if epochs.assign(epoch, start_offset):
            self.epochs, self.has_unwritten = epochs, True

    def assign(self, *begun: tuple[int, int]) -> None:
        """Write new epochs, each as (epoch, start offset), before their first append. Raises ``StorageError``."""
        epochs = LeaderEpochs(self.epochs.entries)
        is_new = [epochs.assign(epoch, start_offset) for epoch, start_offset in begun]
        if any(is_new) or self.has_unwritten:
            write_epochs(self._files, self._path, epochs.entries)
            self.epochs, self.has_unwritten = epochs, False

    def truncate_start(self, start_offset: int) -> None:
        """Forget the epochs that end before the log start offset. Raises ``StorageError``."""
        epochs = LeaderEpochs(self.epochs.entries)
        if epochs.truncate_start(start_offset):
            self._forget_others(epochs)

    def truncate_end(self, end_offset: int) -> None:
        """Forget the epochs that begin at the log end offset or later. Raises ``StorageError``."""
        epochs = LeaderEpochs(self.epochs.entries)
        if epochs.truncate_end(end_offset):
            self._forget_others(epochs)

    def clear(self) -> None:
        """Forget all epochs. Raises ``StorageError``."""
        self._files.remove(self._path)  # that works on a full disk
        self._files.remove(self._path.with_name(self._path.name + CHECKSUMS))
        self.epochs, self.has_unwritten = LeaderEpochs(), False

    def _forget_others(self, epochs: LeaderEpochs) -> None:
        self.epochs, self.has_unwritten = epochs, True
        try:
            self.assign()
        except DiskFullError as error:
            _LOG.warning("%s; it keeps epochs that the log no longer has until its next write", error.message)
