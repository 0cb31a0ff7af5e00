"""Producer, consumer and admin clients, configured with Kafka's names.

* ``model``         arguments and results of the clients
* ``connections``   channels, deadlines and retries; ``metadata`` and ``schema_cache`` cache the cluster's state
* ``backoff``       waits before retries and reconnects
* ``subscription``    topics of a consumer by name or pattern, and the topics that match now
* ``signal``          the wait of a consumer's caller, its wake-up, and the check for a single caller
* ``interceptor_calls``  calls of interceptors, whose exceptions are logged
* ``grouped_by_topic``   partitions and offsets grouped by topic, as requests name them
* ``admin``         topics, schemas, configuration. More calls of it are in ``log_operations`` (with ``epoch_ends``,
                    ``ranges``, ``record_deletion``), ``groups``, ``transactions``, ``cluster_operations``,
                    ``acl_operations``, ``quota_operations``, ``scram_credentials`` (by calls of Kafka) and
                    ``payload_schemas``
* ``request_numbers``  errors of numbers that no request can hold
* ``delegation_tokens``  administration by calls of Kafka
* ``producer``      the interface of the producer; ``producing`` holds its internals
* ``consumer``      topics to records or Arrow tables; ``consuming`` holds its internals
* ``share_consumer``  topics as queues; ``sharing`` holds its internals
* ``membership``    group membership and offset commits; ``assignors`` partition assignment in a group
* ``aio``           the clients for asyncio
* ``leaders``       calls to the leaders of partitions, with retries
* ``transport``     gRPC, or frames over TCP
* ``loading``       objects named in a configuration
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millrace.clients.admin import Admin
from millrace.clients.consumer import Consumer
from millrace.clients.consuming.interceptors import ConsumerInterceptor
from millrace.clients.consuming.records import ConsumerRecords
from millrace.clients.membership.listener import RebalanceListener
from millrace.clients.model import (
    BatchMetadata,
    BrokerInfo,
    ClusterDescription,
    ConfigSynonym,
    ConfigValue,
    ConsumerGroupMetadata,
    ConsumerRecord,
    ConsumerStatistics,
    LocatedExtent,
    LocatedRange,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    PreparedTransaction,
    ProducerRecord,
    ProducerStatistics,
    RecordMetadata,
    TopicDescription,
    TopicPartition,
    TopicSchema,
)
from millrace.clients.producer import Producer
from millrace.clients.producing.futures import SendFuture
from millrace.clients.producing.interceptors import ProducerInterceptor
from millrace.clients.producing.partitioning import Partitioner, RoundRobinPartitioner
from millrace.clients.schema_cache import SchemaCache
from millrace.clients.scram_credentials import UserScramCredentialDeletion, UserScramCredentialUpsertion
from millrace.clients.share_consumer import ShareConsumer
from millrace.clients.sharing.acknowledgements import AcknowledgeType

if TYPE_CHECKING:
    from millrace.payloads import PayloadRegistry, RegisteredSchema, SchemaReference

__all__ = [
    "AcknowledgeType",
    "Admin",
    "BatchMetadata",
    "BrokerInfo",
    "ClusterDescription",
    "ConfigSynonym",
    "ConfigValue",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "ConsumerRecords",
    "ConsumerStatistics",
    "LocatedExtent",
    "LocatedRange",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionInfo",
    "Partitioner",
    "PayloadRegistry",
    "PreparedTransaction",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "ProducerStatistics",
    "RebalanceListener",
    "RecordMetadata",
    "RegisteredSchema",
    "RoundRobinPartitioner",
    "SchemaCache",
    "SchemaReference",
    "SendFuture",
    "ShareConsumer",
    "TopicDescription",
    "TopicPartition",
    "TopicSchema",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
]

_PAYLOAD_NAMES: Final = ("PayloadRegistry", "RegisteredSchema", "SchemaReference")


def __getattr__(name: str) -> Any:
    # PEP 562: most programs need no schemas of payloads.
    if name not in _PAYLOAD_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millrace import payloads

    return getattr(payloads, name)
