"""Fetch responses on the wire, with few copies of the records.

protobuf would copy the records twice on each side, into the message and out of it. Here protobuf handles only the
other fields. The writer aligns the records to 8 bytes, so that columnar batches are decoded in place. Tests compare
both directions with the generated class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
from google.protobuf.message import DecodeError

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.protobuf_fields import VARINT, read_fields, read_varint, tag_of, without

_ALIGNMENT_BYTES: Final = 8
SMALL_BYTES: Final = 4096
"""Smaller responses use protobuf, because parsing the fields in Python takes longer than two copies."""
_TOPICS: Final = tag_of(1)
_THROTTLE_TIME_MS: Final = tag_of(2, VARINT)
_SESSION_ID: Final = tag_of(3, VARINT)
_TOPIC_PARTITIONS: Final = tag_of(3)
_RECORDS: Final = tag_of(5)
_PADDING: Final = tag_of(9)
_FRAME_BYTES: Final = 6
"""Size of a tag and a five-byte length. The fixed size allows positions to be computed before lengths are known."""


@dataclass(slots=True)
class PartitionAnswer:
    """Part of a response for one partition.

    ``result`` has no records, because ``records`` holds them.
    """

    result: pb.FetchResponse.PartitionRecords
    records: bytes = b""


@dataclass(slots=True)
class TopicAnswer:
    """A topic's part of a response."""

    name: str
    topic_id: bytes
    partitions: list[PartitionAnswer] = field(default_factory=list)

    def add_partition(self, partition: int) -> PartitionAnswer:
        """Add the part of a partition."""
        answer = PartitionAnswer(pb.FetchResponse.PartitionRecords(partition=partition))
        self.partitions.append(answer)
        return answer


@dataclass(slots=True)
class FetchAnswer:
    """A ``FetchResponse`` under construction."""

    topics: list[TopicAnswer] = field(default_factory=list)
    session_id: int = 0
    throttle_time_ms: int = 0

    def add_topic(self, name: str, topic_id: bytes) -> TopicAnswer:
        """Add the part of a topic."""
        answer = TopicAnswer(name, topic_id)
        self.topics.append(answer)
        return answer

    def SerializeToString(self) -> bytes:  # noqa: N802  the method name of the generated classes
        """Write the response, copying the records once."""
        parts: list[Any] = []
        position = 0
        for topic in self.topics:
            head = pb.FetchResponse.TopicRecords(name=topic.name, topic_id=topic.topic_id).SerializeToString()
            inner: list[Any] = [head]
            start = end = position + _FRAME_BYTES
            end += len(head)
            for partition in topic.partitions:
                pieces, length = _partition_parts(partition, end + _FRAME_BYTES)
                inner += [_frame(_TOPIC_PARTITIONS, length), *pieces]
                end += _FRAME_BYTES + length
            parts += [_frame(_TOPICS, end - start), *inner]
            position = end
        if self.session_id or self.throttle_time_ms:
            rest = pb.FetchResponse(session_id=self.session_id, throttle_time_ms=self.throttle_time_ms)
            parts.append(rest.SerializeToString())
        return b"".join(parts)


def _partition_parts(partition: PartitionAnswer, position: int) -> tuple[list[Any], int]:
    """Return the pieces of a partition's message, which begins at ``position``, and its length."""
    head = partition.result.SerializeToString()
    if not partition.records:
        return [head], len(head)
    unpadded = position + len(head) + 2 + _FRAME_BYTES
    padding = bytes((_PADDING, -unpadded % _ALIGNMENT_BYTES)) + bytes(-unpadded % _ALIGNMENT_BYTES)
    frame = _frame(_RECORDS, len(partition.records))
    return [head, padding, frame, partition.records], len(head) + len(padding) + len(frame) + len(partition.records)


def _frame(tag: int, length: int) -> bytes:
    """Encode tag and length of a field. The length always takes five bytes, which varint readers accept."""
    return bytes(
        (
            tag,
            length & 0x7F | 0x80,
            length >> 7 & 0x7F | 0x80,
            length >> 14 & 0x7F | 0x80,
            length >> 21 & 0x7F | 0x80,
            length >> 28,
        )
    )


class FetchedRecords(NamedTuple):
    """Part of a received response for one partition.

    ``records`` holds the records, so ``result`` need not hold them.
    """

    topic: str
    result: pb.FetchResponse.PartitionRecords
    records: pa.Buffer


def read_fetch_response(data: bytes | memoryview, *, small_bytes: int = SMALL_BYTES) -> Iterator[FetchedRecords]:
    """Read a serialized ``FetchResponse`` by partition; above ``small_bytes`` the records are slices of ``data``.

    Raises ``InvalidRequestError`` for other bytes.
    """
    try:
        if len(data) <= small_bytes:
            for topic in pb.FetchResponse.FromString(bytes(data)).topics:
                for result in topic.partitions:
                    yield FetchedRecords(topic.name, result, pa.py_buffer(result.records))
            return
        view = memoryview(data)
        whole = pa.py_buffer(data)
        for tag, _, start, end in read_fields(view, 0, len(view)):
            if tag == _TOPICS:
                yield from _topic(view, whole, start, end)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the fetch response cannot be parsed: {error}") from error


def read_session_id(data: bytes | memoryview) -> int:
    """Read the fetch session of a serialized ``FetchResponse``; 0 if there is none.

    Raises ``InvalidRequestError`` for other bytes.
    """
    return _read_number(data, _SESSION_ID)


def read_throttle_time_ms(data: bytes | memoryview) -> int:
    """Read for how long a serialized ``FetchResponse`` throttles its client. Raises as ``read_session_id``."""
    return _read_number(data, _THROTTLE_TIME_MS)


def _read_number(data: bytes | memoryview, tag: int) -> int:
    view = memoryview(data)
    for found, _, start, _ in read_fields(view, 0, len(view)):
        if found == tag:
            return read_varint(view, start)[1]
    return 0


def _topic(view: memoryview, whole: pa.Buffer, start: int, end: int) -> Iterator[FetchedRecords]:
    outside, partitions = without(view, start, end, _TOPIC_PARTITIONS)
    name = pb.FetchResponse.TopicRecords.FromString(outside).name
    for first, last in partitions:
        outside, found = without(view, first, last, _RECORDS)
        records_start, records_end = found[-1] if found else (first, first)
        result = pb.FetchResponse.PartitionRecords.FromString(outside)
        yield FetchedRecords(topic=name, result=result, records=whole.slice(records_start, records_end - records_start))
