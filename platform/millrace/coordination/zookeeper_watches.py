"""Watches of a ZooKeeper session.

Each watch is called once, and restored after a connection loss. When the connection ends, kazoo drops the watches and
calls each with an event without a type. Here each watch keeps the result of the read that set it. A second read then
shows whether a change was missed. Only the thread that delivers the session's events calls these methods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from kazoo.protocol.states import EventType as KazooEventType

from millrace.coordination.interface import EventType, NodeStat, Watch, WatchEvent
from millrace.coordination.zookeeper_client import node_stat

_logger = logging.getLogger(__name__)

_EVENT_TYPES: Final = {
    KazooEventType.CREATED: EventType.CREATED,
    KazooEventType.DELETED: EventType.DELETED,
    KazooEventType.CHANGED: EventType.CHANGED,
    KazooEventType.CHILD: EventType.CHILDREN,
}


class LeftWatch:
    """Watch as kazoo stores it, with the result of its read.

    ``answer`` is the result of the read that set the watch, so that a missed change is detected. kazoo stores one of
    several equal watches. Watches with the same function are equal, unless one is ``spent`` and ignored.
    """

    __slots__ = ("answer", "of_children", "path", "spent", "watch")

    def __init__(self, path: str, watch: Watch, *, of_children: bool) -> None:
        self.path: Final = path
        self.watch: Final = watch
        self.of_children: Final = of_children
        self.answer: Any = None
        """kazoo's result of the read, ready before kazoo stores the watch."""
        self.spent = False

    def __call__(self, event: object) -> None:
        """Fail: kazoo requires a callable, but ``SessionHandler`` calls ``watch`` itself."""
        raise AssertionError(f"{self.path}: called by kazoo with {event}")

    def __hash__(self) -> int:
        return hash(self.watch)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LeftWatch) or self is other:
            return self is other
        return self.watch == other.watch and not self.spent and not other.spent

    def found(self) -> NodeStat | None:
        """Return the node's stat at the read; None if it did not exist."""
        answer = self.answer.get_nowait()
        return node_stat(answer[1] if type(answer) is tuple else answer)


def missed_event(before: NodeStat | None, after: NodeStat | None, *, of_children: bool) -> EventType | None:
    """Return the event that an uncalled watch has missed, by the node's stat ``before`` and ``after``; None without
    one.

    As in ZooKeeper's own client, a node that was deleted and created again counts as changed.
    """
    if after is None:
        return None if before is None else EventType.DELETED
    if before is None:
        return EventType.CREATED
    if of_children:
        same = (before.created_id, before.children_version) == (after.created_id, after.children_version)
        return None if same else EventType.CHILDREN
    return None if before.modified_id == after.modified_id else EventType.CHANGED


class SessionWatches:
    """Watches of a session, which also detect missed events.

    ``look_again`` reads a watch's node and sets the watch again, if the node still exists. It returns the new watch
    and the node's stat.
    """

    def __init__(self, look_again: Callable[[LeftWatch], tuple[LeftWatch, NodeStat | None]]) -> None:
        self._look_again: Final = look_again
        self._lost: list[LeftWatch] = []
        self._last_event: object = None
        self._told: set[Watch] = set()

    def take(self, left: LeftWatch, event: Any) -> None:
        """Process an event. A function that watches a node and its children is called once for its deletion."""
        kind = _EVENT_TYPES.get(event.type)
        if left.spent:
            return
        if kind is None:
            self._lost.append(left)
            return
        left.spent = True
        if event is not self._last_event:  # kazoo passes the same object to all watches of a node
            self._last_event, self._told = event, set()
        if left.watch not in self._told:
            self._told.add(left.watch)
            tell(left.watch, WatchEvent(kind, left.path))

    def restore(self) -> None:
        """Call watches with missed events after a reconnect, and set the other watches again.

        Raises the errors of ``look_again``; the next call then continues with the remaining watches.
        """
        told: set[tuple[Watch, WatchEvent]] = set()
        while self._lost:
            left = self._lost[-1]
            before = left.found()
            again, after = self._look_again(left)
            self._lost.pop()
            kind = missed_event(before, after, of_children=left.of_children)
            if kind is None:
                continue
            again.spent = True
            event = WatchEvent(kind, left.path)
            if (left.watch, event) not in told:
                told.add((left.watch, event))
                tell(left.watch, event)

    def forget(self) -> None:
        """Drop all watches after the end of the session."""
        self._lost.clear()


def tell(call: Callable[[Any], None], told: object) -> None:
    """Call a watch or a listener; its error must not stop the others."""
    try:
        call(told)
    except Exception:
        _logger.exception("a watch failed")
