"""Tests of AlterPartition requests.

Changes are batched and retried until the controller answers. Only the last change of each partition is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from millrace.errors import (
    ClientClosedError,
    FencedLeaderEpochError,
    MillraceError,
    NotControllerError,
    NotLeaderError,
    StaleBrokerEpochError,
)
from millrace_broker.cluster.alter_partition_manager import AlterPartitionManager
from millrace_broker.decisions import IsrChange, Leadership, TopicPartition

ONE, TWO = TopicPartition("t", 1), TopicPartition("t", 2)


def change(*isr: int) -> IsrChange:
    return IsrChange(isr=isr, leader_epoch=3, partition_epoch=7)


class Controller:
    def __init__(self) -> None:
        self.asked: list[dict[TopicPartition, tuple[int, ...]]] = []
        self.failures: list[MillraceError] = []
        self.refused: set[TopicPartition] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(
        self, changes: Mapping[TopicPartition, IsrChange]
    ) -> dict[TopicPartition, Leadership | MillraceError]:
        self.asked.append({each: value.isr for each, value in changes.items()})
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop()
        return {
            each: FencedLeaderEpochError("old")
            if each in self.refused
            else Leadership(leader=1, leader_epoch=3, isr=value.isr, partition_epoch=8, controller_epoch=1)
            for each, value in changes.items()
        }


def test_isr_changes_during_a_request_go_into_the_next_one() -> None:
    async def scenario() -> None:
        controller = Controller()
        requests = AlterPartitionManager(controller.send)
        controller.gate.clear()
        first = asyncio.create_task(requests.alter(ONE, change(1)))
        while not controller.asked:
            await asyncio.sleep(0)
        others = [asyncio.create_task(requests.alter(each, change(1, 2))) for each in (ONE, TWO)]
        await asyncio.sleep(0)
        controller.gate.set()
        assert (await first).isr == (1,)
        assert [(await each).isr for each in others] == [(1, 2), (1, 2)]
        assert controller.asked == [{ONE: (1,)}, {ONE: (1, 2), TWO: (1, 2)}]
        await requests.close()

    asyncio.run(scenario())


def test_a_request_is_retried_until_a_controller_answers_and_each_caller_gets_its_answer() -> None:
    async def scenario() -> None:
        controller = Controller()
        controller.failures = [NotControllerError("moved"), NotControllerError("moved")]
        controller.refused = {TWO}
        requests = AlterPartitionManager(controller.send)
        good, bad = await asyncio.gather(
            requests.alter(ONE, change(1)), requests.alter(TWO, change(1)), return_exceptions=True
        )
        assert isinstance(good, Leadership)
        assert isinstance(bad, FencedLeaderEpochError)
        assert len(controller.asked) == 3
        await requests.close()

    asyncio.run(scenario())


def test_waiting_callers_get_the_end_of_the_broker() -> None:
    async def scenario() -> None:
        controller = Controller()
        controller.gate.clear()
        requests = AlterPartitionManager(controller.send)
        waiting = asyncio.create_task(requests.alter(ONE, change(1)))
        while not controller.asked:
            await asyncio.sleep(0)
        await requests.close()
        with pytest.raises(ClientClosedError):
            await waiting
        with pytest.raises(ClientClosedError):
            await requests.alter(ONE, change(1))

    asyncio.run(scenario())


def test_requests_of_a_fenced_broker_are_not_repeated_under_its_next_broker_epoch() -> None:
    # A leader of the same leader epoch would not wait for a follower that such a request adds to the ISR.
    async def scenario() -> None:
        controller = Controller()
        controller.failures = [StaleBrokerEpochError("the registration was removed")]
        requests = AlterPartitionManager(controller.send)
        under_way = asyncio.create_task(requests.alter(ONE, change(1, 2)))
        while not controller.asked:
            await asyncio.sleep(0)
        waiting = [asyncio.create_task(requests.alter(each, change(1, 3))) for each in (ONE, TWO)]
        await asyncio.sleep(0)
        await requests.fence()
        for each in (under_way, *waiting):
            with pytest.raises(NotLeaderError):
                await each
        assert (await requests.alter(TWO, change(1))).isr == (1,)
        assert controller.asked == [{ONE: (1, 2)}, {TWO: (1,)}]
        await requests.close()

    asyncio.run(scenario())
