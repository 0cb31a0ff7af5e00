"""Changed configurations, applied while the broker runs. In the administration thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from millrace.config.topic import TopicConfig
from millrace_broker.config import LiveConfig
from millrace_broker.metadata import (
    GroupConfigs,
    PayloadSchemas,
    QuotaConfigs,
    ScramCredentials,
    TopicCatalog,
    payload_schemas,
)

_logger = logging.getLogger(__name__)


class ChangedConfigs:
    """Reads changed configurations and passes them to the components of one broker."""

    def __init__(
        self,
        *,
        catalog: TopicCatalog,
        groups: GroupConfigs,
        credentials: ScramCredentials,
        quotas: QuotaConfigs,
        schemas: PayloadSchemas,
        live: LiveConfig,
        take_topic: Callable[[str, TopicConfig], None],
    ) -> None:
        """``take_topic`` is called with the present configuration of a topic that may have changed."""
        self._catalog: Final = catalog
        self._groups: Final = groups
        self._credentials: Final = credentials
        self._quotas: Final = quotas
        self._schemas: Final = schemas
        self._live: Final = live
        self._take_topic: Final = take_topic

    def take(self, entity: str) -> None:
        """Read the changed configuration of ``entity`` (``paths.config_entity``). Raises ``MillraceError``."""
        kind, _, name = entity.partition("/")
        match kind:
            case "topics":
                topic = self._catalog.refresh(unquote(name))
                if topic is not None:
                    self._take_topic(topic.name, topic.config)
            case "groups":
                self._groups.reload(name)
            case "users" | "clients" | "ips":
                if kind == "users" and "/" not in name:
                    self._credentials.reload(name)
                self._quotas.reload(entity)
            case "brokers":
                self._live.changed(name)
            case _ if entity == payload_schemas.ENTITY:
                self._schemas.reload()
            case _:
                _logger.debug("the changed configuration of %s is of no kind that this broker knows", entity)

    def take_all(self) -> None:
        """Read all configurations that may have changed while this broker had no session; old notices are deleted.

        The caller has read the topics before. Raises ``MillraceError``.
        """
        for topic in self._catalog.topics.values():
            self._take_topic(topic.name, topic.config)
        self._groups.reload_all()
        self._credentials.reload_all()
        self._quotas.reload_all()
        self._live.reload()
        self._schemas.reload()
