"""Asyncio consumer: ``Consumer`` in its own thread, awaited by the event loop.

Invariants:

- If a poll is cancelled, the next one reads from the same positions, so that no record is lost.
- No call begins before the task of the previous poll has that poll's records, or has been cancelled. Therefore no
  commit covers records that no task got.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from millrace.clients.connections import forked_client_error
from millrace.clients.consumer import Consumer
from millrace.clients.consuming.records import ConsumerRecords
from millrace.clients.membership.commits import OnCommit
from millrace.clients.membership.listener import RebalanceListener
from millrace.clients.model import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    ConsumerStatistics,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from millrace.errors import ClientClosedError, WakeupError

T = TypeVar("T")
Polled = TypeVar("Polled", bound=Sized)
Partitions = Iterable[TopicPartition | tuple[str, int]]


class AsyncConsumer:
    """``Consumer`` for asyncio, with the same options, guarantees and errors. Use it in ``async with``, or close it.

    Calls of several tasks are serialized. A poll that waits for records lets the other calls go first, and ``close``
    ends it with ``ClientClosedError``. Listeners run in the consumer's own thread, where they may use ``synchronous``
    but nothing else of this class. The cancellation of a polling task ends the poll.
    """

    def __init__(self, config: str | Mapping[str, Any]) -> None:
        self._core = _Core(config)
        self.synchronous: Consumer = self._core
        """The underlying consumer, for listeners."""
        self._worker = ThreadPoolExecutor(1, "millrace-consumer")
        self._turn = asyncio.Lock()
        self._calls_waiting = 0
        self._polled: Future[Any] | None = None
        """The poll whose task has not got the result yet."""
        self._is_closed = False

    # --- subscription and assignment ------------------------------------------------------------------------------

    async def subscribe(
        self, topics: str | Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """See ``Consumer.subscribe``."""
        await self._run(self.synchronous.subscribe, topics, listener)

    async def subscription(self) -> frozenset[str]:
        """See ``Consumer.subscription``."""
        return await self._run(self.synchronous.subscription)

    async def rejoin(self, reason: str = "the application asked for it") -> None:
        """See ``Consumer.rejoin``."""
        await self._run(self.synchronous.rejoin, reason)

    async def unsubscribe(self) -> None:
        """See ``Consumer.unsubscribe``."""
        await self._run(self.synchronous.unsubscribe)

    async def assign(self, partitions: Partitions) -> None:
        """See ``Consumer.assign``."""
        await self._run(self.synchronous.assign, list(partitions))

    async def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions."""
        return await self._run(self.synchronous.assignment)

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic."""
        return await self._run(self.synchronous.partitions_for, topic)

    async def pause(self, partitions: Partitions) -> None:
        """See ``Consumer.pause``."""
        await self._run(self.synchronous.pause, list(partitions))

    async def resume(self, partitions: Partitions) -> None:
        """See ``Consumer.resume``."""
        await self._run(self.synchronous.resume, list(partitions))

    async def paused(self) -> list[TopicPartition]:
        """Return the paused partitions."""
        return await self._run(self.synchronous.paused)

    # --- positions ------------------------------------------------------------------------------------------------

    async def seek(self, partition: TopicPartition | tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """See ``Consumer.seek``."""
        await self._run(self.synchronous.seek, partition, offset)

    async def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """See ``Consumer.seek_to_beginning``."""
        await self._run(self.synchronous.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """See ``Consumer.seek_to_end``."""
        await self._run(self.synchronous.seek_to_end, *partitions)

    async def seek_to_time(self, when: int | datetime, *partitions: TopicPartition | tuple[str, int]) -> None:
        """See ``Consumer.seek_to_time``."""
        await self._run(self.synchronous.seek_to_time, when, *partitions)

    async def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """See ``Consumer.position``."""
        return await self._run(self.synchronous.position, partition)

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """See ``Consumer.beginning_offsets``."""
        return await self._run(self.synchronous.beginning_offsets, list(partitions))

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """See ``Consumer.end_offsets``."""
        return await self._run(self.synchronous.end_offsets, list(partitions))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, Any]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """See ``Consumer.offsets_for_times``."""
        return await self._run(self.synchronous.offsets_for_times, times)

    async def high_watermark(self, partition: TopicPartition | tuple[str, int]) -> int:
        """See ``Consumer.high_watermark``."""
        return await self._run(self.synchronous.high_watermark, partition)

    async def current_lag(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """See ``Consumer.current_lag``."""
        return await self._run(self.synchronous.current_lag, partition)

    # --- committing -----------------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, timeout_ms: int | None = None
    ) -> None:
        """See ``Consumer.commit``."""
        await self._run(self.synchronous.commit, offsets, timeout_ms)

    async def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, on_commit: OnCommit | None = None
    ) -> None:
        """See ``Consumer.commit_async``. ``on_commit`` is called in the consumer's own thread, as listeners are."""
        await self._run(self.synchronous.commit_async, offsets, on_commit)

    async def committed(self, partitions: Partitions) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """See ``Consumer.committed``."""
        return await self._run(self.synchronous.committed, list(partitions))

    async def group_metadata(self) -> ConsumerGroupMetadata:
        """See ``Consumer.group_metadata``."""
        return await self._run(self.synchronous.group_metadata)

    # --- reading --------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 0, *, max_records: int | None = None) -> ConsumerRecords:
        """See ``Consumer.poll``."""
        return await self._poll(partial(self.synchronous.poll, max_records=max_records), timeout_ms)

    async def poll_table(
        self,
        timeout_ms: int = 0,
        *,
        max_records: int | None = None,
        columns: Sequence[str] | None = None,
        metadata: Sequence[str] | bool = False,
    ) -> pa.Table:
        """See ``Consumer.poll_table``."""
        poll = partial(self.synchronous.poll_table, max_records=max_records, columns=columns, metadata=metadata)
        return await self._poll(poll, timeout_ms)

    async def _poll(self, poll: Callable[[int], Polled], timeout_ms: int) -> Polled:
        """Poll in the thread, and again if the poll ended early for other calls."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            async with self._turn:
                self._check_open()
                self._core.raise_error()
                self._core.give_way(self._calls_waiting > 0)
                left_ms = max(int((deadline - time.monotonic()) * 1000), 0)
                polled = await self._result(self._worker.submit(poll, left_ms))
            if len(polled) or time.monotonic() >= deadline:
                return polled

    async def _result(self, polled: Future[Polled]) -> Polled:
        """Wait for a poll; if the task is cancelled, end the poll and take its records back."""
        self._polled = polled
        try:
            return await asyncio.wrap_future(polled)
        except asyncio.CancelledError:
            if not polled.cancel():  # it has begun
                self.synchronous.wakeup()
                with contextlib.suppress(RuntimeError):  # the consumer was closed
                    self._worker.submit(self._core.end_cancelled, polled)
            raise
        except WakeupError:
            self._check_open()
            raise
        finally:
            self._polled = None

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Iterate over records without end: see ``Consumer``."""
        while True:
            for record in self._core.passed_on(await self.poll(500)):
                yield record

    async def statistics(self) -> ConsumerStatistics:
        """See ``Consumer.statistics``."""
        return await self._run(self.synchronous.statistics)

    # --- life -----------------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """End a waiting ``poll`` with ``WakeupError``."""
        self.synchronous.wakeup()

    def forget_wakeup(self) -> None:
        """Cancel a ``wakeup`` that has not taken effect."""
        self.synchronous.forget_wakeup()

    async def close(self, timeout_ms: int = 30_000) -> None:
        """See ``Consumer.close``. May be called twice. Ends the poll of another task with ``ClientClosedError``."""
        if self._is_closed or self.synchronous.is_forked:
            return
        self._is_closed = True
        if self._polled is not None:
            self.synchronous.wakeup()
        try:
            await self._turn.acquire()
        finally:  # also close if this task is cancelled
            if self._polled is not None:
                self._worker.submit(self._core.end_cancelled, self._polled)
            closed = self._worker.submit(self.synchronous.close, timeout_ms)
            self._worker.shutdown(wait=False)
        self._turn.release()
        await asyncio.shield(asyncio.wrap_future(closed))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self.synchronous.is_forked:  # its thread is in the other process
            raise forked_client_error()
        if self._is_closed:
            raise ClientClosedError("the consumer is closed: make a new one")

    async def _run(self, call: Callable[..., T], *arguments: Any) -> T:
        self._check_open()
        self._calls_waiting += 1
        try:
            self._core.give_way(True)
            await self._turn.acquire()
        finally:
            self._calls_waiting -= 1
        try:
            self._check_open()
            return await asyncio.get_running_loop().run_in_executor(self._worker, partial(call, *arguments))
        finally:
            self._turn.release()


class _Core(Consumer):
    """The underlying consumer."""

    _error: BaseException | None = None

    def passed_on(self, records: ConsumerRecords) -> Iterator[ConsumerRecord]:
        """Pass on the records of a poll one by one."""
        return self._assignment.passed_on(records)

    def give_way(self, gives_way: bool) -> None:
        """Let the poll that waits for records end without any, or no longer. Thread safe."""
        self._poller.gives_way = gives_way
        if gives_way:
            self._signal.ring()

    def end_cancelled(self, polled: Future[Any]) -> None:
        """Take back the records of a cancelled poll, and its wake-up if that came too late, for the next poll.

        The next poll also raises its error.
        """
        error = polled.exception()
        if isinstance(error, WakeupError):
            return
        self.forget_wakeup()
        self._error = error
        self._poller.take_back()

    def raise_error(self) -> None:
        """Raise the error of a cancelled poll, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error
