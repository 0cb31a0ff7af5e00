"""What Python functions fold together in tumbling, hopping and unlimited windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millrace_streams.steps.flow import Emitted, Inputs, Place
from millrace_streams.steps.fold import FoldStep, begin, go_on
from millrace_streams.steps.operator import AnyStoreSpec, State
from millrace_streams.stores import StoreSpec, WindowStore
from millrace_streams.windows import TimeWindows, UnlimitedWindows, Windowed


@dataclass(frozen=True)
class TimeWindowsStep(FoldStep):
    """The step of a ``FoldNode`` with time windows.

    Records without a key are dropped; one without a value is not, its aggregator gets None. Each input has its own
    stream time: the largest time that it has brought; a window is closed when ``end + grace <= stream time``. On close,
    finals go out in order of window and key.
    """

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The aggregates by window."""
        node = self.node
        assert node.window is not None
        layout = self.operator.result
        return (StoreSpec(name=node.store, kind="window", layout=layout, retention_ms=node.window.retention_ms),)

    def fold(self, inputs: Inputs, state: State, place: Place, out: Emitted) -> None:
        """Handle the records in turn."""
        node, store = self.node, state.stores[self.node.store]
        window = node.window
        assert isinstance(store, WindowStore)
        assert isinstance(window, TimeWindows | UnlimitedWindows)
        for place.turn, side, row in inputs.turns():
            batch = inputs.batches[side]
            key, value, time_ms = batch.keys[row], batch.values[row], batch.times[row]
            if key is None:
                out.dropped += 1
                continue
            closed_ms = advance(store, side, time_ms) - window.grace_ms
            for start, end in window.windows_for(time_ms):
                if end > closed_ms:
                    self._update(store, side, place.turn, Windowed(key, start, end), value, time_ms, out)
                else:
                    out.dropped += 1
            if node.on_close and isinstance(window, TimeWindows):
                emit_closed(store, place.turn, closed_ms, window.size_ms, 0, out)
        store.expire(until_ms=emitted_before(store, window) if node.on_close else None)

    def _update(
        self, store: WindowStore, side: int, turn: int, key: Windowed, value: Any, time_ms: int, out: Emitted
    ) -> None:
        node = self.node
        fold = node.folds[side]
        stored = store.fetch(key.key, key.start)
        before = stored.value if stored is not None else begin(fold)
        time_ms = time_ms if stored is None else max(time_ms, stored.timestamp)
        result = go_on(fold, key.key, value, before)
        store.put(key.key, key.start, result, time_ms)
        if not node.on_close:
            out.add(turn, key, result, time_ms, before if node.sends_old else None)


def advance(store: Any, side: int, time_ms: int) -> int:
    """Move an input's stream time on, and give it."""
    name = f"stream_time_{side}"
    stream_time_ms: int = max(store.number(name), time_ms)
    store.numbers[name] = stream_time_ms
    return stream_time_ms


def emit_closed(store: WindowStore, turn: int, closed_ms: int, length_ms: int, inclusive: int, out: Emitted) -> None:
    """Give the finals of the windows that have closed since the last time.

    A window of ``length_ms`` is closed when its end lies at or (``inclusive``: 1) before ``closed_ms``.
    """
    before_ms = store.number("closed")
    if closed_ms <= before_ms:
        return
    first = max(0, before_ms - length_ms - inclusive + 1)
    for key, start, stored in list(store.started(first, closed_ms - length_ms - inclusive)):
        out.add(turn, Windowed(key, start, start + length_ms), stored.value, stored.timestamp)
    store.numbers["closed"] = closed_ms


def emitted_before(store: WindowStore, window: TimeWindows | UnlimitedWindows) -> int | None:
    """The earliest start of a window whose final is still to come: none of these may be forgotten."""
    if not isinstance(window, TimeWindows):
        return None
    return max(0, store.number("closed") - window.size_ms + 1)
