"""Fuzz tests of Kafka requests.

The tests change headers and messages of the hot calls, and of the calls that are accepted before authentication.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any, Final, cast
from uuid import UUID

import pytest

from millrace.config.broker import BrokerConfig
from millrace.errors import InvalidRequestError, MessageTooLargeError
from millrace.kafka_protocol.calls.table import ApiKey
from millrace.kafka_protocol.data.request_header import RequestHeader
from millrace.kafka_protocol.fields import Field
from millrace.kafka_protocol.lookup import request_class, request_header_version
from millrace.kafka_protocol.message import Message
from millrace.protocol.frames import HEAD_BYTES, read_client_id, read_head
from millrace.records import Record, build_rows_batch
from millrace_broker.api import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.kafka_api import KafkaState, kafka_calls

from .mutation import fuzz, mutated

HOT: Final = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.API_VERSIONS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.SHARE_FETCH,
    ApiKey.SHARE_ACKNOWLEDGE,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
)
_CALLS: Final = kafka_calls(KafkaState(BrokerConfig.load({})))
_REQUEST_BYTES_MAX: Final = 2**20
_VALUES: Final = {
    "bool": True,
    "int8": 1,
    "int16": 1,
    "uint16": 1,
    "int32": 70_000,
    "int64": 2**33,
    "float64": 0.5,
    "uuid": UUID(int=2**100),
    "string": "some-name",
    "bytes": b"some bytes",
    "records": build_rows_batch([Record(key=b"k", value=b"v" * 70, timestamp_ms=5)]),
}


def _value(field: Field, version: int) -> Any:
    """Return a value of a field; two of an array."""
    layout = field.layout
    one = _sample(layout.element, version) if layout.element is not None else _VALUES[layout.kind]
    return (one, one) if layout.is_array else one


def _sample(cls: type[Message], version: int) -> Message:
    """Return a message with values in all fields of a version."""
    message = cls.of_defaults()
    for field in cls.FIELDS:
        if version in field.layout.versions:
            setattr(message, field.name, _value(field, version))
    return message


def _written(key: int, version: int) -> bytes:
    header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=1, client_id="app")
    data = header.encode(request_header_version(key, version)) + _sample(request_class(key), version).encode(version)
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize("key", HOT, ids=lambda key: key.name.lower())
def test_a_damaged_request_of_a_hot_call_is_read_or_refused(key: ApiKey) -> None:
    samples = [_written(key, version) for version in _CALLS[key].versions]

    def decode(random: Random) -> None:
        data = memoryview(bytes(mutated(random, samples)))
        if len(data) < HEAD_BYTES:
            raise InvalidRequestError("the listener waits for the rest of the head")
        head = read_head(data)
        call = _CALLS.get(head.api_key)
        if call is None or head.rest_bytes > _REQUEST_BYTES_MAX:
            raise MessageTooLargeError("the listener closes the connection")
        content = data[HEAD_BYTES : HEAD_BYTES + head.rest_bytes]
        _, position = read_client_id(content)
        work, _ = call.begin(cast(Broker, None), head, content, position, cast(RequestContext, None))
        work.close()

    decode.__name__ = f"decode_{key.name.lower()}"
    fuzz(decode)
