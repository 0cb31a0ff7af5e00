"""Tests of the look-ups of a poll's positions.

No leader delays the others, and each answer counts once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from millrace.clients.consuming.connections import ConsumerConnections
from millrace.clients.consuming.partition import PartitionState
from millrace.clients.consuming.positions import PositionLookups
from millrace.clients.model import OffsetAndMetadata, TopicPartition
from millrace.clients.signal import Signal
from millrace.clients.transport import PendingCall
from millrace.config.client import ConsumerConfig
from millrace.errors import (
    AuthorizationError,
    LeaderNotAvailableError,
    MillraceError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    WakeupError,
)
from millrace.protocol import millrace_pb2 as pb

from ....integration.waiting import AN_HOUR_MS, STALL_S, eventually

HUNG, ALIVE = "a:1", "b:1"
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
A_SHORT_WAIT_S, A_LONG_WAIT_S = 0.01, AN_HOUR_MS / 1000


class Leaders:
    """Leaders of partitions, for metadata; the topic is forgotten after errors."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, str] = {FIRST: HUNG, SECOND: ALIVE}
        self.forgotten = 0

    def leader_address(self, partition: TopicPartition, timeout_ms: int | None = None) -> str:
        if partition not in self.leaders:
            raise LeaderNotAvailableError(f"{partition} has no leader")
        return self.leaders[partition]

    def forget(self, names: str | Iterable[str]) -> None:
        self.forgotten += 1


