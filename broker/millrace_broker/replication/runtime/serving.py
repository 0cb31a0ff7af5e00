"""Answers to follower fetches, Kafka's ``ReplicaManager.fetchMessages`` for followers.

A fetch first reports the follower's progress to the leader's state machine, then gets records up to the log end offset.
A fetch waits for enough records, as a consumer's fetch does. Another change of a named partition, such as a new leader
or a deleted topic, completes it at once.

Invariant: records in an answer come from logs that this broker leads, at the leader epoch that the follower named and
that was compared. Role changes are numbered. Records that were read before a role change are read again.

Source: Kafka's ``ReplicaManager.fetchMessages`` and ``Partition.fetchRecords`` for followers.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from millrace.config.broker import BrokerConfig
from millrace.errors import (
    InconsistentTopicIdError,
    MillraceError,
    OffsetOutOfRangeError,
    ThrottledError,
    UnknownTopicOrPartitionError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.fetch_response import FetchAnswer, PartitionAnswer, TopicAnswer
from millrace_broker.log import LogManager
from millrace_broker.log.read_threads import LogReads
from millrace_broker.purgatory import PartitionKey
from millrace_broker.quotas import Lease, parked
from millrace_broker.replication.core import UNKNOWN_EPOCH, EpochEnd, LeaderOutcome
from millrace_broker.replication.core.truncation import find_divergence
from millrace_broker.replication.runtime.delayed_produce import DelayedProduce
from millrace_broker.replication.runtime.fetch_sessions import (
    TOLD_NOTHING,
    FetchSessions,
    FollowerFetch,
    FollowerSession,
)
from millrace_broker.replication.runtime.hosted import HostedReplica
from millrace_broker.replication.runtime.leadership_checks import LeadershipChecks
from millrace_broker.replication.runtime.throttles import Throttles
from millrace_broker.replication.runtime.wire import changed_fetches, forgotten_fetches
from millrace_broker.runtime import Executors

Problem = MillraceError | EpochEnd

_NOTED_ANEW_MS: Final = 500
"""The interval of reports of an unchanged fetch to the leader; much less than ``replica.lag.time.max.ms``."""


class _Read(NamedTuple):
    """A read of one partition."""

    key: PartitionKey
    replica: HostedReplica
    offset: int
    max_bytes: int
    is_throttled: bool


class LedReplicas(Protocol):
    """The replicas that followers fetch from, as the replica manager has them."""

    @property
    def throttles(self) -> Throttles:
        """The replication quotas of this broker."""
        ...

    @property
    def waiting(self) -> DelayedProduce:
        """The calls that wait for replicas."""
        ...

    def now_ms(self) -> int:
        """Return the time for state machines, in ms."""
        ...

    def find(self, topic: str, partition: int) -> HostedReplica | None:
        """Find the replica on this broker; None before a controller has assigned it."""
        ...

    def follow(self, replica: HostedReplica, outcome: LeaderOutcome) -> None:
        """Carry out the consequences of a leader's event."""
        ...


