"""Calls to partition leaders, one per broker, with retries after leader changes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from millrace.clients.connections import Connections, backoff_s
from millrace.clients.metadata import MetadataCache, check_partition
from millrace.clients.model import TopicPartition
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


def ask_leaders(
    connections: Connections,
    metadata: MetadataCache,
    partitions: Iterable[TopicPartition],
    ask: Callable[[str, list[TopicPartition]], Mapping[TopicPartition, Answer | MillraceError]],
    *,
    once_ms: int | None = None,
) -> dict[TopicPartition, Answer | MillraceError]:
    """Call ``ask`` with the address of each leader and its partitions; returns its result for each partition.

    Transient errors are retried up to ``default.api.timeout.ms``, so the request of ``ask`` may be sent twice. With
    ``once_ms`` they are not retried, and a leader lookup may take that time. Raises permanent errors of ``ask``, and
    errors of the leader lookup.
    """
    limit_ms = connections.config.default_api_timeout_ms if once_ms is None else 0
    deadline = time.monotonic() + limit_ms / 1000
    answers: dict[TopicPartition, Answer | MillraceError] = {}
    pending, attempt = list(partitions), 0
    while pending:
        found = _ask_once(metadata, pending, ask, once_ms)
        answers.update(found)
        again = [each for each, answer in found.items() if may_pass(answer)]
        metadata.forget({each.topic for each in again})
        wait_s = backoff_s(connections.config, attempt)
        if not again or time.monotonic() + wait_s > deadline:
            break
        connections.wait(wait_s)
        pending, attempt = again, attempt + 1
    return answers


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


def _ask_once(
    metadata: MetadataCache,
    partitions: list[TopicPartition],
    ask: Callable[[str, list[TopicPartition]], Mapping[TopicPartition, Answer | MillraceError]],
    timeout_ms: int | None,
) -> dict[TopicPartition, Answer | MillraceError]:
    found: dict[TopicPartition, Answer | MillraceError] = {}
    by_address: dict[str, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        try:
            by_address[metadata.leader_address(partition, timeout_ms)].append(partition)
        except LeaderNotAvailableError as error:
            found[partition] = error
    for address, its in by_address.items():
        try:
            found.update(ask(address, its))
        except MillraceError as error:
            if not may_pass(error):
                raise
            found.update(dict.fromkeys(its, error))
    return found


def may_pass(answer: object) -> bool:
    """Return whether an answer is a transient error.

    A missing topic is none, although Kafka's protocol calls it retriable.
    """
    is_transient = isinstance(answer, MillraceError) and answer.retriable
    return is_transient and not isinstance(answer, UnknownTopicOrPartitionError)
