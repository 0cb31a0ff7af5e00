"""The leader epochs of a log and their start offsets, Kafka's ``LeaderEpochFileCache``.

Replicas compare them to find the offset where their logs diverge (KIP-101, KIP-279).

Invariants: Epochs rise strictly, and start offsets rise strictly. An entry is added only at the end. Truncation of the
log removes entries from the end. Deletion of the log's beginning removes entries from the start, but keeps the last of
them with a raised start offset. So the epoch of the first offset stays known.
"""

from __future__ import annotations

from collections.abc import Iterable


class LeaderEpochs:
    """The leader epochs of one partition's log, oldest first.

    The class is Kafka's ``LeaderEpochFileCache`` without its file.
    """

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: tuple[tuple[int, int], ...] = ()
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """The pairs of (epoch, start offset), oldest first."""
        return self._entries

    @property
    def latest(self) -> int | None:
        """The newest epoch; None when none is known."""
        return self._entries[-1][0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Take note that ``epoch`` begins at ``start_offset``; returns whether that is new.

        A new entry replaces entries that contradict it, which have the same or a newer epoch, or the same or a later
        start.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} from offset {start_offset}: neither may be negative")
        if self._entries and self._entries[-1][0] == epoch and start_offset >= self._entries[-1][1]:
            return False
        kept = tuple(entry for entry in self._entries if entry[0] < epoch and entry[1] < start_offset)
        self._entries = (*kept, (epoch, start_offset))
        return True

    def truncate_end(self, end_offset: int) -> bool:
        """Forget the epochs that begin at or after ``end_offset``; returns whether there were any.

        A negative offset forgets none.
        """
        kept = tuple(entry for entry in self._entries if entry[1] < end_offset) if end_offset >= 0 else self._entries
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def truncate_start(self, start_offset: int) -> bool:
        """Forget the epochs that end before ``start_offset``; the epoch of that offset begins there from now on."""
        before = [entry for entry in self._entries if entry[1] <= start_offset]
        if not before or before == [(before[-1][0], start_offset)]:
            return False
        after = tuple(entry for entry in self._entries if entry[1] > start_offset)
        self._entries = ((before[-1][0], start_offset), *after)
        return True

    def clear(self) -> None:
        """Forget all epochs."""
        self._entries = ()

    def epoch_of(self, offset: int) -> int | None:
        """Return the epoch in which ``offset`` was appended; None if it is unknown."""
        return next((epoch for epoch, start in reversed(self._entries) if start <= offset), None)

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """Return the end of ``epoch`` in this log: (the epoch or the last one before it, its end, exclusive).

        Returns None if the epoch is newer than all known epochs, or negative.
        """
        if not self._entries or not 0 <= epoch <= self._entries[-1][0]:
            return None
        if epoch == self._entries[-1][0]:
            return epoch, log_end_offset
        following = next(start for number, start in self._entries if number > epoch)
        earlier = [number for number, _ in self._entries if number <= epoch]
        return (earlier[-1], following) if earlier else (epoch, following)
