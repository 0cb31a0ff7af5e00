"""Tests of damaged bytes.

Decoding ends in a typed error and takes no more memory than the bytes justify.
"""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest

from millrace.kafka_protocol import MalformedMessageError
from millrace.kafka_protocol.calls.fetch import FetchRequest, FetchResponse
from millrace.kafka_protocol.calls.list_transactions import ListTransactionsRequest
from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataResponse
from millrace.kafka_protocol.calls.offset_commit import OffsetCommitRequest
from millrace.kafka_protocol.calls.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millrace.kafka_protocol.calls.produce import ProduceRequest
from millrace.kafka_protocol.data.response_header import ResponseHeader
from millrace.kafka_protocol.message import Message

from .examples import full_message, message_classes, versions_of

HOT = [ProduceRequest, FetchRequest, FetchResponse, MetadataRequest, MetadataResponse, OffsetCommitRequest]
OBJECT_BYTES_MAX = 400
"""A structure of a few bytes becomes an object with a slot for each field, in a tuple."""


@pytest.mark.parametrize("cls", [pytest.param(cls, id=cls.__name__) for cls in message_classes()])
def test_a_message_that_is_cut_short_is_refused(cls: type[Message]) -> None:
    for version in versions_of(cls):
        data = full_message(cls, version).encode(version)
        for size in range(len(data)):
            with pytest.raises(MalformedMessageError) as refused:
                cls.decode(data[:size], version)
            assert 0 <= refused.value.position <= size
            assert (refused.value.message_name, refused.value.version) == (cls.__name__, version)


def test_the_error_names_the_field_and_its_position() -> None:
    data = full_message(ProduceRequest, 9).encode(9)
    tags = b"\0\0\0"
    field, at = "topic_data[1].partition_data[1].records", data.rindex(b"records" + tags)
    with pytest.raises(MalformedMessageError) as refused:
        ProduceRequest.decode(data[: at + 6], 9)
    assert (refused.value.field, refused.value.position) == (field, at)
    assert refused.value.message == (
        f"ProduceRequest of version 9, field {field}, at byte {at}: 7 bytes wanted, but only 6 bytes are left"
    )


@pytest.mark.parametrize(
    ("data", "version", "field", "position", "reason"),
    [
        # transactional_id
        (b"\xff\xfe", 3, "transactional_id", 2, "a length of -2"),
        (b"\x7f\xff", 3, "transactional_id", 2, "32767 bytes wanted, but only 0 bytes are left"),
        (b"\xff\xff\x03" + bytes(40000), 9, "transactional_id", 3, "a string of 65534 bytes, but at most 32767"),
        (b"\xff\xff\xff\xff\xff\x01", 9, "transactional_id", 1, "an unsigned varint of more than 32 bits"),
        (b"\xff\xff\xff\xff\x1f", 9, "transactional_id", 1, "an unsigned varint of more than 32 bits"),
        (b"\x80", 9, "transactional_id", 1, "the bytes end within the field"),
        # acks and timeout_ms, which are read together
        (b"\0\0\1", 9, "timeout_ms", 3, "the bytes end within the field"),
        (b"\0\0", 9, "acks", 1, "the bytes end within the field"),
        # topic_data
        (b"\0" + bytes(6), 9, "topic_data", 7, "the bytes end within the field"),
        (b"\0" + bytes(6) + b"\0", 9, "topic_data", 8, "null, but the field is not nullable"),
        (b"\0" + bytes(6) + b"\xff\xff\xff\xff\x0f", 9, "topic_data", 12, "4294967294 elements wanted, but only 0"),
        (b"\xff\xff" + bytes(6) + b"\x80\0\0\0", 3, "topic_data", 12, "a length of -2147483648"),
        (b"\xff\xff" + bytes(6) + b"\x7f\xff\xff\xff", 3, "topic_data", 12, "2147483647 elements wanted"),
        (b"\0" + bytes(6) + b"\2\0" + bytes(9), 9, "topic_data[0].name", 9, "null, but the field is not nullable"),
        (b"\0" + bytes(6) + b"\1\1\7\x7f", 9, "tagged_fields", 11, "127 bytes wanted, but only 0 bytes are left"),
    ],
)
def test_lengths_that_cannot_be_are_refused(data: bytes, version: int, field: str, position: int, reason: str) -> None:
    with pytest.raises(MalformedMessageError) as refused:
        ProduceRequest.decode(data, version)
    assert (refused.value.field, refused.value.position) == (field, position)
    assert reason in refused.value.message


def test_a_reader_limits_the_elements_of_all_arrays_and_tagged_fields_together() -> None:
    """Names, structures, numbers and unknown tagged fields count alike."""
    partitions = (OffsetForLeaderPartition(partition=0, leader_epoch=0),) * 3
    nested = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic="t", partitions=partitions),) * 2)
    names = ListTransactionsRequest(
        state_filters=("a", "b"), producer_id_filters=(1, 2, 3), unknown_tagged_fields=((90, b""), (91, b""))
    )
    for message, version, elements, field in [
        (nested, 4, 2 + 2 * 3, "topics[1].partitions"),
        (names, 0, 2 + 3 + 2, "tagged_fields"),
    ]:
        data = message.encode(version)
        assert type(message).decode_from(data, version, 0, elements)[0] == message
        with pytest.raises(MalformedMessageError, match=f"more than {elements - 1} elements in one message") as refused:
            type(message).decode_from(data, version, 0, elements - 1)
        assert refused.value.field == field


def test_a_tagged_field_of_another_size_than_its_value_is_refused() -> None:
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=(), cluster_id="abc")
    data = request.encode(12)
    assert data.endswith(b"\1\0\4\4abc")
    for wrong in (data[:-5] + b"\3\4abc", data[:-5] + b"\5\4abcd"):
        with pytest.raises(MalformedMessageError, match=r"cluster_id.*the tagged field has . bytes, its value 4"):
            FetchRequest.decode(wrong, 12)


def test_more_tagged_fields_than_bytes_are_refused() -> None:
    with pytest.raises(MalformedMessageError, match="tagged_fields"):
        ResponseHeader.decode(b"\0\0\0\1" + b"\xff\xff\xff\xff\x0f" + b"\1\0", 1)


@pytest.mark.parametrize("cls", HOT)
def test_damaged_bytes_give_a_message_or_a_typed_error_in_bounded_memory(cls: type[Message], seed: int) -> None:
    dice = random.Random(seed)
    for version in (cls.VERSION_MIN, cls.VERSION_MAX):
        data = full_message(cls, version).encode(version)
        cls.decode(data, version)
        tracemalloc.start()
        try:
            for _ in range(400):
                damaged = bytearray(data)
                for _ in range(dice.randint(1, 3)):
                    at = dice.randrange(len(damaged))
                    damaged[at : at + 4] = dice.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", dice.randbytes(4)])
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                with contextlib.suppress(MalformedMessageError):
                    cls.decode(damaged, version)
                peak = tracemalloc.get_traced_memory()[1] - before
                assert peak < 100_000 + OBJECT_BYTES_MAX * len(damaged)
        finally:
            tracemalloc.stop()


def test_an_array_takes_no_memory_before_its_bytes_are_there() -> None:
    data = b"\0" + bytes(6) + b"\xff\xff\xff\x07" + bytes(100_000)
    with pytest.raises(MalformedMessageError):
        ProduceRequest.decode(data, 9)  # the first use of a message compiles its decoder
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError, match="16777214 elements wanted"):
            ProduceRequest.decode(data, 9)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000
