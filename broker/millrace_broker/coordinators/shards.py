"""Partitions of an internal topic that this broker leads, with their state.

Invariants

- Callers get a shard after the whole of its partition was loaded, and until it is closed.
- A partition has at most one shard, and only that shard appends to it.
- A shard belongs to one leader epoch of this broker. It is closed at the end of that epoch, and the next one is loaded
  from the log.

Kafka divides this between ``CoordinatorRuntime`` and the metadata managers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from millrace.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    MillraceError,
    NotLeaderError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.coordinators.hashing import partition_of
from millrace_broker.coordinators.internal_topics import InternalTopics
from millrace_broker.coordinators.state_log import LoadedBatch, StateLog, coordinator_errors
from millrace_broker.quotas import parked
from millrace_broker.replication.runtime import Appends, PartitionDirectory, ReplicaManager
from millrace_broker.replication.runtime.manager import RoleListener
from millrace_broker.runtime import BackgroundTasks, Clock, Executors

_logger = logging.getLogger(__name__)


class Shard(Protocol):
    """State of one partition (Kafka's ``CoordinatorShard``)."""

    def replay(self, batch: LoadedBatch) -> None:
        """Apply a batch of the log while the shard is loaded. One I/O thread calls this."""

    def activate(self) -> None:
        """Begin to answer after the load, in the event loop's thread."""

    def deactivate(self) -> None:
        """Answer all waiting calls, stop timers, and append no more records."""


S = TypeVar("S", bound=Shard)

_LOADING_WAIT_S: Final = 1.0
"""The time that a call waits for a load before its client has to retry.

Most loads take milliseconds, and a client waits ``retry.backoff.ms`` before each retry.
"""


class Shards(Generic[S]):
    """Shards of one internal topic, for the event loop's thread."""

    def __init__(
        self,
        topic: str,
        make: Callable[[StateLog], S],
        *,
        topics: InternalTopics,
        partitions: PartitionDirectory,
        open_log: Callable[[str, int], StateLog],
        listen: Callable[[str, RoleListener], None],
    ) -> None:
        """Take the parts; ``make`` gives the empty shard of a partition, and ``listen`` registers for role changes."""
        self.topic: Final = topic
        self._topics: Final = topics
        self._partitions: Final = partitions
        self._open_log: Final = open_log
        self._listen: Final = listen
        self._make: Final = make
        self._shards: dict[int, S] = {}
        self._logs: dict[int, StateLog] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._terms: Final[Counter[int]] = Counter()
        self._closing: Final = BackgroundTasks()
        self._is_closed = False

    @property
    def partition_count(self) -> int | None:
        """The number of partitions of the topic; None before its creation."""
        topic = self._topics.find(self.topic)
        return None if topic is None else len(topic.partitions)

    def start(self) -> None:
        """Load the partitions that this broker leads now, and those that it will lead later."""
        self._listen(self.topic, self._role_changed)
        for number in range(self.partition_count or 0):
            if self._leads(number):
                self._load(number)

    def _leads(self, number: int) -> bool:
        try:
            self._partitions.led(self._partitions.topic(self.topic), number)
        except MillraceError:
            return False
        return True

    def _role_changed(self, number: int) -> None:
        """Close or load the shard of a partition whose leader has changed."""
        self._terms[number] += 1
        shard, log = self._shards.pop(number, None), self._logs.pop(number, None)
        if shard is not None:
            shard.deactivate()
        if log is not None:
            self._closing.start(log.close())
        if self._leads(number):
            self._load(number)

    async def ensure_topic(self) -> int:
        """Create the topic if necessary; return the number of its partitions."""
        topic = await self._topics.ensure(self.topic)
        return len(topic.partitions)

    def number_of(self, key: str) -> int:
        """Return the partition of a key. Raises ``CoordinatorNotAvailableError`` before the topic's creation."""
        count = self.partition_count
        if count is None:
            raise CoordinatorNotAvailableError(
                f"{self.topic} has not been created: send FindCoordinator first, which creates the topic"
            )
        return partition_of(key, count)

    def shard_of(self, key: str) -> S:
        """Return the shard of a key; see ``shard``."""
        return self.shard(self.number_of(key))

    def shard(self, number: int) -> S:
        """Return the shard of a partition. If its load has failed, begin another one.

        Raises ``CoordinatorLoadInProgressError``, ``NotCoordinatorError`` if another broker leads the partition or its
        log directory has failed, ``CoordinatorNotAvailableError`` after ``close``.
        """
        shard = self._shards.get(number)
        if shard is not None:
            return shard
        if self._is_closed:
            raise CoordinatorNotAvailableError("the broker is stopping: find the coordinator again")
        with coordinator_errors(), contextlib.suppress(UnknownTopicOrPartitionError):  # the load reports it
            self._partitions.led(self._partitions.topic(self.topic), number)
        self._load(number)
        raise CoordinatorLoadInProgressError(f"{self.topic}-{number} is being loaded: retry")

    async def wait_for_shard(self, number: int) -> S:
        """Return the shard of a partition, after a wait of at most a second if it is being loaded.

        Raises the errors of ``shard``.
        """
        try:
            return self.shard(number)
        except CoordinatorLoadInProgressError:
            with parked():
                await asyncio.wait([self._loading[number]], timeout=_LOADING_WAIT_S)
            return self.shard(number)

    async def shard_to_read(self, number: int) -> S:
        """Return the shard of a partition when it has all that was written before the call, by any leader.

        Raises the errors of ``shard`` and of ``StateLog.check_leads``.
        """
        await self.wait_for_shard(number)
        await self._logs[number].check_leads()
        return self.shard(number)  # the shard may have been closed meanwhile

    async def wait_until_loaded(self, number: int) -> S:
        """Return the shard of a partition, after its load. Raises the errors of ``shard``."""
        if number in self._loading:
            with parked():
                await asyncio.wait([self._loading[number]])
        return self.shard(number)

    def all(self) -> list[S]:
        """Return the loaded shards."""
        return list(self._shards.values())

    @property
    def is_loading(self) -> bool:
        """True if some partition is being loaded."""
        return bool(self._loading)

    def _load(self, number: int) -> None:
        if number in self._loading or number in self._shards or self._is_closed:
            return
        task = asyncio.create_task(self._load_partition(number), name=f"millrace-load-{self.topic}-{number}")
        self._loading[number] = task

    async def _load_partition(self, number: int) -> None:
        log, term = self._open_log(self.topic, number), self._terms[number]
        shard = self._make(log)
        try:
            await log.load(shard.replay)
        except NotLeaderError:
            _logger.info("%s was not loaded, because another broker has become its leader", log.name)
            return
        except Exception:
            _logger.exception("%s could not be loaded, so the coordinator of its ids is not available", log.name)
            return
        finally:
            del self._loading[number]
            if term != self._terms[number] and self._leads(number):
                self._load(number)
        if not self._is_closed and term == self._terms[number]:
            self._logs[number] = log
            self._shards[number] = shard
            shard.activate()

    async def close(self) -> None:
        """Stop: shards answer all waiting calls, and complete the appends that have begun."""
        self._is_closed = True
        if self._loading:
            await asyncio.wait(list(self._loading.values()))
        shards, self._shards = self._shards, {}
        for shard in shards.values():
            shard.deactivate()
        for log in list(self._logs.values()):  # the controller may move partitions meanwhile
            await log.close()
        await asyncio.gather(*self._closing)


class ShardFactory:
    """Factory of the shards of all internal topics.

    The factory has the parts that all shards share.
    """

    def __init__(
        self,
        *,
        topics: InternalTopics,
        partitions: PartitionDirectory,
        appends: Appends,
        replicas: ReplicaManager,
        executors: Executors,
        clock: Clock,
    ) -> None:
        self.topics: Final = topics
        self._partitions: Final = partitions
        self._appends: Final = appends
        self._replicas: Final = replicas
        self._executors: Final = executors
        self._clock: Final = clock

    def shards(self, topic: str, make: Callable[[StateLog], S]) -> Shards[S]:
        """Return the shards of an internal topic; ``make`` gives the empty shard of a partition."""
        return Shards(
            topic,
            make,
            topics=self.topics,
            partitions=self._partitions,
            open_log=self.open_log,
            listen=self._replicas.listen_to_roles,
        )

    def open_log(self, topic: str, number: int) -> StateLog:
        """Return the state log of a partition, which ``load`` reads."""
        return StateLog(
            topic,
            number,
            partitions=self._partitions,
            appends=self._appends,
            waiting=self._replicas.waiting,
            leadership_checks=self._replicas.leadership_checks,
            executors=self._executors,
            clock=self._clock,
        )
