"""Folds in sessions.

Sessions of different keys depend on each other only through time: up to when they are closed, and which ones have
expired. Both are known in advance. So records of one input are folded key by key. A key's sessions are fetched once and
stored once, and sessions that exist only in between are never stored. Final results on close concern all keys at once,
and several inputs have separate stream times; these are folded record by record.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from millrace_streams.graph import Fold
from millrace_streams.steps.batch import NO_TIMESTAMP, TIMESTAMP, Batch, Rows
from millrace_streams.steps.flow import Emitted, Output, Place
from millrace_streams.steps.fold import Folding, FoldStep, begin, go_on
from millrace_streams.steps.groups import group
from millrace_streams.stores import SessionStore
from millrace_streams.stores.base import StoreKind
from millrace_streams.windows import FOREVER_MS, SessionWindows, Windowed, windowed

_TURNS_PER_EXPIRY: Final = 1024
"""Interval of expiry, so that a large batch does not keep expired sessions."""


@dataclass(frozen=True)
class SessionWindowsStep(FoldStep):
    """Step of a ``FoldNode`` with session windows.

    A record without a value counts, and its aggregator gets None. A record merges all sessions of its key within the
    gap; each replaced session is deleted. It is late if the resulting session is closed: ``end + gap + grace < stream
    time``. A session's time is its end.
    """

    kind: ClassVar[StoreKind] = "session"
    needs_value: ClassVar[bool] = False

    @property
    def in_groups(self) -> bool:
        """True if keys can be folded one after the other."""
        return not self.node.on_close

    @property
    def window(self) -> SessionWindows:
        """The windows."""
        window = self.node.window
        assert isinstance(window, SessionWindows)
        return window

    def _fold_groups(
        self, batch: Batch, counted: Rows, store: SessionStore, place: Place, out: Emitted, changes: Emitted | None
    ) -> Output:
        out.dropped = batch.height - len(counted)
        closed_ms, oldest_ms = self._moments(batch, counted, store)
        groups = group(batch, counted)
        taken = batch.take(groups.rows)
        turns, values, times = groups.rows.tolist(), self.values_of(taken), taken.times
        first = 0
        # Fetch all before any is stored, because storing one key's sessions advances the expiry of another's.
        earliest_ms = min(taken.times, default=0) - self.window.gap_ms
        store.want_between(groups.keys, earliest_ms, FOREVER_MS)
        kept = [store.find(key, earliest_ms, FOREVER_MS) for key in groups.keys]
        for key, found, end in zip(groups.keys, kept, groups.ends, strict=True):
            sessions = _KeySessions(
                self, key, [_Session(each.end, each.start, value) for each, value in found], out, changes
            )
            for row in range(first, end):
                turn = place.turn = turns[row]
                sessions.add(turn, values[row], times[row], closed_ms[turn], oldest_ms[turn])
            sessions.put_back(store, found)
            first = end
        self._expire(store)
        return out.output(self.kept)

    def _moments(self, batch: Batch, counted: Rows, store: SessionStore) -> tuple[list[int], list[int]]:
        """Return for each row the time before which sessions are closed, and the end from which they are readable."""
        times = batch.frame[TIMESTAMP].to_numpy()[counted]
        stream_times = np.maximum.accumulate(np.append(store.number("stream_time_0"), times))
        # The newest session ends with the newest record, except a late one.
        newest_ends = np.maximum(stream_times[:-1], store.number("newest_end"))
        store.numbers["stream_time_0"] = int(stream_times[-1])
        moments = np.zeros((2, batch.height), dtype=np.int64)
        moments[0, counted] = stream_times[1:] - self.window.grace_ms - self.window.gap_ms
        moments[1, counted] = newest_ends - store.spec.retention_ms + 1
        return moments[0].tolist(), moments[1].tolist()

    def want_records(self, work: Folding) -> None:
        """Prefetch the sessions that the records may join."""
        times = [work.times[turn] for turn in work.turns]
        if times:
            keys = {work.keys[turn] for turn in work.turns}
            work.store.want_between(keys, min(times) - self.window.gap_ms, FOREVER_MS)

    def fold_record(self, work: Folding, turn: int, stream_time_ms: int) -> None:
        """Merge the sessions that a record joins."""
        store, key, time_ms = work.store, work.keys[turn], work.times[turn]
        work.place.turn = turn
        closed_ms = stream_time_ms - self.window.grace_ms - self.window.gap_ms
        gap_ms = self.window.gap_ms
        found = store.find(key, time_ms - gap_ms, time_ms + gap_ms)
        kept = [_Session(each.end, each.start, value) for each, value in found]
        sessions = _KeySessions(self, key, kept, work.out, work.changes)
        sessions.add(turn, work.values[turn], time_ms, closed_ms, store.oldest_ms, side=work.sides[turn])
        sessions.put_back(store, found)
        if self.node.on_close:
            _emit_closed(work, turn, closed_ms)
        if turn % _TURNS_PER_EXPIRY == 0:
            self._expire(store)

    def end_records(self, work: Folding) -> None:
        """Expire sessions."""
        self._expire(work.store)

    def _expire(self, store: SessionStore) -> None:
        store.expire(until_ms=store.number("closed") if self.node.on_close else None)


class _Session(NamedTuple):
    """A session, in merge order: by end."""

    end: int
    start: int
    value: Any


@dataclass(slots=True)
class _KeySessions:
    """The sessions of a key, by end, while records are added. ``out`` and ``changes`` are those of ``FoldStep.run``."""

    step: SessionWindowsStep
    key: Any
    kept: list[_Session]
    out: Emitted
    changes: Emitted | None
    changed: set[tuple[int, int]] = field(default_factory=set)

    def add(self, turn: int, value: Any, time_ms: int, closed_ms: int, oldest_ms: int, *, side: int = 0) -> None:
        """Merge a record with the sessions within the gap whose end is at least ``oldest_ms``."""
        node, gap_ms, key, changes = self.step.node, self.step.window.gap_ms, self.key, self.changes
        found = self._near(max(time_ms - gap_ms, oldest_ms), time_ms + gap_ms)
        start = min((time_ms, *(session.start for session in found)))
        end = max((time_ms, *(session.end for session in found)))
        if end < closed_ms:
            self.out.dropped += 1
            return
        fold = self.step.folds[side]
        result = self.step.conversion.of(windowed(key, start, end), go_on(fold, key, value, self._merged(fold, found)))
        widened = (start, end) != (time_ms, time_ms)
        for session in found:
            self.kept.remove(session)
            if changes is not None and widened:
                replaced = session.value if node.sends_old else None
                changes.add(turn, windowed(key, session.start, session.end), None, session.end, replaced)
        self.changed.add((start, end))
        if result is not None:
            insort(self.kept, _Session(end, start, result), key=_place)
        if changes is not None:
            changes.add(turn, windowed(key, start, end), result, end)

    def put_back(self, store: SessionStore, before: list[tuple[Windowed, Any]]) -> None:
        """Store the changes since the sessions were ``before``."""
        now = {(session.start, session.end) for session in self.kept}
        for replaced, _ in before:
            if (replaced.start, replaced.end) not in now:
                store.put(replaced, None)
        for session in self.kept:
            if (session.start, session.end) in self.changed:
                store.put(Windowed(self.key, session.start, session.end), session.value)
        # As in Kafka Streams, a session without an aggregate moves the store's time on as well.
        newest_ms = max((end for _, end in self.changed), default=NO_TIMESTAMP)
        store.numbers["newest_end"] = max(store.number("newest_end"), newest_ms)

    def _near(self, earliest_end_ms: int, latest_start_ms: int) -> list[_Session]:
        found = []
        for session in reversed(self.kept):
            if session.end < earliest_end_ms:
                break
            if session.start <= latest_start_ms:
                found.append(session)
        return found[::-1]

    def _merged(self, fold: Fold, found: list[_Session]) -> Any:
        """Return the merged aggregate of sessions."""
        assert fold.merger is not None
        aggregate = begin(fold)
        for session in found:
            first = fold.initializer is None and aggregate is None
            aggregate = session.value if first else fold.merger(self.key, aggregate, session.value)
        return aggregate


def _place(session: _Session) -> tuple[int, int]:
    return session.end, session.start


def _emit_closed(work: Folding, turn: int, closed_ms: int) -> None:
    """Emit the final results of sessions that have closed since the last call."""
    store: SessionStore = work.store
    before_ms = store.number("closed")
    if closed_ms <= before_ms:
        return
    for session, value in store.ended(max(0, before_ms), closed_ms - 1):
        work.out.add(turn, windowed(*session), value, session.end)
    store.numbers["closed"] = closed_ms
