"""Folds in tumbling, hopping and unlimited windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import polars as pl

from millrace_streams.steps.batch import TIMESTAMP, Batch, Rows
from millrace_streams.steps.flow import Emitted
from millrace_streams.steps.fold import Folding, FoldStep, Placed
from millrace_streams.steps.groups import Groups
from millrace_streams.steps.window_assignment import STREAM_TIME, WINDOW, in_open_windows, in_windows, newest_start_ms
from millrace_streams.stores import WindowStore
from millrace_streams.stores.base import Stored, StoreKind
from millrace_streams.windows import FOREVER_MS, TimeWindows, UnlimitedWindows, length_of, window_end, windowed

_ROW: Final = "__row"


@dataclass(frozen=True)
class TimeWindowsStep(FoldStep):
    """Step of a ``FoldNode`` with time windows.

    A record without a value counts, and its aggregator gets None. Each input has its own stream time; a window is
    closed when ``end + grace <= stream time``. On close, final results are emitted in order of window and key.
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
        """Return the open windows of each record."""
        times = batch.frame[TIMESTAMP].to_numpy()[counted]
        stream_times = np.maximum.accumulate(np.maximum(times, store.number("stream_time_0")))
        if len(stream_times):
            store.numbers["stream_time_0"] = int(stream_times[-1])
        rows, starts = self._open_windows(counted, times, stream_times, out)
        return Placed(rows, starts, counted, stream_times - self.window.grace_ms)

    def stored(self, store: WindowStore, key: Any, start: int) -> Stored | None:
        """Return the stored aggregate of a window."""
        return store.fetch(key, start)

    def newest(self, times: Rows) -> Rows:
        """Return the start of the newest window by the largest time so far."""
        assert isinstance(self.window, TimeWindows)
        # No window can start at the largest time.
        return newest_start_ms(np.minimum(times, FOREVER_MS - 1), self.window.advance_ms)

    def want(self, store: WindowStore, groups: Groups) -> None:
        """Prefetch the windows."""
        store.want_entries(zip(groups.keys, groups.starts, strict=True))

    def want_records(self, work: Folding) -> None:
        """Prefetch the windows of the records."""
        turns, times = np.asarray(work.turns, dtype=np.int64), np.asarray(work.times, dtype=np.int64)
        turns, starts = self._open_windows(turns, times[turns], work.stream_times, work.out)
        for turn, start in zip(turns.tolist(), starts.tolist(), strict=True):
            work.starts.setdefault(turn, []).append(start)
        work.store.want_entries((work.keys[turn], start) for turn, each in work.starts.items() for start in each)

    def put(self, store: WindowStore, key: Any, start: int, value: Any, time_ms: int) -> None:
        """Store the aggregate of a window."""
        store.put(key, start, value, time_ms)

    def finish(self, placed: Placed, store: WindowStore, out: Emitted) -> None:
        """Emit final results of closed windows, and expire windows."""
        if self.node.on_close and isinstance(self.window, TimeWindows):
            emit_closed(store, placed.counted, placed.closed, self.window.size_ms, 0, out)
            store.expire(until_ms=store.number("closed") - self.window.size_ms + 1)
        else:
            store.expire()

    def fold_record(self, work: Folding, turn: int, stream_time_ms: int) -> None:
        """Fold one record of several inputs into each of its windows; there are no final results."""
        store, key = work.store, work.keys[turn]
        for start in work.starts.get(turn, ()):
            result_key = windowed(key, start, window_end(start, length_of(self.window)))
            store.put(key, start, *work.add(key, turn, store.fetch(key, start), result_key))

    def end_records(self, work: Folding) -> None:
        """Expire windows."""
        work.store.expire()

    def _open_windows(self, rows: Rows, times: Rows, stream_times: Rows, out: Emitted) -> tuple[Rows, Rows]:
        """Return row and start for each open window of a row."""
        records = pl.DataFrame({_ROW: rows, TIMESTAMP: times, STREAM_TIME: stream_times})
        placed = in_windows(records, self.window)
        accepted = in_open_windows(placed, self.window)
        out.dropped += placed.height - accepted.height
        return accepted[_ROW].to_numpy(), accepted[WINDOW].to_numpy()


def emit_closed(
    store: WindowStore, turns: Sequence[int] | Rows, closed: Rows, length_ms: int, inclusive: int, out: Emitted
) -> None:
    """Emit the final results of closed windows, each at the turn that closed it.

    A window of ``length_ms`` is closed if its end is at or (``inclusive``: 1) before the turn's number in ``closed``. A
    closed window never changes, so it can be read at the end of the batch.
    """
    before_ms = store.number("closed")
    if not len(closed) or closed[-1] <= before_ms:
        return
    last_ms = int(closed[-1])
    first = max(0, before_ms - length_ms - inclusive + 1)
    # Windows that would reach beyond the largest time end there.
    last = FOREVER_MS if last_ms - inclusive == FOREVER_MS else last_ms - length_ms - inclusive
    for key, start, stored in store.started(first, last):
        end = window_end(start, length_ms)
        place = int(np.searchsorted(closed, end + inclusive))
        out.add(int(turns[place]), windowed(key, start, end), stored.value, stored.timestamp)
    store.numbers["closed"] = last_ms
