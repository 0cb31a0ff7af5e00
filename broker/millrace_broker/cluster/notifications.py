"""Notices of changed configurations, ACLs and delegation tokens, for one broker.

A notice is a node in the metadata store. All brokers watch the parent of the notices.

Invariant: each notice is handled once, in order, under any session. A notice that comes while a broker has no session
is found by the next session. A notice that was not handled, because the metadata store did not answer, is found by the
next ``take``. A broker begins with the notices after its start.

Source: Kafka's ``ZkNodeChangeNotificationListener``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from millrace.acls import PatternType, ResourcePattern
from millrace.coordination import (
    ConnectionLossError,
    Coordination,
    Create,
    NoNodeError,
    Operation,
    SessionExpiredError,
    Watch,
    paths,
)
from millrace.coordination.acl_nodes import AclChangeNode, ExtendedAclChangeNode
from millrace.coordination.notices import ConfigChangeNode
from millrace.errors import MillraceError

_logger = logging.getLogger(__name__)

_KEPT_MS: Final = 15 * 60_000
"""The age at which notices are removed, in ms, relative to the newest notice.

A broker without a session for so long reads all configurations at its start. Ages come from ZooKeeper's clock only. A
broker whose own clock is fast would remove notices that other brokers have not read.
"""


def acl_notice(pattern: ResourcePattern) -> Operation:
    """Return the operation that announces changed ACLs of a pattern."""
    if pattern.pattern_type is PatternType.LITERAL:
        return Create(paths.ACL_CHANGE, AclChangeNode(pattern).encode(), sequential=True)
    return Create(paths.EXTENDED_ACL_CHANGE, ExtendedAclChangeNode(pattern).encode(), sequential=True)


def config_notifications() -> Notifications[str]:
    """Return the notices of changed configurations, each with its entity."""
    return Notifications(paths.CONFIG_CHANGES, lambda data: ConfigChangeNode.decode(data).entity_path)


def acl_notifications() -> tuple[Notifications[ResourcePattern], ...]:
    """Return the notices of changed ACLs, each with its pattern."""
    return (
        Notifications(paths.ACL_CHANGES, lambda data: AclChangeNode.decode(data).pattern),
        Notifications(paths.EXTENDED_ACL_CHANGES, lambda data: ExtendedAclChangeNode.decode(data).pattern),
    )


def token_notifications() -> Notifications[str]:
    """Return the notices of changed delegation tokens, each with the id of the token."""
    return Notifications(paths.DELEGATION_TOKEN_CHANGES, lambda data: data.decode("utf-8", "replace"))


Changed = TypeVar("Changed")


class Notifications(Generic[Changed]):
    """The notices of one kind that this broker has not handled yet. In the administration thread."""

    def __init__(self, root: str, read: Callable[[bytes], Changed]) -> None:
        """``root`` is the parent of the notices. ``read`` returns what a notice says has changed."""
        self._root: Final = root
        self._read: Final = read
        self._last = -1

    def skip(self, coordination: Coordination) -> None:
        """Skip the present notices. Call it before the configurations are read for the first time."""
        self._last = max(map(paths.sequence_of, coordination.children(self._root)), default=-1)

    def take(self, coordination: Coordination, watch: Watch, handle: Callable[[Changed], None]) -> None:
        """Handle the new notices, and set ``watch`` for the next one.

        ``handle`` is called with what has changed. Raises ``ConnectionLossError`` and
        ``SessionExpiredError``; then the notice is still new.
        """
        names = coordination.children(self._root, watch)
        new = sorted((name for name in names if paths.sequence_of(name) > self._last), key=paths.sequence_of)
        found = coordination.get_many([f"{self._root}/{name}" for name in new])
        for name, node in zip(new, found, strict=True):
            try:
                if node is not None:
                    handle(self._read(node[0]))
            except (ConnectionLossError, SessionExpiredError):
                raise
            except MillraceError as error:
                _logger.error("the change of %s/%s could not be applied: %s", self._root, name, error.message)
            self._last = paths.sequence_of(name)
        if new:
            self._remove_old(coordination, names)

    def _remove_old(self, coordination: Coordination, names: list[str]) -> None:
        nodes = [f"{self._root}/{name}" for name in names]
        found = coordination.get_many(nodes)
        created_ms = {path: node[1].created_ms for path, node in zip(nodes, found, strict=True) if node is not None}
        newest_ms = max(created_ms.values(), default=0)
        for path, at_ms in created_ms.items():
            if at_ms < newest_ms - _KEPT_MS:
                try:
                    coordination.delete(path)
                except NoNodeError:
                    continue  # another broker was faster
