"""Accumulator of single records by topic (Kafka's ``RecordAccumulator``).

Invariants: every accepted record gets an outcome, also if its batch cannot be built. A topic's records become batches
in the order in which they were appended. A record's bytes count in ``buffer.memory`` from before its append until its
batch is acknowledged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from millrace.clients.metadata import MetadataCache
from millrace.clients.model import BatchMetadata, TopicDescription
from millrace.clients.producing.batch_making import BatchMaker
from millrace.clients.producing.batching import BuiltBatch, Fitted, RefusedRow, Rows
from millrace.clients.producing.chunk import Chunk
from millrace.clients.producing.futures import Outcomes
from millrace.clients.producing.memory import BufferMemory, NoRoomError
from millrace.clients.producing.outgoing import Completion, Parts
from millrace.clients.producing.record_buffer import RecordBuffer
from millrace.clients.producing.sender import Sender
from millrace.config.client import ProducerConfig
from millrace.errors import (
    AbortableTransactionError,
    BufferExhaustedError,
    ClientClosedError,
    MillraceError,
    SchemaMismatchError,
    UnknownServerError,
)

logger = logging.getLogger(__name__)
_CHUNK_BATCHES_MAX: Final = 4
"""Maximum number of batches' worth of single records in a chunk."""
_BLOCK_BYTES_MAX: Final = 64 * 2**10
"""Bytes that an open chunk reserves at a time."""
_HOLD_S_MAX: Final = 5.0
"""Maximum hold of a chunk whose topic is busy. A response that takes longer comes from a leader in trouble."""


