"""Effects of topic changes on a standalone broker, which leads every partition.

The order of the steps makes each change resumable. A topic's nodes are created before its logs, and deleted after them.
``resume`` can therefore finish an interrupted change at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from millrace.config.topic import TopicConfig
from millrace.coordination import Coordination, Create, Delete, Operation, paths
from millrace.coordination.nodes import PartitionStateNode
from millrace.errors import StorageError
from millrace.ids import id_text
from millrace_broker.log import LogManager
from millrace_broker.metadata.assignment import Assignment
from millrace_broker.metadata.catalog import TopicCatalog
from millrace_broker.metadata.topic_nodes import nodes_of_topic
from millrace_broker.metadata.topics import TopicInfo

_logger = logging.getLogger(__name__)

_FIRST_LEADER_EPOCH: Final = 0


class Alone:
    """``Deployment`` of a standalone broker, in the administration thread.

    ``controller_epoch`` is written into partition states. ``on_gone`` is called with a topic whose partitions no longer
    answer, before its logs are deleted.
    """

    def __init__(
        self,
        broker_id: int,
        coordination: Coordination,
        catalog: TopicCatalog,
        logs: LogManager,
        *,
        controller_epoch: int,
        on_gone: Callable[[TopicInfo], None] = lambda _: None,
    ) -> None:
        self._broker_id: Final = broker_id
        self._coordination: Final = coordination
        self._catalog: Final = catalog
        self._logs: Final = logs
        self._controller_epoch: Final = controller_epoch
        self._on_gone: Final = on_gone

    def nodes(self, topic: str, assignment: Assignment) -> list[Operation]:
        """Return the nodes of new partitions, which this broker leads from the beginning."""
        return [
            operation
            for partition, replicas in assignment.items()
            for operation in (
                Create(paths.partition_path(topic, partition)),
                Create(paths.partition_state_path(topic, partition), self._state(replicas)),
            )
        ]

    def _state(self, replicas: tuple[int, ...]) -> bytes:
        return PartitionStateNode(
            controller_epoch=self._controller_epoch,
            leader=replicas[0],
            leader_epoch=_FIRST_LEADER_EPOCH,
            isr=replicas,
        ).encode()

    def notices(self, topic: str) -> list[Operation]:
        """Return no nodes, because there is no other broker to notify."""
        return []

    def created(self, topic: TopicInfo, partitions: Iterable[int]) -> None:
        """Create the logs. Raises ``StorageError``."""
        for partition in partitions:
            self._create_log(topic, partition, is_new=True)
        self._logs.set_config(topic.name, topic.config)

    def deleted(self, topic: TopicInfo) -> None:
        """Delete the logs, and then the nodes. Raises ``StorageError``."""
        self._on_gone(topic)
        self._finish_deletion(topic.name)

    def configured(self, topic: str, config: TopicConfig) -> None:
        """Apply the configuration to the logs."""
        self._logs.set_config(topic, config)

    def resume(self) -> None:
        """Finish changes that the last run left incomplete: deletions, and topics without all of their logs."""
        for name in self._coordination.children(paths.DELETE_TOPICS):
            _logger.info("finishing the deletion of topic %s", name)
            self._finish_deletion(name)
        for topic in self._catalog.topics.values():
            for partition in topic.partitions:
                try:
                    self._create_log(topic, partition, is_new=False)
                except StorageError as error:
                    _logger.error("topic %s is incomplete: %s", topic.name, error.message)
            self._logs.set_config(topic.name, topic.config)
        for log in self._logs.logs():
            if log.topic not in self._catalog.topics:
                _logger.warning("%s belongs to no topic of this cluster and is ignored", log.directory)

    def _create_log(self, topic: TopicInfo, partition: int, *, is_new: bool) -> None:
        if self._broker_id not in topic.partitions[partition].replicas:
            return
        log = self._logs.get(topic.name, partition)
        if log is None:
            self._logs.create_log(topic.name, topic.topic_id, partition, topic.config, is_new=is_new)
        elif log.topic_id != topic.topic_id:
            raise StorageError(
                f"{log.directory} has topic id {id_text(log.topic_id)}, but {topic.name} has "
                f"{id_text(topic.topic_id)}: move that directory away"
            )

    def _finish_deletion(self, name: str) -> None:
        for log in list(self._logs.logs()):
            if log.topic == name:
                self._logs.delete_log(name, log.partition)
        nodes = reversed(nodes_of_topic(self._coordination, name))
        self._coordination.multi([*map(Delete, nodes), Delete(paths.delete_topic_path(name))])
