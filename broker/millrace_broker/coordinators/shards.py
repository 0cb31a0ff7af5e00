"""The partitions of an internal topic that this broker leads, each with the state that was read from it.

Invariants

- A shard is handed out only once the whole of its partition has been read, and until it is closed.
- There is at most one shard of a partition, and only it appends there.
- A shard is of one term in which this broker leads its partition: where that ends it is closed, and the next term's is
  read from the log.
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
    NotCoordinatorError,
    NotLeaderError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.coordinators.hashing import partition_of
from millrace_broker.coordinators.internal_topics import InternalTopics
from millrace_broker.coordinators.state_log import LoadedBatch, StateLog
from millrace_broker.quotas import parked
from millrace_broker.replication.runtime import Appends, PartitionDirectory, ReplicaManager
from millrace_broker.replication.runtime.manager import RoleListener
from millrace_broker.runtime import BackgroundTasks, Clock, Executors

_logger = logging.getLogger(__name__)


class Shard(Protocol):
    """The state that one partition holds."""

    def replay(self, batch: LoadedBatch) -> None:
        """Take in a batch of the log, while the shard is loaded. Called in another thread, one after the other."""

    def activate(self) -> None:
        """Everything has been read: begin to answer. Called in the event loop's thread."""

    def deactivate(self) -> None:
        """Answer all who wait, and stop timers: nothing is appended any more."""


S = TypeVar("S", bound=Shard)

_LOADING_WAIT_S: Final = 1.0
"""How long a call waits for what is being read before its caller is told to try again.

Most partitions take milliseconds, a caller that tries again waits ``retry.backoff.ms`` first.
"""


class Shards(Generic[S]):
    """The shards of one internal topic. For the event loop's thread."""

    def __init__(
        self,
        topic: str,
        make: Callable[[StateLog], S],
        *,
        topics: InternalTopics,
        partitions: PartitionDirectory,
        executors: Executors,
        open_log: Callable[[str, int], StateLog],
        listen: Callable[[str, RoleListener], None],
    ) -> None:
        """``make`` gives the empty shard of a partition; ``listen`` has a topic's changes of roles told."""
        self.topic: Final = topic
        self._topics: Final = topics
        self._partitions: Final = partitions
        self._executors: Final = executors
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
        """How many partitions the topic has; None while it has not been created."""
        topic = self._topics.find(self.topic)
        return None if topic is None else len(topic.partitions)

    def start(self) -> None:
        """Begin to read the partitions that are led here, if the topic is there, and those that will be."""
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
        """This broker leads a partition from now on, or does not any more."""
        self._terms[number] += 1
        shard, log = self._shards.pop(number, None), self._logs.pop(number, None)
        if shard is not None:
            shard.deactivate()
        if log is not None:
            self._closing.start(log.close())
        if self._leads(number):
            self._load(number)

    async def ensure_topic(self) -> int:
        """Create the topic if it is not there; returns how many partitions it has."""
        topic = await self._topics.ensure(self.topic)
        return len(topic.partitions)

    def number_of(self, key: str) -> int:
        """The partition of a key. Raises ``CoordinatorNotAvailableError`` while the topic has not been created."""
        count = self.partition_count
        if count is None:
            raise CoordinatorNotAvailableError(f"{self.topic} has not been created yet: find the coordinator first")
        return partition_of(key, count)

    def shard_of(self, key: str) -> S:
        """The shard that a key belongs to; see ``shard``."""
        return self.shard(self.number_of(key))

    def shard(self, number: int) -> S:
        """The shard of a partition. One that could not be read is read again.

        Raises ``CoordinatorLoadInProgressError``, ``NotCoordinatorError`` when another broker leads the partition,
        ``CoordinatorNotAvailableError`` once this is closed.
        """
        shard = self._shards.get(number)
        if shard is not None:
            return shard
        if self._is_closed:
            raise CoordinatorNotAvailableError("the broker is stopping: find the coordinator anew")
        try:
            with contextlib.suppress(UnknownTopicOrPartitionError):  # its files are being made
                self._partitions.led(self._partitions.topic(self.topic), number)
        except NotLeaderError as error:
            raise NotCoordinatorError(f"{error.message}: find the coordinator anew") from error
        self._load(number)
        raise CoordinatorLoadInProgressError(f"{self.topic}-{number} is being read: try again")

    async def soon(self, number: int) -> S:
        """The shard of a partition, waiting a moment for one that is being read; raises what ``shard`` does."""
        try:
            return self.shard(number)
        except CoordinatorLoadInProgressError:
            with parked():
                await asyncio.wait([self._loading[number]], timeout=_LOADING_WAIT_S)
            return self.shard(number)

    async def loaded(self, number: int) -> S:
        """The shard of a partition, waiting while it is being read; raises what ``shard`` does."""
        if number in self._loading:
            with parked():
                await asyncio.wait([self._loading[number]])
        return self.shard(number)

    def all(self) -> list[S]:
        """The shards that have been read."""
        return list(self._shards.values())

    @property
    def is_loading(self) -> bool:
        """Whether some partition is being read."""
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
            await self._executors.administer(_nothing)  # the topic may be being created: its files are there then
            await log.load(shard.replay)
        except NotLeaderError:
            _logger.info("%s is led by another broker before it could be read", log.name)
            return
        except Exception:
            _logger.exception("%s could not be read: what it coordinates is not available", log.name)
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
        """Stop: shards answer those who wait, and what they are appending is finished."""
        self._is_closed = True
        if self._loading:
            await asyncio.wait(list(self._loading.values()))
        shards, self._shards = self._shards, {}
        for shard in shards.values():
            shard.deactivate()
        for log in list(self._logs.values()):  # the controller may take partitions away meanwhile
            await log.close()
        await asyncio.gather(*self._closing)


def _nothing() -> None:
    """What is done when its turn has come: everything that was being administered before has ended."""


class ShardFactory:
    """The parts that the shards of all internal topics are made of."""

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
        """Make the shards of an internal topic; ``make`` gives the empty shard of a partition."""
        return Shards(
            topic,
            make,
            topics=self.topics,
            partitions=self._partitions,
            executors=self._executors,
            open_log=self.open_log,
            listen=self._replicas.tell_roles,
        )

    def open_log(self, topic: str, number: int) -> StateLog:
        """Make the state log of a partition. It is read by ``load``."""
        return StateLog(
            topic,
            number,
            partitions=self._partitions,
            appends=self._appends,
            waiting=self._replicas.waiting,
            executors=self._executors,
            clock=self._clock,
        )
