"""The verdicts of the coordinator, one by one: Kafka's for producers whose epochs are raised at every end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millrace.coordinator_records import TransactionState
from millrace.errors import (
    AbortableTransactionError,
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from millrace_broker.transactions import rules
from millrace_broker.transactions.metadata import EPOCH_MAX, LAST_EPOCH, Producer, Transaction

EMPTY = Transaction(transactional_id="t", producer_id=5, epoch=3, timeout_ms=1000, updated_ms=10)
PARTITIONS = frozenset({("a", 0), ("a", 1)})
ONGOING = replace(EMPTY, state=TransactionState.ONGOING, partitions=PARTITIONS, started_ms=20, updated_ms=20)
EPOCHS_USED_UP = replace(ONGOING, epoch=LAST_EPOCH)
THEIRS = Producer(5, 3)
NEW_ID = 99


def init(current: Transaction | None, expected: Producer | None = None, **options: Any) -> Transaction:
    return rules.init_producer_id(
        current, "t", expected, **{"timeout_ms": 1000, "new_producer_id": NEW_ID, "now_ms": 50, **options}
    )


def end(current: Transaction | None, producer: Producer = THEIRS, *, committed: bool = True) -> Transaction | None:
    return rules.end(current, producer, committed=committed, new_producer_id=NEW_ID, now_ms=50)


def ended(current: Transaction, *, committed: bool = True) -> Transaction:
    after = end(current, current.producer, committed=committed)
    assert after is not None
    return after


COMMITTING = ended(ONGOING)
ABORTING = ended(ONGOING, committed=False)
COMMITTED = rules.complete(COMMITTING, 60)
ABORTED = rules.complete(ABORTING, 60)
ROTATING = ended(EPOCHS_USED_UP)
ROTATED = rules.complete(ROTATING, 60)
FENCED = rules.complete(rules.fence(ONGOING, 50), 60)


# --- InitProducerId --------------------------------------------------------------------------------------------------


def test_a_new_transactional_id_has_a_new_producer_id_and_epoch_0() -> None:
    assert init(None).producer == Producer(NEW_ID, 0)
    assert init(None, Producer(7, 4)).producer == Producer(NEW_ID, 0), "it was forgotten: whoever asks may have it"


@pytest.mark.parametrize("current", [EMPTY, COMMITTED, ABORTED, FENCED])
def test_taking_over_raises_the_epoch(current: Transaction) -> None:
    after = init(current, timeout_ms=7)
    assert after.producer == Producer(5, current.epoch + 1)
    assert (after.state, after.timeout_ms, after.partitions) == (TransactionState.EMPTY, 7, frozenset())


def test_taking_over_from_an_open_transaction_aborts_it_first() -> None:
    after = init(ONGOING)
    assert (after.state, after.epoch, after.partitions) == (TransactionState.PREPARE_ABORT, 4, PARTITIONS)
    with pytest.raises(ConcurrentTransactionsError):
        init(after)
    assert init(rules.complete(after, 60)).epoch == 5


@pytest.mark.parametrize("current", [COMMITTING, ABORTING, ROTATING])
def test_nobody_takes_over_while_markers_are_being_written(current: Transaction) -> None:
    with pytest.raises(ConcurrentTransactionsError):
        init(current)


def test_who_goes_on_keeps_its_id_unless_another_has_taken_over() -> None:
    after = init(EMPTY, THEIRS)
    assert after.producer == Producer(5, 4)
    assert init(after, THEIRS).producer == Producer(5, 4), "the answer was lost: the same again"
    other = init(after)
    for mine in (THEIRS, Producer(5, 4)):
        with pytest.raises(ProducerFencedError):
            init(other, mine)
    with pytest.raises(ProducerFencedError):
        init(EMPTY, Producer(6, 3))


def test_a_zombie_cannot_abort_the_transaction_of_its_successor() -> None:
    with pytest.raises(ProducerFencedError):
        init(ONGOING, Producer(5, 2))


@pytest.mark.parametrize("current", [ONGOING, EPOCHS_USED_UP])
def test_a_producer_may_abort_its_own_transaction_by_beginning_anew(current: Transaction) -> None:
    aborting = init(current, current.producer)
    assert aborting.state is TransactionState.PREPARE_ABORT
    after = init(rules.complete(aborting, 60), current.producer)
    assert after.producer == rules.goes_on_with(aborting)
    assert after.producer.epoch <= LAST_EPOCH


def test_used_up_epochs_give_another_producer_id() -> None:
    used_up = replace(EMPTY, epoch=LAST_EPOCH)
    after = init(used_up)
    assert after.producer == Producer(NEW_ID, 0)
    assert after.previous_producer_id == 5
    going_on = init(used_up, Producer(5, LAST_EPOCH))
    assert going_on.producer == Producer(NEW_ID, 0)
    assert init(going_on, Producer(5, LAST_EPOCH)).producer == Producer(NEW_ID, 0), "the answer was lost"
    with pytest.raises(ProducerFencedError):
        init(after, Producer(5, LAST_EPOCH))


@pytest.mark.parametrize(("timeout_ms", "is_accepted"), [(0, False), (-1, False), (1, True), (900, True), (901, False)])
def test_the_broker_bounds_time_outs(timeout_ms: int, is_accepted: bool) -> None:
    if is_accepted:
        rules.check_timeout(timeout_ms, 900)
    else:
        with pytest.raises(InvalidTransactionTimeoutError, match="900"):
            rules.check_timeout(timeout_ms, 900)


# --- AddPartitions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("current", [EMPTY, COMMITTED, ABORTED])
def test_the_first_partitions_begin_a_transaction(current: Transaction) -> None:
    after = rules.add_partitions(current, current.producer, [("a", 0)], 70)
    assert after is not None
    assert (after.state, after.partitions) == (TransactionState.ONGOING, frozenset({("a", 0)}))
    assert (after.started_ms, after.producer) == (70, current.producer)


def test_more_partitions_join_it() -> None:
    after = rules.add_partitions(ONGOING, THEIRS, [("b", 0), ("a", 0)], 70)
    assert after is not None
    assert (after.partitions, after.started_ms) == (PARTITIONS | {("b", 0)}, 20)
    assert rules.add_partitions(ONGOING, THEIRS, [("a", 1)], 70) is None, "it is in it"


def test_partitions_are_added_by_the_present_producer_only() -> None:
    for current, producer, error in [
        (None, THEIRS, InvalidProducerIdMappingError),
        (ONGOING, Producer(6, 3), InvalidProducerIdMappingError),
        (ONGOING, Producer(5, 2), ProducerFencedError),
        (ONGOING, Producer(5, 4), ProducerFencedError),
        (COMMITTING, Producer(5, 3), ProducerFencedError),
        (COMMITTING, Producer(5, 4), ConcurrentTransactionsError),
        (ROTATING, Producer(NEW_ID, 0), ConcurrentTransactionsError),
        (rules.fence(ONGOING, 50), Producer(5, 4), ProducerFencedError),
    ]:
        with pytest.raises(error):
            rules.add_partitions(current, producer, [("a", 0)], 70)


# --- verification ----------------------------------------------------------------------------------------------------


def test_only_partitions_of_the_open_transaction_may_be_written_to() -> None:
    rules.verify(ONGOING, THEIRS, ("a", 1))
    for current, producer, partition, error in [
        (None, THEIRS, ("a", 1), InvalidProducerIdMappingError),
        (ONGOING, Producer(6, 3), ("a", 1), InvalidProducerIdMappingError),
        (ONGOING, Producer(5, 2), ("a", 1), ProducerFencedError),
        (ONGOING, THEIRS, ("a", 2), AbortableTransactionError),
        (EMPTY, THEIRS, ("a", 1), AbortableTransactionError),
        (COMMITTED, Producer(5, 4), ("a", 1), AbortableTransactionError),
        (COMMITTING, THEIRS, ("a", 1), ProducerFencedError),
        (COMMITTING, Producer(5, 4), ("a", 1), ConcurrentTransactionsError),
    ]:
        with pytest.raises(error):
            rules.verify(current, producer, partition)


# --- EndTxn ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_the_end_raises_the_epoch_and_says_so(committed: bool) -> None:
    deciding = ended(ONGOING, committed=committed)
    assert deciding.is_committed is committed
    assert (deciding.epoch, deciding.partitions, deciding.started_ms) == (4, PARTITIONS, 20)
    assert rules.goes_on_with(deciding) == Producer(5, 4)
    completed = rules.complete(deciding, 60)
    assert (completed.is_committed, completed.epoch, completed.partitions) == (committed, 4, frozenset())
    assert rules.goes_on_with(completed) == Producer(5, 4)


def test_who_repeats_the_end_gets_the_same_answer_once_it_is_done() -> None:
    with pytest.raises(ConcurrentTransactionsError):
        end(COMMITTING)
    assert end(COMMITTED) is None
    assert end(ABORTED, committed=False) is None
    for decided in (COMMITTING, COMMITTED):
        with pytest.raises(InvalidTxnStateError):
            end(decided, committed=False)
    for decided in (ABORTING, ABORTED):
        with pytest.raises(InvalidTxnStateError):
            end(decided, committed=True)


def test_the_last_epoch_is_followed_by_another_producer_id() -> None:
    assert (ROTATING.producer, rules.goes_on_with(ROTATING)) == (Producer(5, EPOCH_MAX), Producer(NEW_ID, 0))
    assert (ROTATED.producer, rules.goes_on_with(ROTATED)) == (Producer(NEW_ID, 0), Producer(NEW_ID, 0))
    with pytest.raises(ConcurrentTransactionsError):
        end(ROTATING, Producer(5, LAST_EPOCH))
    with pytest.raises(ConcurrentTransactionsError):
        end(ROTATING, Producer(NEW_ID, 0), committed=False)
    assert end(ROTATED, Producer(5, LAST_EPOCH)) is None
    with pytest.raises(InvalidTxnStateError):
        end(ROTATED, Producer(5, LAST_EPOCH), committed=False)
    after = rules.add_partitions(ROTATED, Producer(NEW_ID, 0), [("a", 0)], 70)
    assert after is not None
    with pytest.raises(InvalidProducerIdMappingError):
        end(after, Producer(5, LAST_EPOCH))


@pytest.mark.parametrize("current", [EMPTY, COMMITTED, ABORTED, FENCED])
def test_what_has_not_begun_can_be_aborted_but_not_committed(current: Transaction) -> None:
    after = end(current, current.producer, committed=False)
    assert after is not None
    assert (after.state, after.epoch) == (TransactionState.PREPARE_ABORT, current.epoch + 1)
    assert (after.partitions, after.started_ms) == (frozenset(), 50)
    with pytest.raises(InvalidTxnStateError):
        end(current, current.producer)


def test_it_is_ended_by_the_present_producer_only() -> None:
    for current, producer, error in [
        (None, THEIRS, InvalidProducerIdMappingError),
        (ONGOING, Producer(6, 3), InvalidProducerIdMappingError),
        (ONGOING, Producer(5, 2), ProducerFencedError),
        (ONGOING, Producer(5, 4), ProducerFencedError),
        (COMMITTED, Producer(5, 2), ProducerFencedError),
        (COMMITTING, Producer(5, 4), ConcurrentTransactionsError),
        (FENCED, THEIRS, ProducerFencedError),
        (rules.fence(ONGOING, 50), THEIRS, ProducerFencedError),
        (rules.fence(ONGOING, 50), Producer(5, 4), ProducerFencedError),
        (rules.complete(rules.fence(EPOCHS_USED_UP, 50), 60), Producer(5, EPOCH_MAX), ProducerFencedError),
    ]:
        for committed in (True, False):
            with pytest.raises(error):
                end(current, producer, committed=committed)


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_transaction_whose_time_is_up_is_aborted_and_its_producer_fenced() -> None:
    after = rules.time_out(ONGOING, THEIRS, 2000)
    assert after is not None
    assert (after.state, after.epoch, after.last_epoch) == (TransactionState.PREPARE_ABORT, 4, -1)
    for current in (None, COMMITTING, COMMITTED, EMPTY, replace(ONGOING, epoch=4)):
        assert rules.time_out(current, THEIRS, 2000) is None, "that transaction has ended"


def test_a_fenced_last_epoch_is_given_to_nobody() -> None:
    fenced = rules.complete(rules.fence(EPOCHS_USED_UP, 50), 60)
    assert fenced.producer == Producer(5, EPOCH_MAX)
    assert init(fenced).producer == Producer(NEW_ID, 0)
    with pytest.raises(ProducerFencedError):
        init(fenced, Producer(5, LAST_EPOCH))


def test_only_ids_at_rest_expire() -> None:
    for current in (EMPTY, COMMITTED, ABORTED):
        assert not rules.is_expired(current, current.updated_ms + 99, 100)
        assert rules.is_expired(current, current.updated_ms + 100, 100)
    for current in (ONGOING, COMMITTING, ABORTING):
        assert not rules.is_expired(current, 10**9, 100)
