"""A topic's nodes and their paths."""

from __future__ import annotations

import logging

from millrace.coordination import Coordination, NoNodeError, paths
from millrace.coordination.nodes import TopicNode, TypedTopicNode
from millrace.errors import StorageError

_logger = logging.getLogger(__name__)


def readable_topic(topic: str, data: bytes) -> TopicNode | None:
    """Decode a topic's node; an unreadable node is logged, and None, so that other topics are served."""
    try:
        return TopicNode.decode(data)
    except StorageError as error:
        _logger.error("topic %s is left out: %s; repair or delete %s", topic, error.message, paths.topic_path(topic))
        return None


def nodes_of_topic(coordination: Coordination, topic: str) -> list[str]:
    """Return the paths of a topic's existing nodes, parents first, without the deletion mark."""
    wanted = [paths.topic_config_path(topic), paths.typed_topic_path(topic)]
    found = coordination.get_many(wanted)
    nodes = [path for path, node in zip(wanted, found, strict=True) if node is not None]
    if found[1] is not None:
        schemas = [paths.schema_path(each) for each in TypedTopicNode.decode(found[1][0]).schema_ids]
        nodes += [path for path, node in zip(schemas, coordination.get_many(schemas), strict=True) if node is not None]
    return [*_topic_nodes(coordination, topic), *nodes]


def _topic_nodes(coordination: Coordination, topic: str) -> list[str]:
    if coordination.exists(paths.topic_path(topic)) is None:
        return []
    nodes = [paths.topic_path(topic)]
    try:
        names = coordination.children(paths.partitions_path(topic))
    except NoNodeError:
        return nodes
    partitions = [paths.partition_path(topic, int(name)) for name in names]
    states = [paths.partition_state_path(topic, int(name)) for name in names]
    there = [path for path, node in zip(states, coordination.get_many(states), strict=True) if node is not None]
    return [*nodes, paths.partitions_path(topic), *partitions, *there]
