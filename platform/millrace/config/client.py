"""Client options: Kafka's names, meanings and defaults (Kafka 3.9).

The sources are Kafka's producer, consumer and admin options. A comment at the field explains a default that differs
from Kafka's. Options that only Kafka has are refused as unknown, never silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from millrace.config.base import Config
from millrace.config.references import resolve_references
from millrace.config.topic import Int32, Int64

DEFAULT_PORT: Final = 9092

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
PositiveInt32 = Annotated[int, Field(ge=1, le=2**31 - 1)]


def parse_addresses(text: str) -> tuple[str, ...]:
    """Parse a list ``host:port,host:port``. The default port is 9092. IPv6 hosts are in brackets.

    Raises ``ValueError``, which names the invalid part.
    """
    addresses = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        host, port = _split_address(part)
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{part!r} is not host:port")
        addresses.append(f"{host}:{port}")
    if not addresses:
        raise ValueError("expected host:port,host:port,...")
    return tuple(addresses)


def _split_address(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        return (host + bracket if len(host) > 1 else ""), (rest.removeprefix(":") or str(DEFAULT_PORT))
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, str(DEFAULT_PORT)
    return ("" if ":" in host else host), port


def _join_list(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _class_names(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


class Acks(StrEnum):
    """Replicas that must have a record before it is acknowledged."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"

    @property
    def number(self) -> int:
        """Value on the wire: 0, 1 or -1."""
        return {"0": 0, "1": 1}.get(self.value, -1)


class ProducerCompression(StrEnum):
    """Compression of columnar batches. gzip and snappy exist only for rows."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class OffsetReset(StrEnum):
    """Start of a consumer that has no position, or one that is out of range."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


class Isolation(StrEnum):
    """Visibility of records of open and aborted transactions."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class DirectReads(StrEnum):
    """Whether a consumer itself reads segment files on its own machine."""

    AUTO = "auto"
    NEVER = "never"


class AcknowledgementMode(StrEnum):
    """Implicit or explicit acknowledgement of a share group's records."""

    IMPLICIT = "implicit"
    EXPLICIT = "explicit"


class Transport(StrEnum):
    """Protocol that carries the calls."""

    AUTO = "auto"
    GRPC = "grpc"


class ClientConfig(Config):
    """Options of all clients, and all options of an admin client."""

    bootstrap_servers: Annotated[str, BeforeValidator(_join_list)] = Field(
        f"localhost:{DEFAULT_PORT}", description="Brokers to start from, host:port,host:port."
    )
    client_id: str = Field("", description="Name of this client in the broker's log and in descriptions of groups.")
    request_timeout_ms: PositiveInt32 = Field(30_000, description="Time after which a request is given up or retried.")
    default_api_timeout_ms: PositiveInt32 = Field(60_000, description="Time a call may take with all its retries.")
    socket_connection_setup_timeout_ms: PositiveInt32 = Field(
        10_000, description="Time for which a broker that cannot be reached is tried before a call fails."
    )
    retry_backoff_ms: Int64 = Field(100, description="Wait before the first retry; doubles with each.")
    retry_backoff_max_ms: Int64 = Field(1_000, description="Longest wait before a retry.")
    reconnect_backoff_ms: Int64 = Field(50, description="Wait before a connection is tried again; doubles with each.")
    reconnect_backoff_max_ms: Int64 = Field(1_000, description="Longest wait before a connection is tried again.")
    metadata_max_age_ms: Int64 = Field(300_000, description="Age at which a topic's metadata is fetched again.")
    transport: Transport = Field(
        Transport.AUTO,
        description="auto: frames over TCP where the broker answers them, which costs less; grpc: gRPC only.",
    )

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Self:
        """Build from options by their dotted names, with references resolved. Raises ``InvalidConfigError``."""
        return cls._validated(resolve_references(values), values)

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_addresses(cls, value: str) -> str:
        parse_addresses(value)
        return value

    @property
    def addresses(self) -> tuple[str, ...]:
        """``bootstrap.servers`` as separate ``host:port`` addresses."""
        return parse_addresses(self.bootstrap_servers)

    @classmethod
    def of(cls, config: str | Mapping[str, Any]) -> Self:
        """Build from options, or from ``bootstrap.servers`` alone. Raises ``InvalidConfigError``."""
        return cls.load({"bootstrap.servers": config} if isinstance(config, str) else config)


