"""Folds in sliding windows (KIP-450).

A record at ``t`` belongs to the windows that contain it, and creates two of its own. The *left* window ``[t - d, t]``
ends with it. The *right* window ``[t + 1, t + 1 + d]`` begins after it and exists once it contains a record. So there
is one window for every set of records that fits into a window. All windows that would begin before the epoch are one,
``[0, d]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from millrace_streams.steps.fold import Folding, FoldStep
from millrace_streams.steps.fold_time_windows import emit_closed
from millrace_streams.stores.base import Stored, StoreKind
from millrace_streams.windows import SlidingWindows, window_end, windowed


@dataclass(frozen=True)
class SlidingWindowsStep(FoldStep):
    """Step of a ``FoldNode`` with sliding windows. A window is closed when ``end + grace < stream time``."""

    kind: ClassVar[StoreKind] = "window"

    @property
    def in_groups(self) -> bool:
        """False, because sliding windows depend on each other."""
        return False

    @property
    def window(self) -> SlidingWindows:
        """The windows."""
        window = self.node.window
        assert isinstance(window, SlidingWindows)
        return window

    def want_records(self, work: Folding) -> None:
        """Prefetch the windows of the records and their neighbours."""
        times = [work.times[turn] for turn in work.turns]
        if times:
            keys = {work.keys[turn] for turn in work.turns}
            latest_ms = window_end(max(times), 1)
            work.store.want_between(keys, min(times) - 2 * self.window.difference_ms, latest_ms)

    def fold_record(self, work: Folding, turn: int, stream_time_ms: int) -> None:
        """Update the windows that contain the record, and create its own."""
        length_ms, closed_ms = self.window.difference_ms, stream_time_ms - self.window.grace_ms
        time_ms = work.times[turn]
        if time_ms + 1 + length_ms <= closed_ms:
            work.out.dropped += 1
            return
        one = _Record(work, turn, work.keys[turn], time_ms, length_ms, closed_ms)
        one.early() if time_ms < length_ms else one.usual()

    def end_records(self, work: Folding) -> None:
        """Emit final results of closed windows, and expire windows."""
        store, length_ms = work.store, self.window.difference_ms
        if not self.node.on_close:
            store.expire()
            return
        emit_closed(store, work.turns, work.stream_times - self.window.grace_ms, length_ms, 1, work.out)
        store.expire(until_ms=store.number("closed") - length_ms)


@dataclass(slots=True)
class _Record:
    """One record that is being added to its windows."""

    work: Folding
    turn: int
    key: Any
    time_ms: int
    length_ms: int
    closed_ms: int

    def usual(self) -> None:
        """Update the windows that contain the record, later ones first, then create its own."""
        time_ms, length_ms = self.time_ms, self.length_ms
        windows = self.work.store.fetch_range(self.key, max(0, time_ms - 2 * length_ms), time_ms + 1)
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
        """Add a record whose left window would begin before the epoch to the window from 0."""
        time_ms = self.time_ms
        windows = self.work.store.fetch_range(self.key, 0, time_ms + 1)
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
        """Update the right window of the previous record, if this record is the first in it."""
        if previous_ms is None or previous_ms + 1 in starts:
            return
        if previous_ms + 1 + self.length_ms >= self.time_ms:
            self._update(previous_ms + 1, None)

    def _own_right(self, after: Stored | None, starts: set[int]) -> None:
        """Create the record's own right window, if later records exist already."""
        start = self.time_ms + 1
        if start in starts or after is None or after.timestamp <= self.time_ms:
            return
        self.work.store.put(self.key, start, after.value, after.timestamp)
        if self.work.changes is not None:
            key = windowed(self.key, start, window_end(start, self.length_ms))
            self.work.changes.add(self.turn, key, after.value, after.timestamp)

    def _update(self, start: int, stored: Stored | None) -> None:
        end = window_end(start, self.length_ms)
        if end < self.closed_ms:
            self.work.out.dropped += 1
            return
        key = windowed(self.key, start, end)
        self.work.store.put(self.key, start, *self.work.add(self.key, self.turn, stored, key))
