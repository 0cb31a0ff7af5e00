"""Broker options: Kafka's names, meanings and (unless noted) defaults.

Source: Kafka 3.9, "Broker Configs". Topic defaults have their own broker options (``log.retention.ms`` is the default
of ``retention.ms``). ``TOPIC_DEFAULTS`` is the only mapping between them. The description of an option mentions
intentional differences from Kafka.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, field_validator

from millrace.config.cluster import ClusterOptions, take_zookeeper
from millrace.config.topic import TopicConfig
from millrace.errors import InvalidConfigError, UsageError

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_PositiveInt = Annotated[int, Field(ge=1, le=_INT_MAX)]
_SIZE_MIN_BYTES = 1024

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS

TOPIC_DEFAULTS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "compression.type": (("compression.type", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1),),
    "flush.before.ack": (("log.flush.before.ack", 1),),
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", _MINUTE_MS),
        ("log.retention.hours", _HOUR_MS),
    ),
    "retention.bytes": (("log.retention.bytes", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
    "schema.compatibility": (("schema.compatibility", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
}
"""Broker options of each topic option, in order of precedence, with the factor to the topic option's unit."""

ONLY_OF_TOPICS: Final = frozenset(
    (
        "remote.storage.enable",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    )
)
"""Topic options without a default at the broker, as in Kafka."""