class FollowerService:
    """The answers to followers of partitions that this broker leads. For the event loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        executors: Executors,
        reads: LogReads,
        logs: LogManager,
        replicas: LedReplicas,
    ) -> None:
        self._noted_anew_ms: Final = min(_NOTED_ANEW_MS, config.replica_lag_time_max_ms // 4)
        self._executors: Final = executors
        self._reads: Final = reads
        self._logs: Final = logs
        self._replicas: Final = replicas
        self._sessions: Final = FetchSessions()
        self._waiting: Final[defaultdict[int, dict[asyncio.Future[bool], None]]] = defaultdict(dict)
        """Waiting fetches by follower, in order of arrival."""
        self._roles = 0
        self._is_closed = False
        self.checks: Final = LeadershipChecks(
            config.broker_id, self._sessions, lambda followers: self._wake(followers, is_urgent=True)
        )
        """The checks that this broker still leads."""

    def appended(self, replica: HostedReplica) -> None:
        """Wake the followers of a partition, because records were appended."""
        self.changed(replica)
        self._wake(replica.followers)

    def announce(self, replica: HostedReplica) -> None:
        """Wake the followers of a partition to answer at once, even without records."""
        self.changed(replica)
        self._wake(replica.followers, is_urgent=True)

    def changed(self, replica: HostedReplica) -> None:
        """Mark a partition as changed; the next answers to its followers report it."""
        self._sessions.stir(replica.followers, replica.key)

    def _wake(self, followers: Iterable[int], *, is_urgent: bool = False) -> None:
        for follower in followers:
            for woken in self._waiting.get(follower, ()):
                if not woken.done():
                    woken.set_result(is_urgent)

    def roles_changed(self) -> None:
        """Have all waiting fetches check again that this broker leads their partitions."""
        self._roles += 1
        self.wake_all()
        self.checks.look_again()

    def wake_all(self) -> None:
        """Have all waiting fetches check again."""
        self._wake(tuple(self._waiting))

    def close(self) -> None:
        """End all waits, because the broker stops."""
        self._is_closed = True
        self.wake_all()
        self.checks.close()

    async def fetch(self, request: pb.FetchRequest, lease: Lease) -> FetchAnswer:
        """Answer a follower. Raises ``FetchSessionIdNotFoundError``, ``InvalidFetchSessionEpochError``."""
        session = self._sessions.of_request(request.session_id, request.session_epoch, request.replica_id)
        session.broker_epoch = request.broker_epoch if request.HasField("broker_epoch") else UNKNOWN_EPOCH
        session.take(changed_fetches(request), forgotten_fetches(request))
        self.checks.asked(session)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.max_wait_ms / 1000
        woken: asyncio.Future[bool] = loop.create_future()
        waiting = self._waiting[session.follower]
        waiting[woken] = None
        is_urgent = False
        try:
            problems = self._note(session)
            while True:
                records = await self._read(session, request, problems, lease)
                if session.looked_at[0] != self._roles:  # the role has changed, the records may be another leader's
                    lease.release()
                    problems = self._note(session)
                    continue
                size_bytes, left_s = sum(map(len, records.values())), deadline - loop.time()
                if size_bytes >= request.min_bytes or problems or is_urgent or left_s <= 0 or self._is_closed:
                    self.checks.answered(session)
                    return self._answer(session, records, problems)
                del records
                lease.release()
                if not woken.done():
                    with parked():
                        await asyncio.wait([woken], timeout=left_s)
                is_urgent = woken.done() and woken.result()
                waiting.pop(woken, None)
                woken = loop.create_future()
                waiting[woken] = None
        finally:
            waiting.pop(woken, None)

    # --- progress of the follower ----------------------------------------------------------------------------

    def _note(self, session: FollowerSession) -> dict[PartitionKey, Problem]:
        """Report the follower's progress to the state machines; returns the partitions with an error or a divergence.

        An unchanged fetch offset is reported only at intervals. A session may have thousands of partitions, of which
        few change between two requests.
        """
        problems: dict[PartitionKey, Problem] = {}
        now_ms = self._replicas.now_ms()
        is_all = session.looked_at[0] != self._roles or now_ms - session.looked_at[1] >= self._noted_anew_ms
        if is_all:
            session.looked_at = (self._roles, now_ms)
            session.stir_all()
        for key in list(session.stirred):
            fetch = session.fetches[key]
            if fetch.is_noted and not is_all:
                continue
            fetch.is_noted = False
            try:
                replica = self._led(key, fetch)
                leader = replica.leader
                diverging = _compare(replica, fetch)
                if diverging is not None:
                    problems[key] = diverging
                    continue
                outcome = leader.fetched(
                    session.follower, fetch.offset, fetch.log_start_offset, now_ms, session.broker_epoch
                )
                fetch.is_noted = True
                self._replicas.follow(replica, outcome)
                self._replicas.waiting.fetched(key)
            except MillraceError as error:
                problems[key] = error
        return problems

    def _led(self, key: PartitionKey, fetch: FollowerFetch) -> HostedReplica:
        replica = self._replicas.find(*key)
        if replica is None:
            raise UnknownTopicOrPartitionError(f"{key[0]}-{key[1]} is not on this broker")
        if fetch.topic_id and fetch.topic_id != replica.topic_id.bytes:
            raise InconsistentTopicIdError(f"{replica.name} has another topic id than the follower's replica")
        replica.machine.leading(fetch.leader_epoch)
        self._logs.get(*key)  # raises if the log is offline
        return replica

    # --- records for the follower ----------------------------------------------------------------------------

    async def _read(
        self, session: FollowerSession, request: pb.FetchRequest, problems: dict[PartitionKey, Problem], lease: Lease
    ) -> dict[PartitionKey, bytes]:
        reads = self._choose(session, request.max_bytes, problems)
        await lease.take(sum(read.max_bytes for read in reads))
        records: dict[PartitionKey, bytes] = {}
        remote = [read for read in reads if read.replica.log.is_remote(read.offset)]
        local = [read for read in reads if read not in remote]
        if local:
            is_recent = all(read.replica.log.is_recent(read.offset) for read in local)
            if is_recent and self._executors.small_work.includes(0):
                records = self._executors.small_work.do(_read_all, local, request.max_bytes, problems)
            else:
                records = await self._executors.run_io(_read_all, local, request.max_bytes, problems)
        for read in remote[:1]:  # only one, because the rest of the answer waits for it
            records |= await self._read_remote(read, request.max_bytes - sum(map(len, records.values())), problems)
        lease.settle(sum(map(len, records.values())))
        throttled = sum(len(records.get(read.key, b"")) for read in reads if read.is_throttled)
        if throttled:
            self._replicas.throttles.to_followers.used(throttled)
        return records

    async def _read_remote(
        self, read: _Read, max_bytes: int, problems: dict[PartitionKey, Problem]
    ) -> dict[PartitionKey, bytes]:
        """Read records that only the remote store has, for a replica that starts at the log start."""
        try:
            return await self._reads.run_search(
                read.replica.log, read.offset, _read_all, [read], max(0, max_bytes), problems
            )
        except ThrottledError as error:
            problems[read.key] = error
            return {}

    def _choose(self, session: FollowerSession, max_bytes: int, problems: dict[PartitionKey, Problem]) -> list[_Read]:
        """Return the reads in the order of the session, until the answer is full."""
        reads: list[_Read] = []
        for key in session.stirred:
            fetch, replica = session.fetches[key], self._replicas.find(*key)
            if key in problems or replica is None or fetch.offset >= replica.log.log_end_offset:
                continue
            is_throttled = self._replicas.throttles.limits_leader(replica, session.follower)
            if is_throttled and self._replicas.throttles.to_followers.is_exceeded:
                continue
            reads.append(_Read(key, replica, fetch.offset, max(0, min(fetch.max_bytes, max_bytes)), is_throttled))
            max_bytes -= reads[-1].max_bytes
            if max_bytes <= 0:
                break
        return reads

    def _answer(
        self, session: FollowerSession, records: dict[PartitionKey, bytes], problems: dict[PartitionKey, Problem]
    ) -> FetchAnswer:
        """Build the answer from changed partitions, and remember what it reports."""
        answer = FetchAnswer(session_id=session.id)
        topics: dict[str, TopicAnswer] = {}
        for key in list(session.stirred):
            fetch, replica = session.fetches[key], self._replicas.find(*key)
            problem, found = problems.get(key), records.get(key, b"")
            if problem is None and replica is not None and fetch.offset >= replica.log.log_end_offset:
                session.settle(key)
            if problem is None and (replica is None or not _has_news(fetch, replica, found)):
                continue
            part = PartitionAnswer(pb.FetchResponse.PartitionRecords(partition=key[1]), found)
            if isinstance(problem, MillraceError):
                part.result.error.code, part.result.error.message = problem.code, problem.message
            elif problem is not None:
                part.result.diverging_epoch.leader_epoch = problem.epoch
                part.result.diverging_epoch.end_offset = problem.end_offset
            if replica is not None:
                log = replica.log
                part.result.high_watermark, part.result.log_start_offset = log.high_watermark, log.log_start_offset
                fetch.told = (log.high_watermark, log.log_start_offset) if problem is None else TOLD_NOTHING
                part.result.last_stable_offset = log.last_stable_offset
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = answer.add_topic(key[0], fetch.topic_id)
            topic.partitions.append(part)
            if part.records:
                session.to_the_end(key)
        return answer


def _has_news(fetch: FollowerFetch, replica: HostedReplica, records: bytes) -> bool:
    log = replica.log
    return bool(records) or fetch.told != (log.high_watermark, log.log_start_offset)


def _compare(replica: HostedReplica, fetch: FollowerFetch) -> EpochEnd | None:
    """Return where the logs diverge, or None. Raises ``OffsetOutOfRangeError`` if that is unknown."""
    log = replica.log
    if fetch.last_epoch is not None:
        return find_divergence(replica.name, log, fetch.offset, fetch.last_epoch)
    if not log.log_start_offset <= fetch.offset <= log.log_end_offset:
        raise OffsetOutOfRangeError(
            f"offset {fetch.offset} of {replica.name} is not in the leader's log, which has "
            f"{log.log_start_offset}..{log.log_end_offset - 1}"
        )
    return None


def _read_all(reads: list[_Read], max_bytes: int, problems: dict[PartitionKey, Problem]) -> dict[PartitionKey, bytes]:
    """Read one partition after the other; the first batch is read whatever its size."""
    records: dict[PartitionKey, bytes] = {}
    for read in reads:
        try:
            found = read.replica.log.read_to_end(read.offset, min(read.max_bytes, max_bytes), min_one_batch=not records)
        except MillraceError as error:
            problems[read.key] = error
            continue
        if found:
            records[read.key] = found
            max_bytes = max(0, max_bytes - len(found))
    return records
