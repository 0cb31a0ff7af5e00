"""Producer, consumer and admin: synchronous clients over gRPC, configured with Kafka's names.

* ``model``         what clients take and give
* ``connections``   channels, deadlines and retries; ``metadata`` and ``schema_cache`` what is remembered of the cluster
* ``admin``         topics, schemas, configuration; finding and reading ranges
* ``producer``      what callers see of sending; ``producing`` is what it is made of
* ``consumer``      topics to records or Arrow tables; ``consuming`` is what it is made of
* ``share_consumer``  topics as queues; ``sharing`` is what it is made of
* ``membership``    being a member of a group, and committing offsets; ``assignors`` who of a group reads what
"""

from millrace.clients.admin import Admin
from millrace.clients.consumer import Consumer
from millrace.clients.consuming.interceptors import ConsumerInterceptor
from millrace.clients.consuming.records import ConsumerRecords
from millrace.clients.membership.listener import RebalanceListener
from millrace.clients.model import (
    BatchMetadata,
    BrokerInfo,
    ClusterDescription,
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
from millrace.clients.payload_schemas import PayloadRegistry, RegisteredSchema, SchemaReference
from millrace.clients.producer import Producer
from millrace.clients.producing.futures import SendFuture
from millrace.clients.producing.interceptors import ProducerInterceptor
from millrace.clients.producing.partitioning import Partitioner, RoundRobinPartitioner
from millrace.clients.schema_cache import SchemaCache
from millrace.clients.share_consumer import ShareConsumer
from millrace.clients.sharing.acknowledgements import AcknowledgeType

__all__ = [
    "AcknowledgeType",
    "Admin",
    "BatchMetadata",
    "BrokerInfo",
    "ClusterDescription",
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
]
