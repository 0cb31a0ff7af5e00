"""Detection of broker processes that have ended, long before their ZooKeeper sessions do.

The kernel of a process that ends closes its connections and refuses new ones. So each broker holds a connection to
every other one. When it breaks and cannot be made again, ``on_lost`` is called, again and again until it can.

Invariants

- ``on_lost`` is called only for a broker to which a connection was held and broke. A broker that was never reached from
  here, because of an address that is wrong or a network that is cut, is never lost.
- A connection that the broker ended in an orderly way (it is idle, or the broker stops) has not broken.
- ``is_refused`` counts connections that are refused, and nothing else: a paused broker accepts, and packets that are
  dropped end in a time-out. Both cost the session time, for their processes may live.
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
"""Between two refusals that count as a proof. A listener that is replaced, or a rule of a firewall, may refuse once."""


class Connections(Protocol):
    """The connections to other brokers (``Peers``)."""

    async def stay_connected(self, broker_id: int, connected: Callable[[], None]) -> bool:
        """Hold a connection until it ends; true if it broke. Raises ``MillraceError`` when there is none."""
        ...

    async def refuses(self, broker_id: int) -> bool:
        """Whether new connections to a broker are refused."""
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
        """Whether new connections to a broker are refused now, and again after a pause."""
        if not await self._connections.refuses(broker_id):
            return False
        await asyncio.sleep(_PROOF_PAUSE_S)
        return await self._connections.refuses(broker_id)

    async def close(self) -> None:
        """Hold no connections any more."""
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
            except (MillraceError, OSError) as error:  # OSError: a TimeoutError, too
                _logger.debug("broker %d is not reached: %s", broker_id, error)
                if broke:
                    await self._lost(broker_id)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _lost(self, broker_id: int) -> None:
        try:
            await self._on_lost(broker_id)
        except MillraceError as error:
            _logger.info("broker %d is not reached; this is looked at again: %s", broker_id, error.message)
        except Exception:
            _logger.exception("broker %d is not reached; this is looked at again", broker_id)
