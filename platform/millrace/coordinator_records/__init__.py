"""Records of the coordinators' topics, as Kafka's messages.

* ``offsets_topic``       committed offsets and groups
* ``transactions_topic``  the state of transactional ids
* ``share_state_topic``   delivery states of share groups
* ``keys``                keys, which begin with the type of their record
* ``internal_topics``     the names of the topics

The messages are those of ``millrace.kafka_protocol``. A group's record holds those of ``millrace.consumer_protocol``.
"""

from millrace.consumer_protocol import (
    AssignedPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedPartitions,
    read_assignment,
    read_subscribed_topics,
    read_subscription,
)
from millrace.coordinator_records.internal_topics import (
    AUDIT_COLUMNS,
    AUDIT_TOPIC,
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
)
from millrace.coordinator_records.keys import UnknownKey, write_key
from millrace.coordinator_records.offsets_topic import (
    GroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_value,
    read_offset_value,
    read_offsets_key,
)
from millrace.coordinator_records.share_state_topic import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StateBatch,
    UpdatedBatch,
    read_share_state_key,
)
from millrace.coordinator_records.transactions_topic import (
    ExternalCommitKey,
    ExternalCommitValue,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
    TransactionState,
    external_id_field,
    external_id_of,
    read_external_commit,
    read_transaction_key,
    read_transaction_value,
)
from millrace.kafka_protocol import Message, read_versioned, write_versioned

__all__ = [
    "AUDIT_COLUMNS",
    "AUDIT_TOPIC",
    "INTERNAL_TOPICS",
    "OFFSETS_TOPIC",
    "SHARE_STATE_TOPIC",
    "TRANSACTIONS_TOPIC",
    "AssignedPartitions",
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "ExternalCommitKey",
    "ExternalCommitValue",
    "GroupMember",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "LegacyOffsetCommitKey",
    "Message",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "OwnedPartitions",
    "ShareSnapshotKey",
    "ShareSnapshotValue",
    "ShareUpdateKey",
    "ShareUpdateValue",
    "StateBatch",
    "TransactionLogKey",
    "TransactionLogValue",
    "TransactionPartitions",
    "TransactionState",
    "UnknownKey",
    "UpdatedBatch",
    "external_id_field",
    "external_id_of",
    "read_assignment",
    "read_external_commit",
    "read_group_value",
    "read_offset_value",
    "read_offsets_key",
    "read_share_state_key",
    "read_subscribed_topics",
    "read_subscription",
    "read_transaction_key",
    "read_transaction_value",
    "read_versioned",
    "write_key",
    "write_versioned",
]
