"""Markers of transactions, written to their partitions (Kafka's ``TransactionMarkerChannelManager``).

Each partition of a prepared transaction gets a marker. The coordinator retries until the marker is there, and the next
coordinator continues. A repeated marker is harmless, because its epoch is greater than that of the transaction's
records.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from millrace.coordinator_records import OFFSETS_TOPIC
from millrace.errors import InvalidProducerEpochError, MillraceError, TransactionCoordinatorFencedError
from millrace.records import ControlType, EndTransactionMarker
from millrace_broker.metadata import TopicCatalog
from millrace_broker.network import Peers
from millrace_broker.purgatory import PartitionKey
from millrace_broker.replication.runtime import Appends, PartitionDirectory
from millrace_broker.runtime import Executors
from millrace_broker.transactions.metadata import TV_2, TransactionMarker, TransactionMetadata
from millrace_broker.transactions.peer_calls import write_marker

_logger: Final = logging.getLogger(__name__)

_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 10.0


class OffsetCommits(Protocol):
    """Pending offsets of transactions, as the group coordinator has them."""

    @property
    def partition_count(self) -> int:
        """The number of partitions of ``__consumer_offsets``.

        Raises ``CoordinatorNotAvailableError`` before its creation.
        """
        ...

    async def complete_transaction(self, partition_of_offsets_topic: int, producer_id: int, *, committed: bool) -> None:
        """Commit or drop a producer's pending offsets, because its marker is in a partition of the topic."""
        ...


class Markers:
    """Writer of markers to partitions of any broker.

    A marker for a partition that this broker leads is appended here. Other markers are sent to the leaders.
    """

    def __init__(
        self,
        *,
        catalog: TopicCatalog,
        partitions: PartitionDirectory,
        appends: Appends,
        executors: Executors,
        peers: Peers,
        offsets: OffsetCommits,
    ) -> None:
        self._catalog: Final = catalog
        self._partitions: Final = partitions
        self._appends: Final = appends
        self._executors: Final = executors
        self._peers: Final = peers
        self._offsets: Final = offsets

    async def write(self, partition: PartitionKey, marker: TransactionMarker) -> None:
        """Write a marker at the leader of the partition. Raises the errors of ``write_here``, and those of a call."""
        leader = self._partitions.leader_elsewhere(partition)
        if leader is None:
            await self.write_here(partition, marker)
        else:
            await write_marker(self._peers, leader, partition, marker)

    async def write_here(self, partition: PartitionKey, marker: TransactionMarker) -> None:
        """Append a marker to a partition of this broker, and apply it to pending offsets.

        The append runs to its end even if the caller is cancelled. Raises ``UnknownTopicOrPartitionError``,
        ``NotLeaderError``, ``InvalidProducerEpochError``, ``TransactionCoordinatorFencedError``, ``StorageError``.
        """
        await self._executors.to_the_end(self._write(partition, marker))

    async def _write(self, partition: PartitionKey, marker: TransactionMarker) -> None:
        topic, number = partition
        served = self._partitions.led(self._partitions.topic(topic), number)
        await self._appends.append_end_marker(
            served,
            marker.producer_id,
            marker.epoch,
            EndTransactionMarker(
                type=ControlType.COMMIT if marker.committed else ControlType.ABORT,
                coordinator_epoch=marker.coordinator_epoch,
            ),
            is_epoch_raised=marker.version >= TV_2,
        )
        if topic == OFFSETS_TOPIC:
            await self._offsets.complete_transaction(number, marker.producer_id, committed=marker.committed)

    def is_gone(self, partition: PartitionKey) -> bool:
        """Return whether the topic was deleted, or created again with fewer partitions."""
        name, number = partition
        topic = self._catalog.topics.get(name)
        return topic is None or number not in topic.partitions


async def write_markers(markers: Markers, transaction: TransactionMetadata, coordinator_epoch: int) -> bool:
    """Write the markers of a prepared transaction; return True when all partitions have one.

    Return False if another coordinator has taken over, which writes the markers then.
    """
    marker = TransactionMarker(
        producer_id=transaction.producer_id,
        epoch=transaction.epoch,
        committed=transaction.is_committed,
        coordinator_epoch=coordinator_epoch,
        version=transaction.version,
    )
    writes = [
        _write(markers, partition, marker, transaction.transactional_id) for partition in sorted(transaction.partitions)
    ]
    return all(await asyncio.gather(*writes))


async def _write(markers: Markers, partition: PartitionKey, marker: TransactionMarker, transactional_id: str) -> bool:
    pause_s = _PAUSE_FIRST_S
    while not markers.is_gone(partition):
        try:
            await markers.write(partition, marker)
        except InvalidProducerEpochError as error:
            # The partition has records of a later epoch, so the marker of this transaction is there.
            _logger.info("%s-%d has the marker of %s already: %s", *partition, transactional_id, error.message)
        except TransactionCoordinatorFencedError as error:
            _logger.warning("another coordinator ends the transaction of %s: %s", transactional_id, error.message)
            return False
        except MillraceError as error:
            _logger.warning(
                "the marker of %s could not be written to %s-%d; the coordinator retries: %s",
                transactional_id,
                *partition,
                error.message,
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            continue
        break
    return True
