"""Client options: Kafka's names, meanings and defaults (Kafka 3.9).

The sources are Kafka's producer, consumer and admin options. A comment at the field explains a default that differs
from Kafka's. Options that only Kafka has are refused as unknown, never silently ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from millrace.config.integers import INT_MAX, Int32, Int64, PositiveInt32
from millrace.config.jaas import parse_jaas
from millrace.config.references import resolve_references
from millrace.config.security_options import SaslLogin, SaslMechanism, SecurityProtocol, SslOptions
from millrace.config.validators import UPPER_CASE, parsed_by

logger = logging.getLogger(__name__)

DEFAULT_PORT: Final = 9092

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


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
    """Start of a consumer without a position in range (``auto.offset.reset``)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


class Isolation(StrEnum):
    """Visibility of records of open and aborted transactions."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class DirectReads(StrEnum):
    """Mode of a consumer's direct reads (``direct.reads``).

    With ``auto`` the consumer itself reads segment files on its own machine.
    """

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


class ClientConfig(SaslLogin, SslOptions):
    """Options of all clients, and all options of an admin client."""

    bootstrap_servers: Annotated[str, BeforeValidator(_join_list), parsed_by(parse_addresses)] = Field(
        f"localhost:{DEFAULT_PORT}", description="Brokers for the first connection, as host:port,host:port."
    )
    client_id: str = Field("", description="Name of this client in the broker's log and in descriptions of groups.")
    request_timeout_ms: PositiveInt32 = Field(30_000, description="Time after which a request fails or is retried.")
    default_api_timeout_ms: PositiveInt32 = Field(60_000, description="Longest time of a call, with all its retries.")
    socket_connection_setup_timeout_ms: PositiveInt32 = Field(
        10_000, description="Time for which the client tries to reach a broker before a call fails."
    )
    retry_backoff_ms: Int64 = Field(100, description="Wait before the first retry. It doubles with each retry.")
    retry_backoff_max_ms: Int64 = Field(1_000, description="Longest wait before a retry.")
    reconnect_backoff_ms: Int64 = Field(
        50,
        description="Wait before the client connects again to a broker that it did not reach. It doubles with each "
        "failure.",
    )
    reconnect_backoff_max_ms: Int64 = Field(
        1_000,
        description="Longest wait before the client connects again to a broker. If only reconnect.backoff.ms is set, "
        "each wait is as long as that.",
    )
    metadata_max_age_ms: Int64 = Field(
        300_000, description="Age at which the client fetches the metadata of a topic again."
    )
    transport: Transport = Field(
        Transport.AUTO,
        description="auto: Kafka's framing; grpc: gRPC, which costs more, at the address that the broker names. In a "
        "process that was forked from one with gRPC it needs GRPC_ENABLE_FORK_SUPPORT=1 from the start.",
    )
    security_protocol: Annotated[SecurityProtocol, UPPER_CASE] = Field(
        SecurityProtocol.PLAINTEXT,
        description="Security protocol of the broker's listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
    )
    sasl_mechanism: Annotated[SaslMechanism, UPPER_CASE] = Field(
        SaslMechanism.SCRAM_SHA_512,
        description="SASL mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI. Kafka's default is "
        "GSSAPI.",
    )
    sasl_username: str = Field("", description="User for SASL. The names are librdkafka's.")
    sasl_password: str = Field("", repr=False, description="Password of sasl.username.")
    sasl_jaas_config: Annotated[str, parsed_by(parse_jaas, or_empty=True)] = Field(
        "",
        repr=False,
        description="Kafka's form of user and password: a login module with username and password, in place of "
        "sasl.username and sasl.password.",
    )

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Self:
        """Build from options by their dotted names, with references resolved. Raises ``InvalidConfigError``."""
        return cls._validated(resolve_references(values), values)

    @model_validator(mode="after")
    def _check_credentials(self) -> Self:
        if self.sasl_jaas_config and (self.sasl_username or self.sasl_password):
            raise ValueError("sasl.jaas.config and sasl.username or sasl.password are both set: remove one")
        if not self.security_protocol.has_sasl:
            return self
        if self.sasl_mechanism is SaslMechanism.OAUTHBEARER:
            self.check_oauth_login(self.login, is_encrypted=self.security_protocol.has_tls)
        elif self.sasl_mechanism is not SaslMechanism.GSSAPI:
            username, password = self.sasl_login
            if not (username and password):
                raise ValueError(
                    f"security.protocol={self.security_protocol} needs a user: set sasl.username and sasl.password, or "
                    "sasl.jaas.config"
                )
        return self

    @property
    def sasl_login(self) -> tuple[str, str]:
        """User and password for SASL."""
        if not self.sasl_jaas_config:
            return self.sasl_username, self.sasl_password
        return self.login.get("username", ""), self.login.get("password", "")

    @property
    def login(self) -> dict[str, str]:
        """Options of the login module in ``sasl.jaas.config``."""
        return parse_jaas(self.sasl_jaas_config) if self.sasl_jaas_config else {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """``bootstrap.servers`` as separate ``host:port`` addresses."""
        return parse_addresses(self.bootstrap_servers)

    @property
    def reconnect_backoff_longest_ms(self) -> int:
        """Longest wait before a reconnect: that of ``CommonClientConfigs.postProcessReconnectBackoffConfigs``."""
        is_constant = {"reconnect_backoff_ms", "reconnect_backoff_max_ms"} & self.model_fields_set == {
            "reconnect_backoff_ms"
        }
        return self.reconnect_backoff_ms if is_constant else self.reconnect_backoff_max_ms

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
    batch_size: PositiveInt32 = Field(_MIB, description="Size at which a batch is full, in bytes before compression.")
    linger_ms: Int32 = Field(0, description="Time for which a record waits for other records of its batch.")
    # Kafka's default is 32 MiB. Several batches of 1 MiB must fit for each of some partitions.
    buffer_memory: PositiveInt32 = Field(
        64 * _MIB, description="Largest number of bytes of records that are not acknowledged yet."
    )
    max_block_ms: Int64 = Field(60_000, description="Longest time for which send blocks when the buffer is full.")
    # Kafka's default is 1 MiB, which is the size of one batch here. A topic accepts 16 MiB by default.
    max_request_size: PositiveInt32 = Field(
        16 * _MIB, description="Largest batch, in bytes. The broker has a limit of its own."
    )
    compression_type: ProducerCompression = Field(ProducerCompression.NONE, description="none, lz4 or zstd.")
    enable_idempotence: bool = Field(
        True,
        description="Whether the broker stores a batch once, even if the producer retries it. With acks=0 or acks=1 "
        "the default is false.",
    )
    max_in_flight_requests_per_connection: PositiveInt32 = Field(
        5, description="Requests in flight to a broker. Each partition has at most one batch in flight."
    )
    retries: Int32 = Field(INT_MAX, description="Number of retries of a batch after a retriable error.")
    delivery_timeout_ms: PositiveInt32 = Field(
        120_000,
        description="Longest time from send to acknowledgement, with retries. The default is at least linger.ms + "
        "request.timeout.ms.",
    )
    partitioner_class: Any = Field(
        None,
        description="Object, class or module:Class that chooses the partition of a record. By default the key decides.",
    )
    partitioner_ignore_keys: bool = Field(
        False, description="Whether the producer spreads records with a key like records without one."
    )
    partitioner_adaptive_partitioning_enable: bool = Field(
        True, description="Whether records without a key prefer partitions with few waiting bytes."
    )
    partitioner_availability_timeout_ms: Int64 = Field(
        0, description="Time after which a leader that answers nothing gets no more records without a key; 0: off."
    )
    interceptor_classes: tuple[Any, ...] = Field(
        (), description="Interceptors of sent records and acknowledgements: objects, classes or module:Class."
    )
    transactional_id: str = Field(
        "", description="Name of this producer across restarts. A producer with such a name sends in transactions only."
    )
    transaction_timeout_ms: PositiveInt32 = Field(
        60_000, description="Time after which the broker aborts an open transaction."
    )
    # Kafka has no such option: there the transactional id alone selects the coordinator.
    coordinator_key: str = Field(
        "", description="Common name of producers whose transactions are committed together. Usually not needed."
    )

    @field_validator("interceptor_classes", mode="before")
    @classmethod
    def _split_classes(cls, value: Any) -> Any:
        return _class_names(value)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._adapt_defaults()
        if self.enable_idempotence and self.acks is not Acks.ALL:
            raise ValueError("enable.idempotence=true needs acks=all: leave enable.idempotence out for fewer acks")
        if self.transactional_id and not self.enable_idempotence:
            raise ValueError("transactional.id needs enable.idempotence=true and acks=all")
        if self.coordinator_key and not self.transactional_id:
            raise ValueError("coordinator.key is for transactions: set transactional.id too")
        if self.delivery_timeout_ms < min(self.linger_ms + self.request_timeout_ms, INT_MAX):
            raise ValueError("delivery.timeout.ms must be at least linger.ms + request.timeout.ms")
        if self.batch_size > self.max_request_size:
            raise ValueError("batch.size must not be above max.request.size")
        return self

    def _adapt_defaults(self) -> None:
        """Let options that are not set follow those that are, as Kafka's ``ProducerConfig`` does."""
        adapted: dict[str, Any] = {}
        if self.acks is not Acks.ALL and "enable_idempotence" not in self.model_fields_set:
            adapted["enable_idempotence"] = False
            if not self.transactional_id:
                logger.info("the producer is not idempotent, because acks=%s", self.acks.value)
        least_ms = min(self.linger_ms + self.request_timeout_ms, INT_MAX)
        if self.delivery_timeout_ms < least_ms and "delivery_timeout_ms" not in self.model_fields_set:
            adapted["delivery_timeout_ms"] = least_ms
            logger.warning("delivery.timeout.ms is %d, the sum of linger.ms and request.timeout.ms", least_ms)
        self.__dict__.update(adapted)  # the fields are frozen for everyone else


