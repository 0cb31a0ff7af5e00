"""Tests of the detection of lost brokers.

A broker is lost when its connection broke and a new one is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millrace.errors import BrokerUnavailableError
from millrace_broker.cluster.process_watch import ProcessWatch

from ....integration.waiting import eventually_async


class ScriptedConnections:
    """Connections that a test makes and breaks. ``reachable`` says whether new ones can be made."""

    def __init__(self, *refusals: bool) -> None:
        self.reachable = True
        self.connections = 0
        self.attempts = 0
        self._refusals = list(refusals)
        self._ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def stay_connected(self, broker_id: int, connected: Callable[[], None]) -> bool:
        self.attempts += 1
        if not self.reachable:
            raise BrokerUnavailableError("refused")
        self.connections += 1
        self._ended = asyncio.get_running_loop().create_future()
        connected()
        return await self._ended

    def end(self, *, broke: bool) -> None:
        """End the present connection."""
        self._ended.set_result(broke)

    async def refuses(self, broker_id: int) -> bool:
        return self._refusals.pop(0)


class Watched:
    """A watch over broker 2, and the losses that it reports."""

    def __init__(self, *refusals: bool) -> None:
        self.connections = ScriptedConnections(*refusals)
        self.lost: list[int] = []
        self.watch = ProcessWatch(self.connections, self._on_lost)

    async def _on_lost(self, broker_id: int) -> None:
        self.lost.append(broker_id)

    async def until(self, is_so: Callable[[], bool]) -> None:
        await eventually_async(is_so)


def test_a_broker_is_lost_when_its_connection_broke_and_none_can_be_made_until_one_can() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.watch.keep([2])
        await watched.until(lambda: watched.connections.connections == 1)
        watched.connections.reachable = False
        watched.connections.end(broke=True)
        await watched.until(lambda: len(watched.lost) >= 2)
        watched.connections.reachable = True
        await watched.until(lambda: watched.connections.connections == 2)
        found = list(watched.lost)
        watched.connections.end(broke=True)
        await watched.until(lambda: watched.connections.connections == 3)
        assert watched.lost == found, "a connection that breaks and is made again is no loss"
        await watched.watch.close()

    asyncio.run(scenario())


def test_a_broker_that_ended_the_connection_in_order_or_was_never_reached_is_not_lost() -> None:
    async def scenario() -> None:
        for ends_in_order in (True, False):
            watched = Watched()
            watched.connections.reachable = ends_in_order
            watched.watch.keep([2])
            if ends_in_order:
                await watched.until(lambda watched=watched: watched.connections.connections == 1)
                watched.connections.reachable = False
                watched.connections.end(broke=False)
            before = watched.connections.attempts
            await watched.until(lambda watched=watched, before=before: watched.connections.attempts >= before + 3)
            assert watched.lost == []
            await watched.watch.close()

    asyncio.run(scenario())


def test_an_unwatched_broker_is_not_lost_and_is_new_when_it_is_watched_again() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.watch.keep([2])
        await watched.until(lambda: watched.connections.connections == 1)
        watched.connections.reachable = False
        watched.connections.end(broke=True)
        await watched.until(lambda: len(watched.lost) >= 1)
        watched.watch.keep([])
        found = list(watched.lost)
        watched.watch.keep([2])
        before = watched.connections.attempts
        await watched.until(lambda: watched.connections.attempts >= before + 3)
        assert watched.lost == found
        await watched.watch.close()

    asyncio.run(scenario())


def test_refusals_count_when_there_are_two_in_a_row() -> None:
    async def is_refused(*refusals: bool) -> bool:
        return await Watched(*refusals).watch.is_refused(2)

    assert asyncio.run(is_refused(True, True))
    assert not asyncio.run(is_refused(True, False))
    assert not asyncio.run(is_refused(False))
