"""The topics in which coordinators keep their state, created when one is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace.coordinator_records import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from millrace.errors import CoordinatorNotAvailableError, InvalidReplicationFactorError, TopicExistsError
from millrace_broker.metadata import TopicInfo, TopicSpec

if TYPE_CHECKING:
    from millrace.config.broker import BrokerConfig
    from millrace_broker.broker import Broker

_LEADERS_WAIT_MS: Final = 5_000


class InternalTopics:
    """Finds internal topics, and creates them with the broker's options for each."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def find(self, name: str) -> TopicInfo | None:
        """The topic, if it has been created."""
        return self._broker.catalog.topics.get(name)

    async def ensure(self, name: str) -> TopicInfo:
        """The topic, created now if it was not there. Raises what the creation of any topic does.

        ``CoordinatorNotAvailableError`` as long as there are fewer brokers than it is to have replicas.
        """
        topic = self.find(name)
        if topic is not None:
            return topic
        try:
            await self._broker.executors.administer(self._create, name)
        except InvalidReplicationFactorError as error:
            raise CoordinatorNotAvailableError(f"{name} cannot be created yet: {error.message}") from error
        await self._broker.membership.led([name], _LEADERS_WAIT_MS)
        return self._broker.catalog.topic(name)

    def _create(self, name: str) -> None:
        if self.find(name) is None:
            try:
                self._broker.changes.create(_spec(name, self._broker.config))
            except TopicExistsError:
                self._broker.catalog.refresh(name)  # another broker was faster


def _spec(name: str, config: BrokerConfig) -> TopicSpec:
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
