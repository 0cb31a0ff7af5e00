"""Configuration in force, from the broker's file and dynamic options (KIP-226).

Invariant: ``current`` is replaced as a whole, and every subscriber is called after each replacement, in the order of
the subscriptions. Code that reads ``current`` on each use needs no subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace_broker.metadata import BrokerConfigs
from millrace_broker.metadata.option_changes import OptionChange

TakeConfig = Callable[[BrokerConfig], None]
"""Applies another configuration. Called in the administration thread."""


class LiveConfig:
    """Configuration of one broker, Kafka's ``DynamicBrokerConfig``. Changed only in the administration thread."""

    def __init__(self, configs: BrokerConfigs) -> None:
        self._configs: Final = configs
        self._subscribers: Final[list[TakeConfig]] = []
        self.current = configs.current

    def subscribe(self, take: TakeConfig) -> None:
        """Call ``take`` with each configuration that comes into force."""
        self._subscribers.append(take)

    def add_check(self, check: Callable[[BrokerConfig, BrokerConfig], None]) -> None:
        """Call ``check`` with the present and the next configuration before a change of this broker's is stored.

        It raises ``InvalidConfigError`` to refuse the change. Kafka's method is ``validateReconfiguration``.
        """
        self._configs.checks.append(check)

    def tell(self) -> None:
        """Apply the configuration that was read last, and call all subscribers."""
        self.current = self._configs.current
        for take in self._subscribers:
            take(self.current)

    def reload_all(self) -> None:
        """Read the dynamic options, apply them, and call all subscribers."""
        self._configs.reload()
        self.tell()

    def reload(self, name: str) -> None:
        """Reload if the options of ``name`` (a broker id or the name of its node) apply to this broker."""
        if self._configs.concerns_this(name):
            self.reload_all()

    def alter(
        self,
        name: str,
        values: Mapping[str, OptionChange],
        removals: set[str],
        *,
        replaces: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Set and remove options of one broker, or of all. Options of this broker are in force when the method returns.

        Raises ``InvalidConfigError``, ``InvalidRequestError``; then nothing has changed.
        """
        self._configs.alter(name, values, removals, replaces=replaces, validate_only=validate_only)
        self.reload(name)
