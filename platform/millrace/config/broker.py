"""Broker options: Kafka's names, meanings and (unless noted) defaults.

Source: Kafka 3.9, "Broker Configs". Topic defaults have their own broker options (``log.retention.ms`` is the default
of ``retention.ms``), which ``topic_defaults`` defines. The description of an option mentions intentional differences
from Kafka.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator

from millrace.config.authorization_options import AuthorizationOptions
from millrace.config.base import option_name
from millrace.config.cluster import ClusterOptions, take_zookeeper
from millrace.config.group_options import GroupOptions
from millrace.config.integers import INT_MAX, LONG_MAX, PositiveInt32
from millrace.config.listener_options import ListenerOptions, refuse_unsupported, shared_name, take_listener_overrides
from millrace.config.password_options import PasswordEncoderOptions
from millrace.config.quota_options import QuotaOptions
from millrace.config.security_options import SecurityProtocol
from millrace.config.topic import TopicConfig
from millrace.config.topic_defaults import TOPIC_DEFAULTS, take_topic_defaults
from millrace.config.update_modes import CLUSTER_WIDE
from millrace.config.validators import check_store_uri, parsed_by
from millrace.errors import InvalidConfigError

_SIZE_MIN_BYTES: Final = 1024
_HOUR_MS: Final = 3_600_000

_DERIVED: Final = ("topic.defaults", "zookeeper", "listener.overrides")
"""Fields that stand for several options."""


class BrokerConfig(
    ListenerOptions, ClusterOptions, AuthorizationOptions, GroupOptions, QuotaOptions, PasswordEncoderOptions
):
    """Configuration of one broker. ``topic_defaults`` holds the defaults of topic options."""

    broker_id: int = Field(0, ge=0, le=INT_MAX, description="Id of this broker, unique in its cluster.")
    kafka_clients_enable: bool = Field(
        True, description="Whether the broker serves Kafka's clients; false: only clients of millrace."
    )
    metrics_port: int = Field(
        -1,
        ge=-1,
        le=65535,
        description="Port that serves metrics to Prometheus, on the host of the first listener; 0: any free port, "
        "-1: none.",
    )
    metrics_security_protocol: SecurityProtocol = Field(
        SecurityProtocol.PLAINTEXT,
        description="Security of metrics.port: PLAINTEXT, SSL (HTTPS), or with SASL_PLAINTEXT and SASL_SSL also HTTP's "
        "basic authentication. Its options are those of a listener, for all or as listener.name.metrics.<option>: "
        "ssl.client.auth=required wants client certificates, and plain.sasl.jaas.config has the users.",
    )
    log_dirs: str = Field("millrace-data", description="Data directories, separated by commas.")
    num_partitions: PositiveInt32 = Field(1, description="Default number of partitions of a new topic.")
    auto_create_topics_enable: bool = Field(
        False,
        description="Whether a metadata request for an unknown topic creates it. Kafka's default is "
        "true, which creates "
        "topics of misspelt names.",
    )
    max_partitions: PositiveInt32 = Field(
        100_000, description="Largest number of partitions on this broker. Kafka has no limit."
    )
    direct_reads_enable: Literal["auto", "local", "all", "false"] = Field(
        "auto",
        description="Clients that get the paths of segment files, so that they can read them directly. local "
        "(or true): clients on this host. all: every client, if machines share file systems. false: none. auto: local, "
        "but false with an authorizer, where a client also needs READ on the topic.",
    )
    socket_request_max_bytes: int = Field(
        104_857_600, ge=_SIZE_MIN_BYTES, le=INT_MAX, description="Size of the largest request, in bytes."
    )
    queued_max_requests: PositiveInt32 = Field(
        500,
        description="Largest number of running client requests. At the limit, the broker reads no further request of "
        "a connection in Kafka's framing, and refuses calls over gRPC as throttled. Requests that wait, such as long "
        "polls, are not counted.",
    )
    queued_max_request_bytes: int = Field(
        32 * 2**20,
        ge=_SIZE_MIN_BYTES,
        description="Largest number of bytes of running client requests, and the same number for responses. Further "
        "ones wait. Kafka has no limit by default.",
    )
    purgatory_max_request_bytes: int = Field(
        256 * 2**20,
        ge=_SIZE_MIN_BYTES,
        description="Memory for client requests that wait in a purgatory. Each request counts 16 KiB and its own size. "
        "When the memory is full, the broker answers the oldest waiting fetch without records. Kafka's "
        "purgatory has no limit.",
    )
    control_queued_max_requests: PositiveInt32 = Field(
        100,
        description="Largest number of running requests for administration, metadata and group membership. They do not "
        "count for queued.max.requests.",
    )
    control_queued_max_request_bytes: int = Field(
        8 * 2**20,
        ge=_SIZE_MIN_BYTES,
        description="As queued.max.request.bytes, for the requests of control.queued.max.requests.",
    )
    inter_broker_queued_max_requests: PositiveInt32 = Field(
        500,
        description="Largest number of running requests of other brokers. They do not count for queued.max.requests.",
    )
    inter_broker_queued_max_request_bytes: int = Field(
        32 * 2**20,
        ge=_SIZE_MIN_BYTES,
        description="As queued.max.request.bytes, for requests of other brokers, such as follower fetches.",
    )
    max_connections: Annotated[PositiveInt32, CLUSTER_WIDE] = Field(
        20_000,
        description="Largest number of client connections with running or recent calls. Kafka's default is 2147483647.",
    )
    control_max_connections: Annotated[PositiveInt32, CLUSTER_WIDE] = Field(
        100,
        description="Connections beyond max.connections that serve only requests for administration, metadata and "
        "group membership.",
    )
    inter_broker_max_connections: Annotated[PositiveInt32, CLUSTER_WIDE] = Field(
        1000, description="Largest number of connections of other brokers. They do not count for max.connections."
    )
    connections_max_idle_ms: int = Field(
        600_000, ge=1000, le=INT_MAX, description="Time after which the broker closes an idle connection."
    )
    fetch_max_bytes: int = Field(
        16 * 2**20,
        ge=_SIZE_MIN_BYTES,
        le=INT_MAX,
        description="Largest number of bytes in a fetch response. The first batch may exceed it. Kafka's default is "
        "57671680.",
    )
    num_io_threads: Annotated[int, Field(ge=1, le=256), CLUSTER_WIDE] = Field(
        4, description="Threads that read and write the disk."
    )
    log_retention_check_interval_ms: PositiveInt32 = Field(300_000, description="Time between two retention checks.")
    log_initial_task_delay_ms: int = Field(
        30_000, ge=0, le=INT_MAX, description="Time from the start to the first retention check."
    )
    num_recovery_threads_per_data_dir: Annotated[int, Field(ge=1, le=256), CLUSTER_WIDE] = Field(
        1, description="Threads that load the partitions of each directory of log.dirs at start."
    )
    log_cleaner_enable: bool = Field(True, description="Whether the log cleaner runs.")
    log_cleaner_threads: Annotated[int, Field(ge=1, le=64), CLUSTER_WIDE] = Field(
        1, description="Threads of the log cleaner."
    )
    log_cleaner_dedupe_buffer_size: Annotated[int, CLUSTER_WIDE] = Field(
        128 * 2**20,
        ge=2**20,
        le=2**40,
        description="Memory of all cleaner threads for the offset maps, 24 bytes for each key.",
    )
    log_cleaner_io_buffer_load_factor: Annotated[float, CLUSTER_WIDE] = Field(
        0.9,
        gt=0,
        le=0.99,
        description="Largest part of log.cleaner.dedupe.buffer.size that is filled. A fuller map is slower to search.",
    )
    log_cleaner_io_buffer_size: Annotated[int, CLUSTER_WIDE] = Field(
        4 * 2**20,
        ge=_SIZE_MIN_BYTES,
        le=INT_MAX,
        description="Size of the read buffers of all cleaner threads, in bytes. Kafka's default is 524288.",
    )
    log_cleaner_io_max_bytes_per_second: Annotated[float, CLUSTER_WIDE] = Field(
        sys.float_info.max,
        gt=0,
        description="Largest number of bytes that all cleaner threads together read and write in a second.",
    )
    log_cleaner_backoff_ms: Annotated[PositiveInt32, CLUSTER_WIDE] = Field(
        15_000, description="Pause of a cleaner thread when no partition needs cleaning."
    )
    remote_log_storage_system_enable: bool = Field(
        False, description="Whether tiered storage is available, which a topic turns on by remote.storage.enable."
    )
    remote_log_storage_uri: Annotated[str, parsed_by(check_store_uri, or_empty=True)] = Field(
        "",
        description="Directory of the remote store: file:///..., s3://bucket/..., gs://..., hdfs://.... Credentials "
        "come from the environment. Kafka has plug-ins instead.",
    )
    remote_log_manager_task_interval_ms: PositiveInt32 = Field(
        30_000, description="Time between two checks of a partition for segments to copy or to delete."
    )
    remote_log_manager_task_retry_backoff_ms: PositiveInt32 = Field(
        500, description="Pause before the first retry after a failure of the remote store."
    )
    remote_log_manager_task_retry_backoff_max_ms: PositiveInt32 = Field(
        30_000, description="Longest pause between retries. Pauses double up to this limit."
    )
    remote_log_manager_task_retry_jitter: float = Field(
        0.2, ge=0, le=0.5, description="Random part by which a pause is longer or shorter."
    )
    remote_log_manager_copier_thread_pool_size: Annotated[int, Field(ge=1, le=64), CLUSTER_WIDE] = Field(
        2,
        description="Threads that copy segments to the remote store and delete expired segments there. Kafka's default "
        "is 10.",
    )
    remote_log_manager_copy_max_bytes_per_second: Annotated[int, CLUSTER_WIDE] = Field(
        LONG_MAX,
        ge=1,
        le=LONG_MAX,
        description="Largest number of bytes that all copying threads together exchange with the remote store in a "
        "second.",
    )
    remote_log_reader_threads: Annotated[int, Field(ge=1, le=256), CLUSTER_WIDE] = Field(
        10, description="Threads that read from the remote store."
    )
    remote_log_reader_max_pending_tasks: PositiveInt32 = Field(
        100,
        description="Largest number of reads from the remote store that wait for a thread. The broker refuses further "
        "ones as throttled.",
    )
    remote_log_index_file_cache_total_size_bytes: Annotated[int, CLUSTER_WIDE] = Field(
        2**27,
        ge=2**20,
        le=LONG_MAX,
        description="Memory for cached indexes and cached ranges of remote segments. Kafka's default is 1073741824, on "
        "disk.",
    )
    offsets_topic_num_partitions: PositiveInt32 = Field(
        50, description="Partitions of __consumer_offsets. Do not change this after the topic exists."
    )
    offsets_topic_segment_bytes: int = Field(
        100 * 2**20, ge=_SIZE_MIN_BYTES, le=INT_MAX, description="Size of the segments of __consumer_offsets."
    )
    offsets_retention_minutes: PositiveInt32 = Field(
        7 * 24 * 60, description="Time for which committed offsets are kept after the last member has left the group."
    )
    offsets_retention_check_interval_ms: PositiveInt32 = Field(
        600_000, description="Time between two checks for expired offsets."
    )
    offset_metadata_max_bytes: int = Field(
        4096, ge=0, le=INT_MAX, description="Longest metadata text of a committed offset, in characters."
    )
    producer_id_expiration_ms: Annotated[PositiveInt32, CLUSTER_WIDE] = Field(
        24 * _HOUR_MS, description="Time without writes after which a partition removes the state of a producer id."
    )
    transaction_max_timeout_ms: PositiveInt32 = Field(
        900_000, description="Largest transaction.timeout.ms that the coordinator accepts."
    )
    transactional_id_expiration_ms: PositiveInt32 = Field(
        7 * 24 * _HOUR_MS, description="Time without use after which the coordinator removes a transactional id."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: PositiveInt32 = Field(
        _HOUR_MS, description="Time between two checks for expired transactional ids."
    )
    transaction_partition_verification_enable: Annotated[bool, CLUSTER_WIDE] = Field(
        True,
        description="Whether a leader verifies that the partition was added to the transaction before it appends "
        "(KIP-890). Kafka's producers of transaction version 2 do not need the option, because their records add the "
        "partition.",
    )
    transaction_state_log_num_partitions: PositiveInt32 = Field(
        50, description="Partitions of __transaction_state. Do not change this after the topic exists."
    )
    transaction_state_log_segment_bytes: int = Field(
        100 * 2**20, ge=_SIZE_MIN_BYTES, le=INT_MAX, description="Size of the segments of __transaction_state."
    )
    share_coordinator_state_topic_num_partitions: PositiveInt32 = Field(
        50, description="Partitions of __share_group_state. Do not change this after the topic exists."
    )
    share_coordinator_state_topic_segment_bytes: int = Field(
        100 * 2**20, ge=_SIZE_MIN_BYTES, le=INT_MAX, description="Size of the segments of __share_group_state."
    )
    topic_defaults: TopicConfig = Field(TopicConfig.load({}), exclude=True)

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Self:
        """Build from options by their dotted names, including topic defaults (``log.retention.hours``).

        Raises ``InvalidConfigError``, which names every option that is unknown or has a wrong value.
        """
        own = dict(values)
        refuse_unsupported(own)
        zookeeper = take_zookeeper(own)
        overrides = take_listener_overrides(own)
        topic_values = take_topic_defaults(own)
        try:
            defaults = TopicConfig.load({name: value for name, (_, value) in topic_values.items()})
        except InvalidConfigError as error:
            wrong = (name for name in topic_values if f" {name}=" in f" {error.message}")
            names = ", ".join(f"{topic_values[name][0]} sets {name}" for name in wrong)
            raise InvalidConfigError(f"{error.message} ({names})") from None
        derived = {"topic.defaults": defaults, "zookeeper": zookeeper, "listener.overrides": overrides}
        config = super().load({**own, **derived})
        if config.remote_log_storage_system_enable and not config.remote_log_storage_uri:
            raise InvalidConfigError("remote.log.storage.system.enable=true without remote.log.storage.uri: set both")
        if defaults.max_message_bytes > config.socket_request_max_bytes:
            raise InvalidConfigError(
                f"message.max.bytes={defaults.max_message_bytes} is above "
                f"socket.request.max.bytes={config.socket_request_max_bytes}: no request could carry such a message"
            )
        return config

    @classmethod
    def is_secret(cls, option: str) -> bool:
        """Return whether the value of an option is secret, also as ``listener.name.<name>.<option>``."""
        return super().is_secret(shared_name(option))

    @classmethod
    def option_names(cls) -> list[str]:
        """Return all dotted names. The options of ZooKeeper and the topic defaults are last."""
        from millrace.config.zookeeper import ZooKeeperConfig

        own = [name for name in super().option_names() if name not in _DERIVED]
        own += ZooKeeperConfig.option_names()
        return own + [name for names in TOPIC_DEFAULTS.values() for name, _ in names]

    def options(self) -> dict[str, Any]:
        """Return all options by their dotted names. A topic default appears under its name of highest precedence."""
        topic = self.topic_defaults.options()
        zookeeper = {} if self.zookeeper_config is None else self.zookeeper_config.options()
        own = super().options() | self.listener_overrides | zookeeper
        return own | {names[0][0]: topic[name] for name, names in TOPIC_DEFAULTS.items()}

    @property
    def given_options(self) -> frozenset[str]:
        """The dotted names of the options that were set. A topic default has its name of highest precedence."""
        own = {option_name(field) for field in self.model_fields_set}
        topic = {option_name(field) for field in self.topic_defaults.model_fields_set}
        return frozenset(own | {TOPIC_DEFAULTS[name][0][0] for name in topic if name in TOPIC_DEFAULTS})

    @property
    def log_directories(self) -> list[str]:
        """The data directories, in the given order."""
        return [part.strip() for part in self.log_dirs.split(",")]

    @property
    def direct_reads(self) -> Literal["local", "all", "false"]:
        """Clients that get the paths of segment files for direct reads."""
        if self.direct_reads_enable == "auto":
            return "false" if self.authorizer_class_name else "local"
        return self.direct_reads_enable

    @field_validator("direct_reads_enable", mode="before")
    @classmethod
    def _take_flag(cls, value: object) -> object:
        return {"true": "local"}.get(text := str(value).strip().lower(), text)

    @field_validator("log_dirs")
    @classmethod
    def _check_log_dirs(cls, value: str) -> str:
        parts = [part.strip() for part in value.split(",")]
        if not all(parts) or len(set(parts)) != len(parts):
            raise ValueError("expected different directories, separated by commas")
        return value
