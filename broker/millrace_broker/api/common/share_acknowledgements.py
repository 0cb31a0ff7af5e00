"""Share group acknowledgements, shared by ShareFetch and ShareAcknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from millrace.errors import InvalidRequestError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.broker import Broker
from millrace_broker.coordinators import written
from millrace_broker.share_groups import Acknowledgement

Acknowledgements = tuple[str, int, Iterable[pb.AcknowledgementBatch]]
"""Topic, partition, and the acknowledgements of its records."""


async def acknowledge_all(
    broker: Broker, group_id: str, member_id: str, wanted: Sequence[Acknowledgements]
) -> list[Exception | None]:
    """Acknowledge records of several partitions, and wait until that is persisted.

    Return each partition's error, or None.

    Raises the errors of ``ShareCoordinator.shard_of``.
    """
    broker.share_groups.shard_of(group_id)
    outcomes: list[asyncio.Future[int] | Exception | None] = []
    for topic, partition, acknowledgements in wanted:
        try:
            outcome = None
            batches = [(each.first_offset, each.last_offset, _type_of(each)) for each in acknowledgements]
            if batches:
                outcome = broker.share_groups.acknowledge(group_id, member_id, topic, partition, batches)
            outcomes.append(outcome)
        except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
            outcomes.append(error)
    return [await _error_of(outcome) for outcome in outcomes]


def _type_of(batch: pb.AcknowledgementBatch) -> Acknowledgement:
    """Return the type of an acknowledgement. Raises ``InvalidRequestError``."""
    try:
        return Acknowledgement(batch.type)
    except ValueError:
        raise InvalidRequestError(
            f"acknowledgement type {batch.type}: expected 0 (gap), 1 (accept), 2 (release), 3 (reject), 4 (renew) or 5 "
            "(return)"
        ) from None


async def _error_of(outcome: asyncio.Future[int] | Exception | None) -> Exception | None:
    if not isinstance(outcome, asyncio.Future):
        return outcome
    try:
        await written(outcome)
    except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
        return error
    return None
