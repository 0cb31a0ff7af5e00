"""What clients take and give: topics, partitions, offsets, records. All frozen."""

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
    """Where a partition is. ``leader`` is a broker's id, -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as the broker describes it. An opaque topic has ``schema_id`` 0 and no ``schema``.

    ``schema`` is the newest version, which what is sent has to fit; records of all versions are read in ``read_schema``
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
        """How many partitions there are; they are numbered from 0."""
        return len(self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSchema:
    """A version of a typed topic's schema; ``id`` is unique in the cluster, ``version`` counts from 1 in the topic."""

    id: int
    version: int
    schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """A broker and where it listens."""

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
class ConfigValue:
    """The value of an option, where it comes from (``DEFAULT_CONFIG``, ...), and what it means."""

    value: str
    source: str
    is_sensitive: bool = False
    documentation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndTimestamp:
    """An offset and the timestamp of the record there, in ms; -1 each where there is none."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedExtent:
    """A run of whole batches in one segment file; the first batch may begin before ``start_offset``.

    ``end_offset`` is exclusive, and the last batch may end after it. ``path`` is the file on the broker's host, empty
    when the broker does not name it; ``uri`` names the segment's copy in the remote store, where it is only there.
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
        """Bytes between the positions."""
        return self.end_position - self.start_position


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedRange:
    """What a range of offsets is made of, and the partition's bounds at that moment."""

    topic_id: uuid.UUID
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    extents: tuple[LocatedExtent, ...]
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    """Those that reach into the range, when reading committed: ``millrace.records.decode_range`` takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndMetadata:
    """An offset that is or shall be committed: of the next record to read, with a text of the application's own."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadata:
    """Who commits offsets for a group: what ``Producer.send_offsets_to_transaction`` takes, to fence former members.

    Without a membership (generation -1, no member id) nothing is fenced.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str = ""


class ProducerRecord(NamedTuple):
    """A record to be sent, as interceptors and partitioners see it. ``partition`` is ``None`` where none is named.

    ``timestamp_ms`` ``None`` is the present time.
    """

    topic: str
    value: Any
    key: bytes | str | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """What a producer has done since it was made, in counts, and what it holds now."""

    records_sent: int
    """Records that were acknowledged."""
    records_failed: int
    batches_sent: int
    bytes_sent: int
    """Bytes of the batches that were acknowledged, compressed."""
    batches_repeated: int
    """Batches that were sent again."""
    requests: int
    batches_waiting: int
    """Batches that are not acknowledged now."""
    buffer_bytes: int
    """Bytes of ``buffer.memory`` that are taken now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """A transaction whose records are all in their partitions: what ``Admin.commit_transactions`` commits or aborts."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class RecordMetadata(NamedTuple):
    """Where a record landed. ``offset`` is -1 with ``acks=0``; ``timestamp_ms`` is the broker's where it sets them."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetadata:
    """Where a batch of a table landed: ``num_records`` offsets from ``base_offset`` (-1 with ``acks=0``)."""

    topic: str
    partition: int
    base_offset: int
    num_records: int

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.num_records


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """What a consumer has done so far, and what waits in it.

    ``fetched_bytes`` came over the network, ``mapped_bytes`` were read from files of the broker that are here.
    ``waiting_bytes`` are fetched and not handed out, ``asked_bytes`` the most that requests under way may bring.
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
    """One record. Of an opaque topic key and value are bytes; of a typed topic, dicts of columns.

    ``value`` is ``None`` for a tombstone; ``key`` holds the key columns of a typed topic, ``None`` without any.
    ``delivery_count`` says how often a share group has given it to somebody, this time included.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | Mapping[str, Any] | None
    value: bytes | Mapping[str, Any] | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    delivery_count: int | None = None
