"""Records of the coordinators' topics, in Kafka 3.9's encodings (share groups: 4.1's).

``messages``           versioned messages of typed fields, plain and flexible (KIP-482) ``offsets_topic``
committed offsets and groups ``consumer_protocol``  subscriptions and assignments of consumers, inside a group's
record ``transactions_topic`` the state of transactional ids ``share_state_topic``  delivery states of share groups
``internal_topics``    the names of the topics
"""

from millrace.coordinator_records.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    read_assignment,
    read_subscription,
)
from millrace.coordinator_records.internal_topics import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
)
from millrace.coordinator_records.messages import Message, read_versioned, write_versioned
from millrace.coordinator_records.offsets_topic import (
    GroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
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
    read_share_state_key,
)
from millrace.coordinator_records.transactions_topic import (
    ExternalCommitKey,
    ExternalCommitValue,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
    TransactionState,
    read_external_commit,
    read_transaction_key,
    read_transaction_value,
)

__all__ = [
    "INTERNAL_TOPICS",
    "OFFSETS_TOPIC",
    "SHARE_STATE_TOPIC",
    "TRANSACTIONS_TOPIC",
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "ExternalCommitKey",
    "ExternalCommitValue",
    "GroupMember",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "Message",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "ShareSnapshotKey",
    "ShareSnapshotValue",
    "ShareUpdateKey",
    "ShareUpdateValue",
    "StateBatch",
    "TopicPartitions",
    "TransactionLogKey",
    "TransactionLogValue",
    "TransactionPartitions",
    "TransactionState",
    "UnknownKey",
    "read_assignment",
    "read_external_commit",
    "read_group_value",
    "read_offset_value",
    "read_offsets_key",
    "read_share_state_key",
    "read_subscription",
    "read_transaction_key",
    "read_transaction_value",
    "read_versioned",
    "write_versioned",
]
