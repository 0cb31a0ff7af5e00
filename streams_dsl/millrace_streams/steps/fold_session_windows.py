"""What Python functions fold together in sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from millrace_streams.steps.fold import Folding, FoldStep, begin, go_on
from millrace_streams.stores import SessionStore
from millrace_streams.stores.base import StoreKind
from millrace_streams.windows import SessionWindows, Windowed

_TURNS_PER_EXPIRY: Final = 1024
"""Sessions that cannot be read any more are forgotten so often, that a large batch does not drag them along."""


@dataclass(frozen=True)
class SessionWindowsStep(FoldStep):
    """The step of a ``FoldNode`` with session windows.

    A record without a value counts, its aggregator gets None. A record joins all sessions of its key within the gap to
    one; each that it replaces is deleted. It comes too late if the session that it would make is closed:
    ``end + gap + grace < stream time``. A session's time is its end.
    """

    kind: ClassVar[StoreKind] = "session"
    needs_value: ClassVar[bool] = False
    in_groups: ClassVar[bool] = False

    def fold_record(self, work: Folding, turn: int, stream_time_ms: int) -> None:
        """Merge the sessions that a record joins."""
        store, window = work.store, self.node.window
        assert isinstance(window, SessionWindows)
        work.place.turn = turn
        closed_ms = stream_time_ms - window.grace_ms - window.gap_ms
        self._merge(work, window, turn, closed_ms)
        if self.node.on_close:
            _emit_closed(work, turn, closed_ms)
        if turn % _TURNS_PER_EXPIRY == 0:
            self._expire(store)

    def end_records(self, work: Folding) -> None:
        """Forget the sessions that are over."""
        self._expire(work.store)

    def _expire(self, store: SessionStore) -> None:
        store.expire(until_ms=store.number("closed") if self.node.on_close else None)

    def _merge(self, work: Folding, window: SessionWindows, turn: int, closed_ms: int) -> None:
        node, store, out, key, time_ms = work.node, work.store, work.out, work.keys[turn], work.times[turn]
        fold = node.folds[work.sides[turn]]
        assert fold.merger is not None
        found = store.find(key, time_ms - window.gap_ms, time_ms + window.gap_ms)
        start = end = time_ms
        for session, _ in found:
            start, end = min(start, session.start), max(end, session.end)
        if end < closed_ms:
            out.dropped += 1
            return
        aggregate = begin(fold)
        for _, value_before in found:
            first = fold.initializer is None and aggregate is None
            aggregate = value_before if first else fold.merger(key, aggregate, value_before)
        if (start, end) != (time_ms, time_ms):
            for session, value_before in found:
                store.put(session, None)
                if not node.on_close:
                    out.add(turn, session, None, session.end, value_before if node.sends_old else None)
        result = go_on(fold, key, work.values[turn], aggregate)
        merged = Windowed(key, start, end)
        store.put(merged, result)
        if not node.on_close:
            out.add(turn, merged, result, end)


def _emit_closed(work: Folding, turn: int, closed_ms: int) -> None:
    """Give the finals of the sessions that have closed since the last time."""
    store: SessionStore = work.store
    before_ms = store.number("closed")
    if closed_ms <= before_ms:
        return
    for session, value in store.ended(max(0, before_ms), closed_ms - 1):
        work.out.add(turn, session, value, session.end)
    store.numbers["closed"] = closed_ms