class ProducerConfig(ClientConfig):
    """Configuration of a producer."""

    acks: Annotated[Acks, BeforeValidator(lambda value: "all" if str(value) == "-1" else str(value))] = Field(
        Acks.ALL, description="0: none, 1: the leader, all (-1): all replicas in sync."
    )
    # Kafka's default is 16 KiB, of rows. A columnar batch is decoded at once, and pays off from about ten thousand
    # records.
    batch_size: PositiveInt32 = Field(
        _MIB, description="Size to which batches are filled, in bytes before compression."
    )
    linger_ms: Int32 = Field(0, description="Time a record waits for others to share its batch.")
    # Kafka's default is 32 MiB. Several batches of 1 MiB must fit for each of some partitions.
    buffer_memory: PositiveInt32 = Field(64 * _MIB, description="Bytes of records that may wait to be acknowledged.")
    max_block_ms: Int64 = Field(60_000, description="Time for which send blocks when the buffer is full.")
    # Kafka's default is 1 MiB, which is the size of one batch here. A topic accepts 16 MiB by default.
    max_request_size: PositiveInt32 = Field(16 * _MIB, description="Largest batch, in bytes; the broker has its own.")
    compression_type: ProducerCompression = Field(ProducerCompression.NONE, description="none, lz4 or zstd.")
    enable_idempotence: bool = Field(True, description="Whether retries are kept from duplicating records.")
    max_in_flight_requests_per_connection: PositiveInt32 = Field(
        5, description="Requests under way at once; of each partition there is never more than one."
    )
    retries: Int32 = Field(2**31 - 1, description="Times a batch is sent again after an error that may pass.")
    delivery_timeout_ms: PositiveInt32 = Field(
        120_000, description="Time for a record to be acknowledged, with retries."
    )
    partitioner_class: Any = Field(
        None, description="Object or class, or module:Class, that decides on partitions; the key does, without one."
    )
    partitioner_ignore_keys: bool = Field(
        False, description="Whether records with a key are spread like those without one."
    )
    partitioner_adaptive_partitioning_enable: bool = Field(
        True, description="Whether records without a key go rather to partitions that have little to send."
    )
    partitioner_availability_timeout_ms: Int64 = Field(
        0, description="Time of silence after which a leader's partitions get no records without a key; 0: never."
    )
    interceptor_classes: tuple[Any, ...] = Field(
        (), description="Objects, classes or module:Class that see sent records and acknowledgements."
    )
    transactional_id: str = Field(
        "", description="Name of this producer through restarts; with one it sends in transactions only."
    )
    transaction_timeout_ms: PositiveInt32 = Field(
        60_000, description="Time after which the broker aborts a transaction that is still open."
    )
    # Kafka has no such option: there the transactional id alone selects the coordinator.
    coordinator_key: str = Field(
        "", description="What producers have in common whose transactions are committed together; usually nothing."
    )

    @field_validator("interceptor_classes", mode="before")
    @classmethod
    def _split_classes(cls, value: Any) -> Any:
        return _class_names(value)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.enable_idempotence and self.acks is not Acks.ALL:
            raise ValueError("enable.idempotence=true needs acks=all: set enable.idempotence=false for fewer acks")
        if self.transactional_id and not self.enable_idempotence:
            raise ValueError("transactional.id needs enable.idempotence=true")
        if self.coordinator_key and not self.transactional_id:
            raise ValueError("coordinator.key is for transactions: set transactional.id too")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ValueError("delivery.timeout.ms must be at least linger.ms + request.timeout.ms")
        if self.batch_size > self.max_request_size:
            raise ValueError("batch.size must not be above max.request.size")
        return self