class Accumulator:
    """Open chunks of all topics, and their conversion to batches. Thread safe.

    ``check_can_send`` raises the error, if any, with which every record fails that becomes a batch now. ``on_refusal``
    is called with the error of records that cannot become a batch, before they fail. It is also called with the error
    of a record that found no memory in time.

    With ``may_block`` the sending thread waits for memory, and turns full chunks into batches. Otherwise the sending
    thread gets ``NoRoomError`` if there is no memory, and the sender's thread builds the batches.
    """

    def __init__(
        self,
        config: ProducerConfig,
        metadata: MetadataCache,
        memory: BufferMemory,
        condition: Outcomes,
        maker: BatchMaker,
        sender: Sender,
        *,
        check_can_send: Callable[[], None],
        on_refusal: Callable[[MillraceError], None],
        may_block: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._memory = memory
        self._condition = condition
        self._maker = maker
        self._sender = sender
        self._check_can_send = check_can_send
        self._on_refusal = on_refusal
        self._may_block = may_block
        self._monotonic = monotonic
        self._buffers: dict[str, RecordBuffer] = {}
        self._opening = threading.Lock()
        self._is_closed = False

    def buffer(self, topic: TopicDescription) -> RecordBuffer:
        """Return the buffer to which a topic's records are appended."""
        buffer = self._buffers.get(topic.name)
        if buffer is not None:
            return buffer
        config = self._config
        block_bytes = max(min(_BLOCK_BYTES_MAX, config.buffer_memory // 8), 1)
        made = RecordBuffer(
            topic,
            self._condition,
            limit_bytes=self.limit_bytes(topic),
            block_bytes=block_bytes,
            reserve=self._reserve,
            on_first=self._on_first,
            on_full=self._on_full,
            monotonic=self._monotonic,
        )
        with self._opening:
            if self._is_closed:
                raise ClientClosedError("the producer is closed: make a new one")
            return self._buffers.setdefault(topic.name, made)

    def _reserve(self, buffer: RecordBuffer, size_bytes: int) -> None:
        max_block_s = self._config.max_block_ms / 1000
        if self._may_block:
            try:
                self._memory.acquire(size_bytes, max_block_s)
            except BufferExhaustedError as error:
                self._on_refusal(error)
                raise
        elif not self._memory.try_acquire(size_bytes):
            raise NoRoomError(size_bytes, buffer.add_reserved, self._memory.exhausted_message(max_block_s))

    def limit_bytes(self, topic: TopicDescription) -> int:
        """Return the size from which gathered records become batches regardless of ``linger.ms``."""
        batches = min(topic.num_partitions, _CHUNK_BATCHES_MAX)
        return min(self._config.batch_size * batches, self._config.buffer_memory // 2)

    def _on_first(self, buffer: RecordBuffer) -> None:
        """Send the first record of a chunk in this thread if nothing delays it, else wake the sender."""
        is_due = self._may_block and not self._config.linger_ms
        if not (is_due and self._sender.send_at_once(buffer.name, lambda: self._drain(buffer, wait=False))):
            self._sender.wake()

    def _on_full(self, buffer: RecordBuffer) -> None:
        if self._may_block:
            self._drain(buffer, wait=True)
        else:
            self._sender.wake()

    # --- when ----------------------------------------------------------------------------------------------------

    def drain_due(self) -> float | None:
        """Drain chunks that have waited for ``linger.ms``, are full, or block other records.

        A chunk of a busy topic is held longer, because its batches would only wait for the one in flight. The hold is
        much shorter than ``delivery.timeout.ms``, because one leader may be silent while the others could take records
        of the chunk.

        Returns the seconds until the next chunk is due. The sender's thread calls this. It never waits for memory or
        for another drain.
        """
        linger_s, delivery_s = self._config.linger_ms / 1000, self._config.delivery_timeout_ms / 1000
        held_s = linger_s + min((delivery_s - linger_s) / 4, _HOLD_S_MAX)
        waits = []
        for buffer in list(self._buffers.values()):
            age_s = buffer.age_s
            if self._memory.is_exhausted or buffer.is_full:
                if not buffer.is_empty:
                    self._drain(buffer, wait=False)
            elif age_s is not None and age_s < linger_s:
                waits.append(linger_s - age_s)
            elif age_s is not None and age_s < held_s and self._sender.is_busy(buffer.name):
                waits.append(held_s - age_s)  # the response in flight wakes the sender before
            elif age_s is not None:
                self._drain(buffer, wait=False)
        return min(waits) if waits else None

    def has_records(self) -> bool:
        """Return whether any record waits to become part of a batch."""
        return any(not buffer.is_empty for buffer in list(self._buffers.values()))

    def drain(self, topic: str) -> None:
        """Build batches of all waiting records of a topic."""
        if (buffer := self._buffers.get(topic)) is not None:
            self._drain(buffer, wait=True)

    def drain_all(self) -> None:
        """Build batches of all waiting records of all topics."""
        for buffer in list(self._buffers.values()):
            self._drain(buffer, wait=True)

    def close(self, error: MillraceError) -> None:
        """Refuse further records, and fail those that are not in batches yet."""
        with self._opening:
            self._is_closed = True
        self.abandon(error)

    def abandon(self, error: MillraceError) -> None:
        """Fail all records that are not in batches yet."""
        for buffer in list(self._buffers.values()):
            with buffer.drain_lock:
                chunk = buffer.take(for_good=self._is_closed)
                self._memory.release(chunk.reserved_bytes)
                chunk.refuse_rest(error)
                chunk.drop_records()

    def send_chunk(self, buffer: RecordBuffer, chunk: Chunk) -> None:
        """Send a chunk that was gathered elsewhere after the waiting records; its memory is already reserved."""
        chunk.created = self._monotonic()  # delivery.timeout.ms does not include the wait for memory
        with buffer.drain_lock:
            self._encode(buffer, buffer.take())
            self._encode(buffer, chunk)

    def _drain(self, buffer: RecordBuffer, *, wait: bool) -> None:
        if not buffer.drain_lock.acquire(blocking=wait):
            return
        try:
            self._encode(buffer, buffer.take())
        finally:
            buffer.drain_lock.release()

    # --- how -----------------------------------------------------------------------------------------------------

    def _encode(self, buffer: RecordBuffer, chunk: Chunk) -> None:
        """Build batches of a chunk's records and release its reservation, because each batch reserves its own
        memory.

        The last known description of the topic is enough, also while no broker answers. The sender finds the leaders.
        """
        try:
            if chunk.num_rows:
                self._check_can_send()
                topic, rows = self._metadata.known(buffer.name) or buffer.topic, None
                try:
                    fitted = chunk.fit(topic)
                except SchemaMismatchError:
                    topic = self._looked_up(buffer)
                    rows = self._refuse_misfits(topic, chunk)
                    fitted = chunk.fit(topic, rows)
                buffer.use(topic)
                self._send_rows(fitted, chunk, rows)
        except MillraceError as error:
            self._refuse_rest(chunk, error)
        except Exception as error:
            # A bug in the producer: these records must get an outcome all the same.
            logger.exception("no batch could be built from the records for %s", buffer.name)
            self._refuse_rest(chunk, UnknownServerError(f"the producer failed: {error!r}"))
        except BaseException:
            interrupted = "the producer was interrupted before these records were sent"
            self._on_refusal(AbortableTransactionError(interrupted))
            chunk.refuse_rest(ClientClosedError(interrupted))
            raise
        finally:
            self._memory.release(chunk.reserved_bytes)
            chunk.drop_records()

    def _looked_up(self, buffer: RecordBuffer) -> TopicDescription:
        """Return the topic with its present schema, or its last known description if no broker answers."""
        try:
            return self._metadata.topic(buffer.name)
        except MillraceError:
            return buffer.topic

    def _refuse_misfits(self, topic: TopicDescription, chunk: Chunk) -> Rows:
        """Refuse the records of a chunk that do not fit the schema, and return the others."""
        fitting = []
        for row in range(chunk.num_rows):
            only = np.array([row])
            try:
                chunk.fit(topic, only)
            except SchemaMismatchError as misfit:
                self._refuse(chunk, only, misfit)
            else:
                fitting.append(row)
        return np.array(fitting, np.int64)

    def _refuse(self, chunk: Chunk, rows: Rows, error: MillraceError) -> None:
        self._on_refusal(error)
        chunk.refuse(rows, error)

    def _refuse_rest(self, chunk: Chunk, error: MillraceError) -> None:
        self._on_refusal(error)
        chunk.refuse_rest(error)

    def _send_rows(self, fitted: Fitted, chunk: Chunk, rows: Rows | None) -> None:
        """Send the batches of fitted records; ``rows`` are their numbers in the chunk, or None for the whole chunk."""
        for batch in self._maker.batches(fitted, number_rows=True):
            if isinstance(batch, RefusedRow):
                self._refuse(chunk, _rows_in_chunk(batch, rows), batch.error)
                continue
            self._memory.take(len(batch.records))
            completion = self._completion(chunk, rows, batch)
            try:
                self._sender.enqueue(fitted.topic.name, batch, completion, created=chunk.created)
            except MillraceError as error:
                completion(None, -1, error, batch)

    def _completion(self, chunk: Chunk, rows: Rows | None, batch: BuiltBatch) -> Completion:
        numbers = _rows_in_chunk(batch, rows)
        number = chunk.assign(numbers)
        parts = Parts(batch)

        def complete(
            metadata: BatchMetadata | None, append_time_ms: int, error: MillraceError | None, part: BuiltBatch
        ) -> None:
            if parts.completed(part):
                self._memory.release(len(batch.records))
            if part is batch:
                chunk.settle(number, numbers, metadata, append_time_ms, error)
            else:
                part_numbers = _rows_in_chunk(part, rows)
                chunk.settle(chunk.assign(part_numbers), part_numbers, metadata, append_time_ms, error)

        return complete


def _rows_in_chunk(batch: BuiltBatch | RefusedRow, rows: Rows | None) -> Rows:
    """Return the numbers in the chunk of a batch's rows, of those that were fitted (``rows``)."""
    assert batch.rows is not None
    return batch.rows if rows is None else np.asarray(rows)[np.asarray(batch.rows)]
