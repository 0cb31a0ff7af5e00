"""Tests of the states of idempotent and transactional producers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millrace.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from millrace.records import BatchHeader, read_header
from millrace_broker.log.producer_states import (
    BATCHES_KEPT,
    Origin,
    ProducedBatch,
    ProducerEntry,
    ProducerStates,
    append_batch,
    decrement_sequence,
    end_transaction,
    last_sequence_of,
)

SEQUENCE_MAX = 2**31 - 1
Headers = Callable[..., BatchHeader]


@pytest.fixture
def header(batch: Callable[..., bytes]) -> Headers:
    """Build the header of a batch of producer 9."""

    def _header(sequence: int, count: int = 1, *, offset: int = 0, epoch: int = 0, **fields: bool) -> BatchHeader:
        data = batch(
            [1000 + offset] * count,
            producer_id=9,
            producer_epoch=epoch,
            base_sequence=sequence,
            base_offset=offset,
            **fields,
        )
        return read_header(data)

    return _header


def entry(last_sequence: int, *, epoch: int = 0, open_at: int | None = None) -> ProducerEntry:
    last = ProducedBatch(last_sequence=last_sequence, last_offset=50, offset_delta=0, timestamp_ms=1)
    return ProducerEntry(producer_id=9, epoch=epoch, batches=(last,), open_transaction_offset=open_at)


@pytest.mark.parametrize(
    ("last", "first", "follows"),
    [
        (4, 4, False),
        (4, 5, True),
        (4, 6, False),
        (4, 0, False),
        (SEQUENCE_MAX, 0, True),
        (SEQUENCE_MAX, 1, False),
        (SEQUENCE_MAX - 1, 0, False),
        (SEQUENCE_MAX - 1, SEQUENCE_MAX, True),
    ],
)
def test_sequence_numbers_follow_each_other(header: Headers, last: int, first: int, follows: bool) -> None:
    sent = header(first, offset=60)
    if follows:
        after = append_batch(entry(last), sent)
        assert (after.last_sequence, after.last_offset, after.epoch, len(after.batches)) == (first, 60, 0, 2)
        assert after.last_timestamp_ms == 1060
    else:
        with pytest.raises(OutOfOrderSequenceError, match=f"sequence number {first} does not follow {last}"):
            append_batch(entry(last), sent)
        assert append_batch(entry(last), sent, Origin.COORDINATOR).last_sequence == first
        assert append_batch(entry(last), sent, Origin.REPLICATION).last_sequence == first


@pytest.mark.parametrize(("epoch", "first", "is_accepted"), [(3, 0, True), (3, 1, False), (2, 6, True), (2, 0, False)])
def test_a_new_epoch_begins_with_sequence_number_0(header: Headers, epoch: int, first: int, is_accepted: bool) -> None:
    sent = header(first, epoch=epoch)
    if is_accepted:
        after = append_batch(entry(5, epoch=2), sent)
        assert (after.epoch, len(after.batches)) == (epoch, 1 if epoch == 3 else 2)
    else:
        with pytest.raises(OutOfOrderSequenceError):
            append_batch(entry(5, epoch=2), sent)


def test_an_unknown_producer_may_begin_anywhere_from_the_lowest_sequence_number_on(header: Headers) -> None:
    unknown = ProducerEntry(producer_id=9)
    assert append_batch(unknown, header(7, epoch=4)).last_sequence == 7
    assert append_batch(unknown, header(7, epoch=4), lowest_sequence=7).last_sequence == 7
    with pytest.raises(OutOfOrderSequenceError, match="sequence number 7 arrived before sequence number 6"):
        append_batch(unknown, header(7, epoch=4), lowest_sequence=6)
    after_marker, _ = end_transaction(unknown, epoch=4, coordinator_epoch=0, is_aborted=False, offset=3, timestamp_ms=1)
    assert (after_marker.last_sequence, after_marker.last_offset) == (-1, -1)
    assert append_batch(after_marker, header(0, epoch=4)).last_sequence == 0
    with pytest.raises(OutOfOrderSequenceError):
        append_batch(after_marker, header(1, epoch=4))


def test_an_old_epoch_is_fenced_except_in_the_log_of_a_follower(header: Headers) -> None:
    for origin in (Origin.CLIENT, Origin.COORDINATOR):
        with pytest.raises(InvalidProducerEpochError, match="has epoch 1, but the last seen is 2"):
            append_batch(entry(5, epoch=2), header(0, epoch=1), origin)
    assert append_batch(entry(5, epoch=2), header(0, epoch=1), Origin.REPLICATION).epoch == 1


def test_a_transaction_begins_with_its_first_batch_and_takes_no_other_batches(header: Headers) -> None:
    first = append_batch(entry(4), header(5, offset=60, is_transactional=True))
    second = append_batch(first, header(6, offset=70, is_transactional=True))
    assert [each.open_transaction_offset for each in (first, second)] == [60, 60]
    assert [second.has_open_transaction(epoch) for epoch in (-1, 0, 1)] == [False, True, False]
    assert not entry(4).has_open_transaction(0)
    with pytest.raises(InvalidTxnStateError, match="commit or abort the transaction first"):
        append_batch(second, header(7))
    assert append_batch(entry(4), header(5)).open_transaction_offset is None


@pytest.mark.parametrize(("epoch", "batches"), [(2, 1), (3, 0)])
def test_a_marker_ends_the_open_transaction(epoch: int, batches: int) -> None:
    before = entry(5, epoch=2, open_at=40)
    after, completed = end_transaction(
        before, epoch=epoch, coordinator_epoch=7, is_aborted=True, offset=60, timestamp_ms=99
    )
    assert completed is not None
    assert (completed.producer_id, completed.first_offset, completed.last_offset) == (9, 40, 60)
    assert completed.is_aborted
    assert (after.epoch, after.coordinator_epoch, after.open_transaction_offset) == (epoch, 7, None)
    assert (after.last_timestamp_ms, len(after.batches)) == (99, batches)
    _, nothing = end_transaction(after, epoch=epoch, coordinator_epoch=7, is_aborted=True, offset=61, timestamp_ms=99)
    assert nothing is None


@pytest.mark.parametrize(("coordinator_epoch", "is_fenced"), [(6, True), (7, False), (8, False)])
def test_markers_of_old_coordinators_are_fenced(coordinator_epoch: int, is_fenced: bool) -> None:
    before = entry(5)._replace(coordinator_epoch=7)

    def end(origin: Origin) -> ProducerEntry:
        return end_transaction(
            before,
            epoch=0,
            coordinator_epoch=coordinator_epoch,
            is_aborted=False,
            offset=60,
            timestamp_ms=1,
            origin=origin,
        )[0]

    if is_fenced:
        with pytest.raises(TransactionCoordinatorFencedError, match="coordinator epoch 6, but the current one is 7"):
            end(Origin.COORDINATOR)
    else:
        assert end(Origin.COORDINATOR).coordinator_epoch == coordinator_epoch
    assert end(Origin.REPLICATION).coordinator_epoch == coordinator_epoch
    with pytest.raises(InvalidProducerEpochError):
        end_transaction(entry(5, epoch=1), epoch=0, coordinator_epoch=9, is_aborted=False, offset=60, timestamp_ms=1)


def test_the_last_batches_are_known_as_duplicates(header: Headers) -> None:
    sent = [header(3 * number, 3, offset=3 * number) for number in range(BATCHES_KEPT + 2)]
    known = ProducerEntry(producer_id=9)
    for each in sent:
        known = append_batch(known, each)
    found = [known.find_duplicate(each) for each in sent]
    assert found[:2] == [None, None]
    assert [(each.first_offset, each.last_offset, each.first_sequence) for each in found[2:] if each] == [
        (3 * number, 3 * number + 2, 3 * number) for number in range(2, BATCHES_KEPT + 2)
    ]
    last = 3 * (BATCHES_KEPT + 1)
    assert known.find_duplicate(header(last, 2)) is None
    assert known.find_duplicate(header(last + 1, 2)) is None
    assert known.find_duplicate(header(last, 3, epoch=1)) is None


def test_sequence_numbers_wrap(header: Headers, batch: Callable[..., bytes]) -> None:
    assert last_sequence_of(header(SEQUENCE_MAX - 1, 2)) == SEQUENCE_MAX
    assert last_sequence_of(header(SEQUENCE_MAX - 1, 3)) == 0
    assert last_sequence_of(read_header(batch([1, 2]))) == -1
    assert (decrement_sequence(5, 5), decrement_sequence(5, 6)) == (0, SEQUENCE_MAX)


def test_states_know_the_first_open_transaction(header: Headers) -> None:
    states = ProducerStates()
    assert (states.first_open_offset(), len(states), list(states), states.find(9)) == (None, 0, [], None)
    assert states.get(9) == ProducerEntry(producer_id=9)
    for producer_id, open_at in ((3, 20), (1, 30), (2, None)):
        states.update(ProducerEntry(producer_id=producer_id, open_transaction_offset=open_at), 0)
    assert [each.producer_id for each in states] == [1, 2, 3]
    assert [states.first_open_offset(but=but) for but in (None, 1, 2, 3)] == [20, 20, 20, 30]
    states.update(ProducerEntry(producer_id=3), 0)
    assert (states.first_open_offset(), states.first_open_offset(but=1)) == (30, None)


@pytest.mark.parametrize(("now_ms", "left"), [(1099, [1, 2, 3]), (1100, [1, 3]), (1199, [1, 3]), (1200, [1])])
def test_silent_producers_expire_unless_their_transaction_is_open(now_ms: int, left: list[int]) -> None:
    states = ProducerStates()
    states.update(ProducerEntry(producer_id=1, open_transaction_offset=5), 1000)
    states.update(ProducerEntry(producer_id=2), 1000)
    states.update(ProducerEntry(producer_id=3), 1000)
    states.update(ProducerEntry(producer_id=3), 1100)
    states.expire(now_ms, 100)
    assert [each.producer_id for each in states] == left
    states.expire(now_ms, 100)
    assert [each.producer_id for each in states] == left


def test_the_lowest_sequence_number_of_an_unknown_producer_is_kept_until_its_first_batch() -> None:
    states = ProducerStates()
    assert states.lowest_sequence(9) is None
    for epoch, sequence, lowest in ((0, 7, 7), (0, 5, 5), (0, 6, 5), (1, 8, 8), (0, 1, 8)):
        states.expect(9, epoch, sequence, 1000)
        assert states.lowest_sequence(9) == lowest
    states.update(ProducerEntry(producer_id=8), 1000)
    assert states.lowest_sequence(9) == 8
    states.update(ProducerEntry(producer_id=9), 1000)
    assert states.lowest_sequence(9) is None


@pytest.mark.parametrize(("now_ms", "lowest"), [(1099, 7), (1100, None)])
def test_the_sequence_number_of_a_batch_that_is_never_appended_expires(now_ms: int, lowest: int | None) -> None:
    states = ProducerStates()
    states.expect(9, 0, 7, 1000)
    states.expire(now_ms, 100)
    assert states.lowest_sequence(9) == lowest
