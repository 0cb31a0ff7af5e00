"""Configurations that changed while the broker runs: read anew, and handed to whoever goes by them.

In the administration thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from millrace.config.topic import TopicConfig
from millrace.coordination import NoNodeError, Write, ensure_path, paths
from millrace.coordination.nodes import ConfigNode
from millrace.coordination.outcomes import settle
from millrace.errors import InvalidConfigError, InvalidRequestError
from millrace_broker.metadata import payload_schemas

if TYPE_CHECKING:
    from millrace_broker.broker import Broker

_logger = logging.getLogger(__name__)

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
BROKER_OPTIONS: Final = (LEADER_RATE, FOLLOWER_RATE)
"""What can be changed of a broker while it runs: bytes a second, as Kafka's tool for reassignments sets them."""


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
                if name in (str(self._broker.config.broker_id), "<default>"):
                    self.take_rates()
            case _ if entity == payload_schemas.ENTITY:
                self._broker.payload_schemas.reload()
            case _:
                _logger.debug("the changed configuration of %s means nothing here", entity)

    def take_topic(self, topic: str, config: TopicConfig) -> None:
        """A topic is configured like this now."""
        self._broker.logs.set_config(topic, config)
        self._broker.on_loop(self._broker.replicas.topic_changed, topic)
        if config.unclean_leader_election_enable:
            self._broker.on_loop(self._broker.member.controlling.unclean_allowed)

    def alter_broker(
        self, name: str, values: Mapping[str, str], removals: set[str], *, validate_only: bool = False
    ) -> None:
        """Set and remove options of a broker, or of all ("", as Kafka's tool names them).

        Raises ``InvalidConfigError``; then nothing has changed.
        """
        if name and not name.isdigit():
            raise InvalidRequestError(f"broker {name!r}: a broker is named by its id, all of them by nothing")
        for option in removals - set(BROKER_OPTIONS):
            check_broker_option(option, "")
        for option, value in values.items():
            check_broker_option(option, value)
        path = paths.config_path(f"brokers/{name or '<default>'}")
        ensure_path(self._broker.coordination, path)
        data, _ = self._broker.coordination.get(path)
        present = ConfigNode.decode(data).config if data else {}
        kept = {option: value for option, value in present.items() if option not in removals}
        if not validate_only:
            written = Write(path, ConfigNode({**kept, **values}).encode())
            entity = path.removeprefix(f"{paths.CONFIGS}/")
            settle(self._broker.coordination, [written, *self._broker.membership.notices(entity)])

    def take_rates(self) -> None:
        """Read how much this broker may send and fetch of throttled replicas."""
        options: dict[str, str] = {}
        for name in ("<default>", str(self._broker.config.broker_id)):
            try:
                data, _ = self._broker.coordination.get(paths.config_path(f"brokers/{name}"))
            except NoNodeError:
                continue
            options |= ConfigNode.decode(data).config if data else {}
        self._broker.on_loop(
            lambda: self._broker.replicas.set_throttle_rates(
                leader_bytes_per_s=_rate(options, LEADER_RATE), follower_bytes_per_s=_rate(options, FOLLOWER_RATE)
            )
        )


def check_broker_option(name: str, value: str) -> None:
    """Raise ``InvalidConfigError`` unless this can be set while a broker runs."""
    if name not in BROKER_OPTIONS:
        raise InvalidConfigError(
            f"{name} cannot be changed while a broker runs (only {', '.join(BROKER_OPTIONS)} can): edit its "
            "properties file and restart it"
        )
    if not value.isdigit() or int(value) < 1:
        raise InvalidConfigError(f"{name}={value}: expected bytes a second, from 1")


def _rate(options: dict[str, str], name: str) -> float:
    value = options.get(name, "")
    return float(value) if value else math.inf
