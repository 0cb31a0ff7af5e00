"""Descriptions of transactions and of the producers in a partition. All frozen."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id in a list. ``state`` is Kafka's name; ``coordinator_id`` is a broker's."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """Transactional id with its open transaction (Kafka's ``TransactionDescription``).

    ``start_time_ms`` is -1 without an open transaction.
    """

    transactional_id: str
    coordinator_id: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerDescription:
    """Producer in a partition's state (Kafka's ``ProducerState``).

    ``transaction_start_offset`` is -1 without an open transaction there.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """An open transaction in a partition."""

    partition: TopicPartition
    producer: ProducerDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOutcome:
    """Result of ``Admin.commit_transactions``.

    ``was_committed_before`` means that an earlier call committed this epoch or a later one, and that the members of
    this call were aborted. ``last_committed_epoch`` is the latest committed epoch.
    """

    was_committed_before: bool
    last_committed_epoch: int
