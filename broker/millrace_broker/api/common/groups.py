"""A group by its id, of either kind: their coordinators may be different brokers."""

from __future__ import annotations

from millrace.errors import GroupIdNotFoundError, NotCoordinatorError
from millrace_broker.broker import Broker
from millrace_broker.groups import Entry
from millrace_broker.share_groups import ShareGroup


def find_group(broker: Broker, group_id: str) -> Entry | ShareGroup:
    """The group, as far as this broker is its coordinator.

    Raises ``NotCoordinatorError`` when it coordinates neither kind of this id, ``GroupIdNotFoundError``,
    ``CoordinatorLoadInProgressError``.
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
