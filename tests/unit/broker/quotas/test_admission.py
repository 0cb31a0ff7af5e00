from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from millrace.config.broker import BrokerConfig
from millrace.errors import ThrottledError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.quotas import (
    PARKED_CALL_BYTES,
    Admission,
    AdmittedCall,
    CallClass,
    Turn,
    class_of,
    current_call,
    parked,
)

CLIENT, CONTROL, BROKER = CallClass.CLIENT, CallClass.CONTROL, CallClass.BROKER
OPTIONS = {
    "queued.max.requests": "2",
    "control.queued.max.requests": "1",
    "inter.broker.queued.max.requests": "1",
    "queued.max.request.bytes": "100000",
    "control.queued.max.request.bytes": "100000",
    "inter.broker.queued.max.request.bytes": "100000",
    "purgatory.max.request.bytes": "100000",
}


def _admission(**options: str) -> Admission:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return Admission(BrokerConfig.load({**OPTIONS, **named}), lambda: 0.0)


def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_each_class_of_calls_has_places_that_no_other_class_takes() -> None:
    admission = _admission()
    clients = [admission.begin("a", CLIENT) for _ in range(2)]
    with pytest.raises(ThrottledError, match=r"2 requests are in progress, as many as queued\.max\.requests"):
        admission.begin("b", CLIENT)
    control = admission.begin("b", CONTROL)
    with pytest.raises(ThrottledError, match=r"control\.queued\.max\.requests"):
        admission.begin("b", CONTROL)
    admission.begin("c", BROKER)
    with pytest.raises(ThrottledError, match=r"inter\.broker\.queued\.max\.requests"):
        admission.begin("c", BROKER)
    clients[0].end()
    clients[0].end()
    admission.begin("b", CLIENT)
    control.end()
    assert admission.statistics().by_class == {"client": 2, "control": 0, "broker": 1}
    assert admission.statistics().refused == 3


def test_a_call_refused_for_its_connection_leaves_no_place_taken() -> None:
    admission = _admission(max_connections="1")
    admission.begin("a", CLIENT)
    with pytest.raises(ThrottledError, match=r"max\.connections"):
        admission.begin("b", CLIENT)
    assert admission.statistics().requests == 1


def test_a_call_that_waits_for_others_takes_no_place_and_none_again() -> None:
    admission = _admission()
    calls = [admission.begin("a", CLIENT) for _ in range(2)]
    for call in calls:
        call.park(None)
    more = [admission.begin("a", CLIENT) for _ in range(2)]
    for call in calls:
        call.resume()
    assert admission.statistics().requests == 2
    for call in (*calls, *more):
        call.end()
    assert admission.statistics().requests == 0
    assert len(admission.parked) == 0


def test_the_request_of_a_parked_call_is_in_the_memory_of_parked_calls() -> None:
    admission = _admission()
    call = admission.begin("a", CLIENT)
    assert call.request_lease.take_now(5000)
    call.park(None)
    found = admission.statistics()
    assert (found.bytes_in_use, found.parked, found.parked_bytes) == (0, 1, 5000 + PARKED_CALL_BYTES)
    call.end()
    assert admission.statistics().parked_bytes == 0


def test_a_call_that_must_wait_and_has_no_room_is_counted_with_the_requests() -> None:
    admission = _admission()
    first, second = admission.begin("a", CLIENT), admission.begin("a", CLIENT)
    for call in (first, second):
        assert call.request_lease.take_now(30_000)
        call.park(None)
        call.resume()
        call.park(None)
    found = admission.statistics()
    assert (found.requests, found.parked, found.bytes_in_use) == (0, 1, 30_000 + PARKED_CALL_BYTES)
    second.end()
    assert admission.statistics().bytes_in_use == 0
    first.end()


def test_a_call_of_a_broker_takes_none_of_the_memory_for_parked_calls() -> None:
    admission = _admission()
    call = admission.begin("a", BROKER)
    assert call.request_lease.take_now(1000)
    call.park(None)
    found = admission.statistics()
    assert (found.requests, found.parked, found.bytes_in_use) == (0, 0, 1000)


def test_work_that_continues_after_its_call_has_ended_is_not_parked() -> None:
    admission = _admission()
    call = admission.begin("a", CLIENT)
    call.end()
    call.park(None)
    assert (admission.statistics().requests, admission.statistics().parked) == (0, 0)


