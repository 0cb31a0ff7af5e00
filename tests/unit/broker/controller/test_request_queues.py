"""Tests of the controller's request queues.

Each broker gets its requests in order, and each request is retried until the broker answers or is gone.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from millrace.errors import BrokerUnavailableError, StaleBrokerEpochError
from millrace_broker.controller import LiveBroker
from millrace_broker.controller.request_queues import RequestQueues
from millrace_broker.decisions import Answers, BrokerRequest, StopReplicaRequest

from ....integration.waiting import eventually_async


def request(number: int, broker_epoch: int = 1) -> BrokerRequest:
    return StopReplicaRequest(controller_id=0, controller_epoch=number, broker_epoch=broker_epoch, partitions={})


class Brokers:
    def __init__(self) -> None:
        self.got: dict[int, list[int]] = defaultdict(list)
        self.answered: list[tuple[int, int]] = []
        self.away: set[int] = set()
        self.refuses: set[int] = set()
        self.queues = RequestQueues(self.deliver, self.on_answer)

    async def deliver(self, broker_id: int, request: BrokerRequest) -> Answers:
        await asyncio.sleep(0)
        if broker_id in self.away:
            raise BrokerUnavailableError("away")
        if request.controller_epoch in self.refuses:
            raise StaleBrokerEpochError("stale")
        self.got[broker_id].append(request.controller_epoch)
        return {}

    def on_answer(self, broker_id: int, request: BrokerRequest, answers: Answers) -> None:
        self.answered.append((broker_id, request.controller_epoch))

    async def until(self, broker_id: int, count: int) -> list[int]:
        await eventually_async(lambda: len(self.got[broker_id]) >= count)
        return self.got[broker_id]


def test_each_broker_hears_everything_in_order_and_waits_for_no_other() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.queues.keep({1: LiveBroker(1), 2: LiveBroker(1)})
        brokers.away.add(2)
        for number in range(5):
            brokers.queues.send({1: [request(number)], 2: [request(number)]})
        assert await brokers.until(1, 5) == [0, 1, 2, 3, 4]
        assert brokers.got[2] == []
        brokers.away.clear()
        assert await brokers.until(2, 5) == [0, 1, 2, 3, 4]
        brokers.queues.clear()

    asyncio.run(scenario())


def test_requests_for_an_earlier_broker_epoch_are_dropped() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.queues.keep({1: LiveBroker(1)})
        brokers.away.add(1)
        brokers.queues.send({1: [request(0), request(1)]})
        await asyncio.sleep(0)
        brokers.queues.keep({1: LiveBroker(2)})
        brokers.away.clear()
        brokers.queues.send({1: [request(2), request(3, broker_epoch=2)], 7: [request(4)]})
        assert await brokers.until(1, 1) == [3]
        brokers.queues.clear()

    asyncio.run(scenario())


def test_a_refusal_of_an_older_epoch_is_the_end_of_the_request() -> None:
    async def scenario() -> None:
        brokers = Brokers()
        brokers.refuses.add(0)
        brokers.queues.keep({1: LiveBroker(1)})
        brokers.queues.send({1: [request(0), request(1)]})
        assert await brokers.until(1, 1) == [1]
        await asyncio.sleep(0)
        assert brokers.answered == [(1, 1)]
        brokers.queues.clear()

    asyncio.run(scenario())
