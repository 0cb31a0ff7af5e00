"""Admission of calls, with limits on places, memory and connections.

A running call takes a place. Its request and its response take memory. Calls that wait for others share memory of their
own. Kafka's classes are ``RequestChannel`` and ``ConnectionQuotas``. This code runs in the event loop's thread. Each
class of call (``call_classes``) has its own places and memory, so that no class can take another's.

Invariants

- A call takes one place of its class while it runs. It gives the place back when it first waits for others, and takes
  none again, because its work after the wait was admitted before.
- The memory of a waiting call is counted as ``PARKED_CALL_BYTES`` plus its request. It is counted in ``parked_calls``,
  or, if that is full, in the request memory of its class. A broker's call is always counted in its class's memory. A
  call that waits for this memory itself, and has no room in ``parked_calls``, keeps its place.
- A call gives back everything it took when it ends. The response's memory is given back once the response was sent.
- A request that stops in the middle gives way to calls that wait for its memory or place (``receptions``).

At the limit of places, a connection in Kafka's framing is not read until a place is free (``begin_in_turn``). Over
gRPC, the call is refused with ``ThrottledError``, which clients of millrace retry. A call beyond the memory waits its
turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.errors import ThrottledError
from millrace_broker.quotas.address_connections import AddressConnections
from millrace_broker.quotas.byte_budget import ByteBudget, Lease, SizeEstimate
from millrace_broker.quotas.call_classes import CallClass
from millrace_broker.quotas.connections import Connections
from millrace_broker.quotas.parked_calls import ParkedCalls
from millrace_broker.quotas.receptions import Receptions

PARKED_CALL_BYTES: Final = 16 * 1024
"""Memory of a waiting call besides its request: task, coroutine, timer, state of the connection or stream."""
_FIRST_BODIES: Final = 4
"""Bodies received at a time before any body's size is known."""
_OPTIONS: Final = {
    CallClass.CLIENT: "queued.max.requests",
    CallClass.CONTROL: "control.queued.max.requests",
    CallClass.BROKER: "inter.broker.queued.max.requests",
}


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Calls in progress, and the effects of limits since the start.

    ``refused``, ``delayed``, ``gave_way`` and ``evicted`` count the calls that a limit refused, delayed or ended.
    """

    requests: int
    """Running calls of all classes."""
    by_class: Mapping[str, int]
    """Running calls by class."""
    connections: int
    bytes_in_use: int
    """Bytes of requests and responses held, without ``parked_bytes``."""
    refused: int
    delayed: int
    gave_way: int
    """Requests that stopped in the middle and gave way to others."""
    parked: int
    """Clients' calls that wait for others."""
    parked_bytes: int
    evicted: int
    """Polls answered early because the memory for parked calls was full."""