def test_a_poll_that_waits_for_memory_of_its_response_gives_up_when_it_is_evicted() -> None:
    async def work() -> None:
        admission = _admission(purgatory_max_request_bytes="20000")
        holder, poll = admission.begin("a", CLIENT), admission.begin("b", CLIENT)
        assert holder.response_lease.take_now(100_000)
        current_call.set(poll)
        waiting = asyncio.create_task(poll.response_lease.take(10, is_poll=True))
        await asyncio.sleep(0)
        assert poll in admission.parked
        another = admission.begin("c", CLIENT)
        another.park(lambda: None)
        assert await waiting is False
        assert poll.response_lease.held_bytes == 0
        assert await poll.response_lease.take(10, is_poll=True) is False, "the call does not wait again"
        assert await poll.response_lease.take(0, is_poll=True), "an empty request needs no memory"

    _run(work())


@pytest.mark.parametrize("call_class", [CLIENT, BROKER])
def test_calls_that_wait_for_memory_of_their_requests_take_no_places(call_class: CallClass) -> None:
    async def work() -> None:
        admission = _admission()
        memory = admission.rooms[call_class].request_bytes
        memory.charge(100_000)
        waiting = []
        for _ in range(3):
            call = admission.begin("b", call_class)
            waiting.append(asyncio.create_task(call.take_request_memory(10)))
            await asyncio.sleep(0)
            assert admission.statistics().requests == 0
        assert admission.statistics().parked == (3 if call_class is CLIENT else 0)
        memory.give_back(100_000)
        await asyncio.gather(*waiting)
        found = admission.statistics()
        assert (found.requests, found.bytes_in_use, found.parked, found.refused) == (0, 30, 0, 0)

    _run(work())


def test_calls_that_wait_for_memory_of_their_requests_and_have_no_room_keep_their_places() -> None:
    async def work() -> None:
        admission = _admission(purgatory_max_request_bytes=str(2 * PARKED_CALL_BYTES))
        holder = admission.begin("a", CLIENT)
        assert holder.request_lease.take_now(100_000)
        parked_one, kept = admission.begin("b", CLIENT), None
        tasks = [asyncio.create_task(parked_one.take_request_memory(10))]
        await asyncio.sleep(0)
        kept = admission.begin("b", CLIENT)
        tasks.append(asyncio.create_task(kept.take_request_memory(10)))
        await asyncio.sleep(0)
        assert (admission.statistics().requests, admission.statistics().parked) == (2, 1)
        with pytest.raises(ThrottledError):
            admission.begin("c", CLIENT)
        holder.end()
        await asyncio.gather(*tasks)
        assert (admission.statistics().requests, admission.statistics().parked) == (1, 0)
        for call in (parked_one, kept):
            call.end()
        assert (admission.statistics().requests, admission.statistics().bytes_in_use) == (0, 0)

    _run(work())


def test_a_call_that_waited_for_memory_of_its_request_parks_with_its_request_later() -> None:
    async def work() -> None:
        admission = _admission()
        holder, call = admission.begin("a", CLIENT), admission.begin("b", CLIENT)
        assert holder.request_lease.take_now(100_000)
        waiting = asyncio.create_task(call.take_request_memory(3000))
        await asyncio.sleep(0)
        holder.end()
        await waiting
        call.park(None)
        found = admission.statistics()
        assert (found.parked, found.parked_bytes, found.bytes_in_use) == (1, 3000 + PARKED_CALL_BYTES, 0)

    _run(work())


def test_a_call_that_is_cancelled_while_it_waits_for_memory_of_its_request_leaves_nothing() -> None:
    async def work() -> None:
        admission = _admission()
        holder, call = admission.begin("a", CLIENT), admission.begin("b", CLIENT)
        assert holder.request_lease.take_now(100_000)
        waiting = asyncio.create_task(call.take_request_memory(3000))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for each in (call, holder):
            each.end()
        found = admission.statistics()
        assert (found.requests, found.parked, found.parked_bytes, found.bytes_in_use) == (0, 0, 0, 0)

    _run(work())


def test_calls_that_wait_for_their_turn_take_no_places() -> None:
    async def work() -> None:
        admission, turn, order = _admission(), Turn(), []

        async def take(number: int) -> None:
            call = admission.begin("a", CLIENT)
            current_call.set(call)
            async with turn:
                order.append(number)
                await asyncio.sleep(0)
                call.end()

        async with turn:
            tasks = []
            for number in range(3):
                tasks.append(asyncio.create_task(take(number)))
                await asyncio.sleep(0)
                assert (admission.statistics().requests, admission.statistics().parked) == (0, number + 1)
            tasks.pop(1).cancel()
        await asyncio.gather(*tasks)
        assert order == [0, 2]
        alone = asyncio.create_task(take(3))
        await asyncio.sleep(0)
        assert admission.statistics().requests == 1, "a call that need not wait keeps its place"
        await alone

    _run(work())


