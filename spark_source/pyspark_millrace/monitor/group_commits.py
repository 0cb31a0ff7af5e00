"""Offset commits of queries to their groups, in the background.

Spark's listeners must not wait for brokers.

Invariants: of several pending offsets for a group only the newest are committed. Commits run in order of arrival. A
failed commit is logged and counted, and does not affect the query.
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
"""Short, because an unavailable broker must not delay the commits to others."""

NextOffsets = Mapping[TopicPartition, int]


class CommitTarget(NamedTuple):
    """Group of a cluster."""

    bootstrap_servers: str
    group_id: str


class CommitBrokers(Protocol):
    """The part of ``Admin`` that commits use."""

    def alter_group_offsets(self, group_id: str, offsets: NextOffsets) -> None:
        """Commit offsets without group membership."""


@dataclass(frozen=True, slots=True)
class CommitStatistics:
    """Commits so far, and their total time."""

    succeeded: int = 0
    failed: int = 0
    seconds: float = 0.0


class GroupCommits:
    """Committer of offsets for one group after another, in its own thread.

    ``after`` is called in that thread after commits; it must neither block nor raise.
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
        """Statistics of the commits so far."""
        with self._lock:
            return self._statistics

    def commit(self, target: CommitTarget, offsets: NextOffsets) -> None:
        """Commit soon, unless newer offsets of the group arrive first."""
        with self._lock:
            self._waiting[target] = offsets
        self._committing.wake()

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until all pending commits succeeded or failed; returns whether they did."""
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
            _log.warning(
                "the progress of the query could not be committed to group %s: %s", target.group_id, error.message
            )
            failed = 1
        took = time.perf_counter() - started
        with self._lock:
            before = self._statistics
            self._statistics = CommitStatistics(
                before.succeeded + 1 - failed, before.failed + failed, before.seconds + took
            )
