"""One partition of a share group at work: deliveries are written down, locks ended in time, those who wait woken.

Invariants

- Deliveries change in memory at once and are then written down; an acknowledgement is answered once that is done. What
  a crash takes back is therefore what nobody was told.
- If writing fails, what was last written down holds again: records may be given out once more, none is lost.
- One fetch at a time reads and acquires.

For the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from millrace.records import scan_headers
from millrace_broker.coordinators import StateLog, written
from millrace_broker.purgatory import Arrivals, Timer, TimerEntry
from millrace_broker.quotas import Turn
from millrace_broker.runtime import Clock
from millrace_broker.share_groups.delivery import (
    Acknowledgement,
    Delivery,
    DeliverySettings,
    Readable,
    Run,
)
from millrace_broker.share_groups.records import SharedState, ShareKey, snapshot_record
from millrace_broker.share_groups.sources import Source

_logger: Final = logging.getLogger(__name__)


Batch = tuple[int, int, Acknowledgement]


class SharedPartition:
    """One partition in one share group; see the module."""

    def __init__(
        self,
        log: StateLog,
        key: ShareKey,
        topic: str,
        settings: DeliverySettings,
        state: SharedState | None,
        *,
        clock: Clock,
        timer: Timer,
        arrivals: Arrivals,
    ) -> None:
        """``arrivals`` wake those who wait for records, also for records that are given back."""
        self._clock: Final = clock
        self._timers: Final = timer
        self._arrivals: Final = arrivals
        self._log: Final = log
        self.key: Final = key
        self.topic: Final = topic
        self._settings: Final = settings
        self._written = state
        self._snapshot_epoch = -1 if state is None else state.snapshot_epoch
        self._delivery: Delivery | None = None if state is None else Delivery.restore(settings, state.snapshot)
        self._turn: Final = Turn()
        self._timer: TimerEntry | None = None
        self._is_closed = False

    @property
    def waiting_key(self) -> tuple[str, int]:
        """What to watch, in ``arrivals``, for records that are given back. No topic has such a name."""
        return f"{self.key.group_id}:{self.topic}", self.key.partition

    @property
    def delivery(self) -> Delivery | None:
        """The deliveries; None before anybody has fetched."""
        return self._delivery

    def has_something(self, source: Source) -> bool:
        """Whether a fetch would have something to do now."""
        if self._delivery is None or self._delivery.start_offset < source.start_offset:
            return True
        offset = self._delivery.next_offset
        return offset is not None and offset < source.high_watermark

    # --- fetching ------------------------------------------------------------------------------------------

    async def acquire(
        self, source: Source, member_id: str, *, records_max: int, bytes_max: int, begins_at_end: bool
    ) -> tuple[list[Run], bytes]:
        """Give a member what it can have: the runs, and the batches that they are in. Nothing if there is nothing now.

        Without any state yet, the group begins where the log does, or at its end. Raises what reading ``source`` does,
        and ``StorageError`` when the beginning cannot be written down.
        """
        async with self._turn:
            if self._delivery is None:
                start_offset, end_offset = await source.bounds()
                await self._begin(end_offset if begins_at_end else start_offset)
            delivery = self._delivery
            assert delivery is not None, "it has begun"
            self._catch_up(source.start_offset)
            offset = delivery.next_offset
            if offset is None or offset >= source.high_watermark or records_max <= 0:
                return [], b""
            data = await source.read(offset, bytes_max)
            if self._is_closed or self._delivery is not delivery:
                return [], b""
            runs = delivery.acquire(member_id, _readable(data, offset), records_max, self._now_ms())
            self._set_timer()
            return runs, _needed(data, runs)

    async def _begin(self, first_offset: int) -> None:
        """The group's first offset holds from now on, also after a crash before anything is acknowledged."""
        self._delivery = Delivery(self._settings, first_offset)
        await written(self._write())

    def _catch_up(self, log_start_offset: int) -> None:
        """What retention or a clock has brought about meanwhile."""
        delivery = self._delivery
        if delivery is None:
            return
        is_changed = delivery.start_at(log_start_offset)
        if delivery.release_overdue(self._now_ms()) or is_changed:
            self._changed()

    # --- acknowledging -------------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, batches: Iterable[Batch]) -> asyncio.Future[int]:
        """A member says what has become of its records; wait for the result until that is written down.

        Raises ``InvalidRecordStateError``, ``InvalidRequestError``; the result raises ``StorageError``.
        """
        delivery = self._delivery or Delivery(self._settings, 0)
        delivery.acknowledge(member_id, batches, self._now_ms())
        return self._changed()

    def begin_at(self, offset: int) -> asyncio.Future[int]:
        """Go on from an offset, whatever was delivered: wait for the result until that is written down.

        For a group without members. The result raises ``StorageError``.
        """
        self._delivery = Delivery(self._settings, offset)
        return self._changed()

    def release_member(self, member_id: str) -> None:
        """A member has gone: what it had is anybody's."""
        if self._delivery is not None and self._delivery.release_member(member_id):
            self._changed()

    def _changed(self) -> asyncio.Future[int]:
        """Write down what is true now, and wake those who may have what was given back."""
        self._set_timer()
        written = self._write()
        self._arrivals.wake(self.waiting_key)
        return written

    def _write(self) -> asyncio.Future[int]:
        assert self._delivery is not None, "there is something to write down"
        self._snapshot_epoch += 1
        state = SharedState(self._snapshot_epoch, 0, self._delivery.snapshot())
        appending = self._log.submit([snapshot_record(self.key, state, self._clock.now_ms())])
        appending.add_done_callback(lambda done: self._has_written(done, state))
        return appending

    def _has_written(self, done: asyncio.Future[int], state: SharedState) -> None:
        error = done.exception()
        if error is None:
            self._written = state
        elif state.snapshot_epoch == self._snapshot_epoch:
            _logger.warning("%s: %s; deliveries are taken back", self, error)
            written = self._written
            self._delivery = None if written is None else Delivery.restore(self._settings, written.snapshot)
            self._arrivals.wake(self.waiting_key)

    # --- locks ---------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Have the next lock end in time. One timer serves all: it is set again when it fires."""
        deadline_ms = None if self._delivery is None else self._delivery.next_deadline_ms
        if self._timer is not None or deadline_ms is None or self._is_closed:
            return
        self._timer = self._timers.schedule(max(1, deadline_ms - self._now_ms()), self._lock_ends)

    def _lock_ends(self) -> None:
        self._timer = None
        if self._delivery is not None and self._delivery.release_overdue(self._now_ms()):
            self._changed()
        self._set_timer()

    def close(self) -> None:
        """Give nothing out any more. Locks are not written down: after a restart everything is available again."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def __str__(self) -> str:
        return f"{self.topic}-{self.key.partition} in share group {self.key.group_id}"


def _readable(data: bytes, offset: int) -> list[Readable]:
    """What was read from an offset on: batches, and the offsets where nothing is."""
    readable: list[Readable] = []
    for _, header in scan_headers(data):
        if header.base_offset > offset:
            readable.append(Readable(offset, header.base_offset - 1, has_records=False))
        first = max(offset, header.base_offset)
        if header.last_offset >= first:
            readable.append(Readable(first, header.last_offset, has_records=not header.is_control))
            offset = header.last_offset + 1
    return readable


def _needed(data: bytes, runs: Sequence[Run]) -> bytes:
    """The batches from the first to the last that have something of the runs."""
    if not runs:
        return b""
    first, last = runs[0].first, runs[-1].last
    begin, end = len(data), 0
    for position, header in scan_headers(data):
        if header.last_offset >= first and header.base_offset <= last:
            begin, end = min(begin, position), position + header.size_bytes
    return data[begin:end]
