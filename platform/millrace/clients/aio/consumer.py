"""Asyncio consumer: ``Consumer`` in its own thread, awaited by the event loop.

Invariant: the records of a poll go to the caller or are kept for its next poll, whatever is cancelled. Positions have
advanced, so those records would not be fetched again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from millrace.clients.connections import forked_client_error
from millrace.clients.consumer import Consumer
from millrace.clients.consuming.records import ConsumerRecords
from millrace.clients.membership.listener import RebalanceListener
from millrace.clients.model import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from millrace.errors import ClientClosedError, WakeupError

T = TypeVar("T")
Partitions = Iterable[TopicPartition | tuple[str, int]]


class AsyncConsumer:
    """``Consumer`` for asyncio, with the same options, guarantees and errors. Use it in ``async with``, or close it.

    Calls of several tasks are serialized. Listeners run in the consumer's own thread, where they may use
    ``synchronous`` but nothing else of this class. The cancellation of a polling task ends the poll.
    """

    def __init__(self, config: str | Mapping[str, Any]) -> None:
        self.synchronous = Consumer(config)
        """The underlying consumer, for listeners."""
        self._worker = ThreadPoolExecutor(1, "millrace-consumer")
        self._is_closed = False
        self._kept: list[asyncio.Future[ConsumerRecords]] = []
        self._kept_tables: list[asyncio.Future[pa.Table]] = []

    # --- what is read ---------------------------------------------------------------------------------------------

    async def subscribe(
        self, topics: str | Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """See ``Consumer.subscribe``."""
        await self._run(self.synchronous.subscribe, topics, listener)

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

    # --- committing -----------------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, timeout_ms: int | None = None
    ) -> None:
        """See ``Consumer.commit``."""
        await self._run(self.synchronous.commit, offsets, timeout_ms)

    async def committed(self, partitions: Partitions) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """See ``Consumer.committed``."""
        return await self._run(self.synchronous.committed, list(partitions))

    async def group_metadata(self) -> ConsumerGroupMetadata:
        """See ``Consumer.group_metadata``."""
        return await self._run(self.synchronous.group_metadata)

    # --- reading --------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 0, *, max_records: int | None = None) -> ConsumerRecords:
        """See ``Consumer.poll``."""
        poll = partial(self.synchronous.poll, timeout_ms, max_records=max_records)
        return await self._polled(poll, self._kept)

    async def poll_table(
        self,
        timeout_ms: int = 0,
        *,
        max_records: int | None = None,
        columns: Sequence[str] | None = None,
        metadata: Sequence[str] | bool = False,
    ) -> pa.Table:
        """See ``Consumer.poll_table``."""
        poll = partial(
            self.synchronous.poll_table, timeout_ms, max_records=max_records, columns=columns, metadata=metadata
        )
        return await self._polled(poll, self._kept_tables)

    async def _polled(self, poll: Callable[[], T], kept: list[asyncio.Future[T]]) -> T:
        """Poll in the thread. After a cancellation the result, or error, is kept for the next poll."""
        self._check_open()
        while kept:
            with contextlib.suppress(WakeupError):
                await asyncio.wait([kept[0]])
                return kept.pop(0).result()
        polled = asyncio.get_running_loop().run_in_executor(self._worker, poll)
        try:
            return await asyncio.shield(polled)
        except asyncio.CancelledError:
            self.synchronous.wakeup()
            polled.add_done_callback(self._end_wakeup)
            kept.append(polled)
            raise

    def _end_wakeup(self, polled: asyncio.Future[T]) -> None:
        """Cancel the wake-up of a poll that ended before it, because the wake-up is not meant for the next poll."""
        if not isinstance(polled.exception(), WakeupError):
            self.synchronous.forget_wakeup()

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Iterate over records without end."""
        while True:
            for record in await self.poll(500):
                yield record

    # --- life -----------------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """End a waiting ``poll`` with ``WakeupError``."""
        self.synchronous.wakeup()

    async def close(self, timeout_ms: int = 30_000) -> None:
        """See ``Consumer.close``. May be called twice."""
        if not self._is_closed and not self.synchronous.is_forked:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(
                self._worker, partial(self.synchronous.close, timeout_ms=timeout_ms)
            )
            self._worker.shutdown(wait=False)

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
        return await asyncio.get_running_loop().run_in_executor(self._worker, partial(call, *arguments))
