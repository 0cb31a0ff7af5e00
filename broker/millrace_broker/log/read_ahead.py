"""Read-ahead: the batches that a consumer will probably fetch next.

Kafka's consumers from version 4 on ask a broker again only when they have passed on all its records. Meanwhile the
broker reads what follows the records that it sent, and the next fetch finds it in memory.

Invariants

- The held records and the reads in progress take at most ``bytes_max``. Without room nothing is read ahead, because new
  records in the place of older ones would drop those that are fetched next.
- Records are given out once, and only if a read of the log would return them at that moment. A truncation and a
  compaction replace the segment object, a deletion raises the log start offset. Records are only held if they are in
  the segment that has their first offset, so that one object tells.
- Records that nobody fetches are dropped after ``KEPT_S``.
- Remote segments are not read ahead: they have a cache of their own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from millrace.errors import MillraceError
from millrace.records import end_of_batches
from millrace_broker.log.partition_log import PartitionLog
from millrace_broker.log.read_threads import LogReads, ReadPlace
from millrace_broker.log.segment import Segment

_logger = logging.getLogger(__name__)

BYTES_MAX: Final = 32 * 2**20
KEPT_S: Final = 5.0


class NextRead(NamedTuple):
    """A read that somebody will probably want.

    It returns batches from ``offset`` to ``end_offset`` (exclusive), at most ``max_bytes`` of them.
    """

    log: PartitionLog
    offset: int
    end_offset: int
    max_bytes: int


class _Key(NamedTuple):
    log: PartitionLog
    offset: int


class _Ahead(NamedTuple):
    """Batches that were read ahead.

    The read went up to ``end_offset``, or to its limit of bytes.
    """

    segment: Segment
    records: bytes
    next_offset: int
    end_offset: int
    expiry: asyncio.TimerHandle


class ReadAhead:
    """The records that were read ahead for all consumers of a broker. It belongs to the event loop."""

    def __init__(self, reads: LogReads, bytes_max: int = BYTES_MAX) -> None:
        self._reads: Final = reads
        self._bytes_max: Final = bytes_max
        self._held: Final[dict[_Key, _Ahead]] = {}
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the held records and of the reads in progress."""
        return self._bytes

    def take(self, log: PartitionLog, offset: int, end_offset: int, max_bytes: int) -> bytes | None:
        """Return the batches from an offset on, if they were read ahead and are what a read would return now."""
        ahead = self._drop(_Key(log, offset))
        if ahead is None or len(ahead.records) > max_bytes or log.log_start_offset > offset:
            return None
        has_all = ahead.next_offset < ahead.end_offset or ahead.end_offset == end_offset
        is_in_force = ahead.next_offset <= end_offset and log.segment_of(offset) is ahead.segment
        return ahead.records if has_all and is_in_force else None

    async def read(self, wanted: NextRead) -> bytes:
        """Read ahead, and return the records; none if there is no room for them, or if they cannot be read."""
        log, offset, end_offset, max_bytes = wanted
        key = _Key(log, offset)
        place = self._reads.place_of_cached_read(log, offset, max_bytes)
        has_room = self._bytes + max_bytes <= self._bytes_max
        if place is ReadPlace.REMOTE_READER or key in self._held or not has_room:
            return b""
        segment = log.segment_of(offset)
        self._bytes += max_bytes
        try:
            records = await self._reads.run_in(
                place, log.read, offset, max_bytes, end_offset=end_offset, min_one_batch=False
            )
            next_offset = end_of_batches(records, offset)
        except MillraceError as error:
            _logger.debug("offset %d is not read ahead: %s", offset, error)  # the fetch reports it
            return b""
        finally:
            self._bytes -= max_bytes
        is_within = log.segment_of(next_offset - 1) is segment
        if records and is_within and key not in self._held:
            expiry = asyncio.get_running_loop().call_later(KEPT_S, self._drop, key)
            self._held[key] = _Ahead(segment, records, next_offset, end_offset, expiry)
            self._bytes += len(records)
        assert self._bytes <= self._bytes_max, f"{self._bytes} bytes are held, more than {self._bytes_max}"
        return records

    def _drop(self, key: _Key) -> _Ahead | None:
        ahead = self._held.pop(key, None)
        if ahead is not None:
            ahead.expiry.cancel()
            self._bytes -= len(ahead.records)
        return ahead
