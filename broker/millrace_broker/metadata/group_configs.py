"""Group options over the broker's defaults, Kafka's ``GroupConfigManager``.

Options are read once and changed in one place.

Invariant: Options in force are within the broker's bounds. A value that is set must be within them. A stored value is
outside of them if the bounds have changed. It then counts as the nearest bound, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from millrace.config.broker import BrokerConfig
from millrace.config.group import BOUNDS, BROKER_DEFAULTS, GroupConfig
from millrace.coordination import Coordination, paths
from millrace.errors import InvalidConfigError, InvalidRequestError
from millrace_broker.metadata.config_nodes import alter_options, check_option_changes, read_config
from millrace_broker.metadata.option_changes import OptionChange

_logger = logging.getLogger(__name__)


class GroupConfigs:
    """Configurations of groups. Any thread may read; changes block, in the administration thread."""

    def __init__(self, coordination: Coordination, config: BrokerConfig) -> None:
        self._coordination: Final = coordination
        self._broker_options: Final[Mapping[str, Any]] = config.options()
        self._defaults: Final = {name: self._broker_options[option] for name, option in BROKER_DEFAULTS.items()}
        self._without_overrides: Final = GroupConfig.load(self._defaults)
        self._overrides: Final[dict[str, Mapping[str, str]]] = {}
        self._configs: Final[dict[str, GroupConfig]] = {}
        self.reload_all()

    def reload_all(self) -> None:
        """Read the overrides of every group."""
        for name in self._coordination.children(paths.GROUP_CONFIGS):
            self.reload(name)

    def reload(self, name: str) -> None:
        """Read the overrides of the group with the node ``name``."""
        group_id = bytes.fromhex(name).decode()
        self._replace(group_id, read_config(self._coordination, paths.group_config_path(group_id)))

    def _replace(self, group_id: str, overrides: Mapping[str, str]) -> None:
        usable = self._usable(group_id, overrides)
        self._configs[group_id] = self._in_force(group_id, usable)
        self._overrides[group_id] = usable

    def _usable(self, group_id: str, overrides: Mapping[str, str]) -> dict[str, str]:
        """Return the options that are valid here, because other tools may write any option."""
        usable = {}
        for name, value in overrides.items():
            try:
                GroupConfig.load({**self._defaults, name: value})
            except InvalidConfigError as error:
                _logger.error("an invalid option of group %s is ignored: %s", group_id, error.message)
            else:
                usable[name] = value
        return usable

    def _in_force(self, group_id: str, overrides: Mapping[str, str]) -> GroupConfig:
        config = GroupConfig.load({**self._defaults, **overrides})
        values: dict[str, Any] = config.options()
        capped = {}
        for name in BOUNDS.keys() & overrides.keys():
            least, most = self._bounds(name)
            capped[name] = min(max(values[name], least), most)
            if capped[name] != values[name]:
                _logger.warning(
                    "%s=%s of group %s is outside the broker's bounds, %d to %d: %d is in force",
                    *(name, values[name], group_id, least, most, capped[name]),
                )
        return GroupConfig.load({**values, **capped}) if capped else config

    def _bounds(self, name: str) -> tuple[int, int]:
        least, most = BOUNDS[name]
        return self._broker_options[least], self._broker_options[most]

    def names(self) -> list[str]:
        """Return the groups with overrides, sorted."""
        return sorted(name for name, overrides in self._overrides.items() if overrides)

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """Return the overrides of a group."""
        return self._overrides.get(group_id, {})

    def get(self, group_id: str) -> GroupConfig:
        """Return the configuration in force for a group."""
        return self._configs.get(group_id, self._without_overrides)

    def alter(
        self,
        group_id: str,
        values: Mapping[str, OptionChange],
        removals: set[str],
        *,
        replaces: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Set and remove options of a group, which need not exist yet.

        Raises ``InvalidConfigError``, ``InvalidRequestError``; then nothing has changed.
        """
        if not group_id:
            raise InvalidRequestError("the group id is empty: name a group")
        check_option_changes(f"group {group_id}", values, removals)
        unknown = sorted(removals - set(GroupConfig.option_names()))
        if unknown:
            raise InvalidConfigError(f"{', '.join(unknown)}: the options are {', '.join(GroupConfig.option_names())}")
        path = paths.group_config_path(group_id)
        after = alter_options(
            self._coordination,
            path,
            values,
            removals,
            self._check,
            inherited=lambda option: str(self._defaults.get(option, "")),
            replaces=replaces,
            validate_only=validate_only,
        )
        if not validate_only:
            self._replace(group_id, after)

    def _check(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Raise ``InvalidConfigError`` if the options of a group are wrong (Kafka's ``GroupConfig.validate``)."""
        values = GroupConfig.load({**self._defaults, **after}).options()
        for name in sorted(BOUNDS.keys() & after.keys()):
            least, most = self._bounds(name)
            if not least <= values[name] <= most:
                raise InvalidConfigError(
                    f"{name}={values[name]}: the broker accepts {least} to {most} ({' and '.join(BOUNDS[name])})"
                )
        for kind in ("consumer", "share"):
            session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if {session, heartbeat} & after.keys() and values[session] <= values[heartbeat]:
                raise InvalidConfigError(
                    f"{session}={values[session]} is not more than {heartbeat}={values[heartbeat]}: set a longer "
                    "session timeout"
                )
