"""Internal topics of the coordinators and the audit.

They are created at their first use, as by Kafka's ``AutoTopicCreationManager``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.coordinator_records import (
    AUDIT_COLUMNS,
    AUDIT_TOPIC,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
)
from millrace.errors import CoordinatorNotAvailableError, InvalidReplicationFactorError, TopicExistsError
from millrace_broker.metadata import TopicCatalog, TopicChanges, TopicInfo, TopicSpec
from millrace_broker.runtime import Executors

_LEADERS_WAIT_MS: Final = 5_000


AwaitLeaders = Callable[[Sequence[str], int], Awaitable[object]]
"""Function that waits until all partitions of topics have leaders; its second argument is the longest wait in ms."""


class InternalTopics:
    """Internal topics, with the broker's options for each."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        catalog: TopicCatalog,
        changes: TopicChanges,
        executors: Executors,
        await_leaders: AwaitLeaders,
    ) -> None:
        self._config: Final = config
        self._catalog: Final = catalog
        self._changes: Final = changes
        self._executors: Final = executors
        self._await_leaders: Final = await_leaders

    def find(self, name: str) -> TopicInfo | None:
        """Return the topic, None before its creation."""
        return self._catalog.topics.get(name)

    async def ensure(self, name: str) -> TopicInfo:
        """Return the topic, and create it first if necessary. Raises the errors of a topic's creation.

        Raises ``CoordinatorNotAvailableError`` while there are fewer brokers than the replication factor.
        """
        topic = self.find(name)
        if topic is not None:
            return topic
        try:
            await self._executors.administer(self._create, name)
        except InvalidReplicationFactorError as error:
            raise CoordinatorNotAvailableError(
                f"{name} cannot be created: start more brokers, or lower its replication factor ({error.message})"
            ) from error
        await self._await_leaders([name], _LEADERS_WAIT_MS)
        return self._catalog.topic(name)

    def _create(self, name: str) -> None:
        if self.find(name) is None:
            try:
                self._changes.create(_spec(name, self._config))
            except TopicExistsError:
                self._catalog.refresh(name)  # another broker has created the topic


def _spec(name: str, config: BrokerConfig) -> TopicSpec:
    return _audit_spec(config) if name == AUDIT_TOPIC else _state_spec(name, config)


def _audit_spec(config: BrokerConfig) -> TopicSpec:
    from millrace.schemas import parse_ddl, serialize_schema

    configs = {
        "cleanup.policy": "delete",
        "retention.ms": str(config.audit_retention_ms),
        "kafka.value.format": "json",
    }
    if config.is_clustered:
        configs["min.insync.replicas"] = str(config.audit_topic_min_isr)
    return TopicSpec(
        name=AUDIT_TOPIC,
        partitions=config.audit_topic_num_partitions,
        replication_factor=config.audit_topic_replication_factor if config.is_clustered else 1,
        configs=configs,
        arrow_schema=serialize_schema(parse_ddl(AUDIT_COLUMNS)),
    )


def _state_spec(name: str, config: BrokerConfig) -> TopicSpec:
    partitions, segment_bytes, replicas, in_sync = {
        OFFSETS_TOPIC: (
            config.offsets_topic_num_partitions,
            config.offsets_topic_segment_bytes,
            config.offsets_topic_replication_factor,
            None,
        ),
        TRANSACTIONS_TOPIC: (
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_segment_bytes,
            config.transaction_state_log_replication_factor,
            config.transaction_state_log_min_isr,
        ),
        SHARE_STATE_TOPIC: (
            config.share_coordinator_state_topic_num_partitions,
            config.share_coordinator_state_topic_segment_bytes,
            config.share_coordinator_state_topic_replication_factor,
            config.share_coordinator_state_topic_min_isr,
        ),
    }[name]
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed" if name == TRANSACTIONS_TOPIC else "producer",
        "segment.bytes": str(segment_bytes),
    }
    if not config.is_clustered:
        return TopicSpec(name=name, partitions=partitions, replication_factor=1, configs=configs)
    if in_sync is not None:
        configs["min.insync.replicas"] = str(in_sync)
    return TopicSpec(name=name, partitions=partitions, replication_factor=replicas, configs=configs)
