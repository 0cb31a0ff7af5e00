"""The offsets of queries to their groups, in the background: Spark's listeners must not wait for brokers.

Invariants: of what waits to be committed for a group only the newest offsets are; they are committed in the order in
which they came; what cannot be committed is logged and counted, and the query knows nothing of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from millrace.clients.model import TopicPartition
from millrace.errors import MillraceError
from pyspark_millrace.monitor.background import Background

_log = logging.getLogger(__name__)

COMMIT_TIMEOUTS_MS: Final = {"request.timeout.ms": 5_000, "default.api.timeout.ms": 10_000}
"""Brokers that do not answer must not hold up what is told of the others."""

NextOffsets = Mapping[TopicPartition, int]


class CommitTarget(NamedTuple):
    """A group of a cluster."""

    bootstrap_servers: str
    group_id: str


class CommitBrokers(Protocol):
    """What is asked of an ``Admin``."""

    def alter_group_offsets(self, group_id: str, offsets: NextOffsets) -> None:
        """Commit without being a member."""


@dataclass(frozen=True, slots=True)
class CommitStatistics:
    """Commits so far, and the time they took together."""

    succeeded: int = 0
    failed: int = 0
    seconds: float = 0.0


class GroupCommits:
    """Commits what it is given, one group after another, in a thread of its own.

    ``after`` is called, in that thread, after commits; it must neither wait nor fail.
    """

    def __init__(self, connect: Callable[[str], CommitBrokers], after: Callable[[], None] = lambda: None) -> None:
        self._connect = connect
        self._after = after
        self._lock = threading.Lock()
        self._waiting: dict[CommitTarget, NextOffsets] = {}
        self._statistics = CommitStatistics()
        self._committing = Background("millrace-monitor", self._commit_all, "commits to groups have failed")

    @property
    def statistics(self) -> CommitStatistics:
        """What has been committed."""
        with self._lock:
            return self._statistics

    def commit(self, target: CommitTarget, offsets: NextOffsets) -> None:
        """Commit soon, unless newer offsets of the group come before."""
        with self._lock:
            self._waiting[target] = offsets
        self._committing.wake()

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until all is committed, or could not be; whether it is."""
        return self._committing.wait_until_idle(timeout_s)

    def _commit_all(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, {}
        for target, offsets in batch.items():
            self._commit(target, offsets)
        self._after()

    def _commit(self, target: CommitTarget, offsets: NextOffsets) -> None:
        started = time.perf_counter()
        try:
            self._connect(target.bootstrap_servers).alter_group_offsets(target.group_id, offsets)
            failed = 0
        except MillraceError as error:
            _log.warning("group %s was not told how far the query is: %s", target.group_id, error.message)
            failed = 1
        took = time.perf_counter() - started
        with self._lock:
            before = self._statistics
            self._statistics = CommitStatistics(
                before.succeeded + 1 - failed, before.failed + failed, before.seconds + took
            )
