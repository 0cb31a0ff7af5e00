"""Group options over the broker's defaults, read once and changed in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.config.group import GroupConfig
from millrace.coordination import Coordination, Operation, paths
from millrace.errors import InvalidConfigError, InvalidGroupIdError, InvalidRequestError
from millrace_broker.metadata.config_nodes import change_config, changed_options, read_config


class GroupConfigs:
    """Configurations of groups. Any thread may read; changes block, in the administration thread."""

    def __init__(
        self,
        coordination: Coordination,
        config: BrokerConfig,
        notices: Callable[[str], list[Operation]] = lambda entity: [],
    ) -> None:
        """Load the options. ``notices`` returns the writes that notify other brokers of an entity's change."""
        self._coordination: Final = coordination
        self._notices: Final = notices
        self._defaults: Final = {"share.auto.offset.reset": config.share_auto_offset_reset}
        self._overrides: Final[dict[str, dict[str, str]]] = {}
        self.reload_all()

    def reload_all(self) -> None:
        """Read the overrides of every group."""
        for name in self._coordination.children(paths.GROUP_CONFIGS):
            self.reload(name)

    def reload(self, name: str) -> None:
        """Read the overrides of the group with the node ``name``."""
        group_id = bytes.fromhex(name).decode()
        self._overrides[group_id] = read_config(self._coordination, paths.group_config_path(group_id))

    def names(self) -> list[str]:
        """Return the groups with overrides, sorted."""
        return sorted(name for name, overrides in self._overrides.items() if overrides)

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """Return the overrides of a group."""
        return self._overrides.get(group_id, {})

    def get(self, group_id: str) -> GroupConfig:
        """Return the configuration in force for a group."""
        return GroupConfig.load({**self._defaults, **self.overrides(group_id)})

    def alter(
        self, group_id: str, values: Mapping[str, str], removals: set[str], *, validate_only: bool = False
    ) -> None:
        """Set and remove options of a group, which need not exist yet.

        Raises ``InvalidConfigError``, ``InvalidGroupIdError``, ``InvalidRequestError``; then nothing has changed.
        """
        if not group_id:
            raise InvalidGroupIdError("the group id is empty: name a group")
        both = sorted(removals & values.keys())
        if both:
            raise InvalidRequestError(f"{', '.join(both)} of group {group_id} is both set and deleted")
        unknown = sorted(removals - set(GroupConfig.option_names()))
        if unknown:
            raise InvalidConfigError(f"{', '.join(unknown)}: the options are {', '.join(GroupConfig.option_names())}")

        def change(present: Mapping[str, str]) -> dict[str, str]:
            after = changed_options(present, values, removals)
            GroupConfig.load({**self._defaults, **after})
            return after

        path = paths.group_config_path(group_id)
        if validate_only:
            change(read_config(self._coordination, path))
            return
        notices = self._notices(path.removeprefix(f"{paths.CONFIGS}/"))
        self._overrides[group_id] = change_config(self._coordination, path, change, notices)