class Listener(NamedTuple):
    """Address of a listener. Port 0 takes a free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Listener:
        """Parse ``PLAINTEXT://host:port``, ``host:port`` or ``[v6 address]:port``. Raises ``ValueError``."""
        protocol, separator, address = text.strip().rpartition("://")
        if separator and protocol.upper() != "PLAINTEXT":
            raise ValueError(f"protocol {protocol} is not known, the only one is PLAINTEXT")
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is no listener, expected PLAINTEXT://host:port")
        return cls(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BrokerConfig(ClusterOptions):
    """Configuration of one broker. ``topic_defaults`` holds the defaults of topic options."""

    broker_id: int = Field(0, ge=0, le=_INT_MAX, description="Number of this broker, unique in its cluster.")
    listeners: str = Field(
        "PLAINTEXT://127.0.0.1:9092",
        description="Address to listen at. Kafka listens on all interfaces; millrace only on loopback unless told.",
    )
    advertised_listeners: str | None = Field(None, description="Address that clients are told; listeners if not set.")
    frame_listener_port: int = Field(
        0,
        ge=-1,
        le=65535,
        description="Port of the same host for Kafka's framing, for clients of Kafka and of millrace; 0: any free one, "
        "-1: none.",
    )
    advertised_frame_port: int = Field(
        0, ge=0, le=65535, description="Port for frames that clients are told; 0: the one listened at."
    )
    kafka_clients_enable: bool = Field(
        True, description="Whether Kafka's clients are answered; false: only clients of millrace."
    )
    metrics_port: int = Field(
        -1,
        ge=-1,
        le=65535,
        description="Port of the same host at which metrics are served to Prometheus; 0: any free one, -1: none.",
    )
    log_dirs: str = Field("millrace-data", description="Directories of the data, separated by commas.")
    num_partitions: _PositiveInt = Field(1, description="Partitions of a topic created without a number.")
    auto_create_topics_enable: bool = Field(
        False,
        description="Whether asking for a topic creates it. Kafka's default is true: a misspelt name makes a topic.",
    )
    max_partitions: _PositiveInt = Field(
        100_000, description="Partitions that this broker accepts in all (Kafka: no limit)."
    )
    direct_reads_enable: Literal["local", "all", "false"] = Field(
        "local",
        description="Who is told the paths of segment files, to read them directly: local (or true): clients on this "
        "host; all: every client, where machines share file systems; false: nobody.",
    )
    socket_request_max_bytes: int = Field(
        104_857_600, ge=_SIZE_MIN_BYTES, le=_INT_MAX, description="Largest request accepted, in bytes."
    )
    queued_max_requests: _PositiveInt = Field(
        500,
        description="Requests of clients that run; more are refused as throttled. Those that wait for others, as long "
        "polls do, are not counted.",
    )
    queued_max_request_bytes: int = Field(
        32 * 2**20,
        ge=_SIZE_MIN_BYTES,
        description="Bytes of clients' requests in progress, and of responses as many; more wait. Kafka: no limit.",
    )
    purgatory_max_request_bytes: int = Field(
        256 * 2**20,
        ge=_SIZE_MIN_BYTES,
        description="Memory of clients' requests that wait for others, 16 KiB and its own size each. When it is full, "
        "the fetch that has waited longest is answered empty. Kafka's purgatory has no limit.",
    )
    control_queued_max_requests: _PositiveInt = Field(
        100,
        description="Requests of administrators, and of members of groups to stay in them, that run; apart from "
        "queued.max.requests.",
    )
    control_queued_max_request_bytes: int = Field(
        8 * 2**20, ge=_SIZE_MIN_BYTES, description="As queued.max.request.bytes, for those requests."
    )
    inter_broker_queued_max_requests: _PositiveInt = Field(
        500, description="Requests of other brokers that run; apart from queued.max.requests."
    )
    inter_broker_queued_max_request_bytes: int = Field(
        32 * 2**20,
        ge=_SIZE_MIN_BYTES,
        description="As queued.max.request.bytes, for requests of other brokers: followers fetch with it.",
    )
    max_connections: _PositiveInt = Field(
        20_000,
        description="Connections of clients with calls in progress or just made. Kafka's default is 2147483647.",
    )
    control_max_connections: _PositiveInt = Field(
        100,
        description="Connections beyond max.connections, on which only administrators and members of groups are "
        "answered.",
    )
    inter_broker_max_connections: _PositiveInt = Field(
        1000, description="Connections of other brokers; apart from max.connections."
    )
    connections_max_idle_ms: int = Field(600_000, ge=1000, le=_INT_MAX, description="Idle connections are closed.")
    fetch_max_bytes: int = Field(
        16 * 2**20,
        ge=_SIZE_MIN_BYTES,
        le=_INT_MAX,
        description="Most bytes in one fetch response, a first batch aside. Kafka's default is 57671680.",
    )
    num_io_threads: Annotated[int, Field(ge=1, le=256)] = Field(4, description="Threads that read and write the disk.")
    log_retention_check_interval_ms: int = Field(
        300_000, ge=1, le=_INT_MAX, description="How often it is looked for segments that retention lets go."
    )
    log_initial_task_delay_ms: int = Field(
        30_000, ge=0, le=_INT_MAX, description="How long after the start retention is checked for the first time."
    )
    num_recovery_threads_per_data_dir: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="Threads that load the partitions of each directory of log.dirs at start."
    )
    log_cleaner_enable: bool = Field(True, description="Whether compacted topics are compacted.")
    log_cleaner_threads: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Threads that compact.")
    log_cleaner_dedupe_buffer_size: int = Field(
        128 * 2**20,
        ge=2**20,
        le=2**40,
        description="Memory for the last offset of each key, of all cleaner threads together: 24 bytes a key.",
    )
    log_cleaner_io_buffer_load_factor: float = Field(
        0.9, gt=0, le=0.99, description="How full that memory may be; fuller takes longer to search."
    )
    log_cleaner_io_buffer_size: int = Field(
        4 * 2**20,
        ge=_SIZE_MIN_BYTES,
        le=_INT_MAX,
        description="Bytes of batches that cleaner threads take at once, all together. Kafka's default is 524288.",
    )
    log_cleaner_io_max_bytes_per_second: float = Field(
        sys.float_info.max, gt=0, description="Most bytes that cleaner threads read and write a second, all together."
    )
    log_cleaner_backoff_ms: int = Field(
        15_000, ge=1, le=_INT_MAX, description="Pause of a cleaner thread when there is nothing to clean."
    )
    remote_log_storage_system_enable: bool = Field(
        False, description="Whether topics may have remote.storage.enable: tiered storage."
    )
    remote_log_storage_uri: str = Field(
        "",
        description="Directory of copied segments: file:///..., s3://bucket/..., gs://..., hdfs://.... "
        "Credentials are the environment's. Kafka has plug-ins in its place.",
    )
    remote_log_manager_task_interval_ms: int = Field(
        30_000, ge=1, le=_INT_MAX, description="How often a partition is looked at for segments to copy or expire."
    )
    remote_log_manager_task_retry_backoff_ms: int = Field(
        500, ge=1, le=_INT_MAX, description="Pause before the first new attempt after the remote store failed."
    )
    remote_log_manager_task_retry_backoff_max_ms: int = Field(
        30_000, ge=1, le=_INT_MAX, description="Longest pause between attempts; pauses double up to it."
    )
    remote_log_manager_task_retry_jitter: float = Field(
        0.2, ge=0, le=0.5, description="Part by which a pause is randomly longer or shorter."
    )
    remote_log_manager_copier_thread_pool_size: Annotated[int, Field(ge=1, le=64)] = Field(
        2,
        description="Threads that copy segments to the remote store and expire segments there. Kafka's default is 10.",
    )
    remote_log_manager_copy_max_bytes_per_second: int = Field(
        _LONG_MAX,
        ge=1,
        le=_LONG_MAX,
        description="Most bytes a second exchanged with the remote store while copying, by all threads together.",
    )
    remote_log_reader_threads: Annotated[int, Field(ge=1, le=256)] = Field(
        10, description="Threads that read from the remote store."
    )
    remote_log_reader_max_pending_tasks: _PositiveInt = Field(
        100, description="Reads from the remote store that may wait for a thread; more are refused as throttled."
    )
    remote_log_index_file_cache_total_size_bytes: int = Field(
        2**27,
        ge=2**20,
        le=_LONG_MAX,
        description="Memory for indexes and ranges read of remote segments. Kafka's default is 1073741824, on disk.",
    )
    offsets_topic_num_partitions: _PositiveInt = Field(
        50, description="Partitions of __consumer_offsets, when it is created: not to be changed afterwards."
    )
    offsets_topic_segment_bytes: int = Field(
        100 * 2**20, ge=_SIZE_MIN_BYTES, le=_INT_MAX, description="Size of the segments of __consumer_offsets."
    )
    offsets_retention_minutes: _PositiveInt = Field(
        7 * 24 * 60, description="How long committed offsets outlive their group's last member."
    )
    offsets_retention_check_interval_ms: int = Field(
        600_000, ge=1, le=_INT_MAX, description="How often it is looked for offsets that have expired."
    )
    offset_metadata_max_bytes: int = Field(
        4096, ge=0, le=_INT_MAX, description="Longest text beside a committed offset, in characters."
    )
    group_initial_rebalance_delay_ms: int = Field(
        3000, ge=0, le=_INT_MAX, description="How long the first rebalance of an empty group waits for more members."
    )
    group_min_session_timeout_ms: int = Field(
        6000, ge=1, le=_INT_MAX, description="Shortest session.timeout.ms that members may have."
    )
    group_max_session_timeout_ms: int = Field(
        1_800_000, ge=1, le=_INT_MAX, description="Longest session.timeout.ms that members may have."
    )
    group_max_size: _PositiveInt = Field(_INT_MAX, description="Most members of a group.")
    producer_id_expiration_ms: int = Field(
        24 * _HOUR_MS, ge=1, le=_INT_MAX, description="Partitions forget producers that have not written for so long."
    )
    transaction_max_timeout_ms: int = Field(
        900_000, ge=1, le=_INT_MAX, description="Longest transaction.timeout.ms that producers may have."
    )
    transactional_id_expiration_ms: int = Field(
        7 * 24 * _HOUR_MS, ge=1, le=_INT_MAX, description="Transactional ids that are not used so long are forgotten."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = Field(
        _HOUR_MS, ge=1, le=_INT_MAX, description="How often it is looked for transactional ids that have expired."
    )
    transaction_partition_verification_enable: bool = Field(
        True, description="Whether a transaction's records are taken only once the partition was added to it (KIP-890)."
    )
    group_share_delivery_count_limit: Annotated[int, Field(ge=2, le=10)] = Field(
        5, description="How often a record is given to members of a share group before it is archived."
    )
    group_share_record_lock_duration_ms: int = Field(
        30_000, ge=1, le=_INT_MAX, description="How long a member of a share group has the records that it was given."
    )
    group_share_partition_max_record_locks: _PositiveInt = Field(
        200, description="Records of a partition that members of a share group may have at once."
    )
    group_share_session_timeout_ms: int = Field(
        45_000, ge=1, le=_INT_MAX, description="How long a member of a share group may be silent."
    )
    group_share_heartbeat_interval_ms: int = Field(
        5000, ge=1, le=_INT_MAX, description="How often members of share groups are to be heard of."
    )
    group_share_max_size: _PositiveInt = Field(200, description="Most members of a share group.")
    share_auto_offset_reset: Literal["earliest", "latest"] = Field(
        "latest", description="Where share groups begin to read a partition, unless a group says it itself."
    )
    transaction_state_log_num_partitions: _PositiveInt = Field(
        50, description="Partitions of __transaction_state, when it is created: not to be changed afterwards."
    )
    transaction_state_log_segment_bytes: int = Field(
        100 * 2**20, ge=_SIZE_MIN_BYTES, le=_INT_MAX, description="Size of the segments of __transaction_state."
    )
    share_coordinator_state_topic_num_partitions: _PositiveInt = Field(
        50, description="Partitions of __share_group_state, when it is created: not to be changed afterwards."
    )
    share_coordinator_state_topic_segment_bytes: int = Field(
        100 * 2**20, ge=_SIZE_MIN_BYTES, le=_INT_MAX, description="Size of the segments of __share_group_state."
    )
    topic_defaults: TopicConfig = Field(TopicConfig.load({}), exclude=True)

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Self:
        """Build from options by their dotted names, including topic defaults (``log.retention.hours``).

        Raises ``InvalidConfigError``, which names every option that is unknown or has a wrong value.
        """
        own = dict(values)
        zookeeper = take_zookeeper(own)
        topic_values = _take_topic_defaults(own)
        try:
            defaults = TopicConfig.load({name: value for name, (_, value) in topic_values.items()})
        except InvalidConfigError as error:
            wrong = (name for name in topic_values if f" {name}=" in f" {error.message}")
            names = ", ".join(f"{topic_values[name][0]} sets {name}" for name in wrong)
            raise InvalidConfigError(f"{error.message} ({names})") from None
        config = super().load({**own, "topic.defaults": defaults, "zookeeper": zookeeper})
        if config.remote_log_storage_system_enable and not config.remote_log_storage_uri:
            raise InvalidConfigError("remote.log.storage.system.enable=true without remote.log.storage.uri: set both")
        if defaults.max_message_bytes > config.socket_request_max_bytes:
            raise InvalidConfigError(
                f"message.max.bytes={defaults.max_message_bytes} is above "
                f"socket.request.max.bytes={config.socket_request_max_bytes}: no request could carry such a message"
            )
        return config

    @classmethod
    def option_names(cls) -> list[str]:
        """Return all dotted names. The options of ZooKeeper and the topic defaults are last."""
        from millrace.coordination.zookeeper_config import ZooKeeperConfig

        own = [name for name in super().option_names() if name not in ("topic.defaults", "zookeeper")]
        own += ZooKeeperConfig.option_names()
        return own + [name for names in TOPIC_DEFAULTS.values() for name, _ in names]

    def options(self) -> dict[str, Any]:
        """Return all options by their dotted names. A topic default appears under its name of highest precedence."""
        topic = self.topic_defaults.options()
        zookeeper = {} if self.zookeeper_config is None else self.zookeeper_config.options()
        own = super().options() | zookeeper
        return own | {names[0][0]: topic[name] for name, names in TOPIC_DEFAULTS.items()}

    @property
    def listener(self) -> Listener:
        """Address of the listener."""
        return Listener.parse(self.listeners)

    @property
    def advertised(self) -> Listener:
        """Address for clients. Its port may be 0, which means the listener's actual port."""
        return Listener.parse(self.advertised_listeners or self.listeners)

    @property
    def log_directories(self) -> list[str]:
        """The data directories, in the given order."""
        return [part.strip() for part in self.log_dirs.split(",")]

    @field_validator("listeners", "advertised_listeners")
    @classmethod
    def _check_listener(cls, value: str | None) -> str | None:
        if value is not None:
            if "," in value:
                raise ValueError("several listeners are not supported, give one PLAINTEXT://host:port")
            Listener.parse(value)
        return value

    @field_validator("direct_reads_enable", mode="before")
    @classmethod
    def _take_flag(cls, value: object) -> object:
        return {"true": "local"}.get(text := str(value).strip().lower(), text)

    @field_validator("remote_log_storage_uri")
    @classmethod
    def _check_remote_uri(cls, value: str) -> str:
        if value:
            from millrace.segments.remote import check_uri

            try:
                check_uri(value)
            except UsageError as error:
                raise ValueError(error.message) from None
        return value

    @field_validator("log_dirs")
    @classmethod
    def _check_log_dirs(cls, value: str) -> str:
        parts = [part.strip() for part in value.split(",")]
        if not all(parts) or len(set(parts)) != len(parts):
            raise ValueError("expected different directories, separated by commas")
        return value


def _take_topic_defaults(values: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Remove the topic defaults from ``values``. Return the broker's option and value of each topic option."""
    taken: dict[str, tuple[str, Any]] = {}
    for topic_name, names in TOPIC_DEFAULTS.items():
        for name, factor in reversed(names):
            if name in values:
                taken[topic_name] = (name, _scaled(name, values.pop(name), factor))
    return taken


def _scaled(name: str, value: Any, factor: int) -> Any:
    if factor == 1:
        return value
    try:
        number = int(value)
    except ValueError:
        raise InvalidConfigError(f"{name}={value!r}: expected an integer") from None
    return number * factor if number >= 0 else number
