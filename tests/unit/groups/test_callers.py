"""Tests of callers that wait for the answers to their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace.errors import RebalanceInProgressError
from millrace_broker.groups.callers import Callers
from millrace_broker.groups.requests import MemberIdGiven

GIVEN = MemberIdGiven(member_id="m")
FIRST, SECOND = 1, 2  # calls


def running(test: Callable[[Callers], Awaitable[None]]) -> Callable[[], None]:
    async def work() -> None:
        await test(Callers())

    return lambda: asyncio.run(work())


@running
async def test_an_answer_is_given_before_or_while_its_caller_waits(callers: Callers) -> None:
    callers.answer(FIRST, GIVEN)
    assert await callers.wait(FIRST) is GIVEN
    waiting = asyncio.create_task(callers.wait(SECOND))
    await asyncio.sleep(0)
    callers.answer(SECOND, GIVEN)
    assert await waiting is GIVEN


@running
async def test_an_error_is_raised_to_its_caller(callers: Callers) -> None:
    refusal = RebalanceInProgressError("join again")
    callers.answer(FIRST, refusal)
    waiting = asyncio.create_task(callers.wait(SECOND))
    await asyncio.sleep(0)
    callers.answer(SECOND, refusal)
    for answer in (callers.wait(FIRST), waiting):
        with pytest.raises(RebalanceInProgressError):
            await answer


@running
async def test_a_call_has_one_answer(callers: Callers) -> None:
    callers.answer(FIRST, GIVEN)
    callers.answer(FIRST, RebalanceInProgressError("too late"))
    assert await callers.wait(FIRST) is GIVEN
    callers.answer(FIRST, RebalanceInProgressError("the number is used again"))
    with pytest.raises(RebalanceInProgressError):
        await callers.wait(FIRST)
