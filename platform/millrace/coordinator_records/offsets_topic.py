"""Records of ``__consumer_offsets`` (Kafka's ``group-coordinator`` messages).

The type of a key determines the record. Types 0 and 1 are a committed offset, 2 is a classic group, and 3 to 8 and 16
are a consumer group (KIP-848). Other types belong to newer kinds of groups and are skipped. A record without a value is
a deletion.
"""

from __future__ import annotations

from typing import Final

from millrace.coordinator_records.keys import UnknownKey, read_key
from millrace.kafka_protocol import read_versioned
from millrace.kafka_protocol.data.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
)
from millrace.kafka_protocol.data.consumer_group_member_metadata import ConsumerGroupMemberMetadataKey
from millrace.kafka_protocol.data.consumer_group_metadata import ConsumerGroupMetadataKey
from millrace.kafka_protocol.data.consumer_group_partition_metadata import ConsumerGroupPartitionMetadataKey
from millrace.kafka_protocol.data.consumer_group_regular_expression import ConsumerGroupRegularExpressionKey
from millrace.kafka_protocol.data.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
)
from millrace.kafka_protocol.data.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
)
from millrace.kafka_protocol.data.group_metadata import GroupMetadataKey, GroupMetadataValue
from millrace.kafka_protocol.data.group_metadata import MemberMetadata as GroupMember
from millrace.kafka_protocol.data.legacy_offset_commit import LegacyOffsetCommitKey
from millrace.kafka_protocol.data.offset_commit import OffsetCommitKey, OffsetCommitValue

__all__ = [
    "CONSUMER_GROUP_KEYS",
    "ConsumerGroupKey",
    "GroupMember",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "LegacyOffsetCommitKey",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "read_group_value",
    "read_offset_value",
    "read_offsets_key",
]


ConsumerGroupKey = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
"""Key of a part of a consumer group (KIP-848)."""

CONSUMER_GROUP_KEYS: Final = (
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupRegularExpressionKey,
)


def read_offsets_key(data: bytes) -> OffsetCommitKey | GroupMetadataKey | ConsumerGroupKey | UnknownKey:
    """Read a record's key. Raises ``InvalidRecordError`` if it is damaged."""
    key = read_key(data, OffsetCommitKey, GroupMetadataKey, LegacyOffsetCommitKey, *CONSUMER_GROUP_KEYS)
    if isinstance(key, LegacyOffsetCommitKey):
        return OffsetCommitKey(group=key.group, topic=key.topic, partition=key.partition)
    assert isinstance(key, OffsetCommitKey | GroupMetadataKey | UnknownKey | ConsumerGroupKey)
    return key


def read_offset_value(data: bytes) -> OffsetCommitValue:
    """Read a committed offset. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return read_versioned(OffsetCommitValue, data)[1]


def read_group_value(data: bytes) -> GroupMetadataValue:
    """Read a group. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return read_versioned(GroupMetadataValue, data)[1]
