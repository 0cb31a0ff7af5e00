"""What members of share groups say of the records that they were given, for the two calls that carry it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from millrace.protocol import millrace_pb2 as pb
from millrace_broker.broker import Broker
from millrace_broker.coordinators import written
from millrace_broker.share_groups import Acknowledgement

Acknowledgements = tuple[str, int, Iterable[pb.AcknowledgementBatch]]
"""Topic, partition, and what is said of its records."""


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
