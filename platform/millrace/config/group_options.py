"""Broker options of groups (``GroupCoordinatorConfig``, ``ShareGroupConfig``).

They are the defaults of the options of each group, and the bounds of the values that may be set for a group. Names,
ranges and defaults are those of Kafka's classes. A broker's own default need not be within the bounds, which are for
the options of single groups.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from millrace.config.base import Config
from millrace.config.integers import INT_MAX, PositiveInt32
from millrace.config.share_offset_reset import ShareOffsetReset


class GroupOptions(Config):
    """Options of classic groups, consumer groups (KIP-848) and share groups (KIP-932)."""

    group_initial_rebalance_delay_ms: int = Field(
        3000,
        ge=0,
        le=INT_MAX,
        description="Time for which the first rebalance of an empty group waits for more members.",
    )
    group_min_session_timeout_ms: PositiveInt32 = Field(
        6000, description="Smallest session.timeout.ms that the coordinator accepts."
    )
    group_max_session_timeout_ms: PositiveInt32 = Field(
        1_800_000, description="Largest session.timeout.ms that the coordinator accepts."
    )
    group_max_size: PositiveInt32 = Field(INT_MAX, description="Largest number of members of a classic group.")
    group_consumer_session_timeout_ms: PositiveInt32 = Field(
        45_000, description="Time without a heartbeat after which a member of a consumer group (KIP-848) is removed."
    )
    group_consumer_heartbeat_interval_ms: PositiveInt32 = Field(
        5000, description="Time between two heartbeats of a member of a consumer group."
    )
    group_consumer_min_session_timeout_ms: PositiveInt32 = Field(
        45_000, description="Smallest consumer.session.timeout.ms that may be set for a group."
    )
    group_consumer_max_session_timeout_ms: PositiveInt32 = Field(
        60_000, description="Largest consumer.session.timeout.ms that may be set for a group."
    )
    group_consumer_min_heartbeat_interval_ms: PositiveInt32 = Field(
        5000, description="Smallest consumer.heartbeat.interval.ms that may be set for a group."
    )
    group_consumer_max_heartbeat_interval_ms: PositiveInt32 = Field(
        15_000, description="Largest consumer.heartbeat.interval.ms that may be set for a group."
    )
    group_consumer_max_size: PositiveInt32 = Field(
        INT_MAX, description="Largest number of members of a consumer group."
    )
    group_consumer_assignors: str = Field(
        "uniform,range", description="Server-side assignors. The first one is for members that name none."
    )
    group_consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = Field(
        "bidirectional", description="Direction in which a live group may change its protocol: upgrade is to KIP-848."
    )
    group_share_session_timeout_ms: PositiveInt32 = Field(
        45_000, description="Time without a heartbeat after which a member of a share group is removed."
    )
    group_share_min_session_timeout_ms: PositiveInt32 = Field(
        45_000, description="Smallest share.session.timeout.ms that may be set for a group."
    )
    group_share_max_session_timeout_ms: PositiveInt32 = Field(
        60_000, description="Largest share.session.timeout.ms that may be set for a group."
    )
    group_share_heartbeat_interval_ms: PositiveInt32 = Field(
        5000, description="Time between two heartbeats of a member of a share group."
    )
    group_share_min_heartbeat_interval_ms: PositiveInt32 = Field(
        5000, description="Smallest share.heartbeat.interval.ms that may be set for a group."
    )
    group_share_max_heartbeat_interval_ms: PositiveInt32 = Field(
        15_000, description="Largest share.heartbeat.interval.ms that may be set for a group."
    )
    group_share_record_lock_duration_ms: Annotated[int, Field(ge=1, le=3_600_000)] = Field(
        30_000, description="Time for which a member of a share group holds an acquired record."
    )
    group_share_min_record_lock_duration_ms: Annotated[int, Field(ge=1000, le=30_000)] = Field(
        15_000, description="Smallest share.record.lock.duration.ms that may be set for a group."
    )
    group_share_max_record_lock_duration_ms: Annotated[int, Field(ge=30_000, le=3_600_000)] = Field(
        60_000, description="Largest share.record.lock.duration.ms that may be set for a group."
    )
    group_share_delivery_count_limit: Annotated[int, Field(ge=2, le=10)] = Field(
        5, description="Number of deliveries of a record to members of a share group before the record is archived."
    )
    group_share_min_delivery_count_limit: Annotated[int, Field(ge=2, le=5)] = Field(
        2, description="Smallest share.delivery.count.limit that may be set for a group."
    )
    group_share_max_delivery_count_limit: Annotated[int, Field(ge=5, le=25)] = Field(
        10, description="Largest share.delivery.count.limit that may be set for a group."
    )
    group_share_partition_max_record_locks: Annotated[int, Field(ge=100, le=10_000)] = Field(
        2000, description="Largest number of records of a partition that are available again or acquired."
    )
    group_share_min_partition_max_record_locks: Annotated[int, Field(ge=100, le=2000)] = Field(
        100, description="Smallest share.partition.max.record.locks that may be set for a group."
    )
    group_share_max_partition_max_record_locks: Annotated[int, Field(ge=2000, le=10_000)] = Field(
        4000, description="Largest share.partition.max.record.locks that may be set for a group."
    )
    group_share_max_size: Annotated[int, Field(ge=1, le=1000)] = Field(
        200, description="Largest number of members of a share group."
    )
    group_share_max_share_sessions: PositiveInt32 = Field(
        2000, description="Largest number of share sessions, each of which is a Kafka client that fetches for a group."
    )
    share_auto_offset_reset: ShareOffsetReset = Field(
        "latest", description="Offset at which share groups start to read a partition. A group can override it."
    )
