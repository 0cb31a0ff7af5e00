"""Handler of DescribeShareGroupOffsets, each group separately (KIP-932, KIP-1226)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from millrace.errors import MillraceError
from millrace.partitions import numbers_by_topic
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.api.common.access_rules import authorized
from millrace_broker.api.common.errors import error_message
from millrace_broker.api.common.request_context import RequestContext
from millrace_broker.broker import Broker
from millrace_broker.metadata import TopicInfo
from millrace_broker.runtime.turns import Turns
from millrace_broker.share_groups import ShareProgress

_logger = logging.getLogger(__name__)

_NONE: Final = -1

Progress = Mapping[tuple[str, int], ShareProgress]


@authorized("DescribeShareGroupOffsets")
async def handle(
    broker: Broker, request: pb.DescribeShareGroupOffsetsRequest, context: RequestContext
) -> pb.DescribeShareGroupOffsetsResponse:
    """Look up the start offsets; -1 if the group has not read the partition. Deleted topics are omitted.

    The lag of a partition is left out if its leader does not answer.
    """
    response, turns = pb.DescribeShareGroupOffsetsResponse(), Turns()
    for wanted in request.groups:
        await turns.next()
        result = response.groups.add(group_id=wanted.group_id)
        try:
            await broker.share_groups.wait_for_shard(wanted.group_id)
            progress = _progress(broker, wanted.group_id)
            topics = [(each.name, tuple(each.partitions)) for each in wanted.topics]  # a name may come twice
            if wanted.all_topics:
                known = progress.keys() | _subscribed(broker, wanted.group_id)
                topics = list(numbers_by_topic(sorted(known)).items())
            for name, partitions in topics:
                await turns.next()
                topic, described = broker.catalog.topics.get(name), result.topics.add(name=name)
                _describe(described, topic, partitions, progress)
                if wanted.with_lag and topic is not None:
                    await _add_lags(broker, topic, described)
        except Exception as error:  # noqa: BLE001 - the group's error; unexpected errors are logged
            result.error.CopyFrom(error_message(error))
    return response


async def _add_lags(
    broker: Broker, topic: TopicInfo, described: pb.DescribeShareGroupOffsetsResponse.TopicOffsets
) -> None:
    for result in described.partitions:
        if result.start_offset == _NONE:
            continue
        try:
            end_offset = await broker.share_groups.end_offset(topic, result.partition)
        except MillraceError as error:
            _logger.info("the lag of %s-%d is unknown: %s", topic.name, result.partition, error.message)
            continue
        result.lag = max(0, end_offset - result.start_offset - result.delivery_complete_count)


def _progress(broker: Broker, group_id: str) -> Progress:
    found = {}
    for key, progress in broker.share_groups.shard_of(group_id).progress(group_id).items():
        topic = broker.catalog.topic_of_id(key.topic_id)
        if topic is not None:
            found[topic.name, key.partition] = progress
    return found


def _subscribed(broker: Broker, group_id: str) -> set[tuple[str, int]]:
    """Return the partitions that members may fetch. Kafka describes them from the join on."""
    members = broker.share_groups.shard_of(group_id).present(group_id).members
    return {partition for partition in members.partitions() if partition[0] in broker.catalog.topics}


def _describe(
    result: pb.DescribeShareGroupOffsetsResponse.TopicOffsets,
    topic: TopicInfo | None,
    partitions: Iterable[int],
    progress: Progress,
) -> None:
    if topic is not None:
        result.topic_id = topic.topic_id.bytes
    for number in partitions:
        found = progress.get((result.name, number), ShareProgress(_NONE, 0))
        result.partitions.add(
            partition=number, start_offset=found.start_offset, delivery_complete_count=found.complete_count
        )
