"""Tests of messages.

The tests cover versions, tagged fields, null, views of records and refusals.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import InvalidRecordError, UnsupportedVersionError
from millrace.kafka_protocol import InvalidFieldError, MalformedMessageError, message, of
from millrace.kafka_protocol.calls.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from millrace.kafka_protocol.calls.alter_user_scram_credentials import ScramCredentialUpsertion
from millrace.kafka_protocol.calls.api_versions import ApiVersionsRequest
from millrace.kafka_protocol.calls.describe_topic_partitions import DescribeTopicPartitionsResponse
from millrace.kafka_protocol.calls.expire_delegation_token import ExpireDelegationTokenRequest
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from millrace.kafka_protocol.calls.incremental_alter_configs import AlterableConfig, AlterConfigsResource
from millrace.kafka_protocol.calls.metadata import MetadataRequest
from millrace.kafka_protocol.calls.offset_fetch import OffsetFetchRequest
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.kafka_protocol.calls.sasl_authenticate import SaslAuthenticateRequest
from millrace.kafka_protocol.data.request_header import RequestHeader
from millrace.kafka_protocol.data.response_header import ResponseHeader
from millrace.kafka_protocol.message import Message

from .examples import VALUES, fields_in, full_message, made, message_classes, versions_of


@message()
class Inner(Message):
    """A structure with a new field."""

    number: int = of("int32")
    added: str = of("string", versions="2+", default="-")


@message(versions="0-3", flexible="2+")
class Outer(Message):
    """A message with every kind of field that definitions allow."""

    name: str | None = of("string", nullable="1+")
    numbers: tuple[int, ...] | None = of("[]int16", versions="0-2", nullable="0+", default=None)
    inner: Inner | None = of("struct", versions="1+", nullable="1+", element=Inner, default=None)
    note: str = of("string", versions="1+", ignorable=True, default="")
    late: int = of("int64", versions="2+", tag=3, tagged="3+", default=-1)
    many: tuple[Inner, ...] = of("[]struct", versions="3+", tag=7, tagged="3+", element=Inner, default=())
    ids: tuple[UUID, ...] = of("[]uuid", versions="3+", default=())


def produce(records: bytes | memoryview | None, topic: str = "t") -> ProduceRequest:
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=7, records=records),))
    return ProduceRequest(acks=-1, timeout_ms=30000, topic_data=(data,))


@st.composite
def messages(draw: st.DrawFn, cls: type[Message], version: int) -> Message:
    values: dict[str, Any] = {}
    for field in fields_in(cls, version):
        layout = field.layout
        one = messages(layout.element, version) if layout.element else VALUES[layout.kind]
        value = st.lists(one, max_size=3).map(tuple) if layout.is_array else one
        values[field.name] = draw(st.none() | value if version in layout.nullable else value)
    return made(cls, values)


@given(st.data(), st.integers(0, 3))
def test_a_message_survives_in_each_version(data: st.DataObject, version: int) -> None:
    drawn = data.draw(messages(Outer, version))
    encoded = drawn.encode(version)
    assert Outer.decode(encoded, version) == drawn
    assert Outer.decode_from(b"head" + encoded + b"tail", version, 4) == (drawn, 4 + len(encoded))


@settings(max_examples=20)
@given(st.data())
def test_each_record_of_the_coordinators_survives(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from([cls for cls in message_classes() if cls.__name__.endswith(("Key", "Value"))]))
    for version in versions_of(cls):
        drawn = data.draw(messages(cls, version))
        assert cls.decode(drawn.encode(version), version) == drawn


def test_a_full_message_of_each_version_survives() -> None:
    for cls in message_classes():
        for version in versions_of(cls):
            full = full_message(cls, version)
            assert cls.decode(full.encode(version), version) == full, f"{cls.__name__} {version}"


def test_bytes_of_each_encoding() -> None:
    inner = Inner(number=258, added="ab")
    assert Outer(name="n", numbers=(1, -1)).encode(0) == b"\0\1n" + b"\0\0\0\2" + b"\0\1\xff\xff"
    assert Outer(name=None, inner=Inner(number=1)).encode(1) == (
        b"\xff\xff" + b"\xff\xff\xff\xff" + b"\1\0\0\0\1" + b"\0\0"
    )
    assert Outer(name=None, note="x", late=5, inner=inner).encode(2) == (
        b"\0" + b"\0" + b"\1\0\0\1\2\3ab\0" + b"\2x" + b"\0\0\0\0\0\0\0\5" + b"\0"
    )
    assert Outer(name="n", many=(inner,), late=5).encode(3) == (
        b"\2n" + b"\xff" + b"\1" + b"\1" + b"\2" + b"\3\x08\0\0\0\0\0\0\0\5" + b"\7\x09\2\0\0\1\2\3ab\0"
    )


def test_the_client_id_of_a_header_has_a_plain_length_in_each_version() -> None:
    header = RequestHeader(request_api_key=18, request_api_version=4, correlation_id=7, client_id="me")
    assert header.encode(2) == b"\0\x12\0\4\0\0\0\7\0\2me\0"
    assert header.encode(1) == header.encode(2)[:-1]
    assert RequestHeader.decode(b"\0\x12\0\4\0\0\0\7\xff\xff\0", 2).client_id is None


def test_records_are_views_of_the_request() -> None:
    data = produce(b"records").encode(9)
    records = ProduceRequest.decode(data, 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is data
    assert records == b"records"


def test_large_records_are_not_copied_into_a_part() -> None:
    records = bytes(100_000)
    parts = produce(records).encode_parts(9)
    assert len(parts) == 3
    assert parts[1] is records
    assert b"".join(parts) == produce(records).encode(9)


def test_lengths_of_more_than_a_byte() -> None:
    for size in (126, 127, 128, 16382, 16383, 16384, 32767):
        request = produce(bytes(size), "t" * size)
        for version in (8, 12):
            assert ProduceRequest.decode(request.encode(version), version) == request


def test_unknown_tagged_fields_are_kept_and_written_again() -> None:
    data = ResponseHeader(correlation_id=1).encode(1)[:-1] + b"\2" + b"\5\1x" + b"\x81\1\0"
    header = ResponseHeader.decode(data, 1)
    assert header.unknown_tagged_fields == ((5, b"x"), (129, b""))
    assert header.encode(1) == data
    with pytest.raises(UnsupportedVersionError, match="unknown_tagged_fields"):
        header.encode(0)


def test_unknown_tagged_fields_stand_between_known_ones() -> None:
    data = Outer(name="n", late=5).encode(3)
    mixed = data[: data.index(b"\1\3\x08")] + b"\3" + b"\1\1a" + b"\3\x08" + (5).to_bytes(8, "big") + b"\x09\1b"
    read = Outer.decode(mixed, 3)
    assert (read.late, read.unknown_tagged_fields) == (5, ((1, b"a"), (9, b"b")))
    assert read.encode(3) == mixed


@pytest.mark.parametrize("unknown", [((3, b""),), ((9, b""), (8, b""))])
def test_unknown_tagged_fields_that_cannot_be_are_not_written(unknown: tuple[tuple[int, bytes], ...]) -> None:
    with pytest.raises(InvalidFieldError, match="unknown_tagged_fields"):
        Outer(name="n", unknown_tagged_fields=unknown).encode(3)


def test_a_field_that_the_version_lacks_must_have_its_default() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"Outer of version 0 has no field inner"):
        Outer(name="n", inner=Inner(number=1)).encode(0)
    with pytest.raises(UnsupportedVersionError, match=r"has no field inner\.added"):
        Outer(name="n", inner=Inner(number=1, added="x")).encode(1)
    state = ReplicaState(replica_id=1, replica_epoch=2)
    with pytest.raises(UnsupportedVersionError, match="replica_state"):
        FetchRequest(max_wait_ms=0, min_bytes=1, topics=(), replica_state=state).encode(14)
    with pytest.raises(UnsupportedVersionError, match="include_topic_authorized_operations"):
        MetadataRequest(topics=(), include_topic_authorized_operations=True).encode(7)


def test_an_ignorable_field_is_left_out_where_the_version_lacks_it() -> None:
    assert Outer(name="n", note="x").encode(0) == Outer(name="n").encode(0)
    topic = FetchTopic(
        topic="t",
        topic_id=UUID(int=5),
        partitions=(FetchPartition(partition=1, fetch_offset=2, partition_max_bytes=3),),
    )
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=(topic,))
    assert FetchRequest.decode(request.encode(12), 12).topics[0].topic_id == UUID(int=0)
    assert FetchRequest.decode(request.encode(13), 13).topics[0].topic == ""


def test_a_field_that_the_version_lacks_is_read_as_its_default() -> None:
    read = Outer.decode(Outer(name="n").encode(0), 0)
    assert read == Outer(name="n", numbers=None, inner=None, note="", late=-1, many=(), ids=())


def test_a_null_array_differs_from_an_empty_one() -> None:
    assert OffsetFetchRequest(group_id="g", topics=None).encode(2) == b"\0\1g\xff\xff\xff\xff"
    assert OffsetFetchRequest.decode(b"\0\1g\xff\xff\xff\xff", 2).topics is None
    assert OffsetFetchRequest.decode(b"\0\1g\0\0\0\0", 2).topics == ()


def test_a_null_structure_is_one_byte() -> None:
    response = DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=(), next_cursor=None)
    assert response.encode(0) == b"\0\0\0\0\1\xff\0"
    assert DescribeTopicPartitionsResponse.decode(response.encode(0), 0) == response


def test_invalid_utf8_is_read_as_replacement_characters() -> None:
    assert RequestHeader.decode(b"\0\0\0\0\0\0\0\0\0\2\xffa", 1).client_id == "�a"


@pytest.mark.parametrize(
    ("request_", "version", "field", "reason"),
    [
        (produce(b"", None), 9, r"topic_data\[0\]\.name", "null, but the field is not nullable"),  # type: ignore[arg-type]
        (produce("text"), 9, r"topic_data\[0\]\.partition_data\[0\]\.records", "expected bytes, found str"),  # type: ignore[arg-type]
        (produce(b"", "t" * 32768), 9, r"topic_data\[0\]\.name", "a string of 32768 bytes, but at most 32767"),
        (produce(b"", "t" * 32768), 3, r"topic_data\[0\]\.name", "a string of 32768 bytes, but at most 32767"),
        (produce(b"", "\ud800"), 9, r"topic_data\[0\]\.name", "surrogates not allowed"),
        (ProduceRequest(acks=1, timeout_ms=2**31, topic_data=()), 9, "timeout_ms", "2147483648 is not a valid int32"),
        (ProduceRequest(acks="1", timeout_ms=1, topic_data=()), 3, "acks", "'1' is not a valid int16"),  # type: ignore[arg-type]
        (Outer(name=None), 0, "name", "null, but the field is not nullable"),
        (Outer(name="", numbers=(1, 2**15)), 0, "numbers", "format requires"),
        (Outer(name="", ids=("x",)), 3, r"ids\[0\]", "bytes"),  # type: ignore[arg-type]
        (Outer(name="", late="x"), 3, "late", "'x' is not a valid int64"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_cannot_be_written_is_refused(request_: Message, version: int, field: str, reason: str) -> None:
    with pytest.raises(InvalidFieldError, match=rf"of version {version}, field {field}: .*{reason}") as refused:
        request_.encode(version)
    assert isinstance(refused.value, InvalidRecordError)
    assert refused.value.message_name == type(request_).__name__


@pytest.mark.parametrize("version", [-1, 2, 14])
def test_an_unknown_version_is_refused(version: int) -> None:
    with pytest.raises(
        UnsupportedVersionError, match=rf"ProduceRequest has no version {version}: the versions are 3 to 13"
    ):
        ProduceRequest.decode(b"", version)
    with pytest.raises(UnsupportedVersionError):
        produce(b"").encode(version)


def test_messages_are_compared_and_hashed_by_value() -> None:
    assert produce(b"x") == produce(memoryview(b"x"))
    assert hash(produce(b"x")) == hash(produce(b"x"))
    assert dataclasses.replace(produce(b"x"), acks=0) != produce(b"x")
    assert "unknown_tagged_fields" not in repr(ApiVersionsRequest())


@pytest.mark.parametrize(
    "secret",
    [
        SaslAuthenticateRequest(auth_bytes=b"hunter2"),
        ExpireDelegationTokenRequest(hmac=b"hunter2", expiry_time_period_ms=1),
        ScramCredentialUpsertion(name="a", mechanism=1, iterations=1, salt=b"hunter2", salted_password=b"hunter2"),
        AlterConfigsResource(
            resource_type=4,
            resource_name="1",
            configs=(AlterableConfig(name="ssl.keystore.password", config_operation=0, value="hunter2"),),
        ),
    ],
)
def test_text_of_a_message_hides_secrets(secret: Message) -> None:
    assert "hunter2" not in repr(secret)
    assert "(hidden)" in repr(secret)


@pytest.mark.parametrize("value", [0.5, -math.inf])
def test_a_float64_survives(value: float) -> None:
    operation = OpData(key="k", value=value, remove=False)
    entity = AlterClientQuotasRequestEntityData(entity_type="user", entity_name=None)
    entry = AlterClientQuotasRequestEntryData(entity=(entity,), ops=(operation,))
    request = AlterClientQuotasRequest(entries=(entry,), validate_only=True)
    assert AlterClientQuotasRequest.decode(request.encode(1), 1) == request


def test_json_has_kafkas_names() -> None:
    outer = Outer(name="n", inner=Inner(number=1), ids=(UUID(int=0),))
    assert outer.to_json(3) == {
        "name": "n",
        "inner": {"number": 1, "added": "-"},
        "note": "",
        "ids": ["AAAAAAAAAAAAAAAAAAAAAA"],
    }
    assert produce(b"x").to_json(3)["topicData"][0]["partitionData"] == [{"index": 7, "records": "eA=="}]


def test_malformed_messages_are_invalid_records() -> None:
    with pytest.raises(InvalidRecordError):
        Outer.decode(b"", 0)
    assert issubclass(MalformedMessageError, InvalidRecordError)
