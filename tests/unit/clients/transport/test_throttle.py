"""Tests of client waits that a broker's quotas demand."""

from __future__ import annotations

import pytest

from millrace.clients.transport.calls import FETCH, PRODUCE, Throttle, unary
from millrace.errors import UnknownServerError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import FetchAnswer, read_fetch_response, read_throttle_time_ms

HEARTBEAT = unary(lambda stub: stub.Heartbeat)
CREATE = unary(lambda stub: stub.CreateTopics)


def test_only_calls_of_the_throttled_kind_wait() -> None:
    throttle = Throttle()
    assert throttle.wait_s(PRODUCE) == 0
    throttle.decoded(PRODUCE, pb.ProduceResponse(throttle_time_ms=10_000).SerializeToString())
    assert 9 < throttle.wait_s(PRODUCE) <= 10
    assert throttle.wait_s(FETCH) == 0
    assert throttle.wait_s(HEARTBEAT) == 0


def test_a_response_without_a_throttle_time_lets_the_next_call_go() -> None:
    throttle = Throttle()
    throttle.decoded(CREATE, pb.CreateTopicsResponse().SerializeToString())
    throttle.decoded(HEARTBEAT, pb.HeartbeatResponse().SerializeToString())
    assert throttle.wait_s(CREATE) == throttle.wait_s(HEARTBEAT) == 0


def test_no_wait_is_longer_than_half_a_minute_because_the_quota_may_have_been_raised() -> None:
    throttle = Throttle()
    throttle.decoded(PRODUCE, pb.ProduceResponse(throttle_time_ms=2**31 - 1).SerializeToString())
    assert throttle.wait_s(PRODUCE) <= 30


@pytest.mark.parametrize("size_bytes", [10, 100_000])
def test_a_fetch_tells_its_throttle_time_beside_its_records(size_bytes: int) -> None:
    answer = FetchAnswer(throttle_time_ms=1234)
    partition = answer.add_topic("t", b"").add_partition(3)
    partition.records = b"r" * size_bytes
    data = answer.SerializeToString()
    assert read_throttle_time_ms(data) == 1234 == pb.FetchResponse.FromString(data).throttle_time_ms
    assert [(each.result.partition, each.records.size) for each in read_fetch_response(data)] == [(3, size_bytes)]
    throttle = Throttle()
    throttle.decoded(FETCH, data)
    assert 0 < throttle.wait_s(FETCH) <= 1.234


def test_a_response_that_cannot_be_parsed_is_an_error_of_the_broker() -> None:
    with pytest.raises(UnknownServerError, match="the answer to Produce cannot be parsed"):
        Throttle().decoded(PRODUCE, b"\xff\xff")
