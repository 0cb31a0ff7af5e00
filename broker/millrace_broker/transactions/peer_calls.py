"""Calls of the transaction coordinator to other brokers.

Partition leaders get markers. Another coordinator verifies partitions of a transaction, or adds partitions and offsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item
from millrace_broker.network import Peers
from millrace_broker.purgatory import PartitionKey
from millrace_broker.transactions.metadata import ProducerIdAndEpoch, TransactionMarker

_TIMEOUT_S: Final = 30.0


async def write_marker(peers: Peers, leader: int, partition: PartitionKey, marker: TransactionMarker) -> None:
    """Ask the leader of a partition to write a marker. Raises the leader's error."""
    topic, number = partition
    request = pb.WriteTxnMarkersRequest()
    wanted = request.markers.add(
        producer_id=marker.producer_id,
        producer_epoch=marker.epoch,
        committed=marker.committed,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.version,
    )
    wanted.topics.add(name=topic, partitions=[number])
    response: pb.WriteTxnMarkersResponse = await peers.call(leader, "WriteTxnMarkers", request, timeout_s=_TIMEOUT_S)
    _check(each for result in response.results for each in result.topics)


async def add_partition(
    peers: Peers,
    leader: int,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partition: PartitionKey,
    *,
    coordinator_key: str,
    verify_only: bool = False,
) -> None:
    """Ask the coordinator on another broker to add a partition to a transaction, or whether it belongs to it.

    Raises the coordinator's error.
    """
    topic, number = partition
    request = pb.AddPartitionsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        coordinator_key=coordinator_key,
        verify_only=verify_only,
        by_broker=True,
    )
    request.topics.add(name=topic, partitions=[number])
    response: pb.AddPartitionsToTxnResponse = await peers.call(
        leader, "AddPartitionsToTxn", request, timeout_s=_TIMEOUT_S
    )
    _check(response.topics)


async def add_offsets(
    peers: Peers,
    leader: int,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    group_id: str,
    *,
    coordinator_key: str,
) -> None:
    """Ask the coordinator on another broker to add the offsets of a group to a transaction. Raises its error."""
    request = pb.AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group_id,
        coordinator_key=coordinator_key,
        by_broker=True,
    )
    await peers.call(leader, "AddOffsetsToTxn", request, timeout_s=_TIMEOUT_S)


def _check(topics: Iterable[pb.TopicErrors]) -> None:
    for topic in topics:
        for each in topic.partitions:
            check_item(each.error)
