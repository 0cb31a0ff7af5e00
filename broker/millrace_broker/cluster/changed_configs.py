"""Changed configurations, applied while the broker runs. In the administration thread.

Each entity type has components that read the configurations of its entities. Kafka's classes are ``ZkConfigManager``
and its ``ConfigHandler`` for each type.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol
from urllib.parse import unquote

from millrace.config.topic import TopicConfig
from millrace_broker.metadata import TopicCatalog

_logger = logging.getLogger(__name__)

TOPICS: Final = "topics"
BROKERS: Final = "brokers"
USERS: Final = "users"
CLIENTS: Final = "clients"
IPS: Final = "ips"
GROUPS: Final = "groups"


class EntityConfigs(Protocol):
    """Configurations of one entity type, as one component has them in memory."""

    def reload(self, name: str) -> None:
        """Read and apply the configuration of one entity again.

        ``name`` is that of its node below the type, such as ``alice`` or ``alice/clients/app``. The component ignores
        names of other entities than its own. Raises ``MillraceError``.
        """
        ...

    def reload_all(self) -> None:
        """Read and apply the configurations of all entities of the type again. Raises ``MillraceError``."""
        ...


EntityTypes = Mapping[str, Sequence[EntityConfigs]]
"""Components that follow the configurations of each entity type, in the order in which they are notified."""


class TopicConfigs:
    """Configurations of topics, as the catalog has them."""

    def __init__(self, catalog: TopicCatalog, take_topic: Callable[[str, TopicConfig], None]) -> None:
        """``take_topic`` is called with the present configuration of a topic that may have changed."""
        self._catalog: Final = catalog
        self._take_topic: Final = take_topic

    def reload(self, name: str) -> None:
        """See ``EntityConfigs``."""
        topic = self._catalog.refresh(unquote(name))
        if topic is not None:
            self._take_topic(topic.name, topic.config)

    def reload_all(self) -> None:
        """Apply the configurations of all topics. The caller has read the topics before."""
        for topic in self._catalog.topics.values():
            self._take_topic(topic.name, topic.config)


class ChangedConfigs:
    """Passes notices of changed configurations to the components of their entity types."""

    def __init__(self, types: EntityTypes) -> None:
        self._types: Final = types

    def take(self, entity: str) -> None:
        """Read the changed configuration of ``entity`` (``paths.config_entity``). Raises ``MillraceError``."""
        kind, _, name = entity.partition("/")
        if kind not in self._types:
            _logger.debug("the changed configuration of %s is of no type that this broker knows", entity)
        for configs in self._types.get(kind, ()):
            configs.reload(name)

    def take_all(self) -> None:
        """Read all configurations that may have changed while this broker had no session; old notices are deleted.

        The caller has read the topics before. Raises ``MillraceError``.
        """
        for components in self._types.values():
            for configs in components:
                configs.reload_all()
