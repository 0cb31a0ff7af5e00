"""Client metrics subscriptions (KIP-714), which this broker keeps for administrators.

As on a Kafka broker without a metrics receiver, no client is asked for metrics. The subscriptions are read from the
coordination service at each use, because only administrators use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from millrace.config.client_metrics import ClientMetricsConfig, check_match
from millrace.coordination import Coordination, paths
from millrace.errors import InvalidConfigError, InvalidRequestError
from millrace_broker.metadata.config_nodes import alter_options, read_config
from millrace_broker.metadata.option_changes import OptionChange


class ClientMetricsConfigs:
    """Configurations of subscriptions. All methods block, in the administration thread."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination: Final = coordination

    def names(self) -> list[str]:
        """Return the subscriptions that have options, sorted."""
        nodes = self._coordination.children(paths.CLIENT_METRICS_CONFIGS)
        return sorted(name for name in map(unquote, nodes) if self.overrides(name))

    def overrides(self, name: str) -> Mapping[str, str]:
        """Return the options that are set for a subscription. Raises ``InvalidRequestError`` for an empty name."""
        return read_config(self._coordination, _path(name))

    def alter(
        self,
        name: str,
        values: Mapping[str, OptionChange],
        removals: set[str],
        *,
        replaces: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Set and remove options of a subscription. One without options does not exist.

        Raises ``InvalidConfigError``, ``InvalidRequestError``; then nothing has changed.
        """
        path = _path(name)
        unknown = sorted((removals | values.keys()) - set(ClientMetricsConfig.option_names()))
        if unknown:
            raise InvalidRequestError(
                f"{', '.join(unknown)}: the options are {', '.join(ClientMetricsConfig.option_names())}"
            )
        alter_options(
            self._coordination,
            path,
            values,
            removals,
            _check,
            inherited=_default,
            replaces=replaces,
            validate_only=validate_only,
        )


def _default(option: str) -> str:
    return str(ClientMetricsConfig.load({}).options()[option])


def _path(name: str) -> str:
    if not name:
        raise InvalidRequestError("the name of the client metrics subscription is empty: name one")
    return paths.client_metrics_path(name)


def _check(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    try:
        config = ClientMetricsConfig.load(after)
    except InvalidConfigError as error:
        raise InvalidRequestError(error.message) from None  # as in Kafka
    check_match(config.match)
