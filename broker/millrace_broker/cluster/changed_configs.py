"""Configurations that changed while the broker runs: read anew, and handed to whoever goes by them.

In the administration thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from millrace.config.topic import TopicConfig
from millrace_broker.cluster.reconfiguring import reconfigure
from millrace_broker.metadata import payload_schemas

if TYPE_CHECKING:
    from millrace_broker.broker import Broker

_logger = logging.getLogger(__name__)


class ChangedConfigs:
    """Takes over changed configurations on one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker: Final = broker

    def take(self, entity: str) -> None:
        """The configuration of ``entity`` (``paths.config_entity``) has changed. Raises ``MillraceError``."""
        kind, _, name = entity.partition("/")
        match kind:
            case "topics":
                topic = self._broker.catalog.refresh(unquote(name))
                if topic is not None:
                    self.take_topic(topic.name, topic.config)
            case "groups":
                self._broker.group_configs.reload(name)
            case "brokers":
                if self._broker.broker_configs.concerns_this(name):
                    self._broker.broker_configs.reload()
                    reconfigure(self._broker)
            case _ if entity == payload_schemas.ENTITY:
                self._broker.payload_schemas.reload()
            case _:
                _logger.debug("the changed configuration of %s means nothing here", entity)

    def take_all(self) -> None:
        """Whatever may have changed while this broker heard of nothing: notices are not kept for ever.

        Topics have been read anew. Raises ``MillraceError``.
        """
        for topic in self._broker.catalog.topics.values():
            self.take_topic(topic.name, topic.config)
        self._broker.group_configs.reload_all()
        self._broker.broker_configs.reload()
        reconfigure(self._broker)
        self._broker.payload_schemas.reload()

    def take_topic(self, topic: str, config: TopicConfig) -> None:
        """A topic is configured like this now."""
        self._broker.logs.set_config(topic, config)
        self._broker.executors.on_loop(self._broker.replicas.topic_changed, topic)
        if config.unclean_leader_election_enable:
            self._broker.executors.on_loop(self._broker.member.controlling.unclean_allowed)
