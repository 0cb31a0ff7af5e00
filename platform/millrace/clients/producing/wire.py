"""Encoder of produce requests that copies the records once.

protobuf would copy each batch twice, into the message and out of it. The fields are those of ``millrace.proto``'s
``ProduceRequest``; a test compares this writer with the generated class.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from millrace.records import HEADER_BYTES, checksum

_TRANSACTIONAL_ID: Final = 1 << 3 | 2
_ACKS: Final = 2 << 3
_TIMEOUT_MS: Final = 3 << 3
_TOPICS: Final = 4 << 3 | 2
_COORDINATOR_KEY: Final = 5 << 3 | 2
_TOPIC_NAME: Final = 1 << 3 | 2
_TOPIC_PARTITIONS: Final = 3 << 3 | 2
_PARTITION: Final = 1 << 3
_RECORDS: Final = 2 << 3 | 2

_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_POSITION: Final = 43
_ATTRIBUTES_POSITION: Final = 22
"""Position of the lower attribute byte, whose bit 4 marks a batch of a transaction."""
_TRANSACTIONAL_BIT: Final = 0x10
_CRC_POSITION: Final = 17
_CHECKED_FROM: Final = 21


class ProducerStamp(NamedTuple):
    """Producer id, epoch and base sequence of a batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool = False


def stamped_parts(batch: bytes, stamp: ProducerStamp | None) -> list[Any]:
    """Return a batch as pieces that, joined, carry the stamp and a valid checksum; its body is not copied."""
    header = bytearray(batch[:HEADER_BYTES])
    if stamp is not None:
        _PRODUCER.pack_into(header, _PRODUCER_POSITION, stamp.producer_id, stamp.producer_epoch, stamp.base_sequence)
        if stamp.is_transactional:
            header[_ATTRIBUTES_POSITION] |= _TRANSACTIONAL_BIT
    body = pa.py_buffer(batch).slice(HEADER_BYTES)
    struct.pack_into(">I", header, _CRC_POSITION, checksum(bytes(header[_CHECKED_FROM:]), body))
    return [bytes(header), memoryview(batch)[HEADER_BYTES:]]


def encode_produce_request(
    acks: int,
    timeout_ms: int,
    topics: Iterable[tuple[str, Iterable[tuple[int, Sequence[Any]]]]],
    *,
    transactional_id: str = "",
    coordinator_key: str = "",
) -> bytes:
    """Encode a request from topics with partitions, each with the pieces of its records."""
    parts: list[Any] = [
        _text_field(_TRANSACTIONAL_ID, transactional_id),
        _varint_field(_ACKS, acks << 1 ^ acks >> 31),
        _varint_field(_TIMEOUT_MS, timeout_ms),
        _text_field(_COORDINATOR_KEY, coordinator_key),
    ]
    for name, partitions in topics:
        encoded_name = name.encode()
        inner: list[Any] = [_varint_field(_TOPIC_NAME, len(encoded_name)), encoded_name]
        inner_length = len(inner[0]) + len(encoded_name)
        for partition, records in partitions:
            records_length = sum(len(piece) for piece in records)
            head = _varint_field(_PARTITION, partition) + _varint_field(_RECORDS, records_length)
            frame = _varint_field(_TOPIC_PARTITIONS, len(head) + records_length) + head
            inner.append(frame)
            inner.extend(records)
            inner_length += len(frame) + records_length
        parts.append(_varint_field(_TOPICS, inner_length))
        parts.extend(inner)
    return b"".join(parts)


def _text_field(tag: int, text: str) -> bytes:
    """Encode a string field; an empty string is omitted."""
    encoded = text.encode()
    return _varint_field(tag, len(encoded)) + encoded if encoded else b""


def _varint_field(tag: int, value: int) -> bytes:
    """Encode a tag (below 128) and an unsigned varint: a number, or the length of the following bytes."""
    if 0 <= value <= 0x7F:
        return bytes((tag, value))
    encoded = bytearray((tag,))
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
