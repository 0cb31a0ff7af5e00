"""What Python functions fold together in sliding windows (KIP-450).

A record at ``t`` falls into the windows that hold it, and brings two of its own: the *left* one, ``[t - d, t]``, ends
with it, the *right* one, ``[t + 1, t + 1 + d]``, begins after it and exists once it holds a record. So for every set of
records that fit into a window there is one. Windows that would begin before the epoch are one, ``[0, d]``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millrace_streams.graph import Fold
from millrace_streams.steps.flow import Emitted, Inputs, Place
from millrace_streams.steps.fold import FoldStep, begin, go_on
from millrace_streams.steps.fold_time_windows import advance, emit_closed
from millrace_streams.steps.operator import AnyStoreSpec, State
from millrace_streams.stores import StoreSpec, WindowStore
from millrace_streams.stores.base import Stored
from millrace_streams.windows import SlidingWindows, Windowed


@dataclass(frozen=True)
class SlidingWindowsStep(FoldStep):
    """The step of a ``FoldNode`` with sliding windows.

    Records without a key or a value are dropped. A window is closed when ``end + grace < stream time``.
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
        assert isinstance(window, SlidingWindows)
        for place.turn, side, row in inputs.turns():
            batch = inputs.batches[side]
            key, value, time_ms = batch.keys[row], batch.values[row], batch.times[row]
            if key is None or value is None:
                out.dropped += 1
                continue
            closed_ms = advance(store, side, time_ms) - window.grace_ms
            if time_ms + 1 + window.difference_ms <= closed_ms:
                out.dropped += 1
            else:
                one = _Record(self, store, node.folds[side], place.turn, key, value, time_ms, closed_ms, out)
                one.early() if time_ms < window.difference_ms else one.usual()
            if node.on_close:
                emit_closed(store, place.turn, closed_ms, window.difference_ms, 1, out)
        until_ms = max(0, store.number("closed") - window.difference_ms) if node.on_close else None
        store.expire(until_ms=until_ms)


@dataclass(slots=True)
class _Record:
    """One record on its way into its windows."""

    step: SlidingWindowsStep
    store: WindowStore
    fold: Fold
    turn: int
    key: Any
    value: Any
    time_ms: int
    closed_ms: int
    out: Emitted
    length_ms: int = field(init=False)

    def __post_init__(self) -> None:
        window = self.step.node.window
        assert isinstance(window, SlidingWindows)
        self.length_ms = window.difference_ms

    def usual(self) -> None:
        """Update the windows that hold the record, the later ones first, then make those that it brings."""
        time_ms, length_ms = self.time_ms, self.length_ms
        windows = self.store.fetch_range(self.key, max(0, time_ms - 2 * length_ms), time_ms + 1)
        starts = {start for start, _ in windows}
        after: Stored | None = None
        left: Stored | None = None
        previous_ms: int | None = None
        for start, stored in reversed(windows):
            end = start + length_ms
            if start == time_ms + 1:
                continue
            if end > time_ms:
                after = after or stored
                self._update(start, stored)
            elif end == time_ms:
                self._update(start, stored)
                if stored.timestamp >= time_ms:
                    return
                previous_ms = stored.timestamp
            else:
                left, previous_ms = stored, stored.timestamp
                break
        self._after_previous(previous_ms, starts)
        if time_ms - length_ms not in starts:
            within = previous_ms is not None and previous_ms >= time_ms - length_ms
            self._update(time_ms - length_ms, left if within else None)
        self._own_right(after, starts)

    def early(self) -> None:
        """A record whose left window would begin before the epoch goes into the window from 0 on."""
        time_ms = self.time_ms
        windows = self.store.fetch_range(self.key, 0, time_ms + 1)
        starts = {start for start, _ in windows}
        combined: Stored | None = None
        after: Stored | None = None
        previous_ms: int | None = None
        for start, stored in windows:
            if start == 0:
                combined = stored
                if stored.timestamp < time_ms:
                    previous_ms = stored.timestamp
            elif start <= time_ms:
                after = stored
                self._update(start, stored)
        if after is None and combined is not None and combined.timestamp > time_ms:
            after = combined
        self._own_right(after, starts)
        self._after_previous(previous_ms, starts)
        self._update(0, combined)

    def _after_previous(self, previous_ms: int | None, starts: set[int]) -> None:
        """The right window of the record before, if this one is the first in it."""
        if previous_ms is None or previous_ms + 1 in starts:
            return
        if previous_ms + 1 + self.length_ms >= self.time_ms:
            self._update(previous_ms + 1, None)

    def _own_right(self, after: Stored | None, starts: set[int]) -> None:
        """The record's own right window, if records after it are there already."""
        start = self.time_ms + 1
        if start in starts or after is None or after.timestamp <= self.time_ms:
            return
        self.store.put(self.key, start, after.value, after.timestamp)
        if not self.step.node.on_close:
            key = Windowed(self.key, start, start + self.length_ms)
            self.out.add(self.turn, key, after.value, after.timestamp)

    def _update(self, start: int, stored: Stored | None) -> None:
        end = start + self.length_ms
        if end < self.closed_ms:
            self.out.dropped += 1
            return
        before = stored.value if stored is not None else begin(self.fold)
        time_ms = self.time_ms if stored is None else max(self.time_ms, stored.timestamp)
        result = go_on(self.fold, self.key, self.value, before)
        self.store.put(self.key, start, result, time_ms)
        node = self.step.node
        if not node.on_close:
            old = before if node.sends_old else None
            self.out.add(self.turn, Windowed(self.key, start, end), result, time_ms, old)
