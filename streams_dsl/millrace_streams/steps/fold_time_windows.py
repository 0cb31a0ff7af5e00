"""What Python functions fold together in tumbling, hopping and unlimited windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from millrace_streams.steps.batch import TIMESTAMP, Batch, Rows
from millrace_streams.steps.flow import Emitted
from millrace_streams.steps.fold import Folding, FoldStep, Placed
from millrace_streams.steps.groups import Groups
from millrace_streams.stores import WindowStore
from millrace_streams.stores.base import Stored, StoreKind
from millrace_streams.windows import TimeWindows, UnlimitedWindows, Windowed


@dataclass(frozen=True)
class TimeWindowsStep(FoldStep):
    """The step of a ``FoldNode`` with time windows.

    A record without a value counts, its aggregator gets None. Each input has its own stream time; a window is closed
    when ``end + grace <= stream time``. On close, finals go out in order of window and key.
    """

    kind: ClassVar[StoreKind] = "window"
    needs_value: ClassVar[bool] = False

    @property
    def window(self) -> TimeWindows | UnlimitedWindows:
        """The windows."""
        window = self.node.window
        assert isinstance(window, TimeWindows | UnlimitedWindows)
        return window

    def place(self, batch: Batch, counted: Rows, store: WindowStore, out: Emitted) -> Placed:
        """The open windows of each record."""
        window = self.window
        times = batch.frame[TIMESTAMP].to_numpy()[counted]
        stream_times = np.maximum.accumulate(np.maximum(times, store.number("stream_time_0")))
        if len(stream_times):
            store.numbers["stream_time_0"] = int(stream_times[-1])
        closed = stream_times - window.grace_ms
        places, starts = _windows_of(times, window)
        if isinstance(window, TimeWindows):
            is_open = starts + window.size_ms > closed[places]
            out.dropped += len(places) - int(is_open.sum())
            places, starts = places[is_open], starts[is_open]
        return Placed(counted[places], starts, counted, closed)

    def stored(self, store: WindowStore, key: Any, start: int) -> Stored | None:
        """What is stored of a window."""
        return store.fetch(key, start)

    def want(self, store: WindowStore, groups: Groups) -> None:
        """Announce the windows that will be asked for."""
        store.want_entries(zip(groups.keys, groups.starts, strict=True))

    def want_records(self, work: Folding) -> None:
        """Announce the windows that the records fall into."""
        windows = ((work.keys[turn], self.window.windows_for(work.times[turn])) for turn in work.turns)
        work.store.want_entries((key, start) for key, each in windows for start, _ in each)

    def put(self, store: WindowStore, key: Any, start: int, value: Any, time_ms: int) -> None:
        """Store what a window came to."""
        store.put(key, start, value, time_ms)

    def finish(self, placed: Placed, store: WindowStore, out: Emitted) -> None:
        """Give the finals of windows that have closed, forget those that are over."""
        if self.node.on_close and isinstance(self.window, TimeWindows):
            emit_closed(store, placed.counted, placed.closed, self.window.size_ms, 0, out)
            store.expire(until_ms=max(0, store.number("closed") - self.window.size_ms + 1))
        else:
            store.expire()

    def fold_record(self, work: Folding, turn: int, stream_time_ms: int) -> None:
        """Fold one record of several inputs, into its windows in turn; there are no finals of these."""
        store, key, window = work.store, work.keys[turn], self.window
        for start, end in window.windows_for(work.times[turn]):
            if end > stream_time_ms - window.grace_ms:
                store.put(key, start, *work.add(key, turn, store.fetch(key, start), Windowed(key, start, end)))
            else:
                work.out.dropped += 1

    def end_records(self, work: Folding) -> None:
        """Forget the windows that are over."""
        work.store.expire()


def _windows_of(times: Rows, window: TimeWindows | UnlimitedWindows) -> tuple[Rows, Rows]:
    """For each window of each record, ascending: the record's place among ``times``, and the window's start."""
    if isinstance(window, UnlimitedWindows):
        places = np.flatnonzero(times >= window.start_ms)
        return places, np.full(len(places), window.start_ms, dtype=np.int64)
    advance_ms = window.advance_ms
    first = np.maximum(0, times - window.size_ms + advance_ms) // advance_ms * advance_ms
    lengths = (times - first) // advance_ms + 1
    places = np.repeat(np.arange(len(times)), lengths)
    within = np.arange(len(places)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return places, first[places] + within * advance_ms


def emit_closed(
    store: WindowStore, turns: Sequence[int] | Rows, closed: Rows, length_ms: int, inclusive: int, out: Emitted
) -> None:
    """Give the finals of the windows that have closed, each at the turn that closed it.

    A window of ``length_ms`` is closed when its end lies at or (``inclusive``: 1) before the turn's number in
    ``closed``; from then on nothing changes it, so that it may be asked for at the end of the batch.
    """
    before_ms = store.number("closed")
    if not len(closed) or closed[-1] <= before_ms:
        return
    last_ms = int(closed[-1])
    first = max(0, before_ms - length_ms - inclusive + 1)
    for key, start, stored in store.started(first, last_ms - length_ms - inclusive):
        place = int(np.searchsorted(closed, start + length_ms + inclusive))
        out.add(int(turns[place]), Windowed(key, start, start + length_ms), stored.value, stored.timestamp)
    store.numbers["closed"] = last_ms
