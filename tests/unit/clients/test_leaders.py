"""Tests of calls to several leaders.

A leader that does not answer delays no other one, and the time of all calls is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from millrace.clients.connections import Connections
from millrace.clients.consuming.connections import ConsumerConnections
from millrace.clients.model import TopicPartition
from millrace.clients.offsets import ask_offsets
from millrace.clients.signal import Signal
from millrace.clients.transport import PendingCall
from millrace.config.client import ClientConfig
from millrace.errors import (
    AuthorizationError,
    BrokerUnavailableError,
    LeaderNotAvailableError,
    NotLeaderError,
    WakeupError,
)
from millrace.protocol import millrace_pb2 as pb

from ...integration.waiting import AN_HOUR_MS, STALL_S, eventually

HUNG, ALIVE = "a:1", "b:1"
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


class Calls:
    """Calls in flight of scripted connections, which a test ends."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, Any, float, PendingCall[Any]]] = []

    def begin(self, call: Any, request: Any, *, address: str, timeout_s: float, on_done: Any, cancellable: bool) -> Any:
        pending: PendingCall[Any] = PendingCall(on_done)
        self.begun.append((address, request, timeout_s, pending))
        return pending

    def open_at(self, address: str) -> list[tuple[Any, PendingCall[Any]]]:
        """Return requests and calls in flight at an address."""
        return [(request, pending) for at, request, _, pending in self.begun if at == address and not pending.is_done]

    def end(self, address: str, outcome: Callable[[pb.ListOffsetsRequest], Any]) -> None:
        """Wait for a call to an address, and end it with a response, or with an error."""
        request, pending = eventually(lambda: self.open_at(address), f"a call to {address}")[0]
        result = outcome(request)
        if isinstance(result, Exception):
            pending.complete(None, result)  # type: ignore[arg-type]
        else:
            pending.complete(result, None)


def _answer(request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
    response = pb.ListOffsetsResponse()
    for topic in request.topics:
        answered = response.topics.add(name=topic.name)
        for each in topic.partitions:
            answered.partitions.add(partition=each.partition, offset=100 + each.partition)
    return response


class Metadata:
    """Leaders of partitions; a partition without one has an error."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, str] = {FIRST: HUNG, SECOND: ALIVE}

    def leader_address(self, partition: TopicPartition, timeout_ms: int | None = None) -> str:
        if partition not in self.leaders:
            raise LeaderNotAvailableError(f"{partition} has no leader")
        return self.leaders[partition]

    def forget(self, names: Iterable[str]) -> None:
        pass


class Asker:
    """A thread that looks up the offsets of both partitions."""

    def __init__(self, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = Calls()
        self.metadata = Metadata()
        self._pool = pool
        self._patch = monkeypatch

    def connections(self, signal: Signal | None = None, **options: Any) -> Connections:
        named = {name.replace("_", "."): value for name, value in options.items()}
        config = ClientConfig.of({"bootstrap.servers": f"{HUNG},{ALIVE}", "retry.backoff.ms": 1, **named})
        made = Connections(config) if signal is None else ConsumerConnections(config, signal)
        self._patch.setattr(made, "begin", self.calls.begin)
        return made

    def start(self, connections: Connections, signal: Signal | None = None) -> Future[dict[Any, Any]]:
        def ask() -> dict[Any, Any]:
            wanted = {FIRST: "latest", SECOND: "latest"}
            if signal is None:
                return ask_offsets(connections, self.metadata, wanted)  # type: ignore[arg-type]
            with signal.in_use():
                return ask_offsets(connections, self.metadata, wanted)  # type: ignore[arg-type]

        return self._pool.submit(ask)


@pytest.fixture
def asker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asker]:
    with ThreadPoolExecutor(1) as pool:
        yield Asker(pool, monkeypatch)


def _offsets(found: dict[Any, Any]) -> dict[TopicPartition, int]:
    return {partition: place.offset for partition, place in found.items()}


def test_a_leader_that_hangs_delays_no_call_and_no_retry_at_another(asker: Asker) -> None:
    future = asker.start(asker.connections())
    eventually(lambda: asker.calls.open_at(HUNG), "a call to the leader that hangs")
    asker.calls.end(ALIVE, lambda request: NotLeaderError("moved"))
    asker.calls.end(ALIVE, _answer)
    assert asker.calls.open_at(HUNG)
    assert not future.done()
    asker.calls.end(HUNG, _answer)
    assert _offsets(future.result(STALL_S)) == {FIRST: 100, SECOND: 101}


def test_a_partition_without_a_leader_is_asked_for_again_while_another_leader_hangs(asker: Asker) -> None:
    del asker.metadata.leaders[SECOND]
    future = asker.start(asker.connections())
    eventually(lambda: asker.calls.open_at(HUNG), "a call to the leader that hangs")
    asker.metadata.leaders[SECOND] = ALIVE
    asker.calls.end(ALIVE, _answer)
    asker.calls.end(HUNG, _answer)
    assert _offsets(future.result(STALL_S)) == {FIRST: 100, SECOND: 101}


def test_calls_end_with_the_time_of_all_attempts(asker: Asker) -> None:
    limits = {"request_timeout_ms": AN_HOUR_MS, "default_api_timeout_ms": 10_000}
    future = asker.start(asker.connections(**limits))
    asker.calls.end(HUNG, lambda request: BrokerUnavailableError("broken"))
    asker.calls.end(HUNG, _answer)
    asker.calls.end(ALIVE, _answer)
    assert [address for address, _, _, _ in asker.calls.begun] == [HUNG, ALIVE, HUNG]
    assert all(timeout_s <= 10 for _, _, timeout_s, _ in asker.calls.begun)
    assert _offsets(future.result(STALL_S)) == {FIRST: 100, SECOND: 101}


def test_a_permanent_error_ends_the_other_calls(asker: Asker) -> None:
    future = asker.start(asker.connections())
    eventually(lambda: asker.calls.open_at(HUNG), "a call to the leader that hangs")
    asker.calls.end(ALIVE, lambda request: AuthorizationError("not allowed"))
    with pytest.raises(AuthorizationError):
        future.result(STALL_S)
    assert not asker.calls.open_at(HUNG)


def test_a_wakeup_ends_the_calls_of_a_consumer(asker: Asker) -> None:
    signal = Signal()
    future = asker.start(asker.connections(signal), signal)
    eventually(lambda: asker.calls.open_at(HUNG) and asker.calls.open_at(ALIVE), "calls to both leaders")
    signal.wakeup()
    with pytest.raises(WakeupError):
        future.result(STALL_S)
    assert not asker.calls.open_at(HUNG)
    assert not asker.calls.open_at(ALIVE)
