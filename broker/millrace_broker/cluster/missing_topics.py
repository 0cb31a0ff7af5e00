"""Names of topics that were looked up in ZooKeeper and not found, kept for a short time.

A misspelt name in a client's configuration is asked for again and again. ZooKeeper is asked once per name in
``AGE_MAX_S``; the controller's UpdateMetadata ends the memory of a name at once, because it announces new topics.

Invariant: no more than ``NAMES_MAX`` names are kept; the oldest goes first. Safe from any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

NAMES_MAX: Final = 10_000
AGE_MAX_S: Final = 5.0


class MissingTopics:
    """The names that were not found lately."""

    def __init__(
        self, monotonic: Callable[[], float], *, names_max: int = NAMES_MAX, age_max_s: float = AGE_MAX_S
    ) -> None:
        """Know no name; ``monotonic`` gives the time in seconds."""
        self._monotonic: Final = monotonic
        self._names_max: Final = names_max
        self._age_max_s: Final = age_max_s
        self._lock: Final = threading.Lock()
        self._looked_up_s: Final[OrderedDict[str, float]] = OrderedDict()

    def __len__(self) -> int:
        """How many names are kept."""
        return len(self._looked_up_s)

    def add(self, name: str) -> None:
        """Note that a topic was looked up just now and is not there."""
        with self._lock:
            self._looked_up_s[name] = self._monotonic()
            self._looked_up_s.move_to_end(name)
            if len(self._looked_up_s) > self._names_max:
                self._looked_up_s.popitem(last=False)

    def discard(self, names: Iterable[str]) -> None:
        """Note that topics may be there now."""
        with self._lock:
            for name in names:
                self._looked_up_s.pop(name, None)

    def __contains__(self, name: str) -> bool:
        """Whether a topic was not there a short time ago."""
        looked_up_s = self._looked_up_s.get(name)
        return looked_up_s is not None and self._monotonic() - looked_up_s < self._age_max_s
