"""What Python functions fold together in sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from millrace_streams.steps.flow import Emitted, Inputs, Place
from millrace_streams.steps.fold import FoldStep, begin, go_on
from millrace_streams.steps.fold_time_windows import advance
from millrace_streams.steps.operator import AnyStoreSpec, State
from millrace_streams.stores import SessionStore, StoreSpec
from millrace_streams.windows import SessionWindows, Windowed

_TURNS_PER_EXPIRY: Final = 1024
"""Sessions that cannot be read any more are forgotten so often, that a large batch does not drag them along."""


@dataclass(frozen=True)
class SessionWindowsStep(FoldStep):
    """The step of a ``FoldNode`` with session windows.

    Records without a key are dropped; one without a value is not, its aggregator gets None. A record joins all sessions
    of its key within the gap to one; each that it replaces is deleted. It comes too late if the session that it would
    make is closed: ``end + gap + grace < stream time``. A session's time is its end.
    """

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The aggregates by session."""
        node = self.node
        assert node.window is not None
        layout = self.operator.result
        return (StoreSpec(name=node.store, kind="session", layout=layout, retention_ms=node.window.retention_ms),)

    def fold(self, inputs: Inputs, state: State, place: Place, out: Emitted) -> None:
        """Handle the records in turn."""
        node, store = self.node, state.stores[self.node.store]
        window = node.window
        assert isinstance(store, SessionStore)
        assert isinstance(window, SessionWindows)
        for place.turn, side, row in inputs.turns():
            batch = inputs.batches[side]
            key, value, time_ms = batch.keys[row], batch.values[row], batch.times[row]
            if key is None:
                out.dropped += 1
                continue
            closed_ms = advance(store, side, time_ms) - window.grace_ms - window.gap_ms
            self._merge(store, side, place.turn, key, value, time_ms, closed_ms, out)
            if node.on_close:
                _emit_closed(store, place.turn, closed_ms, out)
            if place.turn % _TURNS_PER_EXPIRY == 0:
                store.expire(until_ms=store.number("closed") if node.on_close else None)
        store.expire(until_ms=store.number("closed") if node.on_close else None)

    def _merge(
        self,
        store: SessionStore,
        side: int,
        turn: int,
        key: Any,
        value: Any,
        time_ms: int,
        closed_ms: int,
        out: Emitted,
    ) -> None:
        node = self.node
        fold, window = node.folds[side], node.window
        assert isinstance(window, SessionWindows)
        assert fold.merger is not None
        found = store.find(key, time_ms - window.gap_ms, time_ms + window.gap_ms)
        start = min([time_ms, *(session.start for session, _ in found)])
        end = max([time_ms, *(session.end for session, _ in found)])
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
        result = go_on(fold, key, value, aggregate)
        merged = Windowed(key, start, end)
        store.put(merged, result)
        if not node.on_close:
            out.add(turn, merged, result, end)


def _emit_closed(store: SessionStore, turn: int, closed_ms: int, out: Emitted) -> None:
    """Give the finals of the sessions that have closed since the last time."""
    before_ms = store.number("closed")
    if closed_ms <= before_ms:
        return
    for session, value in store.ended(max(0, before_ms), closed_ms - 1):
        out.add(turn, session, value, session.end)
    store.numbers["closed"] = closed_ms
