"""The configuration in force: the broker's file with the options that were set while it runs (KIP-226).

Invariant: ``current`` is replaced as a whole, and every subscriber is told after each replacement, in the order of the
subscriptions. Code that reads ``current`` on each use needs no subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace_broker.metadata import BrokerConfigs

TakeConfig = Callable[[BrokerConfig], None]
"""Goes by another configuration from now on. Called in the administration thread."""


class LiveConfig:
    """The configuration of one broker, Kafka's ``DynamicBrokerConfig``. Changed in the administration thread alone."""

    def __init__(self, configs: BrokerConfigs) -> None:
        self._configs: Final = configs
        self._subscribers: Final[list[TakeConfig]] = []
        self.current = configs.current

    def subscribe(self, take: TakeConfig) -> None:
        """Have a function called with each configuration that comes into force."""
        self._subscribers.append(take)

    def tell(self) -> None:
        """Take over what was read last, and tell all subscribers."""
        self.current = self._configs.current
        for take in self._subscribers:
            take(self.current)

    def reload(self) -> None:
        """Read the options that were set, take them over, and tell all subscribers."""
        self._configs.reload()
        self.tell()

    def changed(self, name: str) -> None:
        """Reload if the options of ``name`` (a broker's id, or the name of its node) hold for this broker."""
        if self._configs.concerns_this(name):
            self.reload()

    def alter(self, name: str, values: Mapping[str, str], removals: set[str], *, validate_only: bool = False) -> None:
        """Set and remove options of a broker, or of all. Those of this broker are in force when this returns.

        Raises ``InvalidConfigError``, ``InvalidRequestError``; then nothing has changed.
        """
        self._configs.alter(name, values, removals, validate_only=validate_only)
        self.changed(name)
