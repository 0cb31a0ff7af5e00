"""Calls to partition leaders, on all brokers at the same time.

Calls are retried after leader changes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from millrace.clients.backoff import backoff_s
from millrace.clients.connections import Connections
from millrace.clients.metadata import MetadataCache, check_partition
from millrace.clients.model import TopicPartition
from millrace.clients.transport import Method, PendingCall, unary
from millrace.errors import (
    BrokerUnavailableError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    MillraceError,
    NotLeaderError,
    ReplicaNotAvailableError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)

Request = TypeVar("Request")
Response = TypeVar("Response")
Answer = TypeVar("Answer")

MOVED: Final = (
    NotLeaderError,
    LeaderNotAvailableError,
    FencedLeaderEpochError,
    UnknownLeaderEpochError,
    ReplicaNotAvailableError,
    BrokerUnavailableError,
)
"""Errors that show a past or imminent leader change of the partition."""


def group_by_leader(
    metadata: MetadataCache, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
) -> tuple[dict[str, list[TopicPartition]], dict[TopicPartition, LeaderNotAvailableError]]:
    """Return the partitions of each leader by its address, and the errors of those without a leader.

    A lookup may take ``timeout_ms``. Raises its other errors.
    """
    by_address: dict[str, list[TopicPartition]] = defaultdict(list)
    without: dict[TopicPartition, LeaderNotAvailableError] = {}
    for partition in partitions:
        try:
            by_address[metadata.leader_address(partition, timeout_ms)].append(partition)
        except LeaderNotAvailableError as error:
            without[partition] = error
    return by_address, without


@dataclass(frozen=True, slots=True)
class LeaderCall(Generic[Request, Response, Answer]):
    """Call that each leader gets with its partitions.

    ``answers`` extracts the partitions' answers from a response. The request of a partition may be sent twice.
    """

    method: Method[Request, Response]
    request: Callable[[Sequence[TopicPartition]], Request]
    answers: Callable[[Response, Sequence[TopicPartition]], Mapping[TopicPartition, Answer | MillraceError]]


@dataclass(frozen=True, slots=True)
class _Due:
    """Partitions to ask for at a time, after some attempts."""

    partitions: Sequence[TopicPartition]
    at: float
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class _Asked(Generic[Response]):
    """Partitions that one leader was asked for."""

    partitions: Sequence[TopicPartition]
    attempts: int
    pending: PendingCall[Response]


def ask_leaders(
    connections: Connections,
    metadata: MetadataCache,
    partitions: Iterable[TopicPartition],
    call: LeaderCall[Request, Response, Answer],
    *,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, Answer | MillraceError]:
    """Make a call to each leader with its partitions; returns the answer or error of each partition.

    All leaders are asked at the same time, so that one that does not answer delays no other. A call may take
    ``timeout_ms`` (``request.timeout.ms``). Transient errors are retried up to ``default.api.timeout.ms``. Raises
    permanent errors of calls, and errors of the leader lookup.
    """
    asking = _Asking(connections, metadata, call, timeout_ms)
    try:
        return asking.run(list(partitions))
    finally:
        asking.cancel()


class _Asking(Generic[Request, Response, Answer]):
    """Calls to leaders in flight, and the answers so far."""

    def __init__(
        self,
        connections: Connections,
        metadata: MetadataCache,
        call: LeaderCall[Request, Response, Answer],
        timeout_ms: int | None,
    ) -> None:
        self._connections = connections
        self._metadata = metadata
        self._call = call
        config = connections.config
        self._timeout_s = min(timeout_ms or config.request_timeout_ms, config.request_timeout_ms) / 1000
        self._deadline = time.monotonic() + config.default_api_timeout_ms / 1000
        self._notice = connections.notice()
        self._due: list[_Due] = []
        self._asked: list[_Asked[Response]] = []
        self._answers: dict[TopicPartition, Answer | MillraceError] = {}

    def run(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Answer | MillraceError]:
        """Ask until each partition has an answer or a final error."""
        self._due = [_Due(partitions, time.monotonic())] if partitions else []
        while self._due or self._asked:
            now = time.monotonic()
            ready = [each for each in self._due if each.at <= now]
            self._due = [each for each in self._due if each.at > now]
            for due in ready:
                self._ask(due, may_wait=len(ready) == 1)
            done = [each for each in self._asked if each.pending.is_done]
            self._asked = [each for each in self._asked if each not in done]
            for asked in done:
                self._take(asked.partitions, asked.attempts, asked.pending.result)
            if not ready and not done:
                self._wait(min((each.at for each in self._due), default=None))
        return self._answers

    def cancel(self) -> None:
        """Cancel the calls in flight."""
        for each in self._asked:
            each.pending.cancel()

    def _ask(self, due: _Due, *, may_wait: bool) -> None:
        by_address, failed = group_by_leader(self._metadata, due.partitions)
        is_alone = may_wait and len(by_address) == 1 and not (failed or self._due or self._asked)
        for address, its in by_address.items():
            request = self._call.request(its)
            # The deadline of a later attempt may have passed during the look-up.
            timeout_s = max(min(self._timeout_s, self._deadline - time.monotonic()), 0.001)
            if is_alone:  # a call without another thread is faster
                once = partial(self._connections.once, self._call.method, request, address=address)
                self._take(its, due.attempts, partial(once, timeout_ms=max(int(timeout_s * 1000), 1)))
                continue
            pending = self._connections.begin(
                unary(self._call.method),
                request,
                address=address,
                timeout_s=timeout_s,
                on_done=self._notice.give,
                cancellable=True,
            )
            self._asked.append(_Asked(its, due.attempts, pending))
        self._note(failed, due.attempts)

    def _take(self, partitions: Sequence[TopicPartition], attempts: int, result: Callable[[], Response]) -> None:
        found: Mapping[TopicPartition, Answer | MillraceError]
        try:
            found = self._call.answers(result(), partitions)
        except MillraceError as error:
            if not may_pass(error):
                raise
            found = dict.fromkeys(partitions, error)
        self._note(found, attempts)

    def _note(self, found: Mapping[TopicPartition, Answer | MillraceError], attempts: int) -> None:
        """Keep the answers, and ask again after transient errors, unless the time is over."""
        self._answers.update(found)
        again = [each for each, answer in found.items() if may_pass(answer)]
        self._metadata.forget({each.topic for each in again})
        at = time.monotonic() + backoff_s(self._connections.config, attempts)
        if again and at <= self._deadline:
            self._due.append(_Due(again, at, attempts + 1))

    def _wait(self, until: float | None) -> None:
        """Wait for the next answer, or for the next attempt."""
        if not self._asked and until is not None:
            self._connections.wait(max(until - time.monotonic(), 0))
            return
        left_s = None if until is None else max(until - time.monotonic(), 0)
        self._notice.wait(lambda: any(each.pending.is_done for each in self._asked), left_s)


def await_leader_epochs(
    connections: Connections, metadata: MetadataCache, epochs: Mapping[TopicPartition, int]
) -> None:
    """Fetch metadata until it names a leader of at least the given leader epoch for each partition.

    A broker that was cut off answers with metadata of replaced leaders until it is fenced. The function returns after
    ``default.api.timeout.ms`` in any case, because a cluster that was restored from a backup never gets there.
    """
    deadline = time.monotonic() + connections.config.default_api_timeout_ms / 1000
    attempt = 0
    while True:
        behind = {each.topic for each, epoch in epochs.items() if _known_epoch(metadata, each) < epoch}
        wait_s = backoff_s(connections.config, attempt)
        if not behind or time.monotonic() + wait_s > deadline:
            return
        for topic in behind:
            metadata.forget_old(topic)
        connections.wait(wait_s)
        attempt += 1


def _known_epoch(metadata: MetadataCache, partition: TopicPartition) -> int:
    topic = metadata.topic(partition.topic)
    check_partition(topic, partition.partition)
    return topic.partitions[partition.partition].leader_epoch


def may_pass(answer: object) -> bool:
    """Return whether an answer is a transient error.

    A missing topic is none, although Kafka's protocol calls it retriable.
    """
    is_transient = isinstance(answer, MillraceError) and answer.retriable
    return is_transient and not isinstance(answer, UnknownTopicOrPartitionError)
