"""Expiry of rows of a windowed table within a batch.

Joins that read the table need it. A window store reads rows as long as their window starts less than the retention
before the newest one. A session store does the same with the ends of sessions. So a record of any key can expire a row,
even if no change of its own reaches the join.

Kafka Streams processes the topology record by record. A join finds no row that has expired by then (``fetch`` of its
window and session stores). So the store's operator notes here which rows its turns expire, and joins compare the marks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from millrace_streams.steps.batch import NO_ROWS, Rows
from millrace_streams.steps.flow import Marks, in_order
from millrace_streams.steps.store import Store
from millrace_streams.stores import ExpiringStore, ObjectStore, SessionStore
from millrace_streams.windows import FOREVER_MS


@dataclass(slots=True)
class Expiry:
    """Oldest readable time of a store during a batch.

    The time is a window start, or with ``by_end`` a session end. ``before_ms`` is that time before the batch, and
    ``oldest_ms`` that after turns of the store's operator. Only turns that change it are kept, with their ``marks``.
    """

    before_ms: int
    by_end: bool = False
    marks: Marks | None = None
    oldest_ms: Rows = field(default_factory=lambda: NO_ROWS)

    @classmethod
    def of(cls, store: Store | ObjectStore) -> Expiry | None:
        """Return the expiry of a store as of the start of a batch; None if its rows do not expire."""
        if store.spec.retention_ms == FOREVER_MS:
            return None
        if isinstance(store, Store):
            return cls(store.kept_from_ms) if store.spec.window is not None else None
        if isinstance(store, ExpiringStore):
            return cls(store.oldest_ms, by_end=isinstance(store, SessionStore))
        return None

    def move(self, marks: Marks, oldest_ms: Rows) -> None:
        """Set the oldest readable start or end after the operator's turns, given by their marks, in order."""
        ascending = np.maximum.accumulate(np.append(self.before_ms, oldest_ms))
        moved = np.flatnonzero(np.diff(ascending))
        self.marks, self.oldest_ms = marks[moved], ascending[moved + 1]

    def at(self, marks: Marks) -> Rows:
        """Return the oldest readable start or end at each turn of a join, given by their marks, in order.

        A turn of the store's operator precedes the turns of the join that it causes, which have equal or later marks.
        """
        if self.marks is None or not len(self.marks):
            return np.full(len(marks), self.before_ms)
        own = in_order(np.concatenate([self.marks, marks])) < len(self.marks)
        return np.append(self.before_ms, self.oldest_ms)[np.cumsum(own)[~own]]
