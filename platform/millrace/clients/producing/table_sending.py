"""Sending of tables.

A table is cut into batches piece by piece as memory becomes available.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from millrace.clients.connections import Connections
from millrace.clients.model import BatchMetadata
from millrace.clients.producing.batch_making import BatchMaker
from millrace.clients.producing.batching import BuiltBatch, Fitted, RefusedRow
from millrace.clients.producing.futures import Outcomes, ValueFuture
from millrace.clients.producing.interceptors import Interceptors
from millrace.clients.producing.memory import BufferMemory
from millrace.clients.producing.outgoing import Completion, Parts, part_error
from millrace.clients.producing.sender import Sender
from millrace.config.client import ProducerConfig
from millrace.errors import BufferExhaustedError, MillraceError

_DIVIDED_BYTES_MAX: Final = 32 * 2**20
"""Maximum bytes that are divided among partitions at once."""
_FILLED: Final = 15 / 16
"""Part of ``batch.size`` that rows fill. The rest is for metadata and uneven partitions.

With the default, a stored batch is then smaller than ``max.partition.fetch.bytes`` of Kafka's consumers (1 MiB). A
Fetch returns a larger batch only alone (KIP-74).
"""


class TableSender:
    """Sender of fitted tables. Thread safe.

    ``on_part_refused`` is called with the error of a table of which a part was accepted, before ``send`` raises.
    """

    def __init__(
        self,
        config: ProducerConfig,
        connections: Connections,
        memory: BufferMemory,
        condition: Outcomes,
        maker: BatchMaker,
        sender: Sender,
        interceptors: Interceptors,
        *,
        on_part_refused: Callable[[MillraceError], None],
    ) -> None:
        self._config = config
        self._connections = connections
        self._memory = memory
        self._condition = condition
        self._maker = maker
        self._sender = sender
        self._interceptors = interceptors
        self._on_part_refused = on_part_refused

    def send(self, fitted: Fitted) -> ValueFuture[list[BatchMetadata]]:
        """Build batches and queue them, waiting for memory; an error is raised and also set on the future.

        Rows that are too large are found before the first batch is queued.
        """
        fitted = self._maker.choose(fitted)
        self._maker.check_sizes(fitted)
        sending = _TableSend(self._condition, self._memory, self._interceptors)
        try:
            for chunk in self._chunks(fitted):
                for batch in self._maker.batches(chunk, number_rows=False):
                    self._send_batch(fitted.topic.name, batch, sending)
        except BaseException as error:
            failure = part_error(error, f"a table to {fitted.topic.name}")
            if sending.has_batches:
                self._on_part_refused(failure)
            sending.seal(failure)
            raise
        sending.seal()
        return sending.future

    def _chunks(self, fitted: Fitted) -> Iterator[Fitted]:
        """Yield slices of one batch per partition if rows are divided by key, else slices of one batch."""
        if not fitted.num_rows:
            return
        chunk_bytes = self._config.batch_size
        if self._maker.is_divided(fitted):
            limit = min(_DIVIDED_BYTES_MAX, self._config.buffer_memory // 2)
            chunk_bytes = max(min(chunk_bytes * fitted.topic.num_partitions, limit), chunk_bytes)
        row_bytes = max(fitted.size_bytes / fitted.num_rows, 1)
        length = max(int(chunk_bytes * _FILLED / row_bytes), 1)
        for start in range(0, fitted.num_rows, length):
            yield fitted.slice(start, min(length, fitted.num_rows - start))

    def _send_batch(self, topic: str, batch: BuiltBatch | RefusedRow, sending: _TableSend) -> None:
        if sending.error is not None:
            raise sending.error
        if isinstance(batch, RefusedRow):
            raise batch.error
        self._connections.check_open()
        try:
            self._memory.acquire(len(batch.records), self._config.max_block_ms / 1000)
        except BufferExhaustedError as error:
            raise BufferExhaustedError(f"{error.message} (the producer sends the earlier rows of the table)") from None
        completion = sending.completion(batch)
        try:
            self._sender.enqueue(topic, batch, completion)
        except MillraceError as error:
            completion(None, -1, error, batch)
            raise


class _TableSend:
    """Collector of the outcomes of a table's batches into one future."""

    def __init__(self, condition: Outcomes, memory: BufferMemory, interceptors: Interceptors) -> None:
        self.future: ValueFuture[list[BatchMetadata]] = ValueFuture(condition)
        self.error: MillraceError | None = None
        self._condition = condition
        self._memory = memory
        self._interceptors = interceptors
        self._results: list[list[BatchMetadata]] = []
        self._left = 1  # the table itself, until sealed

    @property
    def has_batches(self) -> bool:
        """True if any batch of the table was accepted."""
        return bool(self._results)

    def completion(self, batch: BuiltBatch) -> Completion:
        """Return the completion callback of a batch, whose place among the results is taken now."""
        with self._condition:
            results: list[BatchMetadata] = []
            self._results.append(results)
            self._left += 1
        parts = Parts(batch)

        def complete(
            metadata: BatchMetadata | None, append_time_ms: int, error: MillraceError | None, part: BuiltBatch
        ) -> None:
            if self._interceptors:
                self._interceptors.on_acknowledgement(metadata, error)
            with self._condition:
                if metadata is not None:
                    results.append(metadata)
                self.error = self.error or error
            if parts.completed(part):
                self._memory.release(len(batch.records))
                self._finish_one(None)

        return complete

    def seal(self, error: MillraceError | None = None) -> None:
        """Mark that no more batches follow."""
        self._finish_one(error)

    def _finish_one(self, error: MillraceError | None) -> None:
        with self._condition:
            self._left -= 1
            self.error = self.error or error
            is_last = not self._left
        if is_last:
            self.future.complete([metadata for results in self._results for metadata in results], self.error)
