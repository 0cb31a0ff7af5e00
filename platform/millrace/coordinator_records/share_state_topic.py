"""Records of ``__share_group_state``: delivery states in share groups (KIP-932).

A snapshot holds the whole state of a partition, an update the changes since. The key's type distinguishes them.
"""

from __future__ import annotations

from millrace.coordinator_records.keys import UnknownKey, read_key
from millrace.kafka_protocol.data.share_snapshot import ShareSnapshotKey, ShareSnapshotValue, StateBatch
from millrace.kafka_protocol.data.share_update import ShareUpdateKey, ShareUpdateValue
from millrace.kafka_protocol.data.share_update import StateBatch as UpdatedBatch

__all__ = [
    "ShareSnapshotKey",
    "ShareSnapshotValue",
    "ShareUpdateKey",
    "ShareUpdateValue",
    "StateBatch",
    "UpdatedBatch",
    "read_share_state_key",
]


def read_share_state_key(data: bytes) -> ShareSnapshotKey | ShareUpdateKey | UnknownKey:
    """Read a record's key. Raises ``InvalidRecordError`` if it is damaged."""
    key = read_key(data, ShareSnapshotKey, ShareUpdateKey)
    assert isinstance(key, ShareSnapshotKey | ShareUpdateKey | UnknownKey)
    return key
