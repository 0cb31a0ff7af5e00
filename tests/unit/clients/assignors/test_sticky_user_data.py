"""Tests of the sticky assignors' user data.

The tests cover Kafka's bytes, and malformed data.
"""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients import TopicPartition
from millrace.clients.assignors import CooperativeStickyAssignor, StickyAssignor
from millrace.clients.assignors.ownership import Claim
from millrace.clients.assignors.sticky_user_data import (
    PreviousPartitions,
    StickyUserData,
    decode_cooperative,
    decode_sticky,
    encode_cooperative,
    encode_sticky,
)

int32 = st.integers(-(2**31), 2**31 - 1)
partitions = st.lists(st.builds(TopicPartition, st.sampled_from("abc"), int32))


@given(partitions, int32)
def test_user_data_survives_a_round_trip(owned: list[TopicPartition], generation: int) -> None:
    claim = decode_sticky(encode_sticky(owned, generation))
    assert list(claim.partitions) == sorted(owned, key=lambda partition: partition.topic)
    assert claim.generation == generation
    assert decode_cooperative(encode_cooperative(generation)) == generation


def test_user_data_has_kafkas_bytes() -> None:
    data = base64.b64decode("AAAAAQACdDAAAAABAAAAAgAAAAY=")
    assert encode_sticky([TopicPartition("t0", 2)], 6) == data
    assert decode_sticky(data) == Claim([TopicPartition("t0", 2)], 6)
    assert encode_cooperative(3) == base64.b64decode("AAAAAw==")


def test_user_data_of_before_kafka_2_3_has_no_generation() -> None:
    old = StickyUserData(previous_assignment=(PreviousPartitions(topic="a", partitions=(1, 0)),)).encode(0)
    assert decode_sticky(old) == Claim([TopicPartition("a", 1), TopicPartition("a", 0)], -1)


@given(st.none() | st.binary())
def test_any_bytes_are_read(data: bytes | None) -> None:
    assert isinstance(decode_sticky(data), Claim)
    assert isinstance(decode_cooperative(data), int)


@pytest.mark.parametrize("data", [None, b"", b"\0", b"\x7f\xff\xff\xff", b"\0\0\0\1\0\1a\xff\xff\xff\xff"])
def test_unreadable_user_data_claims_no_partition(data: bytes | None) -> None:
    assert decode_sticky(data) == Claim((), -1)


def test_a_member_that_was_in_no_generation_yet_tells_nothing() -> None:
    assert StickyAssignor().user_data([], -1) is None
    assert CooperativeStickyAssignor().user_data([], -1) is None
