"""ShareAcknowledge: what has become of records that a member of a share group was given (KIP-932)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.call import Call, error_message
from millrace_broker.broker import Broker
from millrace_broker.coordinators import written
from millrace_broker.share_groups import Acknowledgement

Acknowledgements = tuple[str, int, Iterable[pb.AcknowledgementBatch]]
"""Topic, partition, and what is said of its records."""


async def handle(broker: Broker, request: pb.ShareAcknowledgeRequest, call: Call) -> pb.ShareAcknowledgeResponse:
    """Acknowledge; each partition's batches are taken all or none, and an error stands beside the partition."""
    response = pb.ShareAcknowledgeResponse()
    results: list[pb.PartitionError] = []
    wanted: list[Acknowledgements] = []
    for topic in request.topics:
        topic_result = response.topics.add(name=topic.name)
        for each in topic.partitions:
            results.append(topic_result.partitions.add(partition=each.partition))
            wanted.append((topic.name, each.partition, each.acknowledgements))
    errors = await acknowledge_all(broker, request.group_id, request.member_id, wanted)
    for result, error in zip(results, errors, strict=True):
        if error is not None:
            result.error.CopyFrom(error_message(error))
    return response


async def acknowledge_all(
    broker: Broker, group_id: str, member_id: str, wanted: Sequence[Acknowledgements]
) -> list[Exception | None]:
    """Acknowledge in several partitions, and wait until that is written down; each one's error, or None.

    Raises what ``ShareCoordinator.shard_of`` does.
    """
    broker.share_groups.shard_of(group_id)
    outcomes: list[asyncio.Future[int] | Exception | None] = []
    for topic, partition, acknowledgements in wanted:
        batches = [(each.first_offset, each.last_offset, Acknowledgement(each.type)) for each in acknowledgements]
        try:
            outcome = None
            if batches:
                outcome = broker.share_groups.acknowledge(group_id, member_id, topic, partition, batches)
            outcomes.append(outcome)
        except Exception as error:  # noqa: BLE001 - stands beside the partition, unexpected ones are logged there
            outcomes.append(error)
    return [await _error_of(outcome) for outcome in outcomes]


async def _error_of(outcome: asyncio.Future[int] | Exception | None) -> Exception | None:
    if not isinstance(outcome, asyncio.Future):
        return outcome
    try:
        await written(outcome)
    except Exception as error:  # noqa: BLE001 - stands beside the partition, unexpected ones are logged there
        return error
    return None
