"""Model test of a share partition against a list of records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.errors import InvalidRecordError, InvalidRecordStateError, InvalidRequestError
from millrace_broker.share_groups.in_flight import (
    Acknowledgement,
    InFlightBatch,
    InFlightRecords,
    ReadRange,
    RecordState,
    ShareGroupSettings,
    Snapshot,
)

SETTINGS = ShareGroupSettings(delivery_count_limit=3, lock_duration_ms=100, locks_max=8)
ACCEPT, RELEASE, REJECT, GAP, RENEW, RETURN = (
    Acknowledgement.ACCEPT,
    Acknowledgement.RELEASE,
    Acknowledgement.REJECT,
    Acknowledgement.GAP,
    Acknowledgement.RENEW,
    Acknowledgement.RETURN,
)


def delivery(start: int = 0, **settings: Any) -> InFlightRecords:
    return InFlightRecords(ShareGroupSettings(**settings), start)


def given(batches: list[InFlightBatch]) -> list[tuple[int, int, int]]:
    return [(batch.first, batch.last, batch.delivery_count) for batch in batches]


def test_records_are_given_out_once_while_their_lock_lasts() -> None:
    partition = delivery()
    assert given(partition.acquire("a", [ReadRange(0, 9)], 5, 0)) == [(0, 4, 1)]
    assert partition.next_offset == 5
    assert given(partition.acquire("b", [ReadRange(0, 9)], 100, 0)) == [(5, 9, 1)]
    assert given(partition.acquire("c", [ReadRange(0, 9)], 100, 0)) == []
    assert given(partition.acquire("c", [], 100, 0)) == []


def test_accepted_records_are_not_delivered_again() -> None:
    partition = delivery()
    partition.acquire("a", [ReadRange(0, 9)], 10, 0)
    partition.acknowledge("a", [(2, 3, ACCEPT)], 1)
    assert partition.start_offset == 0
    partition.acknowledge("a", [(0, 1, ACCEPT), (4, 9, REJECT)], 1)
    assert (partition.start_offset, partition.batches) == (10, ())


def test_released_records_are_given_to_others_until_the_limit() -> None:
    partition = delivery(delivery_count_limit=2)
    partition.acquire("a", [ReadRange(0, 3)], 10, 0)
    partition.acknowledge("a", [(1, 2, RELEASE)], 1)
    assert partition.next_offset == 1
    assert given(partition.acquire("b", [ReadRange(0, 3)], 10, 1)) == [(1, 2, 2)]
    partition.acknowledge("b", [(1, 2, RELEASE)], 2)
    assert partition.next_offset == 4
    partition.acknowledge("a", [(0, 0, ACCEPT), (3, 3, GAP)], 2)
    assert partition.start_offset == 4


def test_the_delivery_of_returned_records_does_not_count() -> None:
    partition = delivery(delivery_count_limit=2)
    for _ in range(5):
        assert given(partition.acquire("a", [ReadRange(0, 3)], 10, 0)) == [(0, 3, 1)]
        partition.acknowledge("a", [(0, 3, RETURN)], 1)
    partition.acquire("a", [ReadRange(0, 3)], 10, 0)
    with pytest.raises(InvalidRecordStateError):
        partition.acknowledge("b", [(0, 3, RETURN)], 1)


def test_records_beyond_the_limit_stay_available_with_their_delivery_count() -> None:
    partition = delivery()
    for records_max in (2, 4):
        partition.acquire("a", [ReadRange(0, 3)], records_max, 0)
        partition.release_member("a")
    assert given(partition.acquire("b", [ReadRange(0, 3)], 2, 0)) == [(0, 1, 3)]
    assert partition.next_offset == 2
    assert given(partition.acquire("b", [ReadRange(0, 3)], 2, 0)) == [(2, 3, 2)]


def test_a_batch_is_delivered_to_its_end_beyond_the_limit() -> None:
    partition = delivery()
    ranges = [ReadRange(0, 9), ReadRange(10, 19), ReadRange(20, 29)]
    assert given(partition.acquire("a", ranges, 12, 0, whole_batches=True)) == [(0, 19, 1)]
    assert given(partition.acquire("b", ranges[2:], 1, 0, whole_batches=True)) == [(20, 29, 1)]


def test_whole_batches_take_no_more_locks_than_there_are() -> None:
    partition = delivery(locks_max=15)
    ranges = [ReadRange(0, 9), ReadRange(10, 19)]
    assert given(partition.acquire("a", ranges, 12, 0, whole_batches=True)) == [(0, 14, 1)]


def test_a_renewed_lock_begins_again() -> None:
    partition = delivery(lock_duration_ms=100)
    partition.acquire("a", [ReadRange(0, 9)], 10, 0)
    partition.acknowledge("a", [(3, 4, RENEW)], 60)
    assert partition.release_overdue(100)
    assert [(b.first, b.last) for b in partition.batches if b.state is RecordState.ACQUIRED] == [(3, 4)]
    partition.acknowledge("a", [(3, 4, ACCEPT)], 159)
    with pytest.raises(InvalidRecordStateError):
        partition.acknowledge("a", [(3, 4, RENEW)], 159)


def test_a_renewal_is_refused_if_the_group_forbids_it() -> None:
    partition = delivery(allows_renewal=False)
    partition.acquire("a", [ReadRange(0, 9)], 10, 0)
    with pytest.raises(InvalidRecordStateError, match=r"share\.renew\.acknowledge\.enable"):
        partition.acknowledge("a", [(0, 0, ACCEPT), (1, 1, RENEW)], 1)
    assert partition.acquired_count == 10


def test_changed_options_apply_to_the_next_fetches() -> None:
    partition = delivery(locks_max=4)
    assert given(partition.acquire("a", [ReadRange(0, 9)], 10, 0)) == [(0, 3, 1)]
    partition.settings = ShareGroupSettings(locks_max=6)
    assert given(partition.acquire("a", [ReadRange(4, 9)], 10, 0)) == [(4, 5, 1)]
    partition.settings = ShareGroupSettings(locks_max=2)
    assert partition.next_offset is None


def test_a_lock_ends() -> None:
    partition = delivery(lock_duration_ms=100)
    partition.acquire("a", [ReadRange(0, 3)], 10, 0)
    assert partition.next_deadline_ms == 100
    assert not partition.release_overdue(99)
    with pytest.raises(InvalidRecordStateError):
        partition.acknowledge("a", [(0, 3, ACCEPT)], 100)
    assert partition.release_overdue(100)
    assert given(partition.acquire("b", [ReadRange(0, 3)], 10, 100)) == [(0, 3, 2)]


def test_acknowledgements_are_taken_all_or_none() -> None:
    partition = delivery()
    partition.acquire("a", [ReadRange(0, 3)], 2, 0)
    for wrong, refusal in [
        ((2, 3, ACCEPT), InvalidRequestError),
        ((0, 3, ACCEPT), InvalidRequestError),
        ((0, 0, ACCEPT), InvalidRecordStateError),
    ]:
        with pytest.raises(refusal):
            partition.acknowledge("a", [(0, 1, ACCEPT), wrong], 1)
    for first, last in ((1, 0), (-1, 1)):
        with pytest.raises(InvalidRequestError):
            partition.acknowledge("a", [(first, last, ACCEPT)], 1)
    with pytest.raises(InvalidRecordStateError):
        partition.acknowledge("b", [(0, 1, ACCEPT)], 1)
    assert partition.start_offset == 0


def test_acknowledgements_before_the_start_offset_change_nothing() -> None:
    partition = delivery()
    partition.acquire("a", [ReadRange(0, 9)], 10, 0)
    partition.acknowledge("a", [(0, 4, ACCEPT)], 1)
    partition.acknowledge("a", [(0, 4, REJECT), (3, 5, RELEASE)], 1)
    assert (partition.start_offset, partition.next_offset) == (5, 5)
    with pytest.raises(InvalidRecordStateError):
        partition.acknowledge("a", [(4, 5, ACCEPT)], 1)


def test_offsets_without_records_are_skipped() -> None:
    partition = delivery()
    read = [ReadRange(0, 0, has_records=False), ReadRange(1, 2), ReadRange(5, 5)]
    assert given(partition.acquire("a", read, 10, 0)) == [(1, 2, 1), (5, 5, 1)]
    partition.acknowledge("a", [(1, 2, ACCEPT)], 1)
    assert partition.start_offset == 5


def test_released_records_that_were_compacted_meanwhile_are_passed_over() -> None:
    partition = delivery()
    partition.acquire("a", [ReadRange(0, 9)], 10, 0)
    partition.release_member("a")
    read = [ReadRange(0, 4, has_records=False), ReadRange(5, 9)]
    assert given(partition.acquire("b", read, 10, 1)) == [(5, 9, 2)]
    assert partition.start_offset == 5


def test_no_more_records_are_locked_than_the_limit() -> None:
    partition = delivery(locks_max=4)
    assert given(partition.acquire("a", [ReadRange(0, 99)], 50, 0)) == [(0, 3, 1)]
    assert partition.next_offset is None
    partition.acknowledge("a", [(1, 1, ACCEPT)], 1)
    assert given(partition.acquire("b", [ReadRange(0, 99)], 50, 1)) == [(4, 4, 1)]


def test_records_before_a_new_log_start_are_no_longer_delivered() -> None:
    partition = delivery()
    partition.acquire("a", [ReadRange(0, 9)], 10, 0)
    assert partition.start_at(5)
    partition.acknowledge("a", [(0, 9, ACCEPT)], 1)
    assert partition.start_offset == 10
    assert not partition.start_at(10)
    assert not partition.start_at(7)
    assert partition.start_at(11)


def test_a_snapshot_has_no_deliveries_in_progress() -> None:
    partition = delivery()
    partition.acquire("a", [ReadRange(0, 9)], 10, 0)
    partition.acknowledge("a", [(3, 4, ACCEPT), (5, 5, RELEASE)], 1)
    partition.acquire("b", [ReadRange(0, 9)], 10, 1)
    again = InFlightRecords.restore(ShareGroupSettings(), partition.snapshot())
    assert given(again.acquire("c", [ReadRange(0, 9)], 10, 5)) == [(0, 2, 1), (5, 5, 2), (6, 9, 1)]


def test_records_missing_from_a_snapshot_are_available() -> None:
    snapshot = Snapshot(
        5, (InFlightBatch(7, 7, RecordState.ACKNOWLEDGED, 2), InFlightBatch(9, 9, RecordState.AVAILABLE, 2))
    )
    partition = InFlightRecords.restore(ShareGroupSettings(), snapshot)
    assert given(partition.acquire("a", [ReadRange(5, 9)], 10, 0)) == [(5, 6, 1), (8, 8, 1), (9, 9, 3)]


def test_records_that_failed_often_are_delivered_in_halves_and_at_last_alone() -> None:
    partition = delivery()
    for delivery_count in (1, 2, 3):
        assert given(partition.acquire("a", [ReadRange(0, 99)], 500, 0)) == [(0, 99, delivery_count)]
        partition.release_member("a")
    assert given(partition.acquire("a", [ReadRange(0, 99)], 500, 0)) == [(0, 49, 4)]
    assert given(partition.acquire("b", [ReadRange(0, 99)], 500, 0)) == [(50, 74, 4)]
    partition.release_member("a")
    assert given(partition.acquire("a", [ReadRange(0, 99)], 500, 0)) == [(0, 0, 5)]
    partition.release_member("a")
    assert partition.start_offset == 1, "one record is archived, and not those that were delivered with it"


def test_records_that_failed_often_are_not_delivered_with_others() -> None:
    partition = delivery()
    for _ in range(3):
        partition.acquire("a", [ReadRange(5, 9)], 500, 0)
        partition.release_member("a")
    assert given(partition.acquire("a", [ReadRange(5, 19)], 500, 0)) == [(5, 6, 4)]
    assert given(partition.acquire("a", [ReadRange(5, 19)], 500, 0)) == [(7, 7, 4)]


def test_records_that_failed_often_and_are_with_a_member_end_no_delivery() -> None:
    partition = delivery(delivery_count_limit=3)
    for member in ("a", "b"):
        partition.acquire(member, [ReadRange(0, 1)], 1, 0)
    partition.release_member("b")
    assert given(partition.acquire("b", [ReadRange(0, 1)], 1, 0)) == [(1, 1, 2)]
    partition.release_member("a")
    assert given(partition.acquire("c", [ReadRange(0, 3)], 10, 0)) == [(0, 0, 2), (2, 3, 1)]


# --- the model -------------------------------------------------------------------------------------------------------


@dataclass
class ModelRecord:
    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    member: str = ""
    deadline: int = 0


class DeliveryMachine(RuleBasedStateMachine):
    """A share partition. Its log has batches of three offsets, and batches at multiples of five are control batches."""

    def __init__(self) -> None:
        super().__init__()
        self.partition = InFlightRecords(SETTINGS, 0)
        self.records: dict[int, ModelRecord] = {}
        self.seen = 0
        self.now = 0
        self.log_start = 0
        self.accepted: set[int] = set()
        self.deliveries: dict[int, int] = {}

    members = st.sampled_from(["a", "b", "c"])

    @staticmethod
    def readable(offset: int, batches: int) -> list[ReadRange]:
        first = offset // 3
        return [
            ReadRange(number * 3, number * 3 + 2, has_records=number % 5 != 0)
            for number in range(first, first + batches)
        ]

    def look_at(self, offset: int) -> None:
        assert offset == self.seen
        is_record = offset // 3 % 5 != 0
        self.records[offset] = ModelRecord() if is_record else ModelRecord(RecordState.ARCHIVED)
        self.seen += 1

    @property
    def live(self) -> int:
        return sum(r.state in (RecordState.AVAILABLE, RecordState.ACQUIRED) for r in self.records.values())

    @rule(member=members, batches=st.integers(1, 4), most=st.integers(1, 7), whole=st.booleans())
    def acquire(self, member: str, batches: int, most: int, whole: bool) -> None:
        offset = self.partition.next_offset
        if offset is None:
            assert self.live >= SETTINGS.locks_max
            assert not any(r.state is RecordState.AVAILABLE for r in self.records.values())
            return
        read = self.readable(offset, batches)
        got = self.partition.acquire(member, read, most, self.now, whole_batches=whole)
        if whole:
            read, most = self.up_to_batch_end(read, most)
        self.look_further(read, most)
        expected = self.deliverable(range(read[0].first, read[-1].last + 1), most)
        for position in expected:
            record = self.records[position]
            record.state, record.member = RecordState.ACQUIRED, member
            record.count, record.deadline = record.count + 1, self.now + SETTINGS.lock_duration_ms
        assert [p for batch in got for p in range(batch.first, batch.last + 1)] == expected
        for batch in got:
            for position in range(batch.first, batch.last + 1):
                assert position not in self.accepted, "a record was accepted and then delivered again"
                assert batch.delivery_count == self.records[position].count <= SETTINGS.delivery_count_limit
        self.forget()

    def look_further(self, read: list[ReadRange], most: int) -> None:
        """Look at unseen records that were read, until enough are available or too many are in flight."""
        offsets = range(read[0].first, read[-1].last + 1)
        room = min(most - sum(self.is_available(p) for p in offsets), SETTINGS.locks_max - self.live)
        for position in range(max(self.seen, offsets.start), offsets.stop):
            is_record = position // 3 % 5 != 0
            if is_record and room <= 0:
                return
            self.look_at(position)
            room -= is_record

    def deliverable(self, offsets: range, most: int) -> list[int]:
        """Return the offsets to deliver: the first available ones, or a part of a run that has failed often."""
        found: list[int] = []
        for position in offsets:
            if len(found) >= most or not self.is_available(position):
                continue
            count = self.records[position].count
            if count < SETTINGS.isolation_count:
                found.append(position)
                continue
            if found:
                return found
            run = [position]
            while (
                run[-1] + 1 in offsets and self.is_available(run[-1] + 1) and self.records[run[-1] + 1].count == count
            ):
                run.append(run[-1] + 1)
            is_last = count == SETTINGS.delivery_count_limit - 1
            return run[: min(most, 1 if is_last else max(1, len(run) // 2))]
        return found

    def up_to_batch_end(self, read: list[ReadRange], most: int) -> tuple[list[ReadRange], int]:
        found = 0
        for place, each in enumerate(read):
            unseen = each.has_records and [p for p in range(each.first, each.last + 1) if p >= self.seen]
            there = [p for p in range(each.first, each.last + 1) if self.is_available(p) and each.has_records]
            found += len(unseen or []) + len(there)
            if found >= most:
                return read[: place + 1], found
        return read, most

    def is_available(self, position: int) -> bool:
        record = self.records.get(position)
        return record is not None and record.state is RecordState.AVAILABLE

    @rule(member=members, what=st.sampled_from(Acknowledgement), data=st.data())
    def acknowledge(self, member: str, what: Acknowledgement, data: st.DataObject) -> None:
        first = data.draw(st.integers(self.log_start, self.seen + 1))
        last = data.draw(st.integers(first, min(first + 5, self.seen + 1)))
        touched = [self.records.get(p) for p in range(max(first, self.partition.start_offset), last + 1)]
        is_right = all(
            r is not None and r.state is RecordState.ACQUIRED and r.member == member and r.deadline > self.now
            for r in touched
        )
        if last >= self.seen:
            with pytest.raises(InvalidRequestError, match="no member has acquired"):
                self.partition.acknowledge(member, [(first, last, what)], self.now)
            return
        if not is_right:
            with pytest.raises(InvalidRecordStateError):
                self.partition.acknowledge(member, [(first, last, what)], self.now)
            return
        start = self.partition.start_offset
        self.partition.acknowledge(member, [(first, last, what)], self.now)
        for position in range(max(first, start), last + 1):
            if what is Acknowledgement.ACCEPT:
                assert position not in self.accepted, "accepted twice"
                self.accepted.add(position)
            self.decide(self.records[position], what)
        self.forget()

    def decide(self, record: ModelRecord, what: Acknowledgement) -> None:
        if what is Acknowledgement.RENEW:
            record.deadline = self.now + SETTINGS.lock_duration_ms
            return
        record.member = ""
        if what is Acknowledgement.RETURN:
            record.state, record.count = RecordState.AVAILABLE, record.count - 1
        elif what is Acknowledgement.ACCEPT:
            record.state = RecordState.ACKNOWLEDGED
        elif what is Acknowledgement.RELEASE and record.count < SETTINGS.delivery_count_limit:
            record.state = RecordState.AVAILABLE
        else:
            record.state = RecordState.ARCHIVED

    @rule(member=members)
    def leave(self, member: str) -> None:
        had = [r for r in self.records.values() if r.state is RecordState.ACQUIRED and r.member == member]
        assert self.partition.release_member(member) == bool(had)
        for record in had:
            self.decide(record, Acknowledgement.RELEASE)
        self.forget()

    @rule(ms=st.sampled_from([1, 50, 100]))
    def wait(self, ms: int) -> None:
        self.now += ms
        over = [r for r in self.records.values() if r.state is RecordState.ACQUIRED and r.deadline <= self.now]
        assert self.partition.release_overdue(self.now) == bool(over)
        for record in over:
            self.decide(record, Acknowledgement.RELEASE)
        self.forget()

    @precondition(lambda self: self.seen > self.log_start)
    @rule(data=st.data())
    def retention(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.partition.start_offset, self.partition.end_offset))
        self.partition.start_at(offset)
        self.log_start = max(self.log_start, offset)
        for position in list(self.records):
            if position < offset:
                del self.records[position]
        self.forget()

    @rule()
    def restart(self) -> None:
        self.partition = InFlightRecords.restore(SETTINGS, self.partition.snapshot())
        for record in self.records.values():
            if record.state is RecordState.ACQUIRED:
                record.state, record.member, record.count = RecordState.AVAILABLE, "", record.count - 1
        while self.seen > 0 and self.is_available(self.seen - 1) and self.records[self.seen - 1].count == 0:
            self.seen -= 1
            del self.records[self.seen]
        self.forget()

    def forget(self) -> None:
        """Check that the state forgets records below the start offset."""
        for position in sorted(self.records):
            if self.records[position].state not in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED):
                break
            del self.records[position]

    @invariant()
    def is_as_the_model(self) -> None:
        partition = self.partition
        seen = {
            position: (batch.state, batch.member_id)
            for batch in partition.batches
            for position in range(batch.first, batch.last + 1)
        }
        assert seen == {position: (r.state, r.member) for position, r in self.records.items()}
        assert partition.in_flight_count == self.live <= SETTINGS.locks_max
        assert partition.start_offset == min(self.records, default=self.seen)
        assert partition.end_offset == self.seen
        assert partition.complete_count == len(self.records) - self.live
        for before, after in zip(partition.batches, partition.batches[1:], strict=False):
            assert before.last + 1 == after.first
            assert not after.continues(before)


TestDeliveryMachine = DeliveryMachine.TestCase


@pytest.mark.parametrize("batch", [(4, 6), (7, 6)])
def test_a_snapshot_whose_batches_overlap_is_refused(batch: tuple[int, int]) -> None:
    first = InFlightBatch(5, 6, RecordState.ARCHIVED)
    snapshot = Snapshot(5, (first, InFlightBatch(*batch, RecordState.AVAILABLE, 1)))
    with pytest.raises(InvalidRecordError, match="damaged"):
        InFlightRecords.restore(ShareGroupSettings(), snapshot)


def test_batches_that_leave_a_gap_are_refused_where_they_are_set() -> None:
    batches = [InFlightBatch(0, 1, RecordState.AVAILABLE), InFlightBatch(3, 4, RecordState.AVAILABLE)]
    with pytest.raises(AssertionError, match="does not begin at offset 2"):
        InFlightRecords(ShareGroupSettings(), 0, batches)
