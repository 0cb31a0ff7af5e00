"""Which leader epoch begins at which offset: what replicas compare to find where their logs part (KIP-101, KIP-279).

Invariants: epochs rise strictly, start offsets rise strictly. An entry is added only at the end; entries go from the
end when the log is truncated and from the start when its beginning is deleted, where the last one is kept and moved
up, so that the epoch of the first offset stays known.
"""

from __future__ import annotations

from collections.abc import Iterable


class LeaderEpochs:
    """The epochs of one partition's log, oldest first (Kafka's ``LeaderEpochFileCache``, without its file)."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: tuple[tuple[int, int], ...] = ()
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """Pairs of (epoch, start offset), oldest first."""
        return self._entries

    @property
    def latest(self) -> int | None:
        """The newest epoch; None when none is known."""
        return self._entries[-1][0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that ``epoch`` begins at ``start_offset``; returns whether that was news.

        Entries that contradict a new one (as new an epoch, or as late a start) give way to it.
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
        """Forget the epochs that end before ``start_offset``; the one that holds it begins there from now on."""
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
        """Return the epoch that ``offset`` was appended in; None when that is not known."""
        return next((epoch for epoch, start in reversed(self._entries) if start <= offset), None)

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """Find where ``epoch`` ends in this log: (the epoch asked for or the last before it, its end, exclusive).

        None when the epoch is newer than all that are known, or negative.
        """
        if not self._entries or not 0 <= epoch <= self._entries[-1][0]:
            return None
        if epoch == self._entries[-1][0]:
            return epoch, log_end_offset
        following = next(start for number, start in self._entries if number > epoch)
        earlier = [number for number, _ in self._entries if number <= epoch]
        return (earlier[-1], following) if earlier else (epoch, following)
