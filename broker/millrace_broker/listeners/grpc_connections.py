"""New connections of a listener for gRPC, which their rates delay.

The gRPC library shows a connection to the broker only with its first call, and never its end. So the first call takes
the wait that the connection has in Kafka's framing.

Invariants

- A connection counts once, however many calls begin at the same time. If it is refused, its next call counts again.
- At most ``_CONNECTIONS_MAX`` connections are known. A connection without calls for ``connections.max.idle.ms`` is
  forgotten, because the library closes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from millrace.errors import ThrottledError
from millrace_broker.quotas import ConnectionRates, pause
from millrace_broker.quotas.connection_rates import Delay

_CONNECTIONS_MAX: Final = 20_000


class GrpcConnections:
    """Connections of one listener. In the event loop."""

    def __init__(
        self,
        listener: str,
        idle_s: float,
        monotonic: Callable[[], float],
        wait: Callable[[float], Awaitable[None]] = pause,
    ) -> None:
        self._listener: Final = listener
        self._idle_s: Final = idle_s
        self._monotonic: Final = monotonic
        self._wait: Final = wait
        self._called_s: Final[dict[str, float]] = {}
        """Time of the last call of each connection, the earliest first."""
        self._opening: Final[dict[str, tuple[Delay, float]]] = {}
        """New connections that wait, with the times at which their waits end."""

    async def call_begins(self, peer: str, host: str, rates: ConnectionRates) -> None:
        """Take the next call of a connection. Raises ``ThrottledError`` if its address makes too many connections."""
        if peer not in self._called_s and rates.is_active:
            await self._open(peer, host, rates)
        self._called_s.pop(peer, None)
        now = self._called_s[peer] = self._monotonic()
        while len(self._called_s) > _CONNECTIONS_MAX or next(iter(self._called_s.values())) < now - self._idle_s:
            del self._called_s[next(iter(self._called_s))]

    async def _open(self, peer: str, host: str, rates: ConnectionRates) -> None:
        now = self._monotonic()
        if peer not in self._opening:
            delay = rates.opened(self._listener, host)
            self._opening[peer] = delay, now + delay.wait_s
        delay, until = self._opening[peer]
        try:
            if until > now:
                await self._wait(until - now)
        finally:
            self._opening.pop(peer, None)
        if delay.is_refused:
            raise ThrottledError(
                f"{host} makes more new connections than the broker takes (connection_creation_rate, or "
                "max.connection.creation.rate): keep connections open, and try again"
            )
