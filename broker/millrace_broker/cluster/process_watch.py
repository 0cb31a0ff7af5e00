"""Detection of ended broker processes before their ZooKeeper sessions end.

The kernel closes the connections of a process that ends, and refuses new ones. So each broker holds a connection to
every other broker. If that connection breaks and a new one fails, ``on_lost`` is called repeatedly until one succeeds.

Invariants

- ``on_lost`` is called only for a broker to which a connection was held and broke. A broker that was never reached, for
  example because of a wrong address or an interrupted network, is never reported.
- A connection that the other broker closed in an orderly way (idle, or stopping) has not broken.
- ``is_refused`` counts only refused connections. A paused broker accepts connections, and dropped packets end in a
  time-out. In both cases the session time-out has to pass, because the process may live.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol

from millrace.errors import MillraceError

_logger = logging.getLogger(__name__)

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.5
_PROOF_PAUSE_S: Final = 0.1
"""The pause between two refusals that prove a dead process.

A listener that is being replaced, or a firewall rule, may refuse one connection.
"""


class Connections(Protocol):
    """The connections to other brokers (``Peers``)."""

    async def stay_connected(self, broker_id: int, connected: Callable[[], None]) -> bool:
        """Hold a connection until it ends; returns True if it broke. Raises ``MillraceError`` if it cannot be made."""
        ...

    async def refuses(self, broker_id: int) -> bool:
        """Return whether new connections to a broker are refused."""
        ...


class ProcessWatch:
    """The connections that this broker holds to others. For the event loop's thread."""

    def __init__(self, connections: Connections, on_lost: Callable[[int], Awaitable[None]]) -> None:
        self._connections: Final = connections
        self._on_lost: Final = on_lost
        self._watches: Final[dict[int, asyncio.Task[None]]] = {}

    def keep(self, brokers: Collection[int]) -> None:
        """Hold connections to these brokers and to no others."""
        for broker_id in self._watches.keys() - set(brokers):
            self._watches.pop(broker_id).cancel()
        for broker_id in sorted(set(brokers) - self._watches.keys()):
            task = asyncio.create_task(self._watch(broker_id), name=f"millrace-watch-broker-{broker_id}")
            self._watches[broker_id] = task

    async def is_refused(self, broker_id: int) -> bool:
        """Return whether new connections to a broker are refused now, and again after a pause."""
        if not await self._connections.refuses(broker_id):
            return False
        await asyncio.sleep(_PROOF_PAUSE_S)
        return await self._connections.refuses(broker_id)

    async def close(self) -> None:
        """Close all connections."""
        watches = list(self._watches.values())
        self._watches.clear()
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _watch(self, broker_id: int) -> None:
        broke = False
        pause_s = _PAUSE_FIRST_S

        def connected() -> None:
            nonlocal broke, pause_s
            broke, pause_s = False, _PAUSE_FIRST_S

        while True:
            try:
                broke = await self._connections.stay_connected(broker_id, connected)
            except (MillraceError, OSError) as error:  # OSError includes TimeoutError
                _logger.debug("broker %d cannot be reached: %s", broker_id, error)
                if broke:
                    await self._lost(broker_id)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _lost(self, broker_id: int) -> None:
        try:
            await self._on_lost(broker_id)
        except MillraceError as error:
            _logger.info("broker %d cannot be reached; the check is repeated: %s", broker_id, error.message)
        except Exception:
            _logger.exception("broker %d cannot be reached; the check is repeated", broker_id)
