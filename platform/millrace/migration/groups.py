"""Conversion of Kafka's committed group offsets by the offsets map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.clients import Admin, OffsetAndMetadata, TopicPartition
from millrace.errors import UsageError
from millrace.migration.kafka_topic import KafkaTopic
from millrace.migration.offsets_map import OffsetsMap


def carry_groups_over(
    source: KafkaTopic, admin: Admin, target: str, maps: Mapping[int, OffsetsMap], groups: Iterable[str]
) -> dict[str, dict[TopicPartition, int]]:
    """Set the groups' offsets of ``target`` from their committed offsets in Kafka; returns them.

    All offsets are looked up before the first is set. Groups without committed offsets of the topic are skipped. The
    groups in millrace must have no members. Raises ``UsageError`` for a group whose offset is beyond the copy.
    """
    carried: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
    for group in groups:
        for partition, old, metadata in source.group_offsets(group):
            try:
                new = maps.get(partition, OffsetsMap()).new_offset(old)
            except UsageError as error:
                raise UsageError(
                    f"group {group} is ahead of the copy of {source.topic}-{partition}: {error.message}; copy again"
                ) from error
            place = OffsetAndMetadata(offset=new, metadata=metadata)
            carried.setdefault(group, {})[TopicPartition(target, partition)] = place
    for group, offsets in carried.items():
        admin.alter_group_offsets(group, offsets)
    return {
        group: {partition: place.offset for partition, place in offsets.items()} for group, offsets in carried.items()
    }
