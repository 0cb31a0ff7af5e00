"""Tests of calls that wait.

A call is answered once, in the loop iteration in which its handler ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from millrace.config.broker import BrokerConfig
from millrace.errors import InvalidRequestError, MillraceError, RequestTimedOutError
from millrace.protocol.frames import Head
from millrace_broker.api import ClientAddress, RequestContext
from millrace_broker.broker import Broker
from millrace_broker.listeners.handling import Ended, Handling
from millrace_broker.listeners.wire_calls import Buffer, Response
from millrace_broker.quotas import Admission, CallClass, ClientQuotas

AN_HOUR_MS = 3_600_000
NO_CLIENT_ID = b"\xff\xff"


class Call:
    """A call whose handler waits for a future."""

    name = "Waiting"
    waits_for_place = False

    def __init__(self, deadline_ms: int = 0) -> None:
        self.answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._deadline_ms = deadline_ms

    def begin(
        self, broker: Broker, head: Head, content: Buffer, position: int, context: RequestContext
    ) -> tuple[Coroutine[Any, Any, Response], int]:
        return self._wait(), self._deadline_ms

    async def _wait(self) -> Response:
        return await self.answer

    def refusal(self, head: Head, error: MillraceError) -> Response | None:
        return None


class _BrokerWithoutQuotas:
    """The part of a broker that ``Handling`` uses."""

    def __init__(self) -> None:
        self.client_quotas = ClientQuotas(BrokerConfig.load({}), time.monotonic)


def run(scenario: Callable[[Handling, Callable[[Call], None], list[Ended]], Awaitable[None]]) -> None:
    """Run a scenario with a connection's handling, a function that starts a call, and the list of ended calls."""

    async def main() -> None:
        ended: list[Ended] = []
        handling = Handling(
            cast(Broker, _BrokerWithoutQuotas()),
            "L",
            ClientAddress("h", 1),
            ended.append,
        )
        admission = Admission(BrokerConfig.load({}), time.monotonic)

        def start(call: Call) -> None:
            admitted = admission.begin(handling, CallClass.CLIENT)
            assert handling.variables.run(handling.start, call, Head(0, 0, 0, 0), NO_CLIENT_ID, admitted) is None

        await scenario(handling, start, ended)

    asyncio.run(main())


def test_a_call_that_waited_is_answered_in_the_iteration_in_which_its_handler_ends() -> None:
    async def scenario(handling: Handling, start: Callable[[Call], None], ended: list[Ended]) -> None:
        call = Call()
        start(call)
        await asyncio.sleep(0)  # the task begins to wait
        assert handling.is_waiting
        call.answer.set_result((b"answer",))
        await asyncio.sleep(0)
        assert ended == [((b"answer",), None)]
        assert not handling.is_waiting
        await asyncio.sleep(0)
        assert len(ended) == 1

    run(scenario)


def test_an_error_after_a_wait_ends_the_call() -> None:
    async def scenario(_: Handling, start: Callable[[Call], None], ended: list[Ended]) -> None:
        call, error = Call(), InvalidRequestError("no")
        start(call)
        call.answer.set_exception(error)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ended == [((), error)]

    run(scenario)


def test_a_cancelled_call_ends_once_whether_or_not_its_task_has_begun() -> None:
    async def scenario(handling: Handling, start: Callable[[Call], None], ended: list[Ended]) -> None:
        for number, iterations in enumerate((0, 1), 1):
            start(Call())
            for _ in range(iterations):
                await asyncio.sleep(0)
            handling.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
            assert len(ended) == number
            assert isinstance(ended[-1][1], RequestTimedOutError)
            assert not handling.is_waiting

    run(scenario)


def test_a_deadline_ends_the_call() -> None:
    async def scenario(_: Handling, start: Callable[[Call], None], ended: list[Ended]) -> None:
        call = Call(deadline_ms=1)
        start(call)
        await asyncio.wait([call.answer])
        assert call.answer.cancelled()
        await asyncio.sleep(0)
        (only,) = ended
        assert isinstance(only.failure, RequestTimedOutError)

    run(scenario)


def test_each_call_has_its_own_deadline() -> None:
    async def scenario(handling: Handling, start: Callable[[Call], None], ended: list[Ended]) -> None:
        # The timer of the first call is earlier than the second deadline, and later than the third one.
        for deadline_ms, is_answered in ((1, True), (5, False), (AN_HOUR_MS, True), (1, False), (0, True)):
            call = Call(deadline_ms=deadline_ms)
            start(call)
            await asyncio.sleep(0)
            if is_answered:
                call.answer.set_result((b"answer",))
                await asyncio.sleep(0)
            else:
                await asyncio.wait([call.answer])
                assert call.answer.cancelled()
                await asyncio.sleep(0)
            assert not handling.is_waiting
        kinds = [type(each.failure) for each in ended]
        assert kinds == [type(None), RequestTimedOutError, type(None), RequestTimedOutError, type(None)]

    run(scenario)


def test_a_call_without_a_deadline_outlasts_the_last_ones_deadline() -> None:
    async def scenario(handling: Handling, start: Callable[[Call], None], ended: list[Ended]) -> None:
        first = Call(deadline_ms=1)
        start(first)
        first.answer.set_result((b"answer",))
        while handling.is_waiting:
            await asyncio.sleep(0)
        start(Call())
        passed = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, passed.set_result, None)
        await passed
        assert handling.is_waiting
        assert len(ended) == 1
        handling.cancel()
        while handling.is_waiting:
            await asyncio.sleep(0)

    run(scenario)
