"""What a coordinator of transactions and the leaders of partitions ask each other where they are on several brokers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from millrace.errors import LeaderNotAvailableError, error_of
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.transactions.metadata import PartitionKey, Producer

if TYPE_CHECKING:
    from millrace_broker.broker import Broker
    from millrace_broker.transactions.markers import Marker

_TIMEOUT_S: Final = 30.0


def leader_elsewhere(broker: Broker, partition: PartitionKey) -> int | None:
    """The other broker that leads a partition; None if this one does.

    Raises ``UnknownTopicOrPartitionError``, ``LeaderNotAvailableError``.
    """
    topic, number = partition
    if not broker.is_clustered or broker.replicas.leads(topic, number):
        return None
    leader = broker.catalog.topic(topic).partitions[number].leader
    if leader < 0 or leader == broker.config.broker_id:  # nobody, or this one before it has been told
        raise LeaderNotAvailableError(f"{topic}-{number} has no leader now")
    return leader


async def write_marker(broker: Broker, leader: int, partition: PartitionKey, marker: Marker) -> None:
    """Have another broker write the end of a transaction. Raises its error."""
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
    response: pb.WriteTxnMarkersResponse = await broker.peers.call(
        leader, "WriteTxnMarkers", request, timeout_s=_TIMEOUT_S
    )
    _check(each for result in response.results for each in result.topics)


async def verify(
    broker: Broker,
    leader: int,
    transactional_id: str,
    producer: Producer,
    partition: PartitionKey,
    *,
    coordinator_key: str,
) -> None:
    """Ask the coordinator at another broker whether a partition is part of an open transaction. Raises its error."""
    topic, number = partition
    request = pb.AddPartitionsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        coordinator_key=coordinator_key,
        verify_only=True,
    )
    request.topics.add(name=topic, partitions=[number])
    response: pb.AddPartitionsToTxnResponse = await broker.peers.call(
        leader, "AddPartitionsToTxn", request, timeout_s=_TIMEOUT_S
    )
    _check(response.topics)


def _check(topics: Iterable[pb.TopicErrors]) -> None:
    for topic in topics:
        for each in topic.partitions:
            if each.HasField("error"):
                raise error_of(each.error.code, each.error.message)
