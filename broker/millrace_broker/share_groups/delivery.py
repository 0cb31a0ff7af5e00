"""What has become of the records of one partition in one share group: who has which, how often, until when. Pure.

Records are in *runs* of neighbours that share a fate. Between ``start_offset`` and ``end_offset`` every offset is in
one run; before, everything is over, and after, nothing has been looked at yet.

Invariants

- A record is acquired by one member at a time, and only that member acknowledges it, while its lock lasts.
- What was acknowledged or archived stays so: it is never given to anybody again.
- A record is given out ``delivery_count_limit`` times at most. One that nobody accepts by then is archived.
- At most ``locks_max`` records are available or acquired at once; more are taken in as others are done with.
- ``start_offset`` and ``end_offset`` only grow, and the run at the start is not one that is over.

Source: KIP-932 and Kafka's ``SharePartition``. There, the offsets between start and end are limited, here only those
that are not over: a record that is held for long does not keep others from being given out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Self

from millrace.errors import InvalidRecordStateError, InvalidRequestError


class RecordState(Enum):
    """What a record is, by Kafka's numbers."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


class Acknowledgement(Enum):
    """What a member says of a record, by the protocol's numbers."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3


_OVER: Final = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


@dataclass(frozen=True, slots=True)
class Run:
    """Records ``first`` to ``last`` (inclusive). ``member_id`` and ``deadline_ms`` are those of acquired ones."""

    first: int
    last: int
    state: RecordState
    delivery_count: int = 0
    member_id: str = ""
    deadline_ms: int = 0

    @property
    def count(self) -> int:
        """How many offsets it has."""
        return self.last - self.first + 1

    def continues(self, before: Run) -> bool:
        """Whether it could be one with the run before it."""
        return before.last + 1 == self.first and replace(self, first=before.first) == replace(before, last=self.last)


@dataclass(frozen=True, slots=True)
class Readable:
    """Offsets ``first`` to ``last`` as they were read: a batch of records, or one of control records, which is none."""

    first: int
    last: int
    has_records: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """The broker's options of share groups."""

    delivery_count_limit: int = 5
    lock_duration_ms: int = 30_000
    locks_max: int = 200


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is written down of a partition: of an acquired record, that it is available, as before it was acquired."""

    start_offset: int
    runs: tuple[Run, ...]


class Delivery:
    """One partition in one share group; see the module. Times are in ms of a clock that does not go back."""

    def __init__(self, settings: DeliverySettings, start_offset: int, runs: Iterable[Run] = ()) -> None:
        self._settings: Final = settings
        self._start_offset = start_offset
        self._runs: list[Run] = list(runs)
        self._lost_before = 0
        self._advance()

    @classmethod
    def restore(cls, settings: DeliverySettings, snapshot: Snapshot) -> Self:
        """The partition as it was written down. Offsets that are not mentioned are available: Kafka leaves them out."""
        runs: list[Run] = []
        next_offset = snapshot.start_offset
        for run in snapshot.runs:
            if run.first > next_offset:
                _add(runs, Run(next_offset, run.first - 1, RecordState.AVAILABLE))
            _add(runs, run if run.state not in _OVER else Run(run.first, run.last, run.state))
            next_offset = run.last + 1
        return cls(settings, snapshot.start_offset, runs)

    def snapshot(self) -> Snapshot:
        """What is to be written down. A delivery that is going on has not happened yet."""
        runs: list[Run] = []
        for run in self._runs:
            if run.state is RecordState.ACQUIRED:
                run = Run(run.first, run.last, RecordState.AVAILABLE, run.delivery_count - 1)
            _add(runs, run)
        if runs and runs[-1].state is RecordState.AVAILABLE and not runs[-1].delivery_count:
            runs.pop()  # as good as never looked at
        return Snapshot(self._start_offset, tuple(runs))

    # --- views ---------------------------------------------------------------------------------------------

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, in order."""
        return tuple(self._runs)

    @property
    def start_offset(self) -> int:
        """Everything before is over."""
        return self._start_offset

    @property
    def end_offset(self) -> int:
        """Nothing from here on has been looked at."""
        return self._runs[-1].last + 1 if self._runs else self._start_offset

    @property
    def live_count(self) -> int:
        """How many records are available or acquired."""
        return sum(run.count for run in self._runs if run.state not in _OVER)

    @property
    def complete_count(self) -> int:
        """How many offsets from ``start_offset`` on are over as well."""
        return sum(run.count for run in self._runs if run.state in _OVER)

    @property
    def acquired_count(self) -> int:
        """How many records are acquired."""
        return sum(run.count for run in self._runs if run.state is RecordState.ACQUIRED)

    @property
    def next_offset(self) -> int | None:
        """Where to read what can be acquired next; None while too much is acquired."""
        for run in self._runs:
            if run.state is RecordState.AVAILABLE:
                return run.first
        return self.end_offset if self.live_count < self._settings.locks_max else None

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next lock ends; None while nothing is acquired."""
        return min((run.deadline_ms for run in self._runs if run.state is RecordState.ACQUIRED), default=None)

    # --- giving out ----------------------------------------------------------------------------------------

    def acquire(self, member_id: str, readable: Sequence[Readable], records_max: int, now_ms: int) -> list[Run]:
        """Give a member what it can have of what was read, in order, at most ``records_max`` records."""
        if not readable:
            return []
        first, last = readable[0].first, readable[-1].last
        for each in readable:
            if not each.has_records:
                self._archive_gone(each.first, each.last)
        here = sum(
            min(run.last, last) - max(run.first, first) + 1
            for run in self._runs
            if run.state is RecordState.AVAILABLE and run.last >= first and run.first <= last
        )
        self._take_in(readable, records_max - here)
        deadline_ms = now_ms + self._settings.lock_duration_ms
        runs, acquired, left = list[Run](), list[Run](), records_max
        for run in self._runs:
            middle, before, after = _cut(run, first, last)
            if run.state is not RecordState.AVAILABLE or middle is None or left <= 0:
                _add(runs, run)
                continue
            if middle.count > left:
                middle, after = _cut_after(replace(run, first=middle.first), left)
            left -= middle.count
            given = Run(
                middle.first,
                middle.last,
                RecordState.ACQUIRED,
                run.delivery_count + 1,
                member_id,
                deadline_ms,
            )
            for part in (before, given, after):
                if part is not None:
                    _add(runs, part)
            _add(acquired, given)
        self._runs = runs
        self._advance()
        return acquired

    def _archive_gone(self, first: int, last: int) -> None:
        """Nothing is at some offsets (any more, where it is compacted): nobody can be given that."""
        runs: list[Run] = []
        for run in self._runs:
            middle, before, after = _cut(run, first, last)
            if middle is None or run.state is not RecordState.AVAILABLE:
                _add(runs, run)
                continue
            for part in (before, Run(middle.first, middle.last, RecordState.ARCHIVED), after):
                if part is not None:
                    _add(runs, part)
        self._runs = runs

    def _take_in(self, readable: Sequence[Readable], wanted: int) -> None:
        """Look at new offsets until ``wanted`` records are available among them, or too many are."""
        room = min(wanted, self._settings.locks_max - self.live_count)
        for each in readable:
            if each.last < self.end_offset:
                continue
            if each.has_records and room <= 0:
                return
            if each.first > self.end_offset:  # what was there is gone: compacted
                _add(self._runs, Run(self.end_offset, each.first - 1, RecordState.ARCHIVED))
            first = max(each.first, self.end_offset)
            if not each.has_records:
                _add(self._runs, Run(first, each.last, RecordState.ARCHIVED))
                continue
            last = min(each.last, first + room - 1)
            _add(self._runs, Run(first, last, RecordState.AVAILABLE))
            if last < each.last:
                return
            room -= last - first + 1

    # --- taking back ---------------------------------------------------------------------------------------

    def acknowledge(self, member_id: str, batches: Iterable[tuple[int, int, Acknowledgement]], now_ms: int) -> None:
        """A member says what has become of its records: all of ``batches`` (first, last, what) are taken, or none.

        Raises ``InvalidRecordStateError`` when one of the records is not acquired by the member (any more), and
        ``InvalidRequestError`` for a batch that ends before it begins.
        """
        runs = self._runs
        for first, last, what in batches:
            if first > last or first < 0:
                raise InvalidRequestError(f"offsets {first}..{last} are no batch of records")
            first = max(first, self._lost_before)
            if first <= last:
                runs = self._acknowledged(runs, member_id, first, last, what, now_ms)
        self._runs = runs
        self._advance()

    def _acknowledged(
        self, runs: list[Run], member_id: str, first: int, last: int, what: Acknowledgement, now_ms: int
    ) -> list[Run]:
        changed: list[Run] = []
        found = 0
        for run in runs:
            middle, before, after = _cut(run, first, last)
            if middle is None:
                _add(changed, run)
                continue
            if run.state is not RecordState.ACQUIRED or run.member_id != member_id or run.deadline_ms <= now_ms:
                break
            found += middle.count
            for part in (before, self._decided(middle, what), after):
                if part is not None:
                    _add(changed, part)
        if found != last - first + 1:
            raise InvalidRecordStateError(
                f"offsets {first}..{last} are not all acquired by member {member_id} (any more): the lock has ended, "
                "or they have been acknowledged before"
            )
        return changed

    def _decided(self, run: Run, what: Acknowledgement) -> Run:
        if what is Acknowledgement.RELEASE:
            return self._released(run)
        state = RecordState.ACKNOWLEDGED if what is Acknowledgement.ACCEPT else RecordState.ARCHIVED
        return Run(run.first, run.last, state)

    def _released(self, run: Run) -> Run:
        if run.delivery_count >= self._settings.delivery_count_limit:
            return Run(run.first, run.last, RecordState.ARCHIVED)
        return Run(run.first, run.last, RecordState.AVAILABLE, run.delivery_count)

    def release_member(self, member_id: str) -> bool:
        """A member has gone: what it had is anybody's. Whether it had something."""
        return self._release([run for run in self._runs if run.member_id == member_id])

    def release_overdue(self, now_ms: int) -> bool:
        """Locks have ended: what they held is anybody's. Whether there was something."""
        acquired = [run for run in self._runs if run.state is RecordState.ACQUIRED]
        return self._release([run for run in acquired if run.deadline_ms <= now_ms])

    def _release(self, released: Sequence[Run]) -> bool:
        if not released:
            return False
        gone = set(released)
        runs: list[Run] = []
        for run in self._runs:
            _add(runs, self._released(run) if run in gone else run)
        self._runs = runs
        self._advance()
        return True

    def start_at(self, offset: int) -> bool:
        """The log begins later now: what was before is lost, whoever has it. Whether that changes something."""
        if offset <= self._start_offset:
            return False
        self._lost_before = max(self._lost_before, offset)
        self._runs = [replace(run, first=max(run.first, offset)) for run in self._runs if run.last >= offset]
        self._start_offset = offset
        self._advance()
        return True

    def _advance(self) -> None:
        """Let go of what is over at the start."""
        over = 0
        while over < len(self._runs) and self._runs[over].state in _OVER:
            self._start_offset = self._runs[over].last + 1
            over += 1
        del self._runs[:over]


def _add(runs: list[Run], run: Run) -> None:
    """Append a run, as one with the last one if they share their fate."""
    if runs and run.continues(runs[-1]):
        runs[-1] = replace(runs[-1], last=run.last)
    else:
        runs.append(run)


def _cut(run: Run, first: int, last: int) -> tuple[Run | None, Run | None, Run | None]:
    """The part of a run within ``first`` to ``last``, the part before, and the part after it."""
    if run.last < first or run.first > last:
        return None, None, None
    before = replace(run, last=first - 1) if run.first < first else None
    after = replace(run, first=last + 1) if run.last > last else None
    return replace(run, first=max(run.first, first), last=min(run.last, last)), before, after


def _cut_after(run: Run, count: int) -> tuple[Run, Run]:
    """The first ``count`` records of a run, and the others."""
    return replace(run, last=run.first + count - 1), replace(run, first=run.first + count)