class ConsumerConfig(ClientConfig):
    """Configuration of a consumer."""

    auto_offset_reset: OffsetReset = Field(
        OffsetReset.LATEST, description="Position without a committed offset: earliest, latest or none (an error)."
    )
    isolation_level: Isolation = Field(Isolation.READ_UNCOMMITTED, description="read_uncommitted or read_committed.")
    fetch_min_bytes: Int32 = Field(
        1, description="Number of bytes for which the broker waits before it answers a fetch."
    )
    fetch_max_wait_ms: Int32 = Field(500, description="Longest time for which the broker waits for fetch.min.bytes.")
    fetch_max_bytes: PositiveInt32 = Field(50 * _MIB, description="Largest number of bytes of a fetch.")
    # Kafka's default is 1 MiB, which a single columnar batch fills.
    max_partition_fetch_bytes: PositiveInt32 = Field(
        8 * _MIB, description="Largest number of bytes of a partition in a fetch."
    )
    max_poll_records: PositiveInt32 = Field(
        500, description="Largest number of records that poll returns. It does not limit poll_table."
    )
    check_crcs: bool = Field(True, description="Whether checksums are verified.")
    # Kafka's consumer has no limit except one fetch per broker.
    fetch_buffer_bytes: PositiveInt32 = Field(
        128 * _MIB, description="Largest number of bytes that are requested or fetched, and not yet returned by a poll."
    )
    direct_reads: DirectReads = Field(
        DirectReads.AUTO,
        description="auto: the consumer reads the segment files that the broker names, if they are on this machine; "
        "never: it reads over the network only.",
    )
    client_rack: str = Field(
        "",
        description="Rack of this consumer. With replica.selector.class on the brokers it reads from "
        "a replica in this rack.",
    )
    group_id: str = Field("", description="Consumer group, whose members share the partitions and commit offsets.")
    group_instance_id: str = Field(
        "", description="Name of a static member. It can restart within session.timeout.ms without a rebalance."
    )
    session_timeout_ms: PositiveInt32 = Field(
        45_000, description="Time without a heartbeat after which the coordinator removes this member from the group."
    )
    heartbeat_interval_ms: PositiveInt32 = Field(3_000, description="Time between two heartbeats to the coordinator.")
    max_poll_interval_ms: PositiveInt32 = Field(
        300_000, description="Longest time between two polls. After that time the consumer leaves its group."
    )
    partition_assignment_strategy: Annotated[str, BeforeValidator(_join_list)] = Field(
        "range,cooperative-sticky",
        description="Assignors, the preferred one first: range, roundrobin, sticky, cooperative-sticky.",
    )
    # Kafka's default is false without a group. The client ignores the option without a group.
    enable_auto_commit: bool = Field(
        True, description="Whether polls commit the offsets of the records of earlier polls."
    )
    auto_commit_interval_ms: Int32 = Field(5_000, description="Time between two automatic commits.")
    exclude_internal_topics: bool = Field(True, description="Whether patterns exclude internal topics.")
    interceptor_classes: tuple[Any, ...] = Field(
        (), description="Interceptors of consumed records and committed offsets: objects, classes or module:Class."
    )

    @field_validator("interceptor_classes", mode="before")
    @classmethod
    def _split_classes(cls, value: Any) -> Any:
        return _class_names(value)

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError("heartbeat.interval.ms must be below session.timeout.ms: set at most a third of it")
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
    max_poll_records: PositiveInt32 = Field(500, description="Approximate number of records that a poll acquires.")
    fetch_min_bytes: Int32 = Field(
        1, description="It has no effect here: the broker answers a fetch as soon as it can acquire a record."
    )
    fetch_max_wait_ms: Int32 = Field(500, description="Longest time for which the broker waits for a record.")
    fetch_max_bytes: PositiveInt32 = Field(50 * _MIB, description="Largest number of bytes of a fetch.")
    check_crcs: bool = Field(True, description="Whether checksums are verified.")
    client_rack: str = Field("", description="Rack of this consumer.")
