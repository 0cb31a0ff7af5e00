"""What brokers tell each other of changed configurations, by nodes under ``/config/changes`` that all of them watch.

Invariants
* A change is in its own node before its notice is (one transaction), so whoever hears of it reads it.
* Each notice is handled once, in order, whichever session reads it; one that comes while a broker has no session is
  found by the next. A broker begins with those that come after its start.

Source: Kafka's ``ZkNodeChangeNotificationListener``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from millrace.coordination import Coordination, Create, NoNodeError, Operation, Watch, paths
from millrace.coordination.notices import ConfigChangeNode
from millrace.errors import MillraceError

_logger = logging.getLogger(__name__)

_KEPT_MS: Final = 15 * 60_000
"""Notices are removed when they are so much older than the newest; whoever was away for so long reads all at its start.

By ZooKeeper's clock alone: a broker whose own is fast would take from others what they have yet to hear.
"""


def notice(entity: str) -> Operation:
    """What is to be written with a change of the configuration of ``entity`` (``paths.config_entity``)."""
    return Create(paths.CONFIG_CHANGE, ConfigChangeNode(entity).encode(), sequential=True)


class Notifications:
    """The notices that this broker has yet to hear of. In the administration thread."""

    def __init__(self) -> None:
        self._last = -1

    def skip(self, coordination: Coordination) -> None:
        """Pass over what is there already: to be called before the configurations are read for the first time."""
        self._last = max(map(paths.sequence_of, coordination.children(paths.CONFIG_CHANGES)), default=-1)

    def take(self, coordination: Coordination, watch: Watch, handle: Callable[[str], None]) -> None:
        """Handle what is new, and have ``watch`` told when something follows.

        ``handle`` is given the entity whose configuration changed.
        """
        names = coordination.children(paths.CONFIG_CHANGES, watch)
        new = sorted((name for name in names if paths.sequence_of(name) > self._last), key=paths.sequence_of)
        found = coordination.get_many([f"{paths.CONFIG_CHANGES}/{name}" for name in new])
        for name, node in zip(new, found, strict=True):
            self._last = paths.sequence_of(name)
            if node is None:
                continue
            try:
                handle(ConfigChangeNode.decode(node[0]).entity_path)
            except MillraceError as error:
                _logger.error("the changed configuration of %s could not be taken over: %s", name, error.message)
        if new:
            self._remove_old(coordination, names)

    def _remove_old(self, coordination: Coordination, names: list[str]) -> None:
        nodes = [f"{paths.CONFIG_CHANGES}/{name}" for name in names]
        found = coordination.get_many(nodes)
        created_ms = {path: node[1].created_ms for path, node in zip(nodes, found, strict=True) if node is not None}
        newest_ms = max(created_ms.values(), default=0)
        for path, at_ms in created_ms.items():
            if at_ms < newest_ms - _KEPT_MS:
                try:
                    coordination.delete(path)
                except NoNodeError:
                    continue  # another broker was faster
