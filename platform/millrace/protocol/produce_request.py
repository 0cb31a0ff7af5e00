"""Produce requests from the wire, without copies of the records.

protobuf would copy the records twice, into the message and out of it. A test compares the result with the generated
class.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.protobuf_fields import tag_of, without

_TOPICS: Final = tag_of(4)
_TOPIC_PARTITIONS: Final = tag_of(3)
_RECORDS: Final = tag_of(2)
_FIELDS: Final = 16
_FIELD_BYTES: Final = 4 * 1024
"""Bytes of a request for each field more than ``_FIELDS``. With more fields, protobuf is faster in spite of the copies.

The loop over many small fields would also keep the broker from other requests.
"""

Records: TypeAlias = dict[tuple[str, int], memoryview]
"""Records by topic and partition."""


def read_produce_request(data: memoryview) -> tuple[pb.ProduceRequest, Records]:
    """Read a serialized ``ProduceRequest``. Return it without its records, and these as parts of ``data``.

    Small records stay in the request. A partition that is there twice has its last records, so the caller must check
    that there is none.

    Raises ``InvalidRequestError`` for other bytes.
    """
    budget = iter(range(_FIELDS + len(data) // _FIELD_BYTES))
    records: Records = {}
    try:
        outside, topics = without(data, 0, len(data), _TOPICS, budget)
        request = pb.ProduceRequest.FromString(outside)
        for topic_start, topic_end in topics:
            outside, partitions = without(data, topic_start, topic_end, _TOPIC_PARTITIONS, budget)
            topic = request.topics.add()
            topic.MergeFromString(outside)
            for start, end in partitions:
                outside, found = without(data, start, end, _RECORDS, budget)
                partition = topic.partitions.add()
                partition.MergeFromString(outside)
                if found:
                    records[topic.name, partition.partition] = data[slice(*found[-1])]
        if next(budget, None) is None:
            return pb.ProduceRequest.FromString(bytes(data)), {}
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"invalid Produce request: {error}") from None
    return request, records
