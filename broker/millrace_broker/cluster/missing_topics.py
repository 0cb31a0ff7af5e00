"""Topic names that a look-up in ZooKeeper did not find recently.

A client with a misspelt topic name asks for it again and again. The broker asks ZooKeeper only once per name in
``AGE_MAX_S``. An UpdateMetadata that names the topic removes the name at once, because it announces new topics.

Invariant: at most ``NAMES_MAX`` names are kept; the oldest goes first. Safe from any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

NAMES_MAX: Final = 10_000
AGE_MAX_S: Final = 5.0


class MissingTopics:
    """The names that were recently not found."""

    def __init__(
        self, monotonic: Callable[[], float], *, names_max: int = NAMES_MAX, age_max_s: float = AGE_MAX_S
    ) -> None:
        """Start without names; ``monotonic`` returns the time in seconds."""
        self._monotonic: Final = monotonic
        self._names_max: Final = names_max
        self._age_max_s: Final = age_max_s
        self._lock: Final = threading.Lock()
        self._looked_up_s: Final[OrderedDict[str, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._looked_up_s)

    def add(self, name: str) -> None:
        """Take note that a look-up has just not found a topic."""
        with self._lock:
            self._looked_up_s[name] = self._monotonic()
            self._looked_up_s.move_to_end(name)
            if len(self._looked_up_s) > self._names_max:
                self._looked_up_s.popitem(last=False)

    def discard(self, names: Iterable[str]) -> None:
        """Take note that topics may exist now."""
        with self._lock:
            for name in names:
                self._looked_up_s.pop(name, None)

    def __contains__(self, name: str) -> bool:
        """Return whether a recent look-up did not find a topic."""
        looked_up_s = self._looked_up_s.get(name)
        return looked_up_s is not None and self._monotonic() - looked_up_s < self._age_max_s
