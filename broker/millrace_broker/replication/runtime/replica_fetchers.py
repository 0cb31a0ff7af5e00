"""The replica fetchers, Kafka's ``ReplicaFetcherManager`` and ``AbstractFetcherThread``.

Each source broker has up to ``num.replica.fetchers`` tasks, and each task has its own fetch session.

Invariants

- At most one fetcher follows a partition, and only while the partition's state machine is a follower. An answer is
  applied under the partitions' locks. It is applied only if the replica still has the role of the request, and this
  fetcher still follows it. A partition moves to another fetcher only while no answer is being applied.
- The fetch of a partition stays the same until the partition changes. Only changed partitions compute their next
  request. At intervals all of them do, because logs also change by themselves (retention).

Source: Kafka's ``ReplicaFetcherManager`` and ``AbstractFetcherThread``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from millrace.config.broker import BrokerConfig
from millrace.errors import (
    BrokerUnavailableError,
    FetchSessionIdNotFoundError,
    InvalidFetchSessionEpochError,
    MillraceError,
    RequestTimedOutError,
)
from millrace_broker.log import LogManager
from millrace_broker.network import Peers
from millrace_broker.purgatory import PartitionKey
from millrace_broker.replication.core import EpochEnd, FetchFrom, FetchSession
from millrace_broker.replication.core.follower import AskEpochEnd, AskLogBounds, Effect, Follower, Question
from millrace_broker.replication.runtime import wire
from millrace_broker.replication.runtime.applying import Fetched, apply_fetched, carry_out_all
from millrace_broker.replication.runtime.hosted import HostedReplica
from millrace_broker.replication.runtime.throttles import Throttles
from millrace_broker.runtime import Executors

_logger: Final = logging.getLogger(__name__)

_SESSION_LOST: Final = (FetchSessionIdNotFoundError, InvalidFetchSessionEpochError)
_IDLE_S: Final = 1.0
"""The pause of a fetcher without a request before it asks its state machines again; a change ends the pause."""
_THROTTLED_S: Final = 0.2
_SOON_MS: Final = 100
_ALL_ASKED_MS: Final = 500
"""The interval at which all state machines compute their next request, in ms."""

Asked = dict[PartitionKey, tuple[HostedReplica, Follower, Question]]


class FollowedReplicas(Protocol):
    """The replicas that are fetched, as the replica manager has them."""

    @property
    def throttles(self) -> Throttles:
        """The replication quotas of this broker."""
        ...

    @property
    def broker_epoch(self) -> int:
        """This broker's registration, to which the controller sent the last roles."""
        ...

    def now_ms(self) -> int:
        """Return the time for state machines, in ms."""
        ...

    def find(self, topic: str, partition: int) -> HostedReplica | None:
        """Find the replica on this broker; None before a controller has assigned it."""
        ...

    def alone(self, keys: Iterable[PartitionKey]) -> AbstractAsyncContextManager[None]:
        """Hold the locks of partitions."""
        ...

    def fetched(self, replica: HostedReplica, size_bytes: int) -> None:
        """Take note that a follower's log has grown, or that its high watermark may have risen."""
        ...


