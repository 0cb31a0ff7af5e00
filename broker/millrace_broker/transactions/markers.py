"""The ends of transactions, written to the partitions that were part of them.

A decided transaction has a marker in each of its partitions in the end, however often it takes: markers are written
until each partition has one, by this coordinator or by the next one that reads what was decided. A marker that
comes twice does no harm, for its epoch is above that of the transaction that it ends.
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
from millrace_broker.replication.runtime import Appends, PartitionDirectory
from millrace_broker.runtime import Executors
from millrace_broker.transactions.elsewhere import write_marker
from millrace_broker.transactions.metadata import RAISES_EPOCHS, Marker, PartitionKey, Transaction

_logger: Final = logging.getLogger(__name__)

_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 10.0


class MarkerTransport(Protocol):
    """Brings markers to the leaders of partitions."""

    async def write(self, partition: PartitionKey, marker: Marker) -> None:
        """Return when the marker is as durable as an append is to be; raises what appending one does."""
        ...

    def is_gone(self, partition: PartitionKey) -> bool:
        """Whether the partition does not exist any more, so that nothing is left to be ended there."""
        ...


class OffsetCommits(Protocol):
    """The offsets that groups commit within transactions, as the coordinator of groups has them."""

    @property
    def partition_count(self) -> int:
        """Partitions of ``__consumer_offsets``. Raises ``CoordinatorNotAvailableError`` while it is not there."""
        ...

    async def complete_transaction(self, partition_of_offsets_topic: int, producer_id: int, *, committed: bool) -> None:
        """Have a producer's offsets count, or not: its marker was appended to a partition of the topic."""
        ...


class Markers:
    """Writes markers to partitions that this broker leads (``write_here``), and has other brokers write the others."""

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

    async def write(self, partition: PartitionKey, marker: Marker) -> None:
        """Have a marker written by whoever leads the partition. Raises what ``write_here`` does, and as any call."""
        leader = self._partitions.leader_elsewhere(partition)
        if leader is None:
            await self.write_here(partition, marker)
        else:
            await write_marker(self._peers, leader, partition, marker)

    async def write_here(self, partition: PartitionKey, marker: Marker) -> None:
        """Append a marker, and have it count; what has begun is finished, also when the caller is cancelled.

        Raises ``UnknownTopicOrPartitionError``, ``NotLeaderError``, ``InvalidProducerEpochError``,
        ``TransactionCoordinatorFencedError``, ``StorageError``.
        """
        await self._executors.to_the_end(self._write(partition, marker))

    async def _write(self, partition: PartitionKey, marker: Marker) -> None:
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
            is_epoch_raised=marker.version >= RAISES_EPOCHS,
        )
        if topic == OFFSETS_TOPIC:
            await self._offsets.complete_transaction(number, marker.producer_id, committed=marker.committed)

    def is_gone(self, partition: PartitionKey) -> bool:
        """Whether the topic has been deleted."""
        return partition[0] not in self._catalog.topics


async def write_markers(transport: MarkerTransport, transaction: Transaction, coordinator_epoch: int) -> bool:
    """Write the markers of a decided transaction, and return when all are there.

    False if another coordinator has taken over, which then writes them.
    """
    marker = Marker(
        producer_id=transaction.producer_id,
        epoch=transaction.epoch,
        committed=transaction.is_committed,
        coordinator_epoch=coordinator_epoch,
        version=transaction.version,
    )
    writes = [
        _write(transport, partition, marker, transaction.transactional_id)
        for partition in sorted(transaction.partitions)
    ]
    return all(await asyncio.gather(*writes))


async def _write(transport: MarkerTransport, partition: PartitionKey, marker: Marker, transactional_id: str) -> bool:
    pause_s = _PAUSE_FIRST_S
    while not transport.is_gone(partition):
        try:
            await transport.write(partition, marker)
        except InvalidProducerEpochError as error:
            # The producer's records of a later epoch are there: so this transaction was ended.
            _logger.info("%s in %s-%d has been ended before (%s)", transactional_id, *partition, error.message)
        except TransactionCoordinatorFencedError as error:
            _logger.warning("the end of %s is another coordinator's now: %s", transactional_id, error.message)
            return False
        except MillraceError as error:
            _logger.warning(
                "the end of %s cannot be written to %s-%d, it is tried again: %s",
                transactional_id,
                *partition,
                error.message,
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            continue
        break
    return True
