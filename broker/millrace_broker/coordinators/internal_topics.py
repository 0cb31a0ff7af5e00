"""The topics in which coordinators keep their state, created when one is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.coordinator_records import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from millrace.errors import TopicExistsError
from millrace_broker.metadata import TopicInfo, TopicSpec

if TYPE_CHECKING:
    from millrace.config.broker import BrokerConfig
    from millrace_broker.broker import Broker


class InternalTopics:
    """Finds internal topics, and creates them with the broker's options for each."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def find(self, name: str) -> TopicInfo | None:
        """The topic, if it has been created."""
        return self._broker.catalog.topics.get(name)

    async def ensure(self, name: str) -> TopicInfo:
        """The topic, created now if it was not there. Raises what the creation of any topic does."""
        topic = self.find(name)
        if topic is not None:
            return topic
        return await self._broker.administer(self._create, name)

    def _create(self, name: str) -> TopicInfo:
        topic = self.find(name)
        if topic is None:
            try:
                topic = self._broker.changes.create(_spec(name, self._broker.config))
            except TopicExistsError:
                topic = self.find(name)  # another broker was faster
            assert topic is not None
        return topic


def _spec(name: str, config: BrokerConfig) -> TopicSpec:
    partitions, segment_bytes = {
        OFFSETS_TOPIC: (config.offsets_topic_num_partitions, config.offsets_topic_segment_bytes),
        TRANSACTIONS_TOPIC: (
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_segment_bytes,
        ),
        SHARE_STATE_TOPIC: (
            config.share_coordinator_state_topic_num_partitions,
            config.share_coordinator_state_topic_segment_bytes,
        ),
    }[name]
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed" if name == TRANSACTIONS_TOPIC else "producer",
        "segment.bytes": str(segment_bytes),
    }
    return TopicSpec(name=name, partitions=partitions, configs=configs)
