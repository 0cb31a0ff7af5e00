"""Look-up of a group of either kind by its id.

A consumer group and a share group may have different coordinators.
"""

from __future__ import annotations

from millrace.errors import GroupIdNotFoundError, NotCoordinatorError
from millrace_broker.broker import Broker
from millrace_broker.groups import GroupEntry
from millrace_broker.share_groups import ShareGroup


def find_group(broker: Broker, group_id: str) -> GroupEntry | ShareGroup:
    """Return the group if this broker is its coordinator.

    Raises ``NotCoordinatorError`` if this broker coordinates neither kind of group for the id. Raises
    ``GroupIdNotFoundError``, ``CoordinatorLoadInProgressError``.
    """
    refusals: list[NotCoordinatorError] = []
    for coordinator in (broker.groups, broker.share_groups):
        try:
            found = coordinator.find(group_id)
        except NotCoordinatorError as error:
            refusals.append(error)
            continue
        if found is not None:
            return found
    if len(refusals) == 2:
        raise refusals[0]
    raise GroupIdNotFoundError(f"there is no group {group_id}")
