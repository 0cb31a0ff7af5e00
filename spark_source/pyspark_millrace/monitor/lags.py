"""How far queries are behind, asked of their brokers when somebody wants to know.

Invariants: a broker that did not answer is left alone for a while, so that however many queries it had, it holds up
whoever asks once; nobody waits for an answer that is known and young.
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
"""Prometheus gives up a scrape after ten seconds."""
_LAG_AGE_S: Final = 1.0
"""Lag costs two calls for each partition that is behind; who asks more often gets it again."""
_AWAY_S: Final = 30.0
"""How long a broker that did not answer is not asked."""


class LagBrokers(Protocol):
    """What is asked of an ``Admin``."""

    def lag_of(self, offsets: Mapping[TopicPartition, int]) -> list[PartitionLag]:
        """How far offsets are behind."""


class _Measured(NamedTuple):
    """Lags at a time of the clock."""

    at_s: float
    lags: list[PartitionLag]


_Question = tuple[str, frozenset[tuple[TopicPartition, int]]]


class Lags:
    """The lags of offsets at brokers. Thread safe."""

    def __init__(self, connect: Callable[[str], LagBrokers], clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[_Question, _Measured] = {}
        self._away_until_s: dict[str, float] = {}

    def of(self, bootstrap_servers: str, offsets: Mapping[TopicPartition, int]) -> list[PartitionLag]:
        """How far offsets are behind; nothing if their broker does not say."""
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
                    "lags at %s are not known, and not asked for during %d s: %s",
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