class Room:
    """Places and memory of one class of calls."""

    def __init__(
        self, call_class: CallClass, monotonic: Callable[[], float], *, requests_max: int, bytes_max: int
    ) -> None:
        self.call_class: Final = call_class
        self._requests_max: Final = requests_max
        self.request_bytes: Final = ByteBudget(bytes_max)
        self.response_bytes: Final = ByteBudget(bytes_max)
        self.unseen_bytes: Final = ByteBudget(bytes_max // 2)
        """Memory of requests that a listener does not see until they are complete, a part of ``request_bytes``.

        Its limit leaves the other half to requests that the broker can receive in steps.
        """
        self.body_estimate: Final = SizeEstimate(bytes_max // 2 // _FIRST_BODIES)
        """Size estimate of such requests."""
        self.requests = 0
        self.refused = 0
        self.delayed = 0
        self._turns: Final[deque[asyncio.Future[None]]] = deque()
        self.receptions: Final = Receptions(monotonic, self._is_wanted)
        self.unseen_receptions: Final = Receptions(monotonic, lambda: self.unseen_bytes.is_wanted or self._is_wanted())

    def enter(self) -> None:
        """Take a place. Raises ``ThrottledError``."""
        if self.is_full:
            self.receptions.make_way_for_refused(lambda: self.is_full)
            self.unseen_receptions.make_way_for_refused(lambda: self.is_full)
            if self.is_full:
                self.refused += 1
                limit = _OPTIONS[self.call_class]
                raise ThrottledError(f"{self.requests} requests are in progress, as many as {limit} allows: try again")
        self.requests += 1

    def leave(self) -> None:
        """Give a place back."""
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)  # the place is this call's now
                return
        self.requests -= 1
        assert self.requests >= 0, "a place is given back once"

    @property
    def is_full(self) -> bool:
        """True if all places are taken."""
        return self.requests >= self._requests_max

    async def enter_in_turn(self) -> None:
        """Take a place. Wait for it while all are taken, first come first served."""
        if not self.is_full:
            self.requests += 1
            return
        self.delayed += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            with self.wanted():
                await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """Let stalled receptions of all kinds give way while the caller waits."""
        with self.receptions.wanted(), self.unseen_receptions.wanted():
            yield

    def _is_wanted(self) -> bool:
        return self.request_bytes.is_wanted or any(not turn.done() for turn in self._turns)


class Admission:
    """Admission of calls and connections; see the module."""

    def __init__(self, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        self.rooms: Final = {
            CallClass.CLIENT: Room(
                CallClass.CLIENT,
                monotonic,
                requests_max=config.queued_max_requests,
                bytes_max=config.queued_max_request_bytes,
            ),
            CallClass.CONTROL: Room(
                CallClass.CONTROL,
                monotonic,
                requests_max=config.control_queued_max_requests,
                bytes_max=config.control_queued_max_request_bytes,
            ),
            CallClass.BROKER: Room(
                CallClass.BROKER,
                monotonic,
                requests_max=config.inter_broker_queued_max_requests,
                bytes_max=config.inter_broker_queued_max_request_bytes,
            ),
        }
        self.connections: Final = Connections(_connections_max(config), monotonic)
        self.addresses: Final = AddressConnections(config)
        self.parked: Final[ParkedCalls[AdmittedCall]] = ParkedCalls(config.purgatory_max_request_bytes)

    def take_config(self, config: BrokerConfig) -> None:
        """Apply the numbers of connections of a changed configuration."""
        self.connections.maxima.update(_connections_max(config))
        self.addresses.take_config(config)

    def begin(self, peer: Hashable | None, call_class: CallClass) -> AdmittedCall:
        """Admit a call of a connection. The caller must end it. Raises ``ThrottledError``.

        ``peer`` is None before the client has authenticated, because its connection must not take another's place.
        """
        room = self.rooms[call_class]
        room.enter()
        return self._begun(peer, room)

    async def begin_in_turn(self, peer: Hashable | None, call_class: CallClass) -> AdmittedCall:
        """Admit a call as ``begin`` does, after a wait for a place.

        Raises ``ThrottledError`` if there is no place for the connection.
        """
        room = self.rooms[call_class]
        await room.enter_in_turn()
        return self._begun(peer, room)

    def _begun(self, peer: Hashable | None, room: Room) -> AdmittedCall:
        if peer is not None:
            try:
                self.connections.call_begins(peer, room.call_class)
            except ThrottledError:
                room.leave()
                raise
        return AdmittedCall(self, peer, room)

    def statistics(self) -> AdmissionStatistics:
        """Return the current statistics."""
        rooms = self.rooms.values()
        budgets = [budget for room in rooms for budget in (room.request_bytes, room.response_bytes)]
        delayed = sum(budget.delayed for budget in budgets) + sum(room.unseen_bytes.delayed for room in rooms)
        return AdmissionStatistics(
            requests=sum(room.requests for room in rooms),
            by_class={each.value: room.requests for each, room in self.rooms.items()},
            connections=len(self.connections),
            bytes_in_use=sum(budget.in_use_bytes for budget in budgets),
            refused=self.connections.refused + sum(room.refused for room in rooms),
            delayed=delayed + sum(room.delayed for room in rooms),
            gave_way=sum(room.receptions.gave_way + room.unseen_receptions.gave_way for room in rooms),
            parked=len(self.parked),
            parked_bytes=self.parked.bytes,
            evicted=self.parked.evicted,
        )


class AdmittedCall:
    """One call from its admission to its answer. It is ``Parkable``."""

    __slots__ = (
        "_admission",
        "_has_place",
        "_is_counted",
        "_is_over",
        "_peer",
        "_room",
        "_unseen_lease",
        "request_lease",
        "response_lease",
    )

    def __init__(self, admission: Admission, peer: Hashable | None, room: Room) -> None:
        """Create the call for ``Admission.begin``, which has taken its place in a room."""
        self._admission: Final = admission
        self._peer: Final = peer
        self._room: Final = room
        self._has_place = True
        self._is_counted = False
        self._is_over = False
        self._unseen_lease: Final = Lease(self._room.unseen_bytes)
        self.request_lease: Final = Lease(self._room.request_bytes)
        """Memory of the request, taken before its reception."""
        self.response_lease: Final = Lease(self._room.response_bytes)
        """Memory of the response.

        The listener releases it after the response was sent, when the call has already ended.
        """

    def request_step(self, size_bytes: int, arrived_bytes: int) -> int:
        """Return the memory that a request takes first, of which some bytes have arrived."""
        return self._room.request_bytes.step(size_bytes, arrived_bytes)

    async def take_request_memory(self, size_bytes: int) -> None:
        """Take the memory of the request before its reception. Wait while other calls hold it.

        The call is parked meanwhile. If parked calls have no room for it, the call keeps its place.
        """
        if self.request_lease.take_now(size_bytes):
            return
        with self._waits_for_memory(), self._room.wanted():
            await self.request_lease.take(size_bytes)

    async def take_unseen_memory(self) -> None:
        """Do as ``take_request_memory`` for a request of unknown size, whose progress the listener does not see."""
        size_bytes = self._room.body_estimate.bytes
        if not self._unseen_lease.take_now(size_bytes):
            with self._waits_for_memory(), self._room.unseen_receptions.wanted():
                await self._unseen_lease.take(size_bytes)
        await self.take_request_memory(size_bytes)

    def saw_request(self, size_bytes: int) -> None:
        """Settle the memory of ``take_unseen_memory`` after the reception."""
        self._unseen_lease.release()
        self.request_lease.settle(size_bytes)
        self._room.body_estimate.saw(size_bytes)

    async def grow_request_memory(self, size_bytes: int, arrived_bytes: int) -> None:
        """Take the memory of the next step of a request, as ``take_request_memory`` does."""
        with self._waits_for_memory(), self._room.wanted():
            await self.request_lease.grow(size_bytes, arrived_bytes)

    @contextmanager
    def _waits_for_memory(self) -> Iterator[None]:
        parked = self._admission.parked
        # Calls that wait for request memory must not be counted in it, because they would block each other.
        if self._room.call_class is CallClass.BROKER or parked.bind(self, PARKED_CALL_BYTES):
            self._give_place()
        try:
            yield
        finally:
            parked.release(self)

    @property
    def receptions(self) -> Receptions:
        """Receptions of requests that the listener sees arrive, of the call's class."""
        return self._room.receptions

    @property
    def unseen_receptions(self) -> Receptions:
        """Receptions of requests after ``take_unseen_memory``, of the call's class."""
        return self._room.unseen_receptions

    def park(self, give_up: Callable[[], None] | None) -> None:
        """Wait for others; see ``waiting.Parkable``. Waits of one call may overlap unless they are polls."""
        if self._is_over:  # the call has ended, but its work continues
            return
        self._give_place()
        if self._room.call_class is CallClass.BROKER:
            return
        parked, is_first, self._is_counted = self._admission.parked, not self._is_counted, True
        cost_bytes = self.request_lease.held_bytes + (PARKED_CALL_BYTES if is_first else 0)
        if give_up is not None:
            parked.poll(self, cost_bytes, give_up)
        elif not is_first:
            return
        elif not parked.bind(self, cost_bytes):
            self.request_lease.settle(cost_bytes)
            return
        self.request_lease.release()

    def resume(self) -> None:
        """Continue after a wait."""
        self._admission.parked.woken(self)

    def end(self) -> None:
        """Give back everything except the response's memory. A second call does nothing."""
        if self._is_over:
            return
        self._is_over = True
        self._give_place()
        if self._is_counted:
            self._admission.parked.release(self)
        if self._peer is not None:
            self._admission.connections.call_ended(self._peer)
        self._unseen_lease.release()
        self.request_lease.release()

    def _give_place(self) -> None:
        if self._has_place:
            self._has_place = False
            self._room.leave()


def _connections_max(config: BrokerConfig) -> dict[CallClass, int]:
    return {
        CallClass.CLIENT: config.max_connections,
        CallClass.CONTROL: config.control_max_connections,
        CallClass.BROKER: config.inter_broker_max_connections,
    }
