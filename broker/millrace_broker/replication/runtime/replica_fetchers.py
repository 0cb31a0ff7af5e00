"""The tasks that fetch what this broker follows: ``num.replica.fetchers`` for each source, each with its own session.

Invariants

- A partition is followed by at most one of them, and only while its machine is a follower. An answer is applied while
  the partitions' locks are held, and only to machines that still have the role in which they asked, and are followed by
  who asked. What is followed passes from one fetcher to another only while nothing is being applied.
- What a partition fetches stands until something happens to it: only these are asked what they want next, and all of
  them from time to time, for logs also change by themselves (retention).

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
"""How long a fetcher without a question waits before it asks its machines again; whatever is new wakes it."""
_THROTTLED_S: Final = 0.2
_SOON_MS: Final = 100
_ALL_ASKED_MS: Final = 500
"""So often all machines are asked what they want."""

Asked = dict[PartitionKey, tuple[HostedReplica, Follower, Question]]


class FollowedReplicas(Protocol):
    """The replicas that are fetched for, as the replica manager has them."""

    @property
    def throttles(self) -> Throttles:
        """The limits of this broker."""
        ...

    def now_ms(self) -> int:
        """Return the time that machines are told."""
        ...

    def find(self, topic: str, partition: int) -> HostedReplica | None:
        """Find the replica here; None while no controller has told of it."""
        ...

    def alone(self, keys: Iterable[PartitionKey]) -> AbstractAsyncContextManager[None]:
        """Hold the locks of partitions."""
        ...

    def fetched(self, replica: HostedReplica, size_bytes: int) -> None:
        """Take note that a follower's log has grown, or that its watermark may have risen."""
        ...


class Fetchers:
    """All fetchers of this broker. For the event loop's thread."""

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
        """How many each source has at most."""

    def follow(self, replicas: Iterable[HostedReplica]) -> None:
        """Fetch for these, which follow, from their leaders."""
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
        """Fetch for this one no more; an answer that is under way changes nothing."""
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
        """Have ``count`` of them for each source from now on, and divide among them what is followed.

        Source: Kafka's ``AbstractFetcherManager.resizeThreadPool``.
        """
        self.count = count
        async with self._replicas.alone(list(self._followed)):  # nothing that was fetched is being applied
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
        """End them."""
        await asyncio.gather(*(fetcher.close() for fetcher in self._fetchers.values()))


class SourceFetcher:
    """Fetches from one broker."""

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
        """Who fetches what, of all that can be fetched; ``_fetches`` is the last of it."""
        self._fetches: Final[dict[PartitionKey, FetchFrom]] = {}
        self._changed: set[PartitionKey] = set()
        """Whose questions may be others than at the last request."""
        self._all_asked_ms = 0
        self._config: Final = config
        self._executors: Final = executors
        self._logs: Final = logs
        self._peers: Final = peers
        self._replicas: Final = replicas
        self.source: Final = source
        """The broker fetched from."""
        self._session: Final[FetchSession[PartitionKey]] = FetchSession()
        self._woken: Final = asyncio.Event()
        self._call: asyncio.Task[Any] | None = None
        self._has_failed = False
        self._task: Final = asyncio.create_task(self._run(), name=f"millrace-fetch-from-{source}-{number}")

    def follow(self, replica: HostedReplica) -> None:
        """Fetch for a partition; ``wake`` then."""
        self._followed[replica.key] = replica
        self._changed.add(replica.key)

    def unfollow(self, key: PartitionKey) -> HostedReplica | None:
        """Fetch for a partition no more; returns what was followed."""
        self._changed.add(key)
        return self._followed.pop(key, None)

    def wake(self) -> None:
        """There is more to ask than the question that is under way: it is broken off, for its answer may wait."""
        self._woken.set()
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        """End it; what is being applied is finished."""
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
                _logger.exception("fetching from broker %d failed, and is tried again", self.source)
                has_asked = False
            if not has_asked:
                wait_s = min(_IDLE_S, max(self._config.replica_fetch_backoff_ms / 1000, 0.01))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):  # wait_for may lose a cancellation, up to Python 3.11
                        await self._woken.wait()

    async def _ask(self) -> bool:
        """Ask what there is to ask, and take the answers; false if there is nothing now."""
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
        """Fetch only what is not limited, as long as the limit is exceeded."""
        limits, standing = self._replicas.throttles.limits_follower, self._standing
        fetches = {key: each for key, each in self._fetches.items() if not limits(standing[key][0])}
        if fetches:
            await self._fetch(fetches)
        elif self._fetches:
            await asyncio.sleep(_THROTTLED_S)
        self._changed.update(self._standing)
        return bool(self._fetches)

    def _look(self) -> Asked:
        """Ask machines to which something happened what they want; returns what is no fetch."""
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
                self._standing[key], self._fetches[key] = (replica, follower, question), question
            else:
                asked[key] = (replica, follower, question)
        return asked

    # --- asking ----------------------------------------------------------------------------------------------

    async def _fetch(
        self, fetches: Mapping[PartitionKey, FetchFrom], looked_at: Collection[PartitionKey] | None = None
    ) -> None:
        """Fetch these; ``looked_at``: all in which they may differ from the request before."""
        config, asked = self._config, self._standing
        request = self._session.request(fetches, looked_at)
        topic_ids = {key[0]: asked[key][0].topic_id.bytes for key in request.fetches}
        try:
            answer = await self._answer(
                "Fetch", wire.fetch_request(request, config, topic_ids), decode=wire.read_answer
            )
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
        self._reached()
        self._session.answered(session_id)
        await self._apply(asked, [each for each in answers if each.key in fetches])

    async def _answer(self, name: str, request: Any, *, decode: Any = None) -> Any:
        """The source's answer; None if there is more to ask since. Raises its error."""
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
        """Put questions to the leader that are no fetch, and take the answers."""
        try:
            response = await self._answer(method, request)
        except MillraceError as error:
            self._all_failed(asked, questions, error)
            return
        if response is not None:
            await self._take(asked, read(response))

    def _all_failed(self, asked: Asked, questions: Iterable[PartitionKey], error: MillraceError) -> None:
        if not self._has_failed:  # once, not every second
            self._has_failed = True
            log = _logger.info if isinstance(error, BrokerUnavailableError | RequestTimedOutError) else _logger.warning
            log("broker %d does not answer what is fetched from it: %s", self.source, error.message)
        now_ms = self._replicas.now_ms()
        self._changed.update(questions)
        for key in questions:
            replica, follower, question = asked[key]
            if self._is_asked_for(replica, follower):
                follower.failed(question, error, now_ms)

    def _reached(self) -> None:
        if self._has_failed:
            self._has_failed = False
            _logger.info("broker %d answers again", self.source)

    # --- taking answers --------------------------------------------------------------------------------------

    def _is_asked_for(self, replica: HostedReplica, follower: Follower) -> bool:
        """Whether it is still this fetcher that fetches for a replica, in the role in which it asked."""
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
            # To its end also when the broker stops: the log is closed after it.
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
        """Take answers that are about where logs end, and go back to there."""
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
        if 0 < wait_ms <= _SOON_MS:  # not only once the others' question, which may wait, has been answered
            asyncio.get_running_loop().call_later((wait_ms + 2) / 1000, self.wake)
