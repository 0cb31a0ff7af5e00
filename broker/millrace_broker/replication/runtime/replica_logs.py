"""Look-up or creation of the logs that a LeaderAndIsr needs. It blocks, in a thread."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from millrace.errors import InconsistentTopicIdError, MillraceError
from millrace_broker.decisions import LeaderAndIsrRequest, LeaderAndIsrState, TopicPartition
from millrace_broker.log import LogManager, PartitionLog
from millrace_broker.metadata import TopicCatalog, TopicInfo

_logger: Final = logging.getLogger(__name__)


class ReplicaLogs:
    """The logs of this broker's replicas."""

    def __init__(self, catalog: TopicCatalog, logs: LogManager) -> None:
        self._catalog: Final = catalog
        self._logs: Final = logs

    def find(
        self, request: LeaderAndIsrRequest, marked: Mapping[str, TopicInfo]
    ) -> dict[TopicPartition, PartitionLog | MillraceError]:
        """Find or create the logs of partitions. Returns the log of each, or the error.

        ``marked`` are topics that are marked for deletion, and therefore not in the catalog.
        """
        found: dict[TopicPartition, PartitionLog | MillraceError] = {}
        for partition, state in request.partitions.items():
            try:
                topic_id = request.topic_ids.get(partition.topic)
                found[partition] = self._find_log(partition, topic_id, state, marked.get(partition.topic))
            except MillraceError as error:
                _logger.error("%s cannot be led or followed here: %s", partition, error.message)
                found[partition] = error
        return found

    def _find_log(
        self, partition: TopicPartition, topic_id: UUID | None, state: LeaderAndIsrState, marked: TopicInfo | None
    ) -> PartitionLog:
        logs = self._logs
        log = logs.get(*partition)
        if log is None:
            topic = marked or self._catalog.topic(partition.topic)
            topic_id = topic_id or topic.topic_id
            log = logs.create_log(partition.topic, topic_id, partition.partition, topic.config, is_new=state.is_new)
        elif topic_id is not None and log.topic_id != topic_id:
            raise InconsistentTopicIdError(
                f"{partition} has topic id {log.topic_id} on this broker, not {topic_id}, because the topic was "
                "deleted and created again"
            )
        if log.config.syncs_before_ack and log.durable_end < log.log_end_offset:
            log.flush()
        return log
