"""Check that no group of the other kind has an id.

Consumer groups and share groups have separate coordinators.
"""

from __future__ import annotations

import logging
from typing import Final

from millrace.errors import GroupIdNotFoundError, MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.broker import Broker
from millrace_broker.coordinators import OFFSETS_TOPIC, SHARE_STATE_TOPIC, partition_of
from millrace_broker.groups import ConsumerGroup
from millrace_broker.groups.classic_group import ClassicGroup

_logger = logging.getLogger(__name__)

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"

_KINDS: Final = {CLASSIC: (CLASSIC, CONSUMER), SHARE: (SHARE,)}
_TOPICS: Final = {CLASSIC: OFFSETS_TOPIC, SHARE: SHARE_STATE_TOPIC}
_NAMES: Final = {CLASSIC: "consumer", SHARE: "share"}
_ASKED_S: Final = 2.0


def kind_of(group: ClassicGroup | ConsumerGroup) -> str:
    """Return the kind of a group of consumers."""
    return CONSUMER if isinstance(group, ConsumerGroup) else CLASSIC


async def check_is_not(
    broker: Broker, group_id: str, kind: str, *, is_new: bool, error: type[MillraceError] = GroupIdNotFoundError
) -> None:
    """Raise an error if a group of ``kind`` has this id, with members or without. The default is Kafka's error.

    ``CLASSIC`` stands for consumer groups too, which have the same coordinator. For a new member or group, ask the id's
    coordinator of that kind, on whichever broker it runs. If the coordinator does not answer, allow the call.

    A group of the caller's own kind goes on, although the id may have a group of ``kind`` too. Earlier versions allowed
    both, and one that does not answer is overlooked.
    """
    if (broker.share_groups if kind == CLASSIC else broker.groups).has_group(group_id):
        return
    is_taken = (broker.groups if kind == CLASSIC else broker.share_groups).has_group(group_id)
    if is_taken or (is_new and await _is_taken_elsewhere(broker, group_id, kind)):
        raise error(f"group {group_id} is a {_NAMES[kind]} group: choose another id, or delete that group")


async def _is_taken_elsewhere(broker: Broker, group_id: str, kind: str) -> bool:
    topic = broker.catalog.topics.get(_TOPICS[kind])
    if topic is None:
        return False  # there are no groups of that kind
    leader = topic.partitions[partition_of(group_id, len(topic.partitions))].leader
    if leader in (-1, broker.config.broker_id):
        return False
    request = pb.DescribeGroupsRequest(group_ids=[group_id], by_broker=True)
    try:
        answer: pb.DescribeGroupsResponse = await broker.peers.call(
            leader, "DescribeGroups", request, timeout_s=_ASKED_S
        )
    except MillraceError as error:
        _logger.info("could not determine whether %s is a %s group: %s", group_id, _NAMES[kind], error.message)
        return False
    return any(group.type in _KINDS[kind] for group in answer.groups)
