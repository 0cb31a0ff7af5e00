"""Delivery states of one share partition's records, as a state machine.

The code is pure. Neighbouring offsets with the same state form a *batch* (Kafka's ``InFlightBatch``). Each offset
between ``start_offset`` and ``end_offset`` is in one batch. Offsets before the start are complete. Offsets from the end
on were never read.

Invariants

- One member at a time has acquired a record. Only that member acknowledges it, until its lock ends.
- An acknowledged or archived record keeps its state.
- A record is delivered at most ``delivery_count_limit`` times. It is archived if no member accepts it by then.
- Records become available only while fewer than ``locks_max`` records are available or acquired.
- The batches have no gaps, the first one is not complete, and ``start_offset`` and ``end_offset`` do not decrease.
  ``_set_batches`` asserts this.

Source: KIP-932 and Kafka's ``SharePartition``. Kafka limits the offsets between start and end. Here only offsets that
are not complete count, so that one record with a long lock does not stop the delivery of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Self

from millrace.errors import InvalidRecordError, InvalidRecordStateError, InvalidRequestError


class RecordState(Enum):
    """Delivery state of a record, with Kafka's number."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


class Acknowledgement(Enum):
    """Acknowledgement type of a record, with the protocol's number."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The record is still being processed, so its lock begins again (KIP-1222)."""
    RETURN = 5
    """The record did not fit into the response of a Kafka client, so that its delivery does not count."""


_COMPLETE: Final = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


@dataclass(frozen=True, slots=True)
class InFlightBatch:
    """Offsets ``first`` to ``last`` (inclusive) in one state.

    A batch of acquired offsets has a ``member_id`` and a ``deadline_ms``, at which its lock ends.
    """

    first: int
    last: int
    state: RecordState
    delivery_count: int = 0
    member_id: str = ""
    deadline_ms: int = 0

    @property
    def count(self) -> int:
        """The number of offsets."""
        return self.last - self.first + 1

    def continues(self, before: InFlightBatch) -> bool:
        """Return whether the batch can be merged with the batch before it."""
        return before.last + 1 == self.first and replace(self, first=before.first) == replace(before, last=self.last)


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Offsets ``first`` to ``last`` (inclusive) of a read.

    They belong to one record batch, or have no records.
    """

    first: int
    last: int
    has_records: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupSettings:
    """Options of one share group."""

    delivery_count_limit: int = 5
    lock_duration_ms: int = 30_000
    locks_max: int = 2000
    allows_renewal: bool = True
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5000

    @property
    def isolation_count(self) -> int:
        """The number of deliveries after which records are delivered in ever smaller numbers."""
        return max(2, (self.delivery_count_limit + 1) // 2)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Delivery states as a record holds them. Acquired records are available in it, as before their delivery."""

    start_offset: int
    batches: tuple[InFlightBatch, ...]


