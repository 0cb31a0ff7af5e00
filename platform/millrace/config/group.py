"""Group options: the supported options of Kafka's ``GroupConfig``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from millrace.config.base import Config
from millrace.config.integers import INT_MAX, PositiveInt32
from millrace.config.share_offset_reset import ShareOffsetReset

BROKER_DEFAULTS: Final = {
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "share.auto.offset.reset": "share.auto.offset.reset",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
    "share.delivery.count.limit": "group.share.delivery.count.limit",
    "share.partition.max.record.locks": "group.share.partition.max.record.locks",
}
"""Broker options that are the defaults of group options."""

BOUNDS: Final = {
    "consumer.session.timeout.ms": ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    "consumer.heartbeat.interval.ms": (
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "share.session.timeout.ms": ("group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"),
    "share.heartbeat.interval.ms": ("group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"),
    "share.record.lock.duration.ms": (
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    "share.delivery.count.limit": ("group.share.min.delivery.count.limit", "group.share.max.delivery.count.limit"),
    "share.partition.max.record.locks": (
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ),
}
"""Broker options that bound the values of group options."""


class GroupConfig(Config):
    """Configuration of one group. An option without a value takes the broker's option (``BROKER_DEFAULTS``)."""

    consumer_session_timeout_ms: PositiveInt32 = Field(
        45_000, description="Time without a heartbeat after which a member of the consumer group (KIP-848) is removed."
    )
    consumer_heartbeat_interval_ms: PositiveInt32 = Field(
        5000, description="Time between two heartbeats of a member of the consumer group."
    )
    share_auto_offset_reset: ShareOffsetReset = Field(
        "latest",
        description="Offset at which a share group starts to read a partition: earliest, latest, or "
        "by_duration:<duration> for the first record that is not older (ISO 8601, like PT1H).",
    )
    share_isolation_level: Literal["read_committed", "read_uncommitted"] = Field(
        "read_uncommitted",
        description="Whether members of a share group get records of transactions only after their commit.",
    )
    share_session_timeout_ms: PositiveInt32 = Field(
        45_000, description="Time without a heartbeat after which a member of a share group is removed."
    )
    share_heartbeat_interval_ms: PositiveInt32 = Field(
        5000, description="Time between two heartbeats of a member of a share group."
    )
    share_record_lock_duration_ms: PositiveInt32 = Field(
        30_000, description="Time for which a member of a share group holds an acquired record."
    )
    share_delivery_count_limit: Annotated[int, Field(ge=2, le=INT_MAX)] = Field(
        5, description="Number of deliveries of a record to members of a share group before the record is archived."
    )
    share_partition_max_record_locks: Annotated[int, Field(ge=100, le=INT_MAX)] = Field(
        2000, description="Largest number of records of a partition that are available again or acquired."
    )
    share_renew_acknowledge_enable: bool = Field(
        True, description="Whether members of a share group may renew the lock of an acquired record (KIP-1222)."
    )
