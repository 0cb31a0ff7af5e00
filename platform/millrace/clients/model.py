"""Topics, partitions, offsets and records of the clients. All frozen."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from millrace.records import AbortedTransaction


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """Leader and replicas of a partition. ``leader`` is a broker's id, -1 without a leader."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as the broker describes it. An opaque topic has ``schema_id`` 0 and no ``schema``.

    ``schema`` is the newest version, which new records must fit. Records of all versions are read in ``read_schema``
    (see ``millrace.schemas.compatibility``).
    """

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionInfo, ...]
    schema_id: int = 0
    schema_version: int = 0
    schema: pa.Schema | None = None
    key_columns: tuple[str, ...] = ()
    is_internal: bool = False
    read_schema: pa.Schema | None = None

    @property
    def num_partitions(self) -> int:
        """Number of partitions; they are numbered from 0."""
        return len(self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSchema:
    """Version of a typed topic's schema.

    ``id`` is unique in the cluster. ``version`` counts from 1 in the topic.
    """

    id: int
    version: int
    schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """A broker and its address."""

    node_id: int
    host: str
    port: int
    rack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """A cluster and its brokers."""

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """Value of an option at one source (Kafka's ``ConfigSynonym``).

    The option may have another name there.
    """

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """Value of an option, with its source (``DEFAULT_CONFIG``, ...) and documentation.

    ``synonyms`` are the values of all sources, the one that applies first.
    """

    value: str
    source: str
    is_sensitive: bool = False
    documentation: str = ""
    synonyms: tuple[ConfigSynonym, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndTimestamp:
    """Offset and timestamp of a record.

    ``timestamp_ms`` is in ms. Both are -1 if there is no record.
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedExtent:
    """Run of whole batches in one segment file.

    The first batch may begin before ``start_offset``. ``end_offset`` is exclusive, and the last batch may end after it.
    ``path`` is the file on the broker's host, empty if the broker does not name it. ``uri`` names the copy in the
    remote store, if the segment exists only there.
    """

    segment_base_offset: int
    start_offset: int
    end_offset: int
    start_position: int
    end_position: int
    path: str
    uri: str = ""

    @property
    def size_bytes(self) -> int:
        """Number of bytes between the positions."""
        return self.end_position - self.start_position


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedRange:
    """Extents of a range of offsets, and the partition's bounds then."""

    topic_id: uuid.UUID
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    extents: tuple[LocatedExtent, ...]
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    """Aborted transactions that overlap the range, with read_committed; ``millrace.records.decode_range`` takes
    them.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndMetadata:
    """Committed offset of a partition (Kafka's ``OffsetAndMetadata``).

    ``offset`` is that of the next record to read. ``metadata`` is the application's.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadata:
    """Group member that commits offsets; ``Producer.send_offsets_to_transaction`` uses it to fence former members.

    Without a membership (generation -1, no member id) nothing is fenced.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str = ""


class ProducerRecord(NamedTuple):
    """A record to send, as interceptors and partitioners see it. ``partition`` is ``None`` if not specified.

    ``timestamp_ms`` ``None`` means the current time.
    """

    topic: str
    value: Any
    key: bytes | str | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """Counters of a producer since its creation, and its current buffer."""

    records_sent: int
    """Acknowledged records."""
    records_failed: int
    batches_sent: int
    bytes_sent: int
    """Bytes of acknowledged batches, compressed."""
    batches_repeated: int
    """Retried batches."""
    requests: int
    batches_waiting: int
    """Batches that are not acknowledged yet."""
    buffer_bytes: int
    """Bytes of ``buffer.memory`` in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """A transaction that is ready to commit: ``Admin.commit_transactions`` commits or aborts it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class RecordMetadata(NamedTuple):
    """Place of a record in the log. ``offset`` is -1 with ``acks=0``; ``timestamp_ms`` is the broker's if it sets
    them.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetadata:
    """Place of a batch of a table in a partition.

    The batch has ``num_records`` offsets from ``base_offset`` on. With ``acks=0`` ``base_offset`` is -1.
    """

    topic: str
    partition: int
    base_offset: int
    num_records: int

    @property
    def next_offset(self) -> int:
        """Offset after the batch."""
        return self.base_offset + self.num_records


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """Counters of a consumer, and its waiting data.

    ``fetched_bytes`` came over the network; ``mapped_bytes`` were read from local files of the broker.
    ``waiting_bytes`` are fetched but not returned; ``asked_bytes`` is the maximum size of the responses in flight.
    """

    polls: int
    records: int
    fetches: int
    fetched_bytes: int
    mapped_bytes: int
    waiting_bytes: int
    asked_bytes: int
    assigned_partitions: int
    rebalances: int


class ConsumerRecord(NamedTuple):
    """One record. Key and value are bytes in an opaque topic, and dicts of columns in a typed topic.

    ``value`` is ``None`` for a tombstone. ``key`` holds the key columns of a typed topic, ``None`` without any.
    ``delivery_count`` counts the deliveries in a share group, including this one.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | Mapping[str, Any] | None
    value: bytes | Mapping[str, Any] | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    delivery_count: int | None = None