class InFlightRecords:
    """Delivery states of one share partition. Times are in ms of a clock that does not go back."""

    def __init__(self, settings: ShareGroupSettings, start_offset: int, batches: Iterable[InFlightBatch] = ()) -> None:
        self.settings = settings
        """Options in force, which may change."""
        self._start_offset = start_offset
        self._batches: list[InFlightBatch] = []
        self._set_batches(list(batches))

    @classmethod
    def restore(cls, settings: ShareGroupSettings, snapshot: Snapshot) -> Self:
        """Return the states of a snapshot. Offsets that Kafka leaves out are available.

        Raises ``InvalidRecordError`` for batches that overlap.
        """
        batches: list[InFlightBatch] = []
        next_offset = snapshot.start_offset
        for batch in snapshot.batches:
            if batch.first < next_offset or batch.last < batch.first:
                raise InvalidRecordError(
                    f"offsets {batch.first}..{batch.last} of a share partition follow offset {next_offset - 1}: "
                    "the record in __share_group_state is damaged"
                )
            if batch.first > next_offset:
                _add(batches, InFlightBatch(next_offset, batch.first - 1, RecordState.AVAILABLE))
            _add(
                batches, batch if batch.state not in _COMPLETE else InFlightBatch(batch.first, batch.last, batch.state)
            )
            next_offset = batch.last + 1
        return cls(settings, snapshot.start_offset, batches)

    def snapshot(self) -> Snapshot:
        """Return the states for a record. A delivery without an acknowledgement does not count in it."""
        batches: list[InFlightBatch] = []
        for batch in self._batches:
            if batch.state is RecordState.ACQUIRED:
                batch = InFlightBatch(batch.first, batch.last, RecordState.AVAILABLE, batch.delivery_count - 1)
            _add(batches, batch)
        if batches and batches[-1].state is RecordState.AVAILABLE and not batches[-1].delivery_count:
            batches.pop()  # the same as offsets that were never read
        return Snapshot(self._start_offset, tuple(batches))

    # --- views ---------------------------------------------------------------------------------------------

    @property
    def batches(self) -> tuple[InFlightBatch, ...]:
        """All batches, in order."""
        return tuple(self._batches)

    @property
    def start_offset(self) -> int:
        """The first offset that is not complete."""
        return self._start_offset

    @property
    def end_offset(self) -> int:
        """The first offset that was never read."""
        return self._batches[-1].last + 1 if self._batches else self._start_offset

    @property
    def in_flight_count(self) -> int:
        """The number of available and acquired records."""
        return _count_in_flight(self._batches)

    @property
    def complete_count(self) -> int:
        """The number of complete offsets after ``start_offset``."""
        return sum(batch.count for batch in self._batches if batch.state in _COMPLETE)

    @property
    def acquired_count(self) -> int:
        """The number of acquired records."""
        return sum(batch.count for batch in self._batches if batch.state is RecordState.ACQUIRED)

    @property
    def next_offset(self) -> int | None:
        """The offset to read for the next delivery; None while ``locks_max`` records are in flight."""
        for batch in self._batches:
            if batch.state is RecordState.AVAILABLE:
                return batch.first
        return self.end_offset if self.in_flight_count < self.settings.locks_max else None

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which the next lock ends; None while no record is acquired."""
        return min((batch.deadline_ms for batch in self._batches if batch.state is RecordState.ACQUIRED), default=None)

    # --- acquire -------------------------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        ranges: Sequence[ReadRange],
        records_max: int,
        now_ms: int,
        *,
        whole_batches: bool = False,
    ) -> list[InFlightBatch]:
        """Deliver at most ``records_max`` of the read records to a member, in order.

        With ``whole_batches``, the record batch that reaches ``records_max`` is delivered to its end. Otherwise the
        batch would be read and sent again for its other records. ``locks_max`` remains a limit.
        """
        if not ranges:
            return []
        current = self._batches
        for each in ranges:
            if not each.has_records:
                current = _without_records(current, each.first, each.last)
        if whole_batches:
            ranges, records_max = self._up_to_batch_end(current, ranges, records_max)
        first, last = ranges[0].first, ranges[-1].last
        available = sum(
            min(batch.last, last) - max(batch.first, first) + 1
            for batch in current
            if batch.state is RecordState.AVAILABLE and batch.last >= first and batch.first <= last
        )
        current = self._extended(current, ranges, records_max - available)
        deadline_ms = now_ms + self.settings.lock_duration_ms
        batches, acquired, left = list[InFlightBatch](), list[InFlightBatch](), records_max
        for batch in current:
            middle, before, after = _cut(batch, first, last)
            is_available = batch.state is RecordState.AVAILABLE
            is_isolated = is_available and batch.delivery_count >= self.settings.isolation_count
            if not is_available or middle is None or left <= 0 or (is_isolated and acquired):
                _add(batches, batch)
                left = 0 if acquired and is_isolated else left
                continue
            count = min(left, self._isolated_count(middle) if is_isolated else middle.count)
            if middle.count > count:
                middle, after = _cut_after(replace(batch, first=middle.first), count)
            left = 0 if is_isolated else left - count
            given = InFlightBatch(
                middle.first,
                middle.last,
                RecordState.ACQUIRED,
                batch.delivery_count + 1,
                member_id,
                deadline_ms,
            )
            for part in (before, given, after):
                if part is not None:
                    _add(batches, part)
            _add(acquired, given)
        self._set_batches(batches)
        return acquired

    def _isolated_count(self, batch: InFlightBatch) -> int:
        """Return how many records of a batch that failed often are delivered together, so that a bad one is found.

        Each delivery has half of the records of the one before, and the last possible delivery has one record
        (KAFKA-17541). Otherwise one bad record would archive all records that are delivered with it.
        """
        is_last = batch.delivery_count >= self.settings.delivery_count_limit - 1
        return 1 if is_last else max(1, batch.count // 2)

    def _up_to_batch_end(
        self, current: Sequence[InFlightBatch], ranges: Sequence[ReadRange], records_max: int
    ) -> tuple[Sequence[ReadRange], int]:
        """Return the ranges up to the one that reaches ``records_max``, and the number of records that they have."""
        end_offset, found = self.end_offset, 0
        for place, each in enumerate(ranges):
            found += sum(
                middle.count
                for batch in current
                if batch.state is RecordState.AVAILABLE
                and (middle := _cut(batch, each.first, each.last)[0]) is not None
            )
            if each.has_records:
                found += max(0, each.last + 1 - max(each.first, end_offset))
            if found >= records_max:
                return ranges[: place + 1], found
        return ranges, records_max

    def _extended(
        self, current: Sequence[InFlightBatch], ranges: Sequence[ReadRange], count_max: int
    ) -> list[InFlightBatch]:
        """Add new offsets, until ``count_max`` records are available among them or ``locks_max`` are in flight."""
        batches = list(current)
        end_offset = self.end_offset
        room = min(count_max, self.settings.locks_max - _count_in_flight(current))
        for each in ranges:
            if each.last < end_offset:
                continue
            if each.has_records and room <= 0:
                break
            if each.first > end_offset:  # compaction has removed the offsets between
                _add(batches, InFlightBatch(end_offset, each.first - 1, RecordState.ARCHIVED))
            first = max(each.first, end_offset)
            last = min(each.last, first + room - 1) if each.has_records else each.last
            state = RecordState.AVAILABLE if each.has_records else RecordState.ARCHIVED
            _add(batches, InFlightBatch(first, last, state))
            end_offset = last + 1
            if last < each.last:
                break
            if each.has_records:
                room -= last - first + 1
        return batches

    # --- acknowledge, release -----------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, acknowledgements: Iterable[tuple[int, int, Acknowledgement]], now_ms: int
    ) -> None:
        """Apply a member's acknowledgements (first offset, last offset, type), either all of them or none.

        Offsets before ``start_offset`` are complete, so that their acknowledgements change nothing.

        Raises ``InvalidRecordStateError`` for a record that the member has not acquired or whose lock has ended, or if
        the group forbids renewals. Raises ``InvalidRequestError`` for a last offset before the first one, and for
        offsets that were never acquired.
        """
        batches = self._batches
        for first, last, acknowledgement_type in acknowledgements:
            if first > last or first < 0:
                raise InvalidRequestError(
                    f"offsets {first}..{last} cannot be acknowledged: send a first offset of 0 or more, and a last "
                    "offset that is not smaller"
                )
            if last >= self.end_offset:
                raise InvalidRequestError(
                    f"offsets {first}..{last} cannot be acknowledged: no member has acquired offsets from "
                    f"{self.end_offset} on"
                )
            first = max(first, self._start_offset)
            if first <= last:
                batches = self._acknowledged(batches, member_id, first, last, acknowledgement_type, now_ms)
        self._set_batches(batches)

    def _acknowledged(
        self,
        batches: list[InFlightBatch],
        member_id: str,
        first: int,
        last: int,
        acknowledgement_type: Acknowledgement,
        now_ms: int,
    ) -> list[InFlightBatch]:
        changed: list[InFlightBatch] = []
        found = 0
        for batch in batches:
            middle, before, after = _cut(batch, first, last)
            if middle is None:
                _add(changed, batch)
                continue
            if batch.state is not RecordState.ACQUIRED or batch.member_id != member_id or batch.deadline_ms <= now_ms:
                break
            found += middle.count
            for part in (before, self._decided(middle, acknowledgement_type, now_ms), after):
                if part is not None:
                    _add(changed, part)
        if found != last - first + 1:
            raise InvalidRecordStateError(
                f"offsets {first}..{last} are not all acquired by member {member_id}: the lock has ended, or they were "
                "acknowledged before. Acknowledge records before group.share.record.lock.duration.ms"
            )
        return changed

    def _decided(self, batch: InFlightBatch, acknowledgement_type: Acknowledgement, now_ms: int) -> InFlightBatch:
        if acknowledgement_type is Acknowledgement.RELEASE:
            return self._released(batch)
        if acknowledgement_type is Acknowledgement.RETURN:
            return InFlightBatch(batch.first, batch.last, RecordState.AVAILABLE, batch.delivery_count - 1)
        if acknowledgement_type is Acknowledgement.RENEW:
            if not self.settings.allows_renewal:
                raise InvalidRecordStateError(
                    f"the lock of offsets {batch.first}..{batch.last} is not renewed: this group has "
                    "share.renew.acknowledge.enable=false"
                )
            return replace(batch, deadline_ms=now_ms + self.settings.lock_duration_ms)
        state = RecordState.ACKNOWLEDGED if acknowledgement_type is Acknowledgement.ACCEPT else RecordState.ARCHIVED
        return InFlightBatch(batch.first, batch.last, state)

    def _released(self, batch: InFlightBatch) -> InFlightBatch:
        if batch.delivery_count >= self.settings.delivery_count_limit:
            return InFlightBatch(batch.first, batch.last, RecordState.ARCHIVED)
        return InFlightBatch(batch.first, batch.last, RecordState.AVAILABLE, batch.delivery_count)

    def release_member(self, member_id: str) -> bool:
        """Release the records of a member that has left; return whether it had any."""
        return self._release([batch for batch in self._batches if batch.member_id == member_id])

    def release_overdue(self, now_ms: int) -> bool:
        """Release the records whose locks have ended; return whether there were any."""
        acquired = [batch for batch in self._batches if batch.state is RecordState.ACQUIRED]
        return self._release([batch for batch in acquired if batch.deadline_ms <= now_ms])

    def _release(self, released: Sequence[InFlightBatch]) -> bool:
        if not released:
            return False
        gone = set(released)
        batches: list[InFlightBatch] = []
        for batch in self._batches:
            _add(batches, self._released(batch) if batch in gone else batch)
        self._set_batches(batches)
        return True

    def start_at(self, offset: int) -> bool:
        """Drop the offsets before the start of the log; return whether there were any."""
        if offset <= self._start_offset:
            return False
        kept = [replace(batch, first=max(batch.first, offset)) for batch in self._batches if batch.last >= offset]
        self._set_batches(kept, start_offset=offset)
        return True

    def _set_batches(self, batches: list[InFlightBatch], start_offset: int | None = None) -> None:
        """Replace all batches, without the complete ones at the start. No other method changes them."""
        start = self._start_offset if start_offset is None else start_offset
        complete = 0
        while complete < len(batches) and batches[complete].state in _COMPLETE:
            start = batches[complete].last + 1
            complete += 1
        kept = batches[complete:]
        end = start
        for batch in kept:
            assert batch.first == end, f"batch {batch} does not begin at offset {end}"
            assert batch.last >= batch.first, f"batch {batch} is empty"
            end = batch.last + 1
        assert start >= self._start_offset, f"the start offset decreases from {self._start_offset} to {start}"
        assert end >= self.end_offset, f"the end offset decreases from {self.end_offset} to {end}"
        self._batches, self._start_offset = kept, start


def _count_in_flight(batches: Iterable[InFlightBatch]) -> int:
    return sum(batch.count for batch in batches if batch.state not in _COMPLETE)


def _without_records(current: Sequence[InFlightBatch], first: int, last: int) -> list[InFlightBatch]:
    """Archive available offsets that have no record, because compaction removed it or it is a control record."""
    batches: list[InFlightBatch] = []
    for batch in current:
        middle, before, after = _cut(batch, first, last)
        if middle is None or batch.state is not RecordState.AVAILABLE:
            _add(batches, batch)
            continue
        for part in (before, InFlightBatch(middle.first, middle.last, RecordState.ARCHIVED), after):
            if part is not None:
                _add(batches, part)
    return batches


def _add(batches: list[InFlightBatch], batch: InFlightBatch) -> None:
    """Append a batch, merged with the last one if their states are equal."""
    if batches and batch.continues(batches[-1]):
        batches[-1] = replace(batches[-1], last=batch.last)
    else:
        batches.append(batch)


def _cut(
    batch: InFlightBatch, first: int, last: int
) -> tuple[InFlightBatch | None, InFlightBatch | None, InFlightBatch | None]:
    """Return the part of a batch within ``first`` to ``last``, the part before, and the part after it."""
    if batch.last < first or batch.first > last:
        return None, None, None
    before = replace(batch, last=first - 1) if batch.first < first else None
    after = replace(batch, first=last + 1) if batch.last > last else None
    return replace(batch, first=max(batch.first, first), last=min(batch.last, last)), before, after


def _cut_after(batch: InFlightBatch, count: int) -> tuple[InFlightBatch, InFlightBatch]:
    """Return the first ``count`` records of a batch, and the rest."""
    return replace(batch, last=batch.first + count - 1), replace(batch, first=batch.first + count)
