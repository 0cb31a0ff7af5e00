"""Places for connections, with a reserve that client connections cannot fill.

Invariants

- A connection has one place, in one room. No room holds more connections than its maximum.
- A connection in the room ``CLIENT`` may make any call. A connection in a reserve may make only calls of the reserve's
  class. A connection in the reserve moves to ``CLIENT`` with its first client call, if there is a place.

A listener that knows its connections reports them as ``opened`` and ``closed``. gRPC does not show its connections.
Such a connection counts for ``ACTIVE_CONNECTION_S`` after its last call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from millrace.errors import ThrottledError
from millrace_broker.quotas.call_classes import CallClass

ACTIVE_CONNECTION_S: Final = 10.0
"""Time for which a connection counts after its last call if the listener does not see its end."""
_LOOKED_AGAIN_S: Final = 0.1
"""Interval of checks for idle connections while a room is full."""
_ROOMS: Final = {
    CallClass.CLIENT: (CallClass.CLIENT,),
    CallClass.CONTROL: (CallClass.CLIENT, CallClass.CONTROL),
    CallClass.BROKER: (CallClass.BROKER,),
}
"""Rooms where a connection may have its place, by the class of its call, the first choice first."""


@dataclass(slots=True)
class _Connection:
    room: CallClass
    is_open: bool
    """True if the listener reports the end of the connection with ``closed``."""
    calls: int = 0
    last_seen: float = 0.0


class Connections:
    """Connections by the keys that listeners give them.

    An address and port is not enough as a key, because two listeners may each have a connection from the same one.
    """

    def __init__(self, maxima: Mapping[CallClass, int], monotonic: Callable[[], float]) -> None:
        self.maxima: Final = dict(maxima)
        """Maximum of each room. It may be changed; a lower value closes no connection."""
        self._monotonic: Final = monotonic
        self._connections: Final[dict[Hashable, _Connection]] = {}
        self._counts: Final = dict.fromkeys(CallClass, 0)
        self._looked_at = float("-inf")
        self._refused = 0

    def __len__(self) -> int:
        """Return the number of connections that are open or had a call in the last ``ACTIVE_CONNECTION_S`` seconds."""
        self._forget_idle()
        return len(self._connections)

    @property
    def refused(self) -> int:
        """Number of connections and calls refused since the start because no place was left."""
        return self._refused

    def count(self, room: CallClass) -> int:
        """Return the number of connections in a room."""
        return self._counts[room]

    def is_full(self, room: CallClass) -> bool:
        """Return whether a room has no place left."""
        if self._counts[room] >= self.maxima[room] and self._monotonic() >= self._looked_at + _LOOKED_AGAIN_S:
            self._forget_idle()
        return self._counts[room] >= self.maxima[room]

    def room_of(self, peer: Hashable) -> CallClass | None:
        """Return the room of a connection; None if it is unknown."""
        known = self._connections.get(peer)
        return None if known is None else known.room

    def opened(self, peer: Hashable, *, is_broker: bool) -> None:
        """Count a connection until it is ``closed``. Raises ``ThrottledError``.

        A client's connection takes a place of the reserve if no other is left. Its first call shows its class.
        """
        assert peer not in self._connections, "a connection is opened once"
        room = self._choose(CallClass.BROKER if is_broker else CallClass.CONTROL)
        self._connections[peer] = _Connection(room, is_open=True)
        self._counts[room] += 1

    def closed(self, peer: Hashable) -> None:
        """Give back the place of a connection whose calls have ended."""
        self._remove(peer)

    def call_begins(self, peer: Hashable, call_class: CallClass) -> None:
        """Take a place for a connection that makes a call of a class. Raises ``ThrottledError``."""
        known = self._connections.get(peer)
        if known is None:
            room = self._choose(call_class)
            known = self._connections[peer] = _Connection(room, is_open=False)
            self._counts[room] += 1
        elif call_class is CallClass.CLIENT and known.room is not CallClass.CLIENT:
            room = self._choose(call_class)
            self._counts[known.room] -= 1
            self._counts[room] += 1
            known.room = room
        known.calls += 1

    def call_ended(self, peer: Hashable) -> None:
        """Record the end of a call."""
        known = self._connections.get(peer)
        if known is not None:
            known.calls -= 1
            assert known.calls >= 0, "a call ends once"
            if not known.is_open:
                known.last_seen = self._monotonic()

    def _choose(self, call_class: CallClass) -> CallClass:
        for room in _ROOMS[call_class]:
            if not self.is_full(room):
                return room
        self._refused += 1
        raise ThrottledError(_refusal(call_class, self.maxima))

    def _remove(self, peer: Hashable) -> None:
        known = self._connections.pop(peer, None)
        if known is not None:
            self._counts[known.room] -= 1
            assert self._counts[known.room] >= 0, "a connection has one place"

    def _forget_idle(self) -> None:
        self._looked_at = self._monotonic()
        horizon = self._looked_at - ACTIVE_CONNECTION_S
        idle = [
            peer
            for peer, known in self._connections.items()
            if not known.is_open and not known.calls and known.last_seen < horizon
        ]
        for peer in idle:
            self._remove(peer)


def _refusal(call_class: CallClass, maxima: Mapping[CallClass, int]) -> str:
    if call_class is CallClass.BROKER:
        return (
            f"{maxima[call_class]} connections of brokers are active, as many as inter.broker.max.connections allows: "
            "try again"
        )
    return (
        f"{maxima[CallClass.CLIENT]} connections are active, as many as max.connections allows"
        + ("" if call_class is CallClass.CLIENT else ", and control.max.connections more")
        + ": try again, or raise it"
    )
