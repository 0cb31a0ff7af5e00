"""The offsets of one partition's log.

Invariants, asserted by each mutator of ``LogOffsets``, which no other module assigns to:

- ``start <= high_watermark <= end``. The three only grow, except in ``hold_high_watermark`` and in truncations
  (``truncate``, ``restart``).
- ``recovery_point <= end``. All records before the recovery point are synced.
- The high watermark of an only replica is the log end offset, or the recovery point if records are synced before their
  acknowledgement.

The caller of a mutator holds the partition's lock. Only ``raise_high_watermark`` needs no lock, because one caller
decides about the high watermark. Readers need no lock, and may see the offsets between two steps of a mutator.
"""

from __future__ import annotations


class LogOffsets:
    """Log start offset, high watermark, log end offset and recovery point."""

    __slots__ = ("end", "high_watermark", "is_only_replica", "recovery_point", "start", "syncs_before_ack")

    def __init__(self, *, start: int, end: int, recovery_point: int, syncs_before_ack: bool) -> None:
        self.start = start
        """The offset of the first remaining record."""
        self.high_watermark = end
        """The offset before which all in-sync replicas have all records."""
        self.end = end
        """The offset of the next record."""
        self.recovery_point = recovery_point
        """The offset before which all records are synced to the disk."""
        self.is_only_replica = True
        """True if the high watermark follows the log end offset, because there is no other replica."""
        self.syncs_before_ack = syncs_before_ack
        """True if only synced records count as durable."""
        assert max(start, recovery_point) <= end, self

    def __repr__(self) -> str:
        return (
            f"LogOffsets(start={self.start}, high_watermark={self.high_watermark}, end={self.end}, "
            f"recovery_point={self.recovery_point})"
        )

    @property
    def durable_end(self) -> int:
        """The offset before which records are durable enough on this broker for an acknowledgement."""
        return self.recovery_point if self.syncs_before_ack else self.end

    # --- appends and syncs ----------------------------------------------------------------------------------

    def advance_end(self, end: int) -> None:
        """Publish appended records up to ``end``; the high watermark of an only replica follows."""
        assert end >= self.end, self
        self.end = end
        if self.is_only_replica:
            self.high_watermark = max(self.high_watermark, self.durable_end)
        assert self.start <= self.high_watermark <= end, self

    def advance_recovery_point(self, offset: int) -> None:
        """Take note that all records before ``offset`` are synced; the high watermark of an only replica follows."""
        assert self.recovery_point <= offset <= self.end, self
        self.recovery_point = offset
        if self.is_only_replica:
            self.high_watermark = max(self.high_watermark, offset)
        assert self.start <= self.high_watermark <= self.end, self

    def require_sync(self, syncs_before_ack: bool) -> None:
        """Set whether only synced records count as durable; the high watermark does not go back."""
        self.syncs_before_ack = syncs_before_ack
        self._follow_end()

    def raise_start(self, offset: int) -> None:
        """Raise the log start offset; the records before ``offset`` count as deleted."""
        assert self.start <= offset <= self.high_watermark, (self, offset)
        self.start = offset

    # --- replication ----------------------------------------------------------------------------------------

    def hold_high_watermark(self, offset: int) -> bool:
        """Set the high watermark to ``offset``, or as near as the log allows. Returns whether it went back.

        From now on only ``raise_high_watermark`` moves it, because there are other replicas.
        """
        before = self.high_watermark
        self.is_only_replica = False
        self.high_watermark = max(self.start, min(offset, self.end))
        assert self.start <= self.high_watermark <= self.end, self
        return self.high_watermark < before

    def raise_high_watermark(self, offset: int) -> None:
        """Raise the high watermark to ``offset``, at most to the log end offset; it does not go back."""
        self.high_watermark = max(self.high_watermark, min(offset, self.end))
        assert self.start <= self.high_watermark <= self.end, self

    def release_high_watermark(self) -> None:
        """Let the high watermark follow the log end offset, because there is no other replica."""
        self.is_only_replica = True
        self._follow_end()

    def _follow_end(self) -> None:
        if self.is_only_replica:
            self.high_watermark = max(self.high_watermark, self.durable_end)
        assert self.start <= self.high_watermark <= self.end, self

    # --- truncation -----------------------------------------------------------------------------------------

    def lower_recovery_point(self, offset: int) -> bool:
        """Lower the recovery point to ``offset``, unless it is lower already; returns whether it changed."""
        is_lower = offset < self.recovery_point
        self.recovery_point = min(self.recovery_point, offset)
        return is_lower

    def truncate(self, end: int) -> None:
        """Lower the log end offset to ``end``, and all other offsets that are above it."""
        assert end <= self.end, (self, end)
        self.start = min(self.start, end)
        self.high_watermark = min(self.high_watermark, end)
        self.end = end
        self.recovery_point = min(self.recovery_point, end)
        assert self.start <= self.high_watermark <= self.end, self

    def restart(self, offset: int) -> None:
        """Let the log be empty and start at ``offset``."""
        self.start = self.end = self.high_watermark = self.recovery_point = offset
