from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.config.broker import BrokerConfig
from millrace.errors import ThrottledError
from millrace_broker.quotas import Admission, AdmittedCall, ByteBudget, CallClass, Lease, Receptions, receptions
from millrace_broker.quotas.receptions import GIVE_WAY_S

from ....integration.waiting import STALL_S, eventually_async

_MIB = 2**20


class _Reception:
    def __init__(self, name: str, events: list[tuple[str, float]], held_bytes: int = 1000) -> None:
        self.name = name
        self.received_bytes = 0
        self.held_bytes = held_bytes
        self._events = events

    def give_way(self, stalled_s: float) -> None:
        self._events.append((self.name, stalled_s))


class _PlaceHolder:
    """Reception of a call that never gets its content."""

    received_bytes = held_bytes = 0

    def __init__(self, call: AdmittedCall) -> None:
        self._call = call

    def give_way(self, stalled_s: float) -> None:
        self._call.end()


class _Fixture:
    """Receptions with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events: list[tuple[str, float]] = []
        self.receptions = Receptions(lambda: self.now_s, lambda: True)

    def begin(self, name: str, at_s: float, held_bytes: int = 1000) -> _Reception:
        self.now_s = at_s
        reception = _Reception(name, self.events, held_bytes)
        self.receptions.begin(reception)
        return reception

    def make_way(self, at_s: float, is_wanted: Callable[[], bool] = lambda: True) -> list[tuple[str, float]]:
        self.now_s = at_s
        self.events.clear()
        self.receptions.make_way(is_wanted)
        return list(self.events)


def test_only_receptions_without_progress_for_the_limit_give_way() -> None:
    fixture = _Fixture()
    fixture.begin("old", 0)
    fixture.begin("new", 1)
    assert fixture.make_way(GIVE_WAY_S - 0.1) == []
    assert fixture.make_way(GIVE_WAY_S) == [("old", GIVE_WAY_S)]
    assert fixture.make_way(GIVE_WAY_S) == [], "a reception gives way once"


def test_the_reception_that_stalled_first_gives_way_and_no_more_than_needed() -> None:
    fixture = _Fixture()
    first = fixture.begin("moved on at 3", 0)
    fixture.begin("stalled at 1", 1)
    fixture.begin("stalled at 2", 2)
    first.received_bytes = 500
    assert fixture.make_way(3) == []
    assert fixture.make_way(20, lambda: len(fixture.events) < 2) == [("stalled at 1", 19), ("stalled at 2", 18)]
    assert fixture.make_way(20) == [("moved on at 3", 17)]


def test_progress_is_a_part_of_the_memory_held_and_not_a_single_byte() -> None:
    fixture = _Fixture()
    trickle, flow = fixture.begin("trickle", 0, 1000), fixture.begin("flow", 0, 1000)
    for second in range(1, 10):
        trickle.received_bytes += 1
        flow.received_bytes += 100
        if fixture.make_way(second):
            break
    assert fixture.events == [("trickle", GIVE_WAY_S)]


def test_an_ended_reception_does_not_give_way() -> None:
    fixture = _Fixture()
    fixture.receptions.end(fixture.begin("ended", 0))
    assert fixture.make_way(100) == []


def test_a_waiting_call_makes_way_for_itself_and_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receptions, "_LOOK_S", 0.001)
    monkeypatch.setattr(receptions, "GIVE_WAY_S", 0.05)
    fixture = _Fixture()

    async def work() -> None:
        fixture.begin("stalled", 0)
        with fixture.receptions.wanted():
            with fixture.receptions.wanted():
                await asyncio.sleep(0)
            fixture.now_s = receptions.GIVE_WAY_S * 1.1
            await eventually_async(lambda: fixture.receptions._progress == {} or _tick(fixture))
        assert fixture.receptions._next_look is None

    asyncio.run(work())
    assert [name for name, _ in fixture.events] == ["stalled"]


def _tick(fixture: _Fixture) -> bool:
    fixture.now_s += 0.0005
    return False


def test_a_stop_of_the_event_loop_is_not_the_clients_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = _Fixture()

    async def work() -> None:
        fixture.begin("received before the stop", 0)
        with fixture.receptions.wanted():
            await asyncio.sleep(0)
            fixture.now_s = 100.0
            fixture.receptions._look()

    asyncio.run(work())
    assert fixture.events == []


def test_a_refused_place_is_free_after_a_stalled_reception_gave_way() -> None:
    now_s = 0.0
    admission = Admission(BrokerConfig.load({"queued.max.requests": "1"}), lambda: now_s)
    stalled = admission.begin("a", CallClass.CLIENT)
    stalled.receptions.begin(_PlaceHolder(stalled))
    with pytest.raises(ThrottledError):
        admission.begin("b", CallClass.CLIENT)
    now_s = GIVE_WAY_S
    admission.begin("b", CallClass.CLIENT)


# --- memory in steps ----------------------------------------------------------------------------------------------


def test_a_request_takes_all_its_memory_while_half_of_the_budget_is_left() -> None:
    budget = ByteBudget(32 * _MIB)
    first, second = Lease(budget), Lease(budget)
    assert first.grow_now(16 * _MIB, 100)
    assert first.covered_bytes(16 * _MIB) == 16 * _MIB
    assert second.grow_now(16 * _MIB, 100)
    assert second.covered_bytes(16 * _MIB) == 64 * 1024


def test_a_request_holds_at_most_four_times_the_bytes_that_have_arrived_where_memory_is_short() -> None:
    budget = ByteBudget(32 * _MIB)
    budget.charge(20 * _MIB)
    lease = Lease(budget)
    held = []
    arrived = 0
    while lease.grow_now(5 * _MIB, arrived):
        arrived = lease.covered_bytes(5 * _MIB)
        held.append(arrived)
        if arrived == 5 * _MIB:
            break
    assert held == [65536, 4 * 65536, _MIB, 4 * _MIB, 5 * _MIB]


def test_a_request_larger_than_the_budget_is_covered_by_the_whole_budget() -> None:
    budget = ByteBudget(100_000)
    lease = Lease(budget)
    assert lease.grow_now(1_000_000, 0)
    assert lease.covered_bytes(1_000_000) == 65536
    assert lease.grow_now(1_000_000, 65536)
    assert (lease.held_bytes, lease.covered_bytes(1_000_000)) == (100_000, 1_000_000)


def test_a_call_that_needs_its_next_step_goes_before_calls_that_hold_nothing() -> None:
    async def work() -> None:
        budget = ByteBudget(200_000)
        budget.charge(120_000)
        growing, late = Lease(budget), Lease(budget)
        assert growing.grow_now(150_000, 0)
        new = asyncio.create_task(late.take(60_000))
        await asyncio.sleep(0)
        step = asyncio.create_task(growing.grow(150_000, 65536))
        await asyncio.sleep(0)
        assert (new.done(), step.done()) == (False, False)
        budget.give_back(70_000)
        await asyncio.wait_for(step, STALL_S)
        assert growing.covered_bytes(150_000) == 150_000
        await asyncio.sleep(0)
        assert not new.done()
        growing.release()
        await asyncio.wait_for(new, STALL_S)
        late.release()
        assert budget.in_use_bytes == 50_000

    asyncio.run(work())


def test_a_wait_for_a_step_cancelled_in_the_moment_of_its_grant_gives_back() -> None:
    async def work() -> None:
        budget = ByteBudget(100_000)
        budget.charge(30_000)
        lease = Lease(budget)
        assert lease.grow_now(90_000, 0)
        step = asyncio.create_task(lease.grow(90_000, 65536))
        await asyncio.sleep(0)
        budget.give_back(30_000)
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        lease.release()
        assert (budget.in_use_bytes, budget.is_wanted, budget._growing_bytes) == (0, False, 0)

    asyncio.run(work())


@given(st.lists(st.tuples(st.integers(1, 900_000), st.integers(0, 6)), max_size=20))
def test_all_requests_are_received_in_steps_and_only_one_is_beyond_the_budget(
    requests: list[tuple[int, int]],
) -> None:
    size_bytes = 300_000

    async def receive(budget: ByteBudget, request_bytes: int, cancelled_after: int) -> None:
        lease = Lease(budget)
        try:
            if not lease.grow_now(request_bytes, 0):
                await lease.take(budget.step(request_bytes, 0))
            arrived = lease.covered_bytes(request_bytes)
            while arrived < request_bytes:
                await asyncio.sleep(0)
                cancelled_after -= 1
                if cancelled_after == 0:
                    raise asyncio.CancelledError
                if not lease.grow_now(request_bytes, arrived):
                    await lease.grow(request_bytes, arrived)
                arrived = lease.covered_bytes(request_bytes)
                assert budget.in_use_bytes <= 2 * size_bytes
        finally:
            lease.release()

    async def work() -> None:
        budget = ByteBudget(size_bytes)
        tasks = [asyncio.create_task(receive(budget, *each)) for each in requests]
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), STALL_S)
        for task in tasks:
            assert task.cancelled() or task.exception() is None
        assert (budget.in_use_bytes, budget.is_wanted, budget._growing_bytes) == (0, False, 0)

    asyncio.run(work())