class Fetchers:
    """All replica fetchers of this broker. For the event loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        executors: Executors,
        logs: LogManager,
        peers: Peers,
        replicas: FollowedReplicas,
    ) -> None:
        self._config: Final = config
        self._executors: Final = executors
        self._logs: Final = logs
        self._peers: Final = peers
        self._replicas: Final = replicas
        self._fetchers: Final[dict[tuple[int, int], SourceFetcher]] = {}
        self._followed: Final[dict[PartitionKey, SourceFetcher]] = {}
        self.count = config.num_replica_fetchers
        """The maximum number of fetchers per source broker."""

    def follow(self, replicas: Iterable[HostedReplica]) -> None:
        """Fetch the replicas that follow from their leaders."""
        touched: dict[SourceFetcher, None] = {}
        for replica in replicas:
            follower = replica.follower
            if follower is None or follower.leader < 0:
                continue
            fetcher = self._followed[replica.key] = self._fetcher(follower.leader, replica.key)
            fetcher.follow(replica)
            touched[fetcher] = None
        for fetcher in touched:
            fetcher.wake()

    def unfollow(self, key: PartitionKey) -> None:
        """Stop fetching a partition; an answer in flight has no effect."""
        fetcher = self._followed.pop(key, None)
        if fetcher is not None:
            fetcher.unfollow(key)

    def _fetcher(self, source: int, key: PartitionKey) -> SourceFetcher:
        number = zlib.crc32(f"{key[0]}-{key[1]}".encode()) % self.count
        fetcher = self._fetchers.get((source, number))
        if fetcher is None:
            fetcher = self._fetchers[source, number] = SourceFetcher(
                source,
                number,
                config=self._config,
                executors=self._executors,
                logs=self._logs,
                peers=self._peers,
                replicas=self._replicas,
            )
        return fetcher

    async def resize(self, count: int) -> None:
        """Use up to ``count`` fetchers per source broker, and redistribute the followed partitions.

        Source: Kafka's ``AbstractFetcherManager.resizeThreadPool``.
        """
        self.count = count
        async with self._replicas.alone(list(self._followed)):  # under the locks no answer is being applied
            for key, before in list(self._followed.items()):
                after = self._fetcher(before.source, key)
                replica = None if after is before else before.unfollow(key)
                if replica is not None:
                    self._followed[key] = after
                    after.follow(replica)
        for fetcher in set(self._followed.values()):
            fetcher.wake()
        gone = [self._fetchers.pop(place) for place in list(self._fetchers) if place[1] >= self.count]
        await asyncio.gather(*(fetcher.close() for fetcher in gone))

    async def close(self) -> None:
        """Stop all fetchers."""
        await asyncio.gather(*(fetcher.close() for fetcher in self._fetchers.values()))


class SourceFetcher:
    """The task that fetches from one source broker."""

    def __init__(
        self,
        source: int,
        number: int,
        *,
        config: BrokerConfig,
        executors: Executors,
        logs: LogManager,
        peers: Peers,
        replicas: FollowedReplicas,
    ) -> None:
        self._followed: Final[dict[PartitionKey, HostedReplica]] = {}
        self._standing: Final[Asked] = {}
        """The fetch of each fetchable partition, with replica and state machine; ``_fetches`` has only the fetches."""
        self._fetches: Final[dict[PartitionKey, wire.ReplicaFetch]] = {}
        self._changed: set[PartitionKey] = set()
        """Partitions whose request may differ from the last one."""
        self._all_asked_ms = 0
        self._config: Final = config
        self._executors: Final = executors
        self._logs: Final = logs
        self._peers: Final = peers
        self._replicas: Final = replicas
        self.source: Final = source
        """The source broker."""
        self._session: Final[FetchSession[PartitionKey, wire.ReplicaFetch]] = FetchSession()
        self._woken: Final = asyncio.Event()
        self._call: asyncio.Task[Any] | None = None
        self._has_failed = False
        self._task: Final = asyncio.create_task(self._run(), name=f"millrace-fetch-from-{source}-{number}")

    def follow(self, replica: HostedReplica) -> None:
        """Start fetching a partition; call ``wake`` afterwards."""
        self._followed[replica.key] = replica
        self._changed.add(replica.key)

    def unfollow(self, key: PartitionKey) -> HostedReplica | None:
        """Stop fetching a partition; returns its replica."""
        self._changed.add(key)
        return self._followed.pop(key, None)

    def wake(self) -> None:
        """Cancel the request in flight, because it may wait on the leader while there is more to fetch."""
        self._woken.set()
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        """Stop the task; an answer that is being applied is finished."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                has_asked = await self._ask()
            except asyncio.CancelledError:
                raise
            except Exception:
                _logger.exception("fetching from broker %d failed and is retried", self.source)
                has_asked = False
            if not has_asked:
                wait_s = min(_IDLE_S, max(self._config.replica_fetch_backoff_ms / 1000, 0.01))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):  # wait_for may lose a cancellation, up to Python 3.11
                        await self._woken.wait()

    async def _ask(self) -> bool:
        """Send the pending requests and apply the answers; returns false if there are no requests now."""
        asked = self._look()
        broker_id = self._config.broker_id
        ends = {key: each[2] for key, each in asked.items() if isinstance(each[2], AskEpochEnd)}
        bounds = {key: each[2] for key, each in asked.items() if isinstance(each[2], AskLogBounds)}
        if ends:
            await self._put(asked, ends, "OffsetForLeaderEpoch", wire.epochs_request(ends, broker_id), wire.read_epochs)
        if bounds:
            await self._put(asked, bounds, "ListOffsets", wire.bounds_request(bounds, broker_id), wire.read_bounds)
        if self._replicas.throttles.from_leaders.is_exceeded:
            return await self._ask_throttled() or bool(asked)
        if not self._fetches:
            return bool(asked)
        changed, self._changed = self._changed, {key for key in self._changed if key not in self._fetches}
        await self._fetch(self._fetches, changed)
        return True

    async def _ask_throttled(self) -> bool:
        """Fetch only partitions without a throttle while the quota is exceeded."""
        limits, standing = self._replicas.throttles.limits_follower, self._standing
        fetches = {key: each for key, each in self._fetches.items() if not limits(standing[key][0])}
        if fetches:
            await self._fetch(fetches)
        elif self._fetches:
            await asyncio.sleep(_THROTTLED_S)
        self._changed.update(self._standing)
        return bool(self._fetches)

    def _look(self) -> Asked:
        """Ask the state machines of changed partitions for their next request.

        Returns the requests other than fetches.
        """
        now_ms = self._replicas.now_ms()
        if now_ms - self._all_asked_ms >= _ALL_ASKED_MS:
            self._all_asked_ms = now_ms
            self._changed.update(self._followed)
        asked: Asked = {}
        for key in self._changed:
            replica = self._followed.get(key)
            follower = None if replica is None else replica.follower
            question = None if follower is None else follower.question(now_ms)
            self._fetches.pop(key, None)
            self._standing.pop(key, None)
            if replica is None or follower is None or question is None:
                continue
            if isinstance(question, FetchFrom):
                self._standing[key] = replica, follower, question
                self._fetches[key] = wire.ReplicaFetch(replica.topic_id.bytes, question)
            else:
                asked[key] = (replica, follower, question)
        return asked

    # --- requests --------------------------------------------------------------------------------------------

    async def _fetch(
        self, fetches: Mapping[PartitionKey, wire.ReplicaFetch], looked_at: Collection[PartitionKey] | None = None
    ) -> None:
        """Send a fetch; ``looked_at`` has all partitions in which it may differ from the previous fetch."""
        config, asked = self._config, self._standing
        request = self._session.request(fetches, looked_at)
        message = wire.fetch_request(request, config, self._replicas.broker_epoch)
        try:
            answer = await self._answer("Fetch", message, decode=wire.read_answer)
            if answer is None:
                self._session.failed(is_session_lost=False)
                return
            session_id, answers = answer
        except MillraceError as error:
            is_lost = isinstance(error, _SESSION_LOST)
            self._session.failed(is_session_lost=is_lost)
            if not is_lost:
                self._all_failed(asked, fetches, error)
            return
        if self._has_failed:
            self._has_failed = False
            _logger.info("broker %d answers again", self.source)
        self._session.answered(session_id)
        await self._apply(asked, [each for each in answers if each.key in fetches])

    async def _answer(self, name: str, request: Any, *, decode: Any = None) -> Any:
        """Return the source's answer; None if a wake-up cancelled the call. Raises the source's error."""
        timeout_s = self._config.replica_socket_timeout_ms / 1000
        if self._woken.is_set():
            return None
        call = asyncio.create_task(self._peers.call(self.source, name, request, timeout_s=timeout_s, decode=decode))
        self._call = call
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            self._call = None
        return None if call.cancelled() else call.result()

    async def _put(
        self,
        asked: Asked,
        questions: Iterable[PartitionKey],
        method: str,
        request: Any,
        read: Callable[[Any], Iterator[tuple[PartitionKey, Any]]],
    ) -> None:
        """Send requests other than fetches to the leader, and apply the answers."""
        try:
            response = await self._answer(method, request)
        except MillraceError as error:
            self._all_failed(asked, questions, error)
            return
        if response is not None:
            await self._take(asked, read(response))

    def _all_failed(self, asked: Asked, questions: Iterable[PartitionKey], error: MillraceError) -> None:
        if not self._has_failed:  # log it once, not at every retry
            self._has_failed = True
            log = _logger.info if isinstance(error, BrokerUnavailableError | RequestTimedOutError) else _logger.warning
            log("broker %d does not answer fetch requests: %s", self.source, error.message)
        now_ms = self._replicas.now_ms()
        self._changed.update(questions)
        for key in questions:
            replica, follower, question = asked[key]
            if self._is_asked_for(replica, follower):
                follower.failed(question, error, now_ms)

    # --- answers ---------------------------------------------------------------------------------------------

    def _is_asked_for(self, replica: HostedReplica, follower: Follower) -> bool:
        """Return whether this fetcher still fetches the replica, in the role of the request."""
        return replica.machine.role is follower and self._followed.get(replica.key) is replica

    async def _apply(self, asked: Asked, answers: list[wire.ReplicaRecords]) -> None:
        if not answers:
            return
        self._changed.update(answer.key for answer in answers)
        async with self._replicas.alone(answer.key for answer in answers):
            fetched = []
            for answer in answers:
                replica, follower, question = asked[answer.key]
                assert isinstance(question, FetchFrom)
                if self._is_asked_for(replica, follower) and self._replicas.find(*answer.key) is replica:
                    fetched.append(Fetched(replica=replica, follower=follower, question=question, answer=answer))
            # Finish also when the broker stops, because the log is closed afterwards.
            await self._executors.to_the_end(self._carry_out(fetched))
            self._applied(fetched)

    async def _carry_out(self, fetched: list[Fetched]) -> None:
        if all(each.takes_at_once for each in fetched):
            size_bytes = sum(len(each.answer.records) for each in fetched)
            await self._executors.run_sized(size_bytes, apply_fetched, self._logs, fetched)
        else:
            await self._executors.run_io(apply_fetched, self._logs, fetched)

    def _applied(self, fetched: list[Fetched]) -> None:
        now_ms = self._replicas.now_ms()
        for each in fetched:
            if each.error is not None:
                self._failed(each.replica, each.follower, each.question, each.error, now_ms)
                continue
            size_bytes = len(each.answer.records)
            if size_bytes and self._replicas.throttles.counts_follower(each.replica):
                self._replicas.throttles.from_leaders.used(size_bytes)
            self._replicas.fetched(each.replica, size_bytes)

    async def _take(self, asked: Asked, answers: Iterator[tuple[PartitionKey, Any]]) -> None:
        """Apply answers about the bounds of logs and epochs: truncate, or start again."""
        known = {key: answer for key, answer in answers if key in asked}
        now_ms = self._replicas.now_ms()
        async with self._replicas.alone(known):
            wanted: list[tuple[HostedReplica, tuple[Effect, ...]]] = []
            for key, answer in known.items():
                replica, follower, question = asked[key]
                if not self._is_asked_for(replica, follower):
                    continue
                if isinstance(answer, MillraceError):
                    self._failed(replica, follower, question, answer, now_ms)
                elif isinstance(question, AskEpochEnd):
                    assert answer is None or isinstance(answer, EpochEnd)
                    wanted.append((replica, follower.compared(question, answer)))
                elif isinstance(question, AskLogBounds):
                    wanted.append((replica, follower.bounded(question, *answer)))
            failed = await self._executors.to_the_end(self._executors.run_io(carry_out_all, self._logs, wanted))
            for key, error in failed.items():
                replica, follower, question = asked[key]
                self._failed(replica, follower, question, error, now_ms)

    def _failed(
        self, replica: HostedReplica, follower: Follower, question: Question, error: MillraceError, now_ms: int
    ) -> None:
        _logger.info("%s: broker %d answered, or its answer led to: %s", replica.name, self.source, error.message)
        follower.failed(question, error, now_ms)
        wait_ms = follower.asked_again_ms - now_ms
        if 0 < wait_ms <= _SOON_MS:  # without the wake-up the retry would wait for the fetch in flight
            asyncio.get_running_loop().call_later((wait_ms + 2) / 1000, self.wake)
