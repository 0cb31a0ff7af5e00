"""Common base of the coordinators of groups, transactions and share groups.

* ``hashing``          the partition of an internal topic to which a group id or a transactional id belongs
* ``internal_topics``  internal topics, created at their first use
* ``state_log``        one partition of an internal topic, which is loaded once from its start, then appended to
* ``shards``           all partitions of an internal topic that this broker leads, each with its state

A coordinator decides, appends a record, and only then changes its state and answers. Reading the log after a crash
therefore gives the same state. Replicas that are late delay the change, and the client is told to retry (``in_time``).
"""

from millrace.coordinator_records import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from millrace_broker.coordinators.hashing import partition_of
from millrace_broker.coordinators.internal_topics import InternalTopics
from millrace_broker.coordinators.shards import Shard, ShardFactory, Shards
from millrace_broker.coordinators.state_log import (
    LoadedBatch,
    OpenTransaction,
    StateLog,
    StateRecord,
    in_time,
    late,
    when_done,
    written,
)

__all__ = [
    "OFFSETS_TOPIC",
    "SHARE_STATE_TOPIC",
    "TRANSACTIONS_TOPIC",
    "InternalTopics",
    "LoadedBatch",
    "OpenTransaction",
    "Shard",
    "ShardFactory",
    "Shards",
    "StateLog",
    "StateRecord",
    "in_time",
    "late",
    "partition_of",
    "when_done",
    "written",
]
