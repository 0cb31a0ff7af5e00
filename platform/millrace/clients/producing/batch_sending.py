"""Sending of many records in one call.

Records are given as values, pairs or dicts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self

from millrace.clients.model import ProducerRecord, RecordMetadata, TopicDescription
from millrace.clients.producing.chunk import Chunk
from millrace.clients.producing.futures import Outcomes, SendFuture, call_safely
from millrace.clients.producing.record_checks import RecordChecker, as_bytes, as_headers, check_timestamp
from millrace.errors import SchemaMismatchError

_RECORD_BYTES: Final = 24
_FIELDS: Final = frozenset({"value", "key", "headers", "timestamp_ms", "partition"})


class ManyFuture(SendFuture[list[RecordMetadata]]):
    """Outcome of a ``send_batch`` call.

    The result is the metadata of the records in their order, or the first error.
    """

    __slots__ = ("_callbacks", "_chunks", "_condition", "_left")

    def __init__(self, chunks: Sequence[Chunk], condition: Outcomes) -> None:
        self._chunks = chunks
        self._condition = condition
        self._callbacks: list[Callable[[Any], Any]] = []
        self._left = len(chunks)
        for chunk in chunks:
            chunk.when_settled(self._finish_one)

    def _finish_one(self) -> None:
        with self._condition:
            self._left -= 1
            callbacks: list[Callable[[Any], Any]] = []
            if not self._left:
                callbacks, self._callbacks = self._callbacks, []
                self._condition.notify_all()
        for callback in callbacks:
            call_safely(callback, self)

    def done(self) -> bool:
        """Return whether the outcomes of all records are known."""
        return not self._left

    def add_done_callback(self, callback: Callable[[Self], Any]) -> None:
        """Call ``callback`` with this future once it is done, in the producer's own thread, or now if it is done."""
        with self._condition:
            if self._left:
                self._condition.will_call()
                self._callbacks.append(callback)
                return
        call_safely(callback, self)

    def _get_condition(self) -> Outcomes:
        return self._condition

    def _outcome(self) -> tuple[Any, Exception | None]:
        places: list[RecordMetadata] = []
        for chunk in self._chunks:
            for row in range(chunk.num_rows):
                metadata, error = chunk.fate(row)
                if metadata is None:
                    return None, error
                places.append(metadata)
        return places, None


def gather(
    topic: TopicDescription,
    records: Iterable[Any],
    condition: Outcomes,
    *,
    partition: int | None,
    place: Callable[[ProducerRecord], int],
    chunk_bytes: int,
) -> list[Chunk]:
    """Gather records, as ``send_batch`` takes them, into checked chunks of about ``chunk_bytes``.

    ``place`` returns the partition of a record, or -1 if its key or the producer decides. Raises
    ``SchemaMismatchError`` with the record's number.
    """
    checker = RecordChecker(topic.schema) if topic.schema is not None else None
    chunks: list[Chunk] = []
    now_s = time.time()
    for number, item in enumerate(records):
        if not chunks or chunks[-1].size_bytes >= chunk_bytes:
            chunks.append(Chunk(condition))
        try:
            _append(chunks[-1], _record(topic, item, partition, is_typed=checker is not None), checker, place, now_s)
        except SchemaMismatchError as error:
            raise SchemaMismatchError(f"record {number}: {error.message}") from None
    for chunk in chunks:
        chunk.reserved_bytes = chunk.size_bytes
        chunk.close()
    return chunks


def _append(
    chunk: Chunk,
    record: ProducerRecord,
    checker: RecordChecker | None,
    place: Callable[[ProducerRecord], int],
    now_s: float,
) -> None:
    key, value = record.key, record.value
    if checker is not None:
        size_bytes = checker.check(value, key)
    else:
        key, value = as_bytes("key", key), as_bytes("value", value)
        size_bytes = len(value or b"") + len(key or b"")
    partition = place(record)
    row = len(chunk.values)
    if record.timestamp_ms is not None:
        check_timestamp(record.timestamp_ms)
        chunk.stamp(row, record.timestamp_ms)
    elif now_s >= chunk.stamp_until:
        chunk.stamp_now(row, now_s)
    chunk.set_beside(row, key, record.headers, partition)
    chunk.size_bytes += size_bytes + _RECORD_BYTES
    chunk.values.append(value)


def _record(topic: TopicDescription, item: Any, partition: int | None, *, is_typed: bool) -> ProducerRecord:
    if isinstance(item, ProducerRecord):
        return item if item.partition is not None else item._replace(partition=partition)
    if is_typed:
        return ProducerRecord(topic.name, item, partition=partition)
    if isinstance(item, Mapping):
        if unknown := set(item) - _FIELDS:
            raise SchemaMismatchError(
                f"topic {topic.name} is opaque: a dict has {', '.join(sorted(_FIELDS))}, not {sorted(unknown)[0]}"
            )
        return ProducerRecord(
            topic.name,
            item.get("value"),
            item.get("key"),
            as_headers(item.get("headers")),
            item.get("timestamp_ms"),
            partition if item.get("partition") is None else item["partition"],
        )
    if isinstance(item, tuple):
        if len(item) != 2:
            raise SchemaMismatchError(f"a tuple is a key and a value, not {len(item)} elements")
        return ProducerRecord(topic.name, item[1], item[0], partition=partition)
    return ProducerRecord(topic.name, item, partition=partition)
