"""Transactions and the producers in a partition, as they are described. All frozen."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id in a list. ``state`` is Kafka's word for it; ``coordinator_id`` is a broker's."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id and the transaction that is open, if one is: then ``start_time_ms`` is not -1."""

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
    """A producer as a partition remembers it; ``transaction_start_offset`` is -1 when none of its is open there."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that is open in a partition."""

    partition: TopicPartition
    producer: ProducerDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOutcome:
    """What ``Admin.commit_transactions`` did.

    ``was_committed_before``: this epoch or a later one had been committed by an earlier call, and the members of this
    one were aborted. ``last_committed_epoch`` is the latest that is committed now.
    """

    was_committed_before: bool
    last_committed_epoch: int
