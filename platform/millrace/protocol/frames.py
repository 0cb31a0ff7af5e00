"""Calls of millrace in Kafka's framing (docs/design/0042).

Each call is a protobuf message under an API key of its own. All numbers are big-endian. Each call begins as a call of
Kafka does, with a request header of version 1::

    request  = length (int32) API key (int16) API version (int16) correlation id (int32)
               client id (int16 length, -1: null, UTF-8) deadline in ms (uint32, 0: none) message
    response = length (int32) correlation id (int32) error (int16) message, or the error's text in UTF-8

A length counts the bytes after it. Errors are numbered as in ``millrace.errors``; 0 is success. The first call of a
connection is ``HELLO``, with the correlation id ``HELLO_ID``: its request is a ``HelloRequest``, its response a
``HelloResponse``. The API version of all calls is ``VERSION``, the version of this format.

Requests of a connection are answered in their order. A response with the correlation id ``GOODBYE_ID`` answers none of
them. It announces that the broker will answer no further request on this connection. The broker has not started any
unanswered request, so the client may send such a request elsewhere.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from millrace.errors import InvalidRequestError, UnsupportedVersionError

VERSION: Final = 1
"""API version of all calls in this format."""
HELLO: Final = 20_000
"""API key of the first call of a connection."""
OWN_KEYS_MIN: Final = HELLO
"""Smallest API key of millrace. Kafka numbers its calls from 0."""
HELLO_ID: Final = int.from_bytes(b"mill")
"""Correlation id of ``HELLO``. No other protocol's first bytes have it by chance, as gRPC's have 0."""
GOODBYE_ID: Final = -1

_HEAD: Final = Struct(">ihhi")
_REQUEST: Final = Struct(">ihhihI")
_REST: Final = Struct(">I")
_RESPONSE: Final = Struct(">iih")
_CLIENT_ID: Final = Struct(">h")

HEAD_BYTES: Final = _HEAD.size
"""Part of a request that all calls have: length, API key, API version, correlation id."""
REQUEST_HEAD_BYTES: Final = _REQUEST.size
"""Size of the head that ``request_head`` writes."""
RESPONSE_HEAD_BYTES: Final = _RESPONSE.size
_LENGTH_BYTES: Final = 4
_LENGTH_MAX: Final = 2**31 - 1
_DEADLINE_MS_MAX: Final = 2**32 - 1
_NULL: Final = -1

_CALLS: Final = (
    # The place of a call is its API key. Append new calls, and leave the places of removed ones.
    "ApiVersions",
    "Metadata",
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "DescribeConfigs",
    "AlterConfigs",
    "EvolveSchema",
    "GetSchemas",
    "RegisterPayloadSchemas",
    "GetPayloadSchemas",
    "DeletePayloadSchemas",
    "InitProducerId",
    "Produce",
    "Fetch",
    "ListOffsets",
    "OffsetForLeaderEpoch",
    "DeleteRecords",
    "LocateRange",
    "FindCoordinator",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "JoinCommit",
    "CommitTransactions",
    "AbortCommit",
    "WriteTxnMarkers",
    "ListTransactions",
    "DescribeTransactions",
    "DescribeProducers",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "LeaveGroup",
    "OffsetCommit",
    "TxnOffsetCommit",
    "OffsetFetch",
    "OffsetDelete",
    "ListGroups",
    "DescribeGroups",
    "DeleteGroups",
    "ShareGroupHeartbeat",
    "ShareFetch",
    "ShareAcknowledge",
    "DescribeShareGroupOffsets",
    "AlterShareGroupOffsets",
    "DeleteShareGroupOffsets",
    "ElectLeaders",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "LeaderAndIsr",
    "StopReplica",
    "UpdateMetadata",
    "AlterPartition",
    "ControlledShutdown",
    "ReadRangeChunk",
    "DescribeAcls",
    "CreateAcls",
    "DeleteAcls",
    "DescribeClientQuotas",
    "AlterClientQuotas",
)
API_KEYS: Final = {name: HELLO + 1 + place for place, name in enumerate(_CALLS)}
"""API keys by the names of the calls in the service ``Broker``."""


class Kind(IntEnum):
    """Kind of a response."""

    ANSWER = 0
    GOODBYE = 1


class Head(NamedTuple):
    """Start of a request of any call. ``rest_bytes`` is the size of what follows it."""

    api_key: int
    api_version: int
    correlation_id: int
    rest_bytes: int


class ResponseHead(NamedTuple):
    """Head of a response.

    ``error`` is the number of the error; 0 means none. ``body_bytes`` is the size of the body.
    """

    kind: Kind
    error: int
    body_bytes: int


def request_head(
    api_key: int, message_bytes: int, deadline_ms: int = 0, *, correlation_id: int = 0, version: int = VERSION
) -> bytes:
    """Write the head of a request of millrace. A deadline beyond the field's range becomes its maximum.

    Raises ``ValueError`` for a message that is too long for any request.
    """
    rest_bytes = REQUEST_HEAD_BYTES - _LENGTH_BYTES + message_bytes
    if rest_bytes > _LENGTH_MAX:
        raise ValueError(f"a message of {message_bytes} bytes does not fit into a request")
    deadline_ms = min(max(deadline_ms, 0), _DEADLINE_MS_MAX)
    return _REQUEST.pack(rest_bytes, api_key, version, correlation_id, _NULL, deadline_ms)


def hello_request(message: bytes) -> bytes:
    """Write the first request of a connection. ``message`` is an encoded ``HelloRequest``."""
    return request_head(HELLO, len(message), correlation_id=HELLO_ID) + message


def read_head(data: bytes | bytearray | memoryview, position: int = 0) -> Head:
    """Read the start of a request of any call. Raises ``InvalidRequestError`` for an impossible length."""
    length, api_key, api_version, correlation_id = _HEAD.unpack_from(data, position)
    rest_bytes = length - (HEAD_BYTES - _LENGTH_BYTES)
    if rest_bytes < 0:
        raise InvalidRequestError(f"a request of {length} bytes cannot hold a header")
    return Head(api_key, api_version, correlation_id, rest_bytes)


def read_client_id(rest: bytes | bytearray | memoryview) -> tuple[str | None, int]:
    """Read the client id, which follows the ``Head`` of a request of any call: (client id, position after it).

    Raises ``InvalidRequestError`` if the request ends before.
    """
    if len(rest) < _CLIENT_ID.size:
        raise InvalidRequestError(f"a request ends after {len(rest)} bytes of its client id")
    length = _CLIENT_ID.unpack_from(rest)[0]
    if length < 0:
        return None, _CLIENT_ID.size
    position = _CLIENT_ID.size + length
    if len(rest) < position:
        raise InvalidRequestError(f"a request of {len(rest)} bytes ends before its client id does, at {position}")
    return str(rest[_CLIENT_ID.size : position], "utf-8", "replace"), position


def has_client_id(rest: bytes | bytearray | memoryview) -> bool:
    """Return whether the whole client id has arrived, which follows the ``Head`` of a request."""
    return len(rest) >= _CLIENT_ID.size and len(rest) >= _CLIENT_ID.size + _CLIENT_ID.unpack_from(rest)[0]


def read_rest(rest: bytes | bytearray | memoryview, position: int) -> tuple[int, memoryview]:
    """Read the part of a request of millrace after its client id: (deadline in ms, message).

    Raises ``InvalidRequestError`` if it is too short.
    """
    view = memoryview(rest)
    if len(view) < position + _REST.size:
        raise InvalidRequestError(f"a request of {len(view)} bytes ends before its message at {position + _REST.size}")
    return _REST.unpack_from(view, position)[0], view[position + _REST.size :]


def goodbye(reason: str) -> bytes:
    """Write the message that the broker answers no further request of a connection."""
    text = reason.encode()
    return response_head(len(text), 0, Kind.GOODBYE) + text


def check_version(version: int) -> None:
    """Raise ``UnsupportedVersionError`` for another version of the format."""
    if version != VERSION:
        raise UnsupportedVersionError(
            f"calls of millrace have version {version} there and {VERSION} here: update the older side"
        )


def response_head(body_bytes: int, error: int = 0, kind: Kind = Kind.ANSWER, *, correlation_id: int = 0) -> bytes:
    """Write the head of a response or of an error's text."""
    if kind is Kind.GOODBYE:
        correlation_id = GOODBYE_ID
    return _RESPONSE.pack(RESPONSE_HEAD_BYTES - _LENGTH_BYTES + body_bytes, correlation_id, error)


def read_response_head(data: bytes | bytearray | memoryview, correlation_id: int = 0) -> ResponseHead:
    """Read the head of the response to a request. Raises ``InvalidRequestError`` if it is none."""
    length, answered_id, error = _RESPONSE.unpack_from(data)
    body_bytes = length - (RESPONSE_HEAD_BYTES - _LENGTH_BYTES)
    if body_bytes < 0 or answered_id not in (correlation_id, GOODBYE_ID):
        raise InvalidRequestError(
            f"{bytes(data[:RESPONSE_HEAD_BYTES])!r} is not the beginning of a response of millrace to request "
            f"{correlation_id}: is this a listener of another protocol?"
        )
    return ResponseHead(Kind.GOODBYE if answered_id == GOODBYE_ID else Kind.ANSWER, error, body_bytes)
