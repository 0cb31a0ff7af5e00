"""Backlog of a stream, and the part that a micro-batch admits."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.admission import admit, admit_bytes
from pyspark_millrace.planning.data_loss import LossReport
from pyspark_millrace.planning.offsets import OffsetRange
from pyspark_millrace.planning.splits import Extent, total_bytes

_PIECES: Final = 4
"""An extent is cut into quarters of the free room, so that usually at most a quarter of the room stays unused."""


class Locator(Protocol):
    """Locator of offset ranges in the log. ``BrokerClient`` implements it."""

    def locate(
        self, ranges: Sequence[tuple[OffsetRange, int]], report: LossReport
    ) -> list[tuple[OffsetRange, tuple[Extent, ...]]]:
        """Return the extents of ranges, each cut to about its number of bytes (0: whole segments)."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Offsets from ``begin`` to ``end`` (exclusive) per partition. A partition that is absent from ``end`` is not
    read.
    """

    begin: Mapping[PartitionKey, int]
    end: Mapping[PartitionKey, int]
    topic_ids: Mapping[str, uuid.UUID]

    @property
    def counts(self) -> dict[PartitionKey, int]:
        """Number of offsets per partition."""
        return {key: max(0, self.end.get(key, offset) - offset) for key, offset in self.begin.items()}

    @property
    def records(self) -> int:
        """Number of offsets of all partitions."""
        return sum(self.counts.values())

    def nothing(self) -> Backlog:
        """Return an empty backlog."""
        return replace(self, end={})

    def measure(self, locator: Locator) -> int:
        """Return the size of the backlog in the log, in bytes."""
        return sum(map(total_bytes, self._located(locator).values()))

    def limited_to_records(self, limit: int) -> Backlog:
        """Return at most ``limit`` records, shared among partitions in proportion to their backlog."""
        shares = admit(self.counts, limit, turn=self._turn)
        return replace(self, end={key: self.begin[key] + share for key, share in shares.items()})

    def limited_to_bytes(self, limit: int, locator: Locator) -> Backlog:
        """Return about ``limit`` bytes of the log, shared among partitions in proportion to their backlog."""

        def cut(key: PartitionKey, extent: Extent, room_bytes: int) -> Sequence[Extent]:
            # Locate only a part of a large extent, because the response has a piece per index entry.
            records = extent.end_offset - extent.start_offset
            enough = max(1, records * room_bytes * _PIECES // max(1, extent.bytes))
            end = min(extent.end_offset, extent.start_offset + enough)
            piece = OffsetRange(key, self.topic_ids[key.topic], extent.start_offset, end)
            [(_, pieces)] = locator.locate([(piece, max(1, room_bytes // _PIECES))], LossReport(fail=False))
            return pieces or (replace(extent, end_offset=end),)

        wanted = {key: self.begin[key] + count for key, count in self.counts.items() if count}
        return replace(self, end=admit_bytes(wanted, self._located(locator), limit, cut, turn=self._turn))

    @property
    def _turn(self) -> int:
        return sum(self.begin.values())

    def _located(self, locator: Locator) -> dict[PartitionKey, Sequence[Extent]]:
        ranges = [
            OffsetRange(key, self.topic_ids[key.topic], self.begin[key], self.begin[key] + count)
            for key, count in self.counts.items()
            if count
        ]
        # Lost records are reported when the batch is planned.
        located = locator.locate([(wanted, 0) for wanted in ranges], LossReport(fail=False))
        return {wanted.key: extents for wanted, extents in located}
