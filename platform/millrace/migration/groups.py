"""Committed offsets of Kafka's consumer groups as those of groups here, by the map of what was copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.clients import Admin, OffsetAndMetadata, TopicPartition
from millrace.errors import UsageError
from millrace.migration.kafka_topic import KafkaTopic
from millrace.migration.offsets_map import OffsetsMap


def carry_groups_over(
    source: KafkaTopic, admin: Admin, target: str, maps: Mapping[int, OffsetsMap], groups: Iterable[str]
) -> dict[str, dict[TopicPartition, int]]:
    """Set the groups' offsets of ``target`` here to what they have committed of the topic there; returns them.

    All are looked up before the first is set. Groups that have committed nothing of the topic are passed over; those
    here must have no members. Raises ``UsageError`` for a group that is further than the copy.
    """
    carried: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
    for group in groups:
        for partition, old, metadata in source.group_offsets(group):
            try:
                new = maps.get(partition, OffsetsMap()).new_offset(old)
            except UsageError as error:
                raise UsageError(
                    f"group {group} is further than the copy of {source.topic}-{partition}: {error.message}; copy again"
                ) from error
            place = OffsetAndMetadata(offset=new, metadata=metadata)
            carried.setdefault(group, {})[TopicPartition(target, partition)] = place
    for group, offsets in carried.items():
        admin.alter_group_offsets(group, offsets)
    return {
        group: {partition: place.offset for partition, place in offsets.items()} for group, offsets in carried.items()
    }
