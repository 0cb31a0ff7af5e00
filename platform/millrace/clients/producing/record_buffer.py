"""Open chunk of a topic, whose records wait to become batches.

Invariants: a record is in exactly one chunk, and a chunk is taken exactly once. The open chunk never holds more bytes
than are reserved for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from millrace.clients.model import TopicDescription
from millrace.clients.producing.chunk import Chunk, Headers, OnDelivery, RecordFuture
from millrace.clients.producing.futures import Outcomes
from millrace.clients.producing.record_checks import RecordChecker, as_bytes
from millrace.errors import ClientClosedError

_RECORD_BYTES: Final = 24
"""Estimated bytes of a record beside its key and value."""


class RecordBuffer:
    """Open chunk of one topic. Thread safe.

    ``limit_bytes`` is the size from which ``on_full`` is called, in the thread that sends. ``reserve`` reserves
    ``block_bytes`` at a time; it waits or raises. ``on_first`` is called for a chunk's first record. ``drain_lock``
    is held while a taken chunk becomes batches, to keep their order.
    """

    def __init__(
        self,
        topic: TopicDescription,
        condition: Outcomes,
        *,
        limit_bytes: int,
        block_bytes: int,
        reserve: Callable[[RecordBuffer, int], None],
        on_first: Callable[[RecordBuffer], None],
        on_full: Callable[[RecordBuffer], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = topic.name
        self.drain_lock = threading.Lock()
        self._condition = condition
        self._limit_bytes = limit_bytes
        self._block_bytes = block_bytes
        self._reserve = reserve
        self._on_first = on_first
        self._on_full = on_full
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._chunk = Chunk(condition, monotonic)
        self._checker: RecordChecker | None = None
        self._checked_id = -1
        self._is_closed = False
        self.use(topic)

    def use(self, topic: TopicDescription) -> None:
        """Keep the current topic description, and check later records against it."""
        self.topic = topic
        if topic.schema_id != self._checked_id:
            self._checker = RecordChecker(topic.schema) if topic.schema is not None else None
            self._checked_id = topic.schema_id

    @property
    def is_opaque(self) -> bool:
        """True if records are keys and values, not columns."""
        return self._checker is None

    @property
    def is_empty(self) -> bool:
        """True if no record waits, and no memory is reserved for any."""
        return not self._chunk.values and not self._chunk.reserved_bytes

    @property
    def is_full(self) -> bool:
        """True if the chunk has the size at which batches are built before ``linger.ms`` has passed."""
        return self._chunk.size_bytes >= self._limit_bytes

    @property
    def age_s(self) -> float | None:
        """Waiting time of the oldest record; ``None`` without records."""
        chunk = self._chunk
        return self._monotonic() - chunk.created if chunk.values else None

    def append_value(self, value: bytes, now: Callable[[], float] = time.time) -> RecordFuture:
        """Add a record of an opaque topic that has only a value; faster than ``append``."""
        with self._lock:
            chunk = self._chunk
            size_bytes = chunk.size_bytes + len(value) + _RECORD_BYTES
            is_fitting = size_bytes <= chunk.reserved_bytes and chunk.is_plain
            if is_fitting:
                row = len(chunk.values)
                now_s = now()
                if now_s >= chunk.stamp_until:
                    chunk.stamp_now(row, now_s)
                chunk.size_bytes = size_bytes
                chunk.values.append(value)
        if not is_fitting:
            return self.append(None, value, (), None, -1)
        if not row:
            self._on_first(self)
        if size_bytes >= self._limit_bytes:
            self._on_full(self)
        return RecordFuture(chunk, row)

    def append(
        self,
        key: Any,
        value: Any,
        headers: Headers,
        timestamp_ms: int | None,
        partition: int,
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Add a record; ``partition`` -1 leaves the choice to the key, or to the producer.

        Raises ``SchemaMismatchError`` naming the column, ``BufferExhaustedError``.
        """
        if self._checker is not None:
            size_bytes = self._checker.check(value, key) + _RECORD_BYTES
        else:
            key, value = as_bytes("key", key), as_bytes("value", value)
            size_bytes = len(value or b"") + len(key or b"") + _RECORD_BYTES
        while True:
            with self._lock:
                if self._is_closed:
                    raise ClientClosedError("the producer is closed: make a new one")
                chunk = self._chunk
                chunk_bytes = chunk.size_bytes + size_bytes
                if chunk_bytes <= chunk.reserved_bytes:
                    row = len(chunk.values)
                    if timestamp_ms is not None:
                        chunk.stamp(row, timestamp_ms)
                    elif (now_s := time.time()) >= chunk.stamp_until:
                        chunk.stamp_now(row, now_s)
                    chunk.set_beside(row, key, headers, partition)
                    chunk.size_bytes = chunk_bytes
                    if on_delivery is not None:
                        chunk.tell(row, on_delivery)
                    chunk.values.append(value)
                    break
            self._make_room(size_bytes)
        if not row:
            self._on_first(self)
        if chunk_bytes >= self._limit_bytes:
            self._on_full(self)
        return RecordFuture(chunk, row)

    def _make_room(self, size_bytes: int) -> None:
        wanted_bytes = max(size_bytes, self._block_bytes)
        self._reserve(self, wanted_bytes)
        self.add_reserved(wanted_bytes)

    def add_reserved(self, size_bytes: int) -> None:
        """Add reserved memory for the records that are appended next."""
        with self._lock:
            self._chunk.reserved_bytes += size_bytes

    def take(self, *, for_good: bool = False) -> Chunk:
        """Take the open chunk and leave an empty one, which refuses records if ``for_good``."""
        with self._lock:
            chunk, self._chunk = self._chunk, Chunk(self._condition, self._monotonic)
            if for_good:
                self._is_closed = True
                self._chunk.is_plain = False
        chunk.close()
        return chunk
