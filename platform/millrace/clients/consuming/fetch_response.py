"""Fetch responses off the wire, with the records left where they are.

protobuf would copy the records twice, out of the message and out of its own memory. Here only what stands beside them
is given to protobuf; the records are slices of the response. A test holds this reader against the generated class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb

_TOPICS: Final = 1
_TOPIC_NAME: Final = 1
_TOPIC_PARTITIONS: Final = 3
_RECORDS: Final = 5
_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """One partition's part of a response: ``result`` without its records, and these."""

    topic: str
    result: pb.FetchResponse.PartitionRecords
    records: pa.Buffer


def read_fetch_response(data: bytes) -> Iterator[FetchedRecords]:
    """Read a serialized ``FetchResponse``, partition by partition. Raises ``InvalidRequestError`` for other bytes."""
    view = memoryview(data)
    whole = pa.py_buffer(data)
    for number, start, end in _fields(view, 0, len(view)):
        if number == _TOPICS:
            yield from _topic(view, whole, start, end)


def _topic(view: memoryview, whole: pa.Buffer, start: int, end: int) -> Iterator[FetchedRecords]:
    name = ""
    partitions = []
    for number, first, last in _fields(view, start, end):
        if number == _TOPIC_NAME:
            name = str(view[first:last], "utf-8")
        elif number == _TOPIC_PARTITIONS:
            partitions.append((first, last))
    for first, last in partitions:
        records = whole.slice(0, 0)
        beside = bytearray()
        copied_to = first
        for number, value_start, value_end in _fields(view, first, last):
            if number == _RECORDS:
                records = whole.slice(value_start, value_end - value_start)
                # Tag and length stand before the value; the field begins where the one before it ended.
                beside += view[copied_to : _field_start(view, copied_to, value_start)]
                copied_to = value_end
        beside += view[copied_to:last]
        result = pb.FetchResponse.PartitionRecords.FromString(bytes(beside))
        yield FetchedRecords(topic=name, result=result, records=records)


def _field_start(view: memoryview, start: int, value_start: int) -> int:
    """Where the field begins whose value begins at ``value_start``; the fields from ``start`` on are whole."""
    position = start
    while True:
        after_tag, tag = _varint(view, position)
        kind = tag & 7
        if kind == _LENGTH:
            after_length, length = _varint(view, after_tag)
            if after_length == value_start:
                return position
            position = after_length + length
        else:
            position = _after_number(view, after_tag, kind)


def _fields(view: memoryview, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number and span of each field with a length; numbers are passed over."""
    while position < end:
        position, tag = _varint(view, position)
        kind = tag & 7
        if kind == _LENGTH:
            start, length = _varint(view, position)
            position = start + length
            if position > end:
                raise InvalidRequestError(f"a fetch response ends at {end}, and a field of it at {position}")
            yield tag >> 3, start, position
        else:
            position = _after_number(view, position, kind)


def _after_number(view: memoryview, position: int, kind: int) -> int:
    if kind == _VARINT:
        return _varint(view, position)[0]
    if kind == _FIXED64:
        return position + 8
    if kind == _FIXED32:
        return position + 4
    raise InvalidRequestError(f"a fetch response has a field of kind {kind} at {position}")


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(view) or shift > 63:
            raise InvalidRequestError(f"a fetch response has no number at {position}")
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return position, value
        shift += 7
