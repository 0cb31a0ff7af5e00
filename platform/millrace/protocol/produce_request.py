"""Produce requests from the wire, without copies of the records.

protobuf would copy the records twice, into the message and out of it. A test compares the result with the generated
class.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.protobuf_fields import read_fields

_TOPICS: Final = 4
_TOPIC_PARTITIONS: Final = 3
_RECORDS: Final = 2
_PARTITION_BYTES_MIN: Final = 16 * 1024
"""With fewer bytes for each partition on average, protobuf is faster in spite of the copies."""

Records: TypeAlias = dict[tuple[str, int], memoryview]
"""Records by topic and partition."""


def read_produce_request(data: memoryview) -> tuple[pb.ProduceRequest, Records]:
    """Read a serialized ``ProduceRequest``. Return it without its records, and these as parts of ``data``.

    Small records stay in the request. A partition that is there twice has its last records, so the caller must check
    that there is none.

    Raises ``InvalidRequestError`` for other bytes.
    """
    try:
        outside, topics = _without(data, 0, len(data), _TOPICS)
        request = pb.ProduceRequest.FromString(outside)
        split = [_without(data, start, end, _TOPIC_PARTITIONS) for start, end in topics]
        if len(data) < _PARTITION_BYTES_MIN * sum(len(partitions) for _, partitions in split):
            return pb.ProduceRequest.FromString(bytes(data)), {}
        records: Records = {}
        for outside, partitions in split:
            topic = request.topics.add()
            topic.MergeFromString(outside)
            for start, end in partitions:
                outside, found = _without(data, start, end, _RECORDS)
                partition = topic.partitions.add()
                partition.MergeFromString(outside)
                if found:
                    records[topic.name, partition.partition] = data[slice(*found[-1])]
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"invalid Produce request: {error}") from None
    return request, records


def _without(view: memoryview, start: int, end: int, number: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Return a message without the fields of a number, and where the values of these are."""
    outside, spans, copied_to = bytearray(), [], start
    for found, field_start, value_start, value_end in read_fields(view, start, end):
        if found == number:
            outside += view[copied_to:field_start]
            copied_to = value_end
            spans.append((value_start, value_end))
    outside += view[copied_to:end]
    return bytes(outside), spans
