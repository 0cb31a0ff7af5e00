"""Broker options for a cluster: replication, controller, ZooKeeper.

As in ``broker``, names, meanings and defaults are those of Kafka 3.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, field_validator

from millrace.config.base import Config, option_name
from millrace.config.integers import INT_MAX, PositiveInt16, PositiveInt32
from millrace.config.update_modes import CLUSTER_WIDE

if TYPE_CHECKING:
    from millrace.config.zookeeper import ZooKeeperConfig

_SIZE_MIN_BYTES: Final = 1024

ZOOKEEPER_PREFIX: Final = "zookeeper."
_UNSET_IF_EMPTY: Final = frozenset(("zookeeper.connect", "zookeeper.connection.timeout.ms"))
_SELECTORS: Final = frozenset({"RackAwareReplicaSelector", "LeaderSelector"})


class ClusterOptions(Config):
    """Broker options that concern other brokers."""

    zookeeper: Any = Field(None, exclude=True)
    """``ZooKeeperConfig``, or None for a broker that keeps its metadata beside its data."""
    broker_rack: str = Field("", description="Rack of this broker.")
    default_replication_factor: PositiveInt32 = Field(1, description="Default replication factor of a new topic.")
    delete_topic_enable: bool = Field(True, description="Whether topics can be deleted.")
    controller_socket_timeout_ms: PositiveInt32 = Field(
        30_000, description="Time after which the controller repeats an unanswered request to a broker."
    )
    controlled_shutdown_enable: bool = Field(
        True, description="Whether this broker moves the leadership of its partitions to other brokers before it stops."
    )
    controlled_shutdown_max_retries: PositiveInt32 = Field(
        3, description="Number of attempts of a controlled shutdown."
    )
    controlled_shutdown_retry_backoff_ms: PositiveInt32 = Field(
        5_000, description="Pause between two attempts of a controlled shutdown."
    )
    auto_leader_rebalance_enable: bool = Field(
        True, description="Whether the controller moves leadership back to the preferred replicas."
    )
    leader_imbalance_check_interval_seconds: PositiveInt32 = Field(
        300, description="Time between two checks of the leader imbalance."
    )
    leader_imbalance_per_broker_percentage: Annotated[int, Field(ge=0, le=100)] = Field(
        10,
        description="Part of a broker's preferred partitions that other brokers may lead before the controller "
        "rebalances them, in percent.",
    )
    num_replica_fetchers: Annotated[int, Field(ge=1, le=64), CLUSTER_WIDE] = Field(
        1, description="Replica fetchers of this broker for each other broker."
    )
    replica_lag_time_max_ms: PositiveInt32 = Field(
        30_000, description="Time after which a follower that has not caught up leaves the ISR."
    )
    replica_fetch_max_bytes: int = Field(
        2**20,
        ge=0,
        le=INT_MAX,
        description="Largest number of bytes of a partition in a follower fetch. The first batch may exceed it.",
    )
    replica_fetch_response_max_bytes: int = Field(
        10 * 2**20,
        ge=0,
        le=INT_MAX,
        description="Largest number of bytes in a follower fetch. The first batch may exceed it.",
    )
    replica_fetch_min_bytes: int = Field(
        1,
        ge=0,
        le=INT_MAX,
        description="Number of bytes for which the leader waits before it answers a follower fetch.",
    )
    replica_fetch_wait_max_ms: PositiveInt32 = Field(
        500, description="Longest time for which the leader waits for replica.fetch.min.bytes."
    )
    replica_fetch_backoff_ms: int = Field(
        1_000, ge=0, le=INT_MAX, description="Pause of a follower after an error of a partition."
    )
    replica_socket_timeout_ms: PositiveInt32 = Field(
        30_000,
        description="Time for which a follower waits for an answer. It must be at least replica.fetch.wait.max.ms.",
    )
    replica_high_watermark_checkpoint_interval_ms: PositiveInt32 = Field(
        5_000, description="Time between two writes of the high watermarks to replication-offset-checkpoint."
    )
    replica_selector_class: str = Field(
        "",
        description="Replica from which consumers with client.rack read. Empty: the leader. RackAwareReplicaSelector "
        "(with or without Kafka's package): the closest replica.",
    )
    offsets_topic_replication_factor: PositiveInt16 = Field(
        3, description="Replicas of __consumer_offsets; 1 without zookeeper.connect."
    )
    transaction_state_log_replication_factor: PositiveInt16 = Field(
        3, description="Replicas of __transaction_state; 1 without zookeeper.connect."
    )
    transaction_state_log_min_isr: PositiveInt32 = Field(
        2, description="min.insync.replicas of __transaction_state; 1 without zookeeper.connect."
    )
    share_coordinator_state_topic_replication_factor: PositiveInt16 = Field(
        3, description="Replicas of __share_group_state; 1 without zookeeper.connect."
    )
    share_coordinator_state_topic_min_isr: PositiveInt16 = Field(
        2, description="min.insync.replicas of __share_group_state; 1 without zookeeper.connect."
    )

    @property
    def zookeeper_config(self) -> ZooKeeperConfig | None:
        """Connection to ZooKeeper; None for a broker that keeps its metadata beside its data."""
        config: ZooKeeperConfig | None = self.zookeeper
        return config

    @property
    def is_clustered(self) -> bool:
        """True if this broker belongs to a cluster on ZooKeeper."""
        return self.zookeeper is not None

    @field_validator("replica_selector_class")
    @classmethod
    def _check_selector(cls, value: str) -> str:
        if value and value.rpartition(".")[2] not in _SELECTORS:
            raise ValueError(f"expected one of {', '.join(sorted(_SELECTORS))}, or nothing")
        return value


def take_zookeeper(values: dict[str, Any]) -> ZooKeeperConfig | None:
    """Remove ZooKeeper's options from a broker's. Without ``zookeeper.connect`` they are only validated.

    Raises ``InvalidConfigError``.
    """
    names = [name for name in values if option_name(name).startswith(ZOOKEEPER_PREFIX)]
    given = {option_name(name): values.pop(name) for name in names}
    given = {name: value for name, value in given.items() if value != "" or name not in _UNSET_IF_EMPTY}
    if not given:
        return None
    from millrace.config.zookeeper import ZooKeeperConfig  # a broker without ZooKeeper does not load it

    config = ZooKeeperConfig.load({"zookeeper.connect": "localhost", **given})
    return config if "zookeeper.connect" in given else None
