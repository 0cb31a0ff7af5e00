"""Lag of queries, requested from their brokers on demand.

Invariants: after a broker did not answer, it is not asked for some time. So it delays a caller only once, however many
queries read from it. A fresh result is returned from the cache without waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from millrace.clients.groups.model import PartitionLag
from millrace.clients.model import TopicPartition
from millrace.errors import MillraceError

_log = logging.getLogger(__name__)

LAG_TIMEOUTS_MS: Final = {"request.timeout.ms": 2_000, "default.api.timeout.ms": 3_000}
"""Prometheus cancels a scrape after ten seconds."""
_LAG_AGE_S: Final = 1.0
"""Lag costs two calls per partition that lags; a more frequent caller gets the cached result."""
_AWAY_S: Final = 30.0
"""Time without requests to a broker that did not answer."""


class LagBrokers(Protocol):
    """The part of ``Admin`` that lag look-ups use."""

    def lag_of(self, offsets: Mapping[TopicPartition, int]) -> list[PartitionLag]:
        """Return the lag of offsets."""


class _Measured(NamedTuple):
    """Lags and the time of their measurement."""

    at_s: float
    lags: list[PartitionLag]


_Question = tuple[str, frozenset[tuple[TopicPartition, int]]]


class Lags:
    """Cache of lags per brokers and offsets. Thread safe."""

    def __init__(self, connect: Callable[[str], LagBrokers], clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[_Question, _Measured] = {}
        self._away_until_s: dict[str, float] = {}

    def of(self, bootstrap_servers: str, offsets: Mapping[TopicPartition, int]) -> list[PartitionLag]:
        """Return the lags of offsets; empty if their broker does not answer."""
        question = (bootstrap_servers, frozenset(offsets.items()))
        with self._lock:
            self._forget_what_is_old()
            if question in self._known:
                return self._known[question].lags
            if bootstrap_servers in self._away_until_s:
                return []
            try:
                lags = self._connect(bootstrap_servers).lag_of(offsets)
            except MillraceError as error:
                _log.warning(
                    "the lags at %s are unknown, and the next attempt is in %d s: %s",
                    bootstrap_servers, _AWAY_S, error.message,
                )  # fmt: skip
                self._away_until_s[bootstrap_servers] = self._clock() + _AWAY_S
                return []
            self._known[question] = _Measured(self._clock(), lags)
            return lags

    def _forget_what_is_old(self) -> None:
        now_s = self._clock()
        self._known = {asked: known for asked, known in self._known.items() if now_s - known.at_s < _LAG_AGE_S}
        self._away_until_s = {servers: until_s for servers, until_s in self._away_until_s.items() if now_s < until_s}
