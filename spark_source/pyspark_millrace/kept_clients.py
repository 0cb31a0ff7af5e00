"""Clients that live as long as the process that uses them: the tasks of a Python worker come one after the other.

Invariant: at most ``kept_max`` are open; the one that was longest unused is closed for a new one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar


class Closable(Protocol):
    """What has connections."""

    def close(self) -> None:
        """Close them."""


Key = TypeVar("Key", bound=Hashable)
Client = TypeVar("Client", bound=Closable)


class KeptClients(Generic[Key, Client]):
    """Clients by what makes them differ. Thread safe."""

    def __init__(self, make: Callable[[Key], Client], kept_max: int) -> None:
        """``make`` opens the client of a key."""
        self._make: Final = make
        self._kept_max: Final = kept_max
        self._lock: Final = threading.Lock()
        self._kept: Final[OrderedDict[Key, Client]] = OrderedDict()

    def get(self, key: Key) -> Client:
        """The client of a key, opened if there is none."""
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
        """Close all of them; they are opened again when they are asked for."""
        with self._lock:
            kept = list(self._kept.values())
            self._kept.clear()
        for client in kept:
            client.close()
