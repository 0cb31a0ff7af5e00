from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.errors import ThrottledError
from millrace_broker.quotas import ACTIVE_CONNECTION_S, CallClass, Connections

CLIENT, CONTROL, BROKER = CallClass.CLIENT, CallClass.CONTROL, CallClass.BROKER


class _Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _connections(time: _Time | None = None, *, clients: int = 1, control: int = 1, brokers: int = 1) -> Connections:
    return Connections({CLIENT: clients, CONTROL: control, BROKER: brokers}, time or _Time())


def test_connections_that_are_known_count_until_they_are_closed() -> None:
    connections = _connections(clients=2)
    connections.opened("a", is_broker=False)
    connections.call_begins("b", CLIENT)
    with pytest.raises(ThrottledError, match=r"max\.connections"):
        connections.call_begins("c", CLIENT)
    connections.call_begins("a", CLIENT)
    connections.call_ended("a")
    connections.closed("a")
    connections.call_begins("c", CLIENT)
    assert (len(connections), connections.refused) == (2, 1)


def test_connections_that_are_not_known_count_for_a_while_after_their_last_call() -> None:
    time = _Time()
    connections = _connections(time)
    connections.call_begins("a", CLIENT)
    time.now += ACTIVE_CONNECTION_S * 2  # a long call keeps its connection
    with pytest.raises(ThrottledError):
        connections.call_begins("b", CLIENT)
    connections.call_ended("a")
    time.now += ACTIVE_CONNECTION_S + 1
    connections.call_begins("b", CLIENT)
    assert len(connections) == 1


def test_the_reserve_is_for_calls_of_control() -> None:
    connections = _connections()
    connections.opened("a", is_broker=False)
    connections.opened("b", is_broker=False)
    assert connections.room_of("b") is CONTROL
    connections.call_begins("b", CONTROL)
    with pytest.raises(ThrottledError, match=r"1 connections are active, as many as max\.connections allows: "):
        connections.call_begins("b", CLIENT)
    with pytest.raises(ThrottledError, match=r"control\.max\.connections"):
        connections.opened("c", is_broker=False)
    connections.closed("a")
    connections.call_begins("b", CLIENT)
    assert connections.room_of("b") is CLIENT
    assert connections.count(CONTROL) == 0


def test_brokers_have_places_of_their_own() -> None:
    connections = _connections()
    connections.opened("a", is_broker=False)
    connections.opened("b", is_broker=False)
    connections.opened("peer", is_broker=True)
    with pytest.raises(ThrottledError, match=r"inter\.broker\.max\.connections"):
        connections.opened("another", is_broker=True)
    assert connections.room_of("peer") is BROKER


def test_fewer_places_than_there_are_connections_close_none() -> None:
    connections = _connections(clients=2)
    for peer in "ab":
        connections.opened(peer, is_broker=False)
    connections.maxima[CLIENT] = 1
    connections.closed("a")
    assert connections.is_full(CLIENT)
    connections.closed("b")
    assert not connections.is_full(CLIENT)


class _Machine(RuleBasedStateMachine):
    """Connections that open, call and close in any order.

    No limit is exceeded, and a connection is refused only if no place is left.
    """

    peers = st.integers(0, 7).map(str)

    @initialize(clients=st.integers(1, 3), control=st.integers(1, 2), brokers=st.integers(1, 2))
    def begin(self, clients: int, control: int, brokers: int) -> None:
        self.maxima = {CLIENT: clients, CONTROL: control, BROKER: brokers}
        self.connections = Connections(self.maxima, _Time())
        self.rooms: dict[str, CallClass] = {}
        self.calls: dict[str, int] = {}

    def _has_place(self, room: CallClass) -> bool:
        return list(self.rooms.values()).count(room) < self.maxima[room]

    @rule(peer=peers, is_broker=st.booleans())
    def open(self, peer: str, is_broker: bool) -> None:
        if peer in self.rooms:
            return
        wanted = [BROKER] if is_broker else [CLIENT, CONTROL]
        places = [room for room in wanted if self._has_place(room)]
        if places:
            self.connections.opened(peer, is_broker=is_broker)
            self.rooms[peer] = places[0]
        else:
            with pytest.raises(ThrottledError):
                self.connections.opened(peer, is_broker=is_broker)

    @rule(peer=peers, call_class=st.sampled_from(CallClass))
    def call(self, peer: str, call_class: CallClass) -> None:
        if peer not in self.rooms:
            return
        moves = call_class is CLIENT and self.rooms[peer] is not CLIENT
        if moves and not self._has_place(CLIENT):
            with pytest.raises(ThrottledError):
                self.connections.call_begins(peer, call_class)
            return
        self.connections.call_begins(peer, call_class)
        self.calls[peer] = self.calls.get(peer, 0) + 1
        if moves:
            self.rooms[peer] = CLIENT

    @rule(peer=peers)
    def end(self, peer: str) -> None:
        if self.calls.get(peer):
            self.calls[peer] -= 1
            self.connections.call_ended(peer)

    @rule(peer=peers)
    def close(self, peer: str) -> None:
        if peer in self.rooms and not self.calls.get(peer):
            del self.rooms[peer]
            self.connections.closed(peer)

    @invariant()
    def as_the_model_says(self) -> None:
        assert len(self.connections) == len(self.rooms)
        for room in CallClass:
            assert self.connections.count(room) == list(self.rooms.values()).count(room) <= self.maxima[room]
        for peer in self.rooms:
            assert self.connections.room_of(peer) is self.rooms[peer]


TestModel = _Machine.TestCase