class World:
    """Look-ups of two partitions with different leaders, whose calls a test ends."""

    def __init__(self, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.signal = Signal()
        self.leaders = Leaders()
        self.states = [PartitionState(FIRST, reset_to="earliest"), PartitionState(SECOND, reset_to="latest")]
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.calls: list[tuple[str, pb.ListOffsetsRequest, PendingCall[Any]]] = []
        config = ConsumerConfig.of({"bootstrap.servers": HUNG, "retry.backoff.ms": 1})
        connections = ConsumerConnections(config, self.signal)
        monkeypatch.setattr(connections, "begin", self._begin)
        self._lookups = PositionLookups(config, connections, self.leaders)  # type: ignore[arg-type]
        self._pool = pool

    def _begin(self, call: Any, request: Any, *, address: str, on_done: Any, **options: Any) -> PendingCall[Any]:
        pending: PendingCall[Any] = PendingCall(on_done)
        self.calls.append((address, request, pending))
        return pending

    def find(self, wait_s: float) -> None:
        def committed(partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
            return {each: self.committed[each] for each in partitions if each in self.committed}

        with self.signal.in_use():
            self._lookups.find(self.states, committed, timeout_ms=1000, wait_s=wait_s)

    def start(self, wait_s: float) -> Future[None]:
        return self._pool.submit(self.find, wait_s)

    def end(self, address: str, error: MillraceError | None = None) -> None:
        """Wait for a call to an address, and answer it with 10 for earliest offsets and 20 for latest ones."""

        def of_address() -> list[tuple[Any, PendingCall[Any]]]:
            return [(request, call) for at, request, call in self.calls if at == address and not call.is_done]

        request, call = eventually(of_address, f"a call to {address}")[0]
        response = pb.ListOffsetsResponse()
        for topic in request.topics:
            answered = response.topics.add(name=topic.name)
            for each in topic.partitions:
                answered.partitions.add(partition=each.partition, offset=10 if each.timestamp == -2 else 20)
        call.complete(None if error else response, error)

    @property
    def positions(self) -> list[int | None]:
        return [state.position for state in self.states]

    @property
    def asked(self) -> list[str]:
        return [address for address, _, _ in self.calls]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with ThreadPoolExecutor(1) as pool:
        yield World(pool, monkeypatch)


def test_a_poll_waits_for_the_answers_of_all_leaders(world: World) -> None:
    found = world.start(A_LONG_WAIT_S)
    world.end(HUNG)
    world.end(ALIVE)
    found.result(STALL_S)
    assert world.positions == [10, 20]


def test_a_leader_that_hangs_delays_one_poll_until_it_answers(world: World) -> None:
    found = world.start(A_SHORT_WAIT_S)
    world.end(ALIVE)
    found.result(STALL_S)
    world.find(A_LONG_WAIT_S)
    assert world.positions == [None, 20]
    assert world.asked == [HUNG, ALIVE]  # the call to the leader that hangs is still in flight
    world.end(HUNG)
    world.find(A_LONG_WAIT_S)
    assert world.positions == [10, 20]


def test_a_poll_does_not_wait_for_the_next_call_to_a_leader_that_hung(world: World) -> None:
    found = world.start(A_SHORT_WAIT_S)
    world.end(ALIVE)
    found.result(STALL_S)
    world.end(HUNG, OffsetNotAvailableError("not yet"))
    world.find(A_LONG_WAIT_S)
    world.states[0].retry_at = -math.inf
    world.find(A_LONG_WAIT_S)
    assert world.asked == [HUNG, ALIVE, HUNG]
    assert world.positions == [None, 20]
    world.end(HUNG)
    world.find(A_LONG_WAIT_S)
    assert world.positions == [10, 20]
    world.states[0].reset("latest")
    found = world.start(A_LONG_WAIT_S)  # it has answered, so that a poll waits for it again
    world.end(HUNG)
    found.result(STALL_S)
    assert world.positions == [20, 20]


def test_an_answer_after_a_seek_is_dropped(world: World) -> None:
    found = world.start(A_SHORT_WAIT_S)
    world.end(ALIVE)
    found.result(STALL_S)
    world.states[0].move_to(7)
    world.end(HUNG)
    world.find(A_LONG_WAIT_S)
    assert world.positions == [7, 20]


def test_a_partition_is_asked_for_again_after_its_backoff(world: World) -> None:
    del world.leaders.leaders[FIRST]
    found = world.start(A_LONG_WAIT_S)
    world.end(ALIVE, OffsetNotAvailableError("not yet"))
    found.result(STALL_S)
    assert world.positions == [None, None]
    assert [state.attempts for state in world.states] == [1, 1]
    assert world.leaders.forgotten == 2
    for state in world.states:
        state.retry_at = math.inf
    world.find(A_LONG_WAIT_S)
    assert world.asked == [ALIVE]
    world.leaders.leaders[FIRST] = ALIVE
    for state in world.states:
        state.retry_at = -math.inf
    found = world.start(A_LONG_WAIT_S)
    world.end(ALIVE)
    found.result(STALL_S)
    assert world.positions == [10, 20]


def test_a_permanent_error_is_raised_after_the_positions_of_the_others(world: World) -> None:
    found = world.start(A_LONG_WAIT_S)
    world.end(HUNG, AuthorizationError("not allowed"))
    world.end(ALIVE)
    with pytest.raises(AuthorizationError):
        found.result(STALL_S)
    assert world.positions == [None, 20]
    assert not world.states[0].in_flight


def test_a_committed_offset_needs_no_leader(world: World) -> None:
    world.committed[FIRST] = OffsetAndMetadata(offset=5)
    for state in world.states:
        state.wants_committed = True
    found = world.start(A_LONG_WAIT_S)
    world.end(ALIVE)
    found.result(STALL_S)
    assert world.positions == [5, 20]
    assert world.asked == [ALIVE]


def test_without_a_reset_the_missing_position_is_an_error(world: World) -> None:
    world.states[0].reset_to = "none"
    with pytest.raises(OffsetOutOfRangeError, match=r"auto\.offset\.reset is none"):
        world.find(A_LONG_WAIT_S)


def test_without_a_reset_each_poll_asks_for_the_committed_offset_again(world: World) -> None:
    world.states[0].reset_to = "none"
    world.states[0].wants_committed = True
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError, match=r"auto\.offset\.reset is none"):
            world.find(A_LONG_WAIT_S)
    world.committed[FIRST] = OffsetAndMetadata(offset=5)
    found = world.start(A_LONG_WAIT_S)
    world.end(ALIVE)
    found.result(STALL_S)
    assert world.positions == [5, 20]


def test_a_wakeup_ends_the_wait_and_keeps_the_calls(world: World) -> None:
    found = world.start(A_LONG_WAIT_S)
    eventually(lambda: len(world.calls) == 2, "both calls")
    world.signal.wakeup()
    with pytest.raises(WakeupError):
        found.result(STALL_S)
    world.end(HUNG)
    world.end(ALIVE)
    world.find(A_LONG_WAIT_S)
    assert world.positions == [10, 20]
    assert world.asked == [HUNG, ALIVE]
