"""Produce requests are read without copies as the generated class reads them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.produce_request import read_produce_request

LARGE = 20_000
RECORDS = st.sampled_from([b"", b"small", b"x" * LARGE, b"y" * 3 * LARGE])
TOPICS = st.dictionaries(
    st.text(max_size=10), st.tuples(st.binary(max_size=16), st.dictionaries(st.integers(0, 2**31 - 1), RECORDS)),
    max_size=3,
)  # fmt: skip


def built(topics: dict[str, tuple[bytes, dict[int, bytes]]], **fields: object) -> pb.ProduceRequest:
    request = pb.ProduceRequest(**fields)  # type: ignore[arg-type]
    for name, (topic_id, partitions) in topics.items():
        topic = request.topics.add(name=name, topic_id=topic_id)
        for partition, records in partitions.items():
            topic.partitions.add(partition=partition, records=records)
    return request


def whole(data: bytes) -> pb.ProduceRequest:
    """Read a request, and put its records back."""
    request, records = read_produce_request(memoryview(data))
    for topic in request.topics:
        for partition in topic.partitions:
            if (found := records.get((topic.name, partition.partition))) is not None:
                assert not partition.records
                partition.records = bytes(found)
    return request


@given(TOPICS, st.text(max_size=10), st.sampled_from([-1, 0, 1]), st.integers(0, 2**31 - 1), st.booleans())
@example({"t": (b"", {0: b"x" * LARGE})}, "", -1, 30_000, False)
def test_a_request_is_read_as_by_the_generated_class(
    topics: dict[str, tuple[bytes, dict[int, bytes]]], transactional_id: str, acks: int, timeout_ms: int, adds: bool
) -> None:
    request = built(
        topics,
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        coordinator_key=transactional_id,
        adds_partitions=adds,
    )
    assert whole(request.SerializeToString()) == request


def test_large_records_are_parts_of_the_request() -> None:
    data = bytearray(built({"t": (b"", {0: b"x" * LARGE, 1: b"y" * LARGE})}).SerializeToString())
    request, records = read_produce_request(memoryview(data))
    assert [partition.records for topic in request.topics for partition in topic.partitions] == [b"", b""]
    assert {key: bytes(each) for key, each in records.items()} == {("t", 0): b"x" * LARGE, ("t", 1): b"y" * LARGE}
    assert all(each.obj is data for each in records.values())


def test_small_records_stay_in_the_request() -> None:
    request = built({"t": (b"", dict.fromkeys(range(100), b"small"))})
    assert read_produce_request(memoryview(request.SerializeToString())) == (request, {})


@pytest.mark.parametrize("field", [b"\x18\x01", b"\x22\x00", b"\x7a\x00"], ids=["number", "topic", "unknown"])
def test_a_request_of_many_small_fields_is_left_to_protobuf(field: bytes) -> None:
    # A loop over them in Python would take the broker's event loop for long.
    data = built({"t": (b"", {0: b"x" * LARGE})}).SerializeToString() + 1_000 * field
    assert read_produce_request(memoryview(data)) == (pb.ProduceRequest.FromString(data), {})


@given(st.binary(max_size=60), st.data())
def test_other_bytes_are_refused_or_read_as_by_the_generated_class(noise: bytes, data: st.DataObject) -> None:
    request = bytearray(built({"topic": (b"id", {0: b"x" * LARGE})}, acks=-1).SerializeToString())
    at = data.draw(st.integers(0, 40))
    request[at : at + len(noise)] = noise
    try:
        found = whole(bytes(request))
    except InvalidRequestError:
        return
    assert found == pb.ProduceRequest.FromString(bytes(request))


@pytest.mark.parametrize("data", [b"\x22", b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x22\x05\x0a\x09a"])
def test_a_cut_request_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read_produce_request(memoryview(data))
