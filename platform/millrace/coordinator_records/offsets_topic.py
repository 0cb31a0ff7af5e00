"""Records of ``__consumer_offsets`` (Kafka's ``group-coordinator`` messages).

The type of a key determines the record: 0 and 1 a committed offset, 2 a group. Other types belong to newer kinds of
groups and are skipped. A record without a value is a deletion.
"""

from __future__ import annotations

from millrace.coordinator_records.keys import UnknownKey, read_key
from millrace.kafka_protocol import read_versioned
from millrace.kafka_protocol.data.group_metadata import GroupMetadataKey, GroupMetadataValue
from millrace.kafka_protocol.data.group_metadata import MemberMetadata as GroupMember
from millrace.kafka_protocol.data.legacy_offset_commit import LegacyOffsetCommitKey
from millrace.kafka_protocol.data.offset_commit import OffsetCommitKey, OffsetCommitValue

__all__ = [
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


def read_offsets_key(data: bytes) -> OffsetCommitKey | GroupMetadataKey | UnknownKey:
    """Read a record's key. Raises ``InvalidRecordError`` if it is damaged."""
    key = read_key(data, OffsetCommitKey, GroupMetadataKey, LegacyOffsetCommitKey)
    if isinstance(key, LegacyOffsetCommitKey):
        return OffsetCommitKey(group=key.group, topic=key.topic, partition=key.partition)
    assert isinstance(key, OffsetCommitKey | GroupMetadataKey | UnknownKey)
    return key


def read_offset_value(data: bytes) -> OffsetCommitValue:
    """Read a committed offset. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return read_versioned(OffsetCommitValue, data)[1]


def read_group_value(data: bytes) -> GroupMetadataValue:
    """Read a group. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return read_versioned(GroupMetadataValue, data)[1]
