"""Share partition, Kafka's ``SharePartition``.

It has the delivery states with their records, their locks, and the fetches that wait.

Invariants

- A change takes effect in memory immediately, and its record is appended then. An acknowledgement is answered after the
  append. A crash therefore undoes only changes without an answer.
- If an append fails, the states return to those of the last successful append. Records may be delivered once more, and
  none is lost.
- One fetch at a time reads and acquires.

The class is for the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from millrace.records import scan_headers
from millrace_broker.coordinators import StateLog, written
from millrace_broker.purgatory import Arrivals, Timer, TimerEntry
from millrace_broker.quotas import Turn
from millrace_broker.runtime import Clock, monotonic_ms
from millrace_broker.share_groups.in_flight import (
    Acknowledgement,
    InFlightBatch,
    InFlightRecords,
    ReadRange,
    ShareGroupSettings,
)
from millrace_broker.share_groups.records import ShareGroupOffset, SharePartitionKey, snapshot_record
from millrace_broker.share_groups.sources import Read, Source

_logger: Final = logging.getLogger(__name__)


AcknowledgementBatch = tuple[int, int, Acknowledgement]


class SharePartition:
    """One partition in one share group (Kafka's ``SharePartition``)."""

    def __init__(
        self,
        log: StateLog,
        key: SharePartitionKey,
        topic: str,
        settings: Callable[[], ShareGroupSettings],
        state: ShareGroupOffset | None,
        *,
        clock: Clock,
        timer: Timer,
        arrivals: Arrivals,
    ) -> None:
        """Take the parts.

        ``settings`` returns the group's options in force. ``arrivals`` wakes fetches that wait for new or released
        records.
        """
        self._clock: Final = clock
        self._timers: Final = timer
        self._arrivals: Final = arrivals
        self._log: Final = log
        self.key: Final = key
        self.topic: Final = topic
        self._settings: Final = settings
        self._written = state
        self._snapshot_epoch = -1 if state is None else state.snapshot_epoch
        self._in_flight: InFlightRecords | None = (
            None if state is None else InFlightRecords.restore(settings(), state.snapshot)
        )
        self._turn: Final = Turn()
        self._timer: TimerEntry | None = None
        self._is_closed = False

    @property
    def arrival_key(self) -> tuple[str, int]:
        """The key of released records in ``arrivals``. No topic has such a name."""
        return f"{self.key.group_id}:{self.topic}", self.key.partition

    @property
    def in_flight(self) -> InFlightRecords | None:
        """The delivery states; None before the first fetch."""
        return self._in_flight

    def may_acquire(self, source: Source) -> bool:
        """Return whether a fetch would deliver records now."""
        if self._in_flight is None or self._in_flight.start_offset < source.start_offset:
            return True
        offset = self._in_flight.next_offset
        return offset is not None and offset < source.end_offset

    # --- fetching ------------------------------------------------------------------------------------------

    async def acquire(
        self,
        source: Source,
        member_id: str,
        *,
        records_max: int,
        bytes_max: int,
        first_offset: Callable[[Source], Awaitable[int]],
        whole_batches: bool = False,
    ) -> tuple[list[InFlightBatch], bytes]:
        """Deliver records to a member; return the acquired batches, and the record batches that hold them.

        Without any state, the group starts at ``first_offset``. Raises the errors of reading ``source``, and
        ``NotCoordinatorError`` if the first offset cannot be written.
        """
        async with self._turn:
            if self._in_flight is None:
                await self._begin(await first_offset(source))
            in_flight = self._in_flight
            assert in_flight is not None, "the first fetch begins the partition"
            in_flight.settings = self._settings()
            self._catch_up(source.start_offset)
            offset = in_flight.next_offset
            while offset is not None and offset < source.end_offset and records_max > 0:
                read = await source.read(offset, bytes_max)
                if self._is_closed or self._in_flight is not in_flight:
                    break
                batches = in_flight.acquire(
                    member_id,
                    _readable(read, offset),
                    records_max,
                    monotonic_ms(self._clock),
                    whole_batches=whole_batches,
                )
                if batches:
                    self._set_timer()
                    return batches, _needed(read.records, batches)
                before, offset = offset, in_flight.next_offset
                if offset == before:
                    break
            return [], b""

    async def _begin(self, first_offset: int) -> None:
        """Write the group's first offset, so that it holds after a crash without acknowledgements."""
        self._in_flight = InFlightRecords(self._settings(), first_offset)
        await written(self._write())

    def _catch_up(self, log_start_offset: int) -> None:
        """Drop offsets that retention has deleted, and release locks that have ended."""
        in_flight = self._in_flight
        if in_flight is None:
            return
        is_changed = in_flight.start_at(log_start_offset)
        if in_flight.release_overdue(monotonic_ms(self._clock)) or is_changed:
            self._changed()

    # --- acknowledging -------------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, acknowledgements: Iterable[AcknowledgementBatch]) -> asyncio.Future[int]:
        """Apply a member's acknowledgements; the result ends after the append.

        Raises ``InvalidRecordStateError``, ``InvalidRequestError``; the result raises ``NotCoordinatorError``.
        """
        in_flight = self._in_flight or InFlightRecords(self._settings(), 0)
        in_flight.settings = self._settings()
        in_flight.acknowledge(member_id, acknowledgements, monotonic_ms(self._clock))
        return self._changed()

    def reset_offset(self, offset: int) -> asyncio.Future[int]:
        """Continue from an offset, whatever was delivered; the result ends after the append.

        The group must have no members. The result raises ``NotCoordinatorError``.
        """
        self._in_flight = InFlightRecords(self._settings(), offset)
        return self._changed()

    def release_member(self, member_id: str) -> None:
        """Release the records of a member that has left, or that has ended its share session."""
        if self._in_flight is not None and self._in_flight.release_member(member_id):
            self._changed()

    def _changed(self) -> asyncio.Future[int]:
        """Append the present states, and wake fetches that wait for released records."""
        self._set_timer()
        written = self._write()
        self._arrivals.wake(self.arrival_key)
        return written

    def _write(self) -> asyncio.Future[int]:
        assert self._in_flight is not None, "only a changed state is written"
        self._snapshot_epoch += 1
        state = ShareGroupOffset(self._snapshot_epoch, 0, self._in_flight.snapshot())
        appending = self._log.submit([snapshot_record(self.key, state, self._clock.now_ms())])
        appending.add_done_callback(lambda done: self._has_written(done, state))
        return appending

    def _has_written(self, done: asyncio.Future[int], state: ShareGroupOffset) -> None:
        error = done.exception()
        if error is None:
            self._written = state
        elif state.snapshot_epoch == self._snapshot_epoch:
            _logger.warning("%s: delivery states return to the last written ones: %s", self, error)
            written = self._written
            self._in_flight = None if written is None else InFlightRecords.restore(self._settings(), written.snapshot)
            self._arrivals.wake(self.arrival_key)

    # --- locks ---------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Set a timer for the next lock that ends. One timer serves all locks."""
        deadline_ms = None if self._in_flight is None else self._in_flight.next_deadline_ms
        if self._timer is not None or deadline_ms is None or self._is_closed:
            return
        self._timer = self._timers.schedule(max(1, deadline_ms - monotonic_ms(self._clock)), self._lock_ends)

    def _lock_ends(self) -> None:
        self._timer = None
        if self._in_flight is not None and self._in_flight.release_overdue(monotonic_ms(self._clock)):
            self._changed()
        self._set_timer()

    def close(self) -> None:
        """Stop deliveries, and wake fetches that wait.

        Locks are not in the log, so after a restart all records are available again.
        """
        self._is_closed = True
        self._arrivals.wake(self.arrival_key)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.key.partition} in share group {self.key.group_id}"


def _readable(read: Read, offset: int) -> list[ReadRange]:
    """Return the ranges of a read, from ``offset`` on: record batches, and offsets without records for members."""
    readable: list[ReadRange] = []
    for _, header in scan_headers(read.records):
        if header.base_offset > offset:
            readable.append(ReadRange(offset, header.base_offset - 1, has_records=False))
        first = max(offset, header.base_offset)
        if header.last_offset >= first:
            readable.append(ReadRange(first, header.last_offset, has_records=read.filter.admits(header)))
            offset = header.last_offset + 1
    return readable


def _needed(data: bytes, batches: Sequence[InFlightBatch]) -> bytes:
    """Return the record batches from the first to the last one that holds acquired records."""
    first, last = batches[0].first, batches[-1].last
    begin, end = len(data), 0
    for position, header in scan_headers(data):
        if header.last_offset >= first and header.base_offset <= last:
            begin, end = min(begin, position), position + header.size_bytes
    return data[begin:end]
