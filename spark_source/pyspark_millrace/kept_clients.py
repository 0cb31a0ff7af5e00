"""Clients cached for the life of a worker process, across tasks.

Invariant: at most ``kept_max`` are open; the least recently used one is closed for a new one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar


class Closable(Protocol):
    """A client that can be closed."""

    def close(self) -> None:
        """Close the connections."""


Key = TypeVar("Key", bound=Hashable)
Client = TypeVar("Client", bound=Closable)


class KeptClients(Generic[Key, Client]):
    """Cache of clients by key. Thread safe."""

    def __init__(self, make: Callable[[Key], Client], kept_max: int) -> None:
        """Create an empty cache; ``make`` opens the client of a key."""
        self._make: Final = make
        self._kept_max: Final = kept_max
        self._lock: Final = threading.Lock()
        self._kept: Final[OrderedDict[Key, Client]] = OrderedDict()

    def get(self, key: Key) -> Client:
        """Return the client of a key, and open it if necessary."""
        with self._lock:
            client = self._kept.get(key)
            if client is None:
                client = self._kept[key] = self._make(key)
            self._kept.move_to_end(key)
            surplus = self._kept.popitem(last=False)[1] if len(self._kept) > self._kept_max else None
        if surplus is not None:
            surplus.close()
        return client

    def close(self) -> None:
        """Close all clients; a later ``get`` opens them again."""
        with self._lock:
            kept = list(self._kept.values())
            self._kept.clear()
        for client in kept:
            client.close()
