"""The watches of a session with ZooKeeper: told in order, once each, and looked after when a connection was lost.

kazoo leaves watches to their fate with the connection: it calls each with an event that has no type. What the read that
left a watch has found is kept with it, so that a look at the node as it is then shows whether something was missed.

All methods are called by the one thread that tells the session's events.
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
    """A watch as kazoo keeps it: with what the read that left it found, so that a missed change can be noticed.

    kazoo keeps one of those that are equal: those of the same function, unless one is ``spent`` and to be ignored.
    """

    __slots__ = ("answer", "of_children", "path", "spent", "watch")

    def __init__(self, path: str, watch: Watch, *, of_children: bool) -> None:
        self.path: Final = path
        self.watch: Final = watch
        self.of_children: Final = of_children
        self.answer: Any = None
        """kazoo's result of the read, ready before kazoo keeps the watch."""
        self.spent = False

    def __call__(self, event: object) -> None:
        """kazoo asks for something to call; ``SessionHandler`` calls ``watch`` itself."""
        raise AssertionError(f"{self.path}: called by kazoo with {event}")

    def __hash__(self) -> int:
        return hash(self.watch)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LeftWatch) or self is other:
            return self is other
        return self.watch == other.watch and not self.spent and not other.spent

    def found(self) -> NodeStat | None:
        """The node's bookkeeping when it was read; None: it was not there."""
        answer = self.answer.get_nowait()
        return node_stat(answer[1] if type(answer) is tuple else answer)


def missed_event(before: NodeStat | None, after: NodeStat | None, *, of_children: bool) -> EventType | None:
    """What a watch has to be told that was left when the node was as ``before`` and not called; None: nothing.

    As with ZooKeeper's own client, a node that was deleted and created again counts as changed.
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
    """Tells watches of events, and finds out what they missed.

    ``look_again`` reads a watch's node as it is now and leaves the watch anew, if there still is a node to leave it at;
    it returns the watch that it left and the node's bookkeeping.
    """

    def __init__(self, look_again: Callable[[LeftWatch], tuple[LeftWatch, NodeStat | None]]) -> None:
        self._look_again: Final = look_again
        self._lost: list[LeftWatch] = []
        self._last_event: object = None
        self._told: set[Watch] = set()

    def take(self, left: LeftWatch, event: Any) -> None:
        """An event for a watch. A function that watches a node and its children is told once of its deletion."""
        kind = _EVENT_TYPES.get(event.type)
        if left.spent:
            return
        if kind is None:
            self._lost.append(left)
            return
        left.spent = True
        if event is not self._last_event:  # kazoo hands the same object to all watches of a node
            self._last_event, self._told = event, set()
        if left.watch not in self._told:
            self._told.add(left.watch)
            tell(left.watch, WatchEvent(kind, left.path))

    def restore(self) -> None:
        """After a connection was regained: tell what was missed, leave the other watches anew.

        Raises what ``look_again`` raises; the watches that were not looked after then are so by the next call.
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
        """Drop all: the session is over."""
        self._lost.clear()


def tell(call: Callable[[Any], None], told: object) -> None:
    """Call a watch or a listener; its fault must not stop the others from hearing."""
    try:
        call(told)
    except Exception:
        _logger.exception("a watch failed")
