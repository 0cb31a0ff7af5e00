"""What coordinators of groups, transactions and share groups have in common: their state is a partition of a topic.

``hashing``          which partition of an internal topic, and so which broker, a group or a transactional id belongs to
``internal_topics``  the topics, as they are created when first needed
``state_log``        one of their partitions: read once from its start, then appended to
``shards``           all partitions of one of them that this broker leads, each with the state that it holds

A coordinator decides, appends what it decided, and only then takes it into its state and answers. What a crash leaves
in the log is therefore what was decided, and reading it again gives the same state.
"""

from millrace.coordinator_records import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from millrace_broker.coordinators.hashing import partition_of
from millrace_broker.coordinators.internal_topics import InternalTopics
from millrace_broker.coordinators.shards import Shard, ShardFactory, Shards
from millrace_broker.coordinators.state_log import LoadedBatch, StateLog, StateRecord, written

__all__ = [
    "OFFSETS_TOPIC",
    "SHARE_STATE_TOPIC",
    "TRANSACTIONS_TOPIC",
    "InternalTopics",
    "LoadedBatch",
    "Shard",
    "ShardFactory",
    "Shards",
    "StateLog",
    "StateRecord",
    "partition_of",
    "written",
]
