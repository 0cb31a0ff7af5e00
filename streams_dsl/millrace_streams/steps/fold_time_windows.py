"""What Python functions fold together in tumbling, hopping and unlimited windows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from millrace_streams.steps.fold import Folding, FoldStep
from millrace_streams.stores import WindowStore
from millrace_streams.stores.base import StoreKind
from millrace_streams.windows import TimeWindows, UnlimitedWindows, Windowed


@dataclass(frozen=True)
class TimeWindowsStep(FoldStep):
    """The step of a ``FoldNode`` with time windows.

    A record without a value counts, its aggregator gets None. Each input has its own stream time; a window is closed
    when ``end + grace <= stream time``. On close, finals go out in order of window and key.
    """

    kind: ClassVar[StoreKind] = "window"
    needs_value: ClassVar[bool] = False

    def fold(self, work: Folding) -> None:
        """Fold by key and window, the earlier windows of a record first."""
        node, store, window = work.node, work.store, work.node.window
        assert isinstance(window, TimeWindows | UnlimitedWindows)
        closed = [time_ms - window.grace_ms for time_ms in work.stream_times()]
        groups = work.grouped(self._windows(work, window, closed))
        for (start, end, key), turns in (
            sorted(groups, key=lambda group: group[0][0]) if len(node.folds) == 1 else groups
        ):
            store.put(key, start, *work.grow(key, turns, store.fetch(key, start), Windowed(key, start, end)))
        if node.on_close and isinstance(window, TimeWindows):
            emit_closed(work, closed, window.size_ms, 0)
        store.expire(until_ms=_emitted_before(store, window) if node.on_close else None)

    def _windows(
        self, work: Folding, window: TimeWindows | UnlimitedWindows, closed: list[int]
    ) -> Iterator[tuple[tuple[int, int, Any], int]]:
        """The open windows of each record: start, end and key."""
        for turn, closed_ms in zip(work.turns, closed, strict=True):
            key = work.keys[turn]
            for start, end in window.windows_for(work.times[turn]):
                if end > closed_ms:
                    yield (start, end, key), turn
                else:
                    work.out.dropped += 1


def emit_closed(work: Folding, closed: list[int], length_ms: int, inclusive: int) -> None:
    """Give the finals of the windows that have closed, each at the turn that closed it.

    A window of ``length_ms`` is closed when its end lies at or (``inclusive``: 1) before the turn's number in
    ``closed``; from then on nothing changes it, so that it may be asked for at the end of the batch.
    """
    store: WindowStore = work.store
    before_ms = store.number("closed")
    if not closed or closed[-1] <= before_ms:
        return
    first = max(0, before_ms - length_ms - inclusive + 1)
    for key, start, stored in store.started(first, closed[-1] - length_ms - inclusive):
        turn = work.turns[bisect_left(closed, start + length_ms + inclusive)]
        work.out.add(turn, Windowed(key, start, start + length_ms), stored.value, stored.timestamp)
    store.numbers["closed"] = closed[-1]


def _emitted_before(store: Any, window: TimeWindows | UnlimitedWindows) -> int | None:
    """The earliest start of a window whose final is still to come: none of these may be forgotten."""
    if not isinstance(window, TimeWindows):
        return None
    return max(0, int(store.number("closed")) - window.size_ms + 1)
