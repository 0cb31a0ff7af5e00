"""Tests of the request context in the simulated network.

It equals that of a listener.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from millrace.config.broker import BrokerConfig
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api import RequestContext
from millrace_broker.listeners.shared import UNARY_METHODS
from millrace_broker.quotas import Admission
from millrace_broker.security import ANONYMOUS

from .loop import Process, VirtualLoop
from .network import LISTENER, Network, ask


@dataclass(frozen=True)
class _Answering:
    """The part of a broker that the network itself uses."""

    admission: Admission
    config: BrokerConfig


def test_handlers_get_the_host_that_calls_as_their_client(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RequestContext] = []

    async def handle(broker: Any, request: Any, context: RequestContext) -> pb.ListGroupsResponse:
        seen.append(context)
        return pb.ListGroupsResponse()

    monkeypatch.setitem(UNARY_METHODS, b"ListGroups", UNARY_METHODS[b"ListGroups"]._replace(handler=handle))
    choose = random.Random(1)
    loop = VirtualLoop(choose)
    try:
        network = Network(loop, choose)
        broker: Any = _Answering(Admission(BrokerConfig(), loop.time), BrokerConfig())
        network.listen("broker-1", Process("broker-1"), broker)
        client = Process("reader-2")
        call = ask(network, "reader-2", "broker-1", pb.ListGroupsRequest(), timeout_s=5)
        loop.run_until_complete(client.context.run(loop.create_task, call))
    finally:
        loop.close()
    (context,) = seen
    assert (context.api_name, context.listener_name, context.client_id) == ("ListGroups", LISTENER, "reader-2")
    assert context.principal == ANONYMOUS
    assert context.client_host == "/10.0.0.1"
