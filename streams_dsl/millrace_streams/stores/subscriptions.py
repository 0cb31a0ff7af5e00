"""Subscription store: left rows of a foreign-key join, by foreign key.

The foreign key of a left row is the key of its right row. Kafka Streams' class is a key-value store with combined keys.
A subscription is set or removed without reading the others of its right key, which may be many. Only a change of the
right row reads them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from millrace_streams.serdes import sort_key
from millrace_streams.stores.base import Change, ObjectStore, Place, Stored


@dataclass(slots=True)
class SubscriptionStore(ObjectStore):
    """Digests of left rows by right key and left key.

    An identity is the pair of both keys. ``_changed`` has the identities below that a load must not restore, because a
    later change replaces them.
    """

    _subscribers: dict[Any, dict[Any, Stored]] = field(default_factory=dict)
    _changed: set[Hashable] = field(default_factory=set)

    def of(self, key: Any) -> list[tuple[Any, Any]]:
        """Return the left keys that subscribe to a right key, with their digests, in order."""
        if self._below is not None:
            self._want_one(key)
        found = self._subscribers.get(key, {})
        return [(left_key, found[left_key].value) for left_key in sorted(found, key=sort_key)]

    def put(self, key: Any, left_key: Any, digest: Any, time_ms: int) -> None:
        """Set the digest of a left key's subscription; None removes it."""
        identity = (key, left_key)
        # No operator reads a subscription as of the start of the batch.
        self._undo[identity] = None
        if self._below is not None:
            self._changed.add(identity)
        if digest is not None:
            self._subscribers.setdefault(key, {})[left_key] = Stored(digest, time_ms)
            return
        found = self._subscribers.get(key, {})
        found.pop(left_key, None)
        if not found:
            self._subscribers.pop(key, None)

    def commit(self) -> Change:
        """End a batch; returns its changes."""
        # Earlier versions stored no time here, and all subscriptions of a right key as one entry.
        self.kept_from_ms = max(self.kept_from_ms, 0)
        return ObjectStore.commit(self)

    def restore(self, identity: Hashable, entry: Any) -> None:
        """Restore a stored entry."""
        if identity not in self._changed:
            key, left_key = cast("tuple[Any, Any]", identity)
            self._subscribers.setdefault(key, {})[left_key] = entry

    def place_of(self, identity: Hashable) -> Place:
        """Return the right key."""
        return cast("tuple[Any, Any]", identity)[0]

    def entry(self, identity: Hashable) -> Stored | None:
        """Return a subscription that is in memory."""
        key, left_key = cast("tuple[Any, Any]", identity)
        return self._subscribers.get(key, {}).get(left_key)

    def entries(self) -> Iterator[tuple[Any, Stored]]:
        """Return all subscriptions, by right key and left key."""
        self.want_all()
        found = ((key, left_key) for key, each in self._subscribers.items() for left_key in each)
        return iter(
            [(identity, self._subscribers[identity[0]][identity[1]]) for identity in sorted(found, key=sort_key)]
        )
