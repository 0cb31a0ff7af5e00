"""Tests of hand-written fetch responses against the generated class."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import SMALL_BYTES, FetchAnswer, read_fetch_response

_partitions = st.builds(
    dict,
    partition=st.integers(0, 2**31 - 1),
    high_watermark=st.integers(-1, 2**63 - 1),
    records=st.one_of(st.just(b""), st.binary(max_size=400)),
    error=st.one_of(st.none(), st.text(max_size=20)),
    replica=st.one_of(st.none(), st.integers(0, 9)),
    aborted=st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 100)), max_size=3),
)
_topics = st.lists(
    st.tuples(st.text(max_size=20), st.binary(max_size=16), st.lists(_partitions, max_size=3)), max_size=3
)


def _generated(topics: list) -> pb.FetchResponse:
    response = pb.FetchResponse()
    for name, topic_id, partitions in topics:
        topic = response.topics.add(name=name, topic_id=topic_id)
        for partition in partitions:
            _fill(topic.partitions.add(partition=partition["partition"]), partition)
            topic.partitions[-1].records = partition["records"]
    return response


_small_bytes = st.sampled_from([0, SMALL_BYTES])


def _fill(result: pb.FetchResponse.PartitionRecords, partition: dict) -> None:
    result.high_watermark = partition["high_watermark"]
    if partition["error"] is not None:
        result.error.CopyFrom(pb.Error(code=3, message=partition["error"]))
    if partition["replica"] is not None:
        result.preferred_read_replica = partition["replica"]
    for producer_id, offset in partition["aborted"]:
        result.aborted_transactions.add(producer_id=producer_id, first_offset=offset)


@given(_topics)
def test_the_generated_class_reads_hand_written_responses(topics: list) -> None:
    answer = FetchAnswer()
    for name, topic_id, partitions in topics:
        topic = answer.add_topic(name, topic_id)
        for partition in partitions:
            part = topic.add_partition(partition["partition"])
            _fill(part.result, partition)
            part.records = partition["records"]
    written = answer.SerializeToString()
    read = pb.FetchResponse.FromString(written)
    for topic_records in read.topics:
        for result in topic_records.partitions:
            result.ClearField("padding")
    assert read == _generated(topics)
    for found in read_fetch_response(written, small_bytes=0):
        if found.records.size:
            assert (found.records.address - _address(written)) % 8 == 0


def _address(data: bytes) -> int:
    address: int = pa.py_buffer(data).address
    return address


@given(_topics, _small_bytes)
def test_responses_of_the_generated_class_are_read(topics: list, small_bytes: int) -> None:
    generated = _generated(topics)
    found = list(read_fetch_response(generated.SerializeToString(), small_bytes=small_bytes))
    expected = [(topic.name, partition) for topic in generated.topics for partition in topic.partitions]
    assert len(found) == len(expected)
    for each, (name, partition) in zip(found, expected, strict=True):
        assert each.topic == name
        assert each.records.to_pybytes() == partition.records
        partition.ClearField("records")
        each.result.ClearField("records")
        assert each.result == partition


@given(st.binary(max_size=60), _small_bytes)
def test_other_bytes_are_an_error_or_nothing(data: bytes, small_bytes: int) -> None:
    with contextlib.suppress(InvalidRequestError):
        list(read_fetch_response(data, small_bytes=small_bytes))


@pytest.mark.parametrize("small_bytes", [0, SMALL_BYTES])
def test_a_response_that_was_cut_is_an_error(small_bytes: int) -> None:
    answer = FetchAnswer()
    answer.add_topic("t", b"").add_partition(0).records = b"x" * 100
    with pytest.raises(InvalidRequestError):
        list(read_fetch_response(answer.SerializeToString()[:50], small_bytes=small_bytes))
