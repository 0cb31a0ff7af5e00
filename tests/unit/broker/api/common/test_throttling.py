"""Tests of quotas at the end of a call.

The broker counts the usage of the call, and its response tells the client how long to wait.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.config.broker import BrokerConfig
from millrace.errors import NotLeaderError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import FetchAnswer
from millrace.quotas import QuotaEntity
from millrace_broker.api import ClientAddress, RequestContext
from millrace_broker.api.common.throttling import throttled
from millrace_broker.quotas import ByteBudget, ClientQuotas, Lease, QuotaTable
from millrace_broker.security import ANONYMOUS

RATES = {"producer_byte_rate": 1000.0, "consumer_byte_rate": 1000.0}


def context_of(call: str, request_bytes: int, response_bytes: int) -> RequestContext:
    quotas = ClientQuotas(BrokerConfig.load({}), lambda: 0.0)
    quotas.take(QuotaTable({QuotaEntity.of([("user", None)]): RATES}))
    lease = Lease(ByteBudget(2**20))
    lease.settle(response_bytes)
    usage = quotas.usage(ANONYMOUS.name, "", request_bytes)
    return RequestContext(call, "L", ANONYMOUS, "", ClientAddress("h", 1), lease, usage=usage)


def run(context: RequestContext, response: Any) -> Any:
    async def work() -> Any:
        if isinstance(response, Exception):
            raise response
        return response

    return asyncio.run(throttled(work(), context))


def test_a_producer_waits_for_the_bytes_of_its_request() -> None:
    assert run(context_of("Produce", 3000, 0), pb.ProduceResponse()).throttle_time_ms == 2000


def test_a_consumer_waits_for_the_bytes_of_its_response() -> None:
    assert run(context_of("Fetch", 0, 1500), FetchAnswer()).throttle_time_ms == 500
    chunk = pb.ReadRangeResponse(records=bytes(1250))
    assert run(context_of("ReadRangeChunk", 0, 100_000), chunk).throttle_time_ms == 250


def test_a_call_below_the_rate_is_not_throttled() -> None:
    assert run(context_of("Produce", 1000, 0), pb.ProduceResponse()).throttle_time_ms == 0


def test_a_response_without_the_field_is_as_it_was() -> None:
    assert run(context_of("Heartbeat", 5000, 0), pb.HeartbeatResponse()) == pb.HeartbeatResponse()


def test_a_call_that_fails_has_sent_its_request_and_no_records() -> None:
    for call, throttle_s in (("Produce", 2.0), ("Fetch", 0.0)):
        context = context_of(call, 3000, 3000)
        with pytest.raises(NotLeaderError):
            run(context, NotLeaderError("gone"))
        assert context.usage is not None
        assert context.usage.throttle_s == throttle_s