def test_calls_that_wait_for_a_place_get_it_in_their_order() -> None:
    async def work() -> None:
        admission = _admission()
        running = admission.begin("a", CONTROL)
        waiting = [asyncio.create_task(admission.begin_in_turn(name, CONTROL)) for name in "bcd"]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.sleep(0)
        running.end()
        with pytest.raises(ThrottledError):
            admission.begin("e", CONTROL)
        (await waiting[0]).end()
        assert not waiting[1].done() or waiting[1].cancelled()
        (await waiting[2]).end()
        assert admission.statistics().requests == 0
        assert admission.statistics().delayed == 3
        (await admission.begin_in_turn("b", CONTROL)).end()

    _run(work())


def test_a_call_that_is_cancelled_when_it_got_a_place_passes_it_on() -> None:
    async def work() -> None:
        admission = _admission()
        running = admission.begin("a", CONTROL)
        first, second = (asyncio.create_task(admission.begin_in_turn(name, CONTROL)) for name in "bc")
        await asyncio.sleep(0)
        running.end()
        first.cancel()
        (await second).end()
        assert first.cancelled()
        assert admission.statistics().requests == 0

    _run(work())


def test_outside_of_a_call_a_wait_is_only_a_wait() -> None:
    with parked():
        pass


def _methods() -> list[MethodDescriptor]:
    return list(pb.DESCRIPTOR.services_by_name["Broker"].methods)


def test_calls_that_carry_records_are_clients_calls_and_no_call_of_a_client_is_a_brokers() -> None:
    by_class = {each: {m.name for m in _methods() if class_of(m.name) is each} for each in CallClass}
    assert by_class[BROKER] == set()
    assert {"LeaderAndIsr", "UpdateMetadata", "AlterPartition", "WriteTxnMarkers"} <= by_class[CLIENT]
    assert {"Produce", "Fetch", "ShareFetch", "ReadRange", "OffsetCommit", "OffsetFetch"} <= by_class[CLIENT]
    assert class_of("ConsumerGroupHeartbeat") is CONTROL  # a call of Kafka alone
    assert {"Heartbeat", "ShareGroupHeartbeat", "JoinGroup", "SyncGroup", "CreateTopics"} <= by_class[CONTROL]
    assert all(class_of(each.name, is_broker=True) is BROKER for each in _methods())


class _Machine(RuleBasedStateMachine):
    """Calls of all classes that begin, wait and end in any order.

    No place is given twice, and all are free at the end.
    """

    running = Bundle("running")

    @initialize()
    def begin_all(self) -> None:
        self.admission = _admission()
        self.calls: dict[AdmittedCall, tuple[CallClass, bool]] = {}
        self.polls: set[AdmittedCall] = set()

    @rule(
        target=running, call_class=st.sampled_from(CallClass), peer=st.sampled_from("abc"), size=st.integers(0, 40_000)
    )
    def begin(self, call_class: CallClass, peer: str, size: int) -> AdmittedCall | None:
        places = {CLIENT: 2, CONTROL: 1, BROKER: 1}[call_class]
        has_place = sum(each == (call_class, True) for each in self.calls.values()) < places
        try:
            call = self.admission.begin(peer, call_class)
        except ThrottledError:
            assert not has_place, "a call is refused only if no place is left"
            return None
        assert has_place
        self.calls[call] = (call_class, True)
        call.request_lease.take_now(size)
        return call

    @rule(call=running, is_poll=st.booleans())
    def park(self, call: AdmittedCall | None, is_poll: bool) -> None:
        if call is None or call not in self.calls or call in self.polls:
            return
        if is_poll and self.calls[call][0] is not BROKER:
            self.polls.add(call)
            call.park(lambda: self.polls.discard(call))
        else:
            call.park(None)
        self.calls[call] = (self.calls[call][0], False)

    @rule(call=running)
    def resume(self, call: AdmittedCall | None) -> None:
        if call is not None:
            call.resume()
            self.polls.discard(call)

    @rule(call=consumes(running))
    def end(self, call: AdmittedCall | None) -> None:
        if call is not None:
            call.end()
            self.calls.pop(call, None)
            self.polls.discard(call)

    @invariant()
    def places_and_memory_are_those_of_the_calls(self) -> None:
        found = self.admission.statistics()
        for each in CallClass:
            assert found.by_class[each.value] == sum(call == (each, True) for call in self.calls.values())
        if not self.calls:
            assert (found.requests, found.parked, found.parked_bytes, found.bytes_in_use) == (0, 0, 0, 0)


TestModel = _Machine.TestCase


def test_changed_numbers_of_connections_are_those_of_all_rooms() -> None:
    admission = _admission(max_connections="1")
    options = {"max.connections": "7", "control.max.connections": "8", "inter.broker.max.connections": "9"}
    admission.take_config(BrokerConfig.load(options))
    assert admission.connections.maxima == {CallClass.CLIENT: 7, CallClass.CONTROL: 8, CallClass.BROKER: 9}