class ConsumerConfig(ClientConfig):
    """Configuration of a consumer."""

    auto_offset_reset: OffsetReset = Field(OffsetReset.LATEST, description="earliest, latest or none (an error).")
    isolation_level: Isolation = Field(Isolation.READ_UNCOMMITTED, description="read_uncommitted or read_committed.")
    fetch_min_bytes: Int32 = Field(1, description="Bytes for which the broker waits before it answers a fetch.")
    fetch_max_wait_ms: Int32 = Field(500, description="Time for which the broker waits for them.")
    fetch_max_bytes: PositiveInt32 = Field(50 * _MIB, description="Most bytes of one fetch.")
    # Kafka's default is 1 MiB, which a single columnar batch fills.
    max_partition_fetch_bytes: PositiveInt32 = Field(8 * _MIB, description="Most bytes of one partition in a fetch.")
    max_poll_records: PositiveInt32 = Field(500, description="Most records that poll returns (not poll_table).")
    check_crcs: bool = Field(True, description="Whether checksums are verified.")
    # Kafka's consumer has no limit except one fetch per broker.
    fetch_buffer_bytes: PositiveInt32 = Field(
        128 * _MIB, description="Most bytes that are fetched or being fetched and have not been handed out."
    )
    direct_reads: DirectReads = Field(
        DirectReads.AUTO, description="auto: segment files that the broker names and that are here are read; or never."
    )
    client_rack: str = Field("", description="Rack of this consumer: replicas there are read, if the cluster says so.")
    group_id: str = Field("", description="Group whose members share the partitions and commit offsets.")
    group_instance_id: str = Field(
        "", description="Name of a static member: it may come back within session.timeout.ms without a rebalance."
    )
    session_timeout_ms: PositiveInt32 = Field(45_000, description="Silence after which the group goes on without us.")
    heartbeat_interval_ms: PositiveInt32 = Field(3_000, description="Time between signs of life to the coordinator.")
    max_poll_interval_ms: PositiveInt32 = Field(
        300_000, description="Longest time between two polls; after it the consumer leaves its group."
    )
    partition_assignment_strategy: Annotated[str, BeforeValidator(_join_list)] = Field(
        "range,cooperative-sticky", description="range, roundrobin, sticky, cooperative-sticky; the preferred first."
    )
    # Kafka's default is false without a group. The client ignores the option without a group.
    enable_auto_commit: bool = Field(True, description="Whether polls commit the offsets of what came before.")
    auto_commit_interval_ms: Int32 = Field(5_000, description="Time between two automatic commits.")
    exclude_internal_topics: bool = Field(True, description="Whether patterns leave internal topics out.")
    interceptor_classes: tuple[Any, ...] = Field(
        (), description="Objects, classes or module:Class that see consumed records and committed offsets."
    )

    @field_validator("interceptor_classes", mode="before")
    @classmethod
    def _split_classes(cls, value: Any) -> Any:
        return _class_names(value)

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError("heartbeat.interval.ms must be below session.timeout.ms: a third of it, say")
        if self.group_instance_id and not self.group_id:
            raise ValueError("group.instance.id names a member of a group: set group.id too")
        return self


class ShareConsumerConfig(ClientConfig):
    """Configuration of a consumer of a share group (KIP-932)."""

    group_id: str = Field("", description="The share group.")
    share_acknowledgement_mode: AcknowledgementMode = Field(
        AcknowledgementMode.IMPLICIT,
        description="implicit: the next poll accepts the last records; explicit: each record must be acknowledged.",
    )
    max_poll_records: PositiveInt32 = Field(500, description="About how many records are acquired at a time.")
    fetch_min_bytes: Int32 = Field(1, description="Bytes for which the broker waits before it answers a fetch.")
    fetch_max_wait_ms: Int32 = Field(500, description="Time for which the broker waits for them.")
    fetch_max_bytes: PositiveInt32 = Field(50 * _MIB, description="Most bytes of one fetch.")
    check_crcs: bool = Field(True, description="Whether checksums are verified.")
    client_rack: str = Field("", description="Rack of this consumer.")
