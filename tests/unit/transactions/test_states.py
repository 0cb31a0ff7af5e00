"""Tests of the transaction states, with Kafka's rules for epochs.

Each end of a transaction raises the epoch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millrace.coordinator_records import TransactionState, read_transaction_value
from millrace.errors import (
    AbortableTransactionError,
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from millrace_broker.transactions import states
from millrace_broker.transactions.metadata import (
    EPOCH_MAX,
    LAST_EPOCH,
    PREPARED,
    ProducerIdAndEpoch,
    TransactionMetadata,
    transaction_of,
)
from millrace_broker.transactions.state_manager import StateChange, TransactionStateManager

EMPTY = TransactionMetadata(transactional_id="t", producer_id=5, epoch=3, timeout_ms=1000, updated_ms=10)
PARTITIONS = frozenset({("a", 0), ("a", 1)})
ONGOING = replace(EMPTY, state=TransactionState.ONGOING, partitions=PARTITIONS, started_ms=20, updated_ms=20)
EPOCHS_USED_UP = replace(ONGOING, epoch=LAST_EPOCH)
THEIRS = ProducerIdAndEpoch(5, 3)
NEW_ID = 99


def init(
    current: TransactionMetadata | None, expected: ProducerIdAndEpoch | None = None, **options: Any
) -> TransactionMetadata:
    return states.init_producer_id(
        current, "t", expected, **{"timeout_ms": 1000, "new_producer_id": NEW_ID, "now_ms": 50, **options}
    )


def end(
    current: TransactionMetadata | None, producer: ProducerIdAndEpoch = THEIRS, *, committed: bool = True
) -> TransactionMetadata | None:
    return states.end(current, producer, committed=committed, new_producer_id=NEW_ID, now_ms=50)


def ended(current: TransactionMetadata, *, committed: bool = True) -> TransactionMetadata:
    after = end(current, current.producer, committed=committed)
    assert after is not None
    return after


COMMITTING = ended(ONGOING)
ABORTING = ended(ONGOING, committed=False)
COMMITTED = states.complete(COMMITTING, 60)
ABORTED = states.complete(ABORTING, 60)
ROTATING = ended(EPOCHS_USED_UP)
ROTATED = states.complete(ROTATING, 60)
FENCED = states.complete(states.fence(ONGOING, 50), 60)


# --- InitProducerId --------------------------------------------------------------------------------------------------


def test_a_new_transactional_id_has_a_new_producer_id_and_epoch_0() -> None:
    assert init(None).producer == ProducerIdAndEpoch(NEW_ID, 0)
    assert init(None, ProducerIdAndEpoch(7, 4)).producer == ProducerIdAndEpoch(NEW_ID, 0), (
        "the id was forgotten, so any client may have it"
    )


@pytest.mark.parametrize("current", [EMPTY, COMMITTED, ABORTED, FENCED])
def test_taking_over_raises_the_epoch(current: TransactionMetadata) -> None:
    after = init(current, timeout_ms=7)
    assert after.producer == ProducerIdAndEpoch(5, current.epoch + 1)
    assert (after.state, after.timeout_ms, after.partitions) == (TransactionState.EMPTY, 7, frozenset())


def test_taking_over_from_an_open_transaction_aborts_it_first() -> None:
    after = init(ONGOING)
    assert (after.state, after.epoch, after.partitions) == (TransactionState.PREPARE_ABORT, 4, PARTITIONS)
    with pytest.raises(ConcurrentTransactionsError):
        init(after)
    assert init(states.complete(after, 60)).epoch == 5


@pytest.mark.parametrize("current", [COMMITTING, ABORTING, ROTATING])
def test_no_producer_takes_over_while_markers_are_being_written(current: TransactionMetadata) -> None:
    for expected in (None, states.next_producer(current)):
        with pytest.raises(ConcurrentTransactionsError):
            init(current, expected)


def test_a_client_that_continues_keeps_its_id_unless_another_has_taken_over() -> None:
    after = init(EMPTY, THEIRS)
    assert after.producer == ProducerIdAndEpoch(5, 4)
    assert init(after, THEIRS).producer == ProducerIdAndEpoch(5, 4), (
        "the answer was lost, so the retry gets the same one"
    )
    other = init(after)
    for mine in (THEIRS, ProducerIdAndEpoch(5, 4)):
        with pytest.raises(ProducerFencedError):
            init(other, mine)
    with pytest.raises(ProducerFencedError):
        init(EMPTY, ProducerIdAndEpoch(6, 3))


def test_a_fenced_producer_cannot_abort_the_transaction_of_its_successor() -> None:
    with pytest.raises(ProducerFencedError):
        init(ONGOING, ProducerIdAndEpoch(5, 2))


@pytest.mark.parametrize("current", [ONGOING, EPOCHS_USED_UP])
def test_a_producer_may_abort_its_own_transaction_by_starting_again(current: TransactionMetadata) -> None:
    aborting = init(current, current.producer)
    assert aborting.state is TransactionState.PREPARE_ABORT
    after = init(states.complete(aborting, 60), current.producer)
    assert after.producer == states.next_producer(aborting)
    assert after.producer.epoch <= LAST_EPOCH


@pytest.mark.parametrize(
    ("current", "expected", "needs_id"),
    [
        (None, None, True),
        (None, THEIRS, True),
        (EMPTY, None, False),
        (replace(EMPTY, epoch=LAST_EPOCH - 1), None, False),
        (replace(EMPTY, epoch=LAST_EPOCH), None, True),
        (replace(EMPTY, epoch=LAST_EPOCH), ProducerIdAndEpoch(5, LAST_EPOCH), True),
        (replace(EMPTY, epoch=LAST_EPOCH), ProducerIdAndEpoch(5, LAST_EPOCH - 1), False),
        (EPOCHS_USED_UP, EPOCHS_USED_UP.producer, True),
        (EPOCHS_USED_UP, ProducerIdAndEpoch(5, LAST_EPOCH - 1), False),
        (EPOCHS_USED_UP, None, False),
        (ROTATING, None, False),
    ],
)
def test_a_producer_id_is_fetched_beforehand_if_it_will_be_used(
    current: TransactionMetadata | None, expected: ProducerIdAndEpoch | None, needs_id: bool
) -> None:
    assert states.init_needs_producer_id(current, expected) is needs_id


@pytest.mark.parametrize(("producer_id", "epoch"), [(7, LAST_EPOCH), (5, LAST_EPOCH - 1), (5, 3), (7, 3)])
def test_only_the_last_epoch_of_the_previous_producer_id_is_a_repeated_call(producer_id: int, epoch: int) -> None:
    for current in (ROTATED, replace(ROTATED, epoch=3)):
        with pytest.raises(ProducerFencedError):
            init(current, ProducerIdAndEpoch(producer_id, epoch))
    assert init(ROTATED, ProducerIdAndEpoch(5, LAST_EPOCH)).producer == ROTATED.producer


def test_used_up_epochs_give_another_producer_id() -> None:
    used_up = replace(EMPTY, epoch=LAST_EPOCH)
    after = init(used_up)
    assert after.producer == ProducerIdAndEpoch(NEW_ID, 0)
    assert after.previous_producer_id == 5
    going_on = init(used_up, ProducerIdAndEpoch(5, LAST_EPOCH))
    assert going_on.producer == ProducerIdAndEpoch(NEW_ID, 0)
    assert init(going_on, ProducerIdAndEpoch(5, LAST_EPOCH)).producer == ProducerIdAndEpoch(NEW_ID, 0), (
        "the answer was lost"
    )
    with pytest.raises(ProducerFencedError):
        init(after, ProducerIdAndEpoch(5, LAST_EPOCH))


@pytest.mark.parametrize(("timeout_ms", "is_accepted"), [(0, False), (-1, False), (1, True), (900, True), (901, False)])
def test_the_broker_bounds_time_outs(timeout_ms: int, is_accepted: bool) -> None:
    if is_accepted:
        states.check_timeout(timeout_ms, 900)
    else:
        with pytest.raises(InvalidTransactionTimeoutError, match="900"):
            states.check_timeout(timeout_ms, 900)


# --- AddPartitions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("current", [EMPTY, COMMITTED, ABORTED])
def test_the_first_partitions_begin_a_transaction(current: TransactionMetadata) -> None:
    after = states.add_partitions(current, current.producer, [("a", 0)], 70)
    assert after is not None
    assert (after.state, after.partitions) == (TransactionState.ONGOING, frozenset({("a", 0)}))
    assert (after.started_ms, after.producer) == (70, current.producer)


def test_more_partitions_join_it() -> None:
    after = states.add_partitions(ONGOING, THEIRS, [("b", 0), ("a", 0)], 70)
    assert after is not None
    assert (after.partitions, after.started_ms) == (PARTITIONS | {("b", 0)}, 20)
    assert states.add_partitions(ONGOING, THEIRS, [("a", 1)], 70) is None, "the partition is in the transaction"


@pytest.mark.parametrize("added", [[], [("a", 0)], [("a", 1), ("a", 0)]])
def test_partitions_that_are_there_change_nothing(added: list[tuple[str, int]]) -> None:
    assert states.add_partitions(ONGOING, THEIRS, added, 30) is None


def test_partitions_are_added_by_the_present_producer_only() -> None:
    for current, producer, error in [
        (None, THEIRS, InvalidProducerIdMappingError),
        (ONGOING, ProducerIdAndEpoch(6, 3), InvalidProducerIdMappingError),
        (ONGOING, ProducerIdAndEpoch(5, 2), ProducerFencedError),
        (ONGOING, ProducerIdAndEpoch(5, 4), ProducerFencedError),
        (COMMITTING, ProducerIdAndEpoch(5, 3), ProducerFencedError),
        (COMMITTING, ProducerIdAndEpoch(5, 4), ConcurrentTransactionsError),
        (ROTATING, ProducerIdAndEpoch(NEW_ID, 0), ConcurrentTransactionsError),
        (states.fence(ONGOING, 50), ProducerIdAndEpoch(5, 4), ProducerFencedError),
    ]:
        with pytest.raises(error):
            states.add_partitions(current, producer, [("a", 0)], 70)


# --- verification ----------------------------------------------------------------------------------------------------


def test_only_partitions_of_the_open_transaction_may_be_written_to() -> None:
    states.verify(ONGOING, THEIRS, ("a", 1))
    for current, producer, partition, error in [
        (None, THEIRS, ("a", 1), InvalidProducerIdMappingError),
        (ONGOING, ProducerIdAndEpoch(6, 3), ("a", 1), InvalidProducerIdMappingError),
        (ONGOING, ProducerIdAndEpoch(5, 2), ("a", 1), ProducerFencedError),
        (ONGOING, THEIRS, ("a", 2), AbortableTransactionError),
        (EMPTY, THEIRS, ("a", 1), AbortableTransactionError),
        (COMMITTED, ProducerIdAndEpoch(5, 4), ("a", 1), AbortableTransactionError),
        (COMMITTING, THEIRS, ("a", 1), ProducerFencedError),
        (COMMITTING, ProducerIdAndEpoch(5, 4), ("a", 1), ConcurrentTransactionsError),
    ]:
        with pytest.raises(error):
            states.verify(current, producer, partition)


# --- EndTxn ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_the_end_raises_the_epoch_and_says_so(committed: bool) -> None:
    deciding = ended(ONGOING, committed=committed)
    assert deciding.is_committed is committed
    assert (deciding.epoch, deciding.partitions, deciding.started_ms) == (4, PARTITIONS, 20)
    assert states.next_producer(deciding) == ProducerIdAndEpoch(5, 4)
    completed = states.complete(deciding, 60)
    assert (completed.is_committed, completed.epoch, completed.partitions) == (committed, 4, frozenset())
    assert states.next_producer(completed) == ProducerIdAndEpoch(5, 4)


def test_a_retried_end_gets_the_same_answer_once_it_is_done() -> None:
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
    assert (ROTATING.producer, states.next_producer(ROTATING)) == (
        ProducerIdAndEpoch(5, EPOCH_MAX),
        ProducerIdAndEpoch(NEW_ID, 0),
    )
    assert (ROTATED.producer, states.next_producer(ROTATED)) == (
        ProducerIdAndEpoch(NEW_ID, 0),
        ProducerIdAndEpoch(NEW_ID, 0),
    )
    with pytest.raises(ConcurrentTransactionsError):
        end(ROTATING, ProducerIdAndEpoch(5, LAST_EPOCH))
    with pytest.raises(ConcurrentTransactionsError):
        end(ROTATING, ProducerIdAndEpoch(NEW_ID, 0), committed=False)
    assert end(ROTATED, ProducerIdAndEpoch(5, LAST_EPOCH)) is None
    with pytest.raises(InvalidTxnStateError):
        end(ROTATED, ProducerIdAndEpoch(5, LAST_EPOCH), committed=False)
    after = states.add_partitions(ROTATED, ProducerIdAndEpoch(NEW_ID, 0), [("a", 0)], 70)
    assert after is not None
    with pytest.raises(InvalidProducerIdMappingError):
        end(after, ProducerIdAndEpoch(5, LAST_EPOCH))


@pytest.mark.parametrize("current", [EMPTY, COMMITTED, ABORTED, FENCED])
def test_an_unbegun_transaction_can_be_aborted_but_not_committed(current: TransactionMetadata) -> None:
    after = end(current, current.producer, committed=False)
    assert after is not None
    assert (after.state, after.epoch) == (TransactionState.PREPARE_ABORT, current.epoch + 1)
    assert (after.partitions, after.started_ms) == (frozenset(), 50)
    with pytest.raises(InvalidTxnStateError):
        end(current, current.producer)


def test_only_the_present_producer_ends_its_transaction() -> None:
    for current, producer, error in [
        (None, THEIRS, InvalidProducerIdMappingError),
        (ONGOING, ProducerIdAndEpoch(6, 3), InvalidProducerIdMappingError),
        (ONGOING, ProducerIdAndEpoch(5, 2), ProducerFencedError),
        (ONGOING, ProducerIdAndEpoch(5, 4), ProducerFencedError),
        (COMMITTED, ProducerIdAndEpoch(5, 2), ProducerFencedError),
        (COMMITTING, ProducerIdAndEpoch(5, 4), ConcurrentTransactionsError),
        (FENCED, THEIRS, ProducerFencedError),
        (states.fence(ONGOING, 50), THEIRS, ProducerFencedError),
        (states.fence(ONGOING, 50), ProducerIdAndEpoch(5, 4), ProducerFencedError),
        (states.complete(states.fence(EPOCHS_USED_UP, 50), 60), ProducerIdAndEpoch(5, EPOCH_MAX), ProducerFencedError),
    ]:
        for committed in (True, False):
            with pytest.raises(error):
                end(current, producer, committed=committed)


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_transaction_whose_time_is_up_is_aborted_and_its_producer_may_continue() -> None:
    after = states.time_out(ONGOING, THEIRS, 2000)
    assert after is not None
    assert (after.state, after.epoch, after.last_epoch) == (TransactionState.PREPARE_ABORT, 4, 3)
    aborted = states.complete(after, 2001)
    assert end(aborted, THEIRS, committed=False) is None, "as if the abort were repeated"
    assert states.next_producer(aborted) == ProducerIdAndEpoch(5, 4)
    assert init(aborted, THEIRS).producer == ProducerIdAndEpoch(5, 4)
    with pytest.raises(InvalidTxnStateError):
        end(aborted, THEIRS, committed=True)
    for current in (after, aborted):
        with pytest.raises(InvalidProducerEpochError, match="abort it, and begin another"):
            states.add_partitions(current, THEIRS, [("a", 5)], 2002)
        with pytest.raises(InvalidProducerEpochError):
            states.verify(current, THEIRS, ("a", 1))
    with pytest.raises(ProducerFencedError):
        end(init(aborted), THEIRS, committed=False)
    with pytest.raises(ProducerFencedError):
        states.add_partitions(init(aborted), THEIRS, [("a", 5)], 2002)
    for current in (None, COMMITTING, COMMITTED, EMPTY, replace(ONGOING, epoch=4)):
        assert states.time_out(current, THEIRS, 2000) is None, "that transaction has ended"


@pytest.mark.parametrize("is_timeout", [False, True])
def test_a_fenced_last_epoch_is_never_assigned(is_timeout: bool) -> None:
    timed_out = states.time_out(EPOCHS_USED_UP, EPOCHS_USED_UP.producer, 50)
    decided = timed_out if is_timeout else states.fence(EPOCHS_USED_UP, 50)
    assert decided is not None
    fenced = states.complete(decided, 60)
    assert fenced.producer == ProducerIdAndEpoch(5, EPOCH_MAX)
    assert init(fenced).producer == ProducerIdAndEpoch(NEW_ID, 0)
    with pytest.raises(ProducerFencedError):
        init(fenced, ProducerIdAndEpoch(5, LAST_EPOCH))


def test_only_ids_without_an_open_transaction_expire() -> None:
    for current in (EMPTY, COMMITTED, ABORTED):
        assert not states.is_expired(current, current.updated_ms + 99, 100)
        assert states.is_expired(current, current.updated_ms + 100, 100)
    for current in (ONGOING, COMMITTING, ABORTING):
        assert not states.is_expired(current, 10**9, 100)


# --- the table of transitions ----------------------------------------------------------------------------------------


KAFKA_PREVIOUS_STATES = {
    TransactionState.EMPTY: {
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    },
    TransactionState.ONGOING: {
        TransactionState.ONGOING,
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    },
    TransactionState.PREPARE_COMMIT: {TransactionState.ONGOING},
    TransactionState.PREPARE_ABORT: {
        TransactionState.ONGOING,
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    },
    TransactionState.COMPLETE_COMMIT: {TransactionState.PREPARE_COMMIT},
    TransactionState.COMPLETE_ABORT: {TransactionState.PREPARE_ABORT},
}
"""``TransactionState.validPreviousStates`` of Kafka for transaction version 2, without its fencing state."""


def test_transitions_are_those_of_kafka() -> None:
    table = states.TRANSITIONS
    assert {after: {before for before in table if after in table[before]} for after in table} == KAFKA_PREVIOUS_STATES


@pytest.mark.parametrize("before", list(states.TRANSITIONS))
@pytest.mark.parametrize("after", list(states.TRANSITIONS))
def test_a_transition_outside_the_table_is_refused_before_it_is_written(
    before: TransactionState, after: TransactionState
) -> None:
    manager = TransactionStateManager()
    manager.replay(replace(EMPTY, state=before).record())
    change = StateChange((replace(EMPTY, state=after),))
    if after in states.TRANSITIONS[before]:
        manager.begin(change)
    else:
        with pytest.raises(AssertionError, match=f"{before.kafka_name} to {after.kafka_name}"):
            manager.begin(change)
        assert not manager.is_busy("t") or before in PREPARED


def test_an_epoch_that_decreases_is_refused_before_it_is_written() -> None:
    manager = TransactionStateManager()
    manager.replay(ONGOING.record())
    with pytest.raises(AssertionError):
        manager.begin(StateChange((replace(ONGOING, epoch=ONGOING.epoch - 1),)))
    manager.begin(StateChange((replace(ONGOING, producer_id=NEW_ID, epoch=0),)))


# --- EndTxn of producers that keep their epoch -----------------------------------------------------------------------


def end_keeping(
    current: TransactionMetadata | None, producer: ProducerIdAndEpoch = THEIRS, *, committed: bool = True
) -> TransactionMetadata | None:
    return states.end_keeping_epoch(current, producer, committed=committed, now_ms=50)


def kept(current: TransactionMetadata, *, committed: bool = True) -> TransactionMetadata:
    after = end_keeping(current, current.producer, committed=committed)
    assert after is not None
    return after


KEPT = {committed: kept(ONGOING, committed=committed) for committed in (True, False)}
"""A producer's end in preparation, by its outcome."""


@pytest.mark.parametrize("committed", [True, False])
def test_a_producer_of_an_earlier_version_keeps_its_epoch(committed: bool) -> None:
    preparing = KEPT[committed]
    assert preparing.state is (TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT)
    assert (preparing.producer, preparing.partitions) == (THEIRS, PARTITIONS)
    assert states.next_producer(preparing) == THEIRS
    done = states.complete(preparing, 60)
    assert done.producer == THEIRS
    again = states.add_partitions(done, THEIRS, [("b", 0)], 70)
    assert again is not None
    assert (again.state, again.producer, again.started_ms) == (TransactionState.ONGOING, THEIRS, 70)


@pytest.mark.parametrize("committed", [True, False])
def test_a_producer_that_keeps_its_epoch_waits_for_the_markers_of_its_last_transaction(committed: bool) -> None:
    with pytest.raises(ConcurrentTransactionsError):
        states.add_partitions(KEPT[committed], THEIRS, [("b", 0)], 70)
    with pytest.raises(ConcurrentTransactionsError):
        states.verify(KEPT[committed], THEIRS, ("a", 0))
    with pytest.raises(ConcurrentTransactionsError):
        end_keeping(KEPT[committed], committed=committed)


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_that_keeps_the_epoch_may_be_repeated_but_not_contradicted(committed: bool) -> None:
    for current in (KEPT[committed], states.complete(KEPT[committed], 60)):
        with pytest.raises(InvalidTxnStateError):
            end_keeping(current, committed=not committed)
    assert end_keeping(states.complete(KEPT[committed], 60), committed=committed) is None


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_that_has_not_begun_has_no_end_that_keeps_the_epoch(committed: bool) -> None:
    with pytest.raises(InvalidTxnStateError):
        end_keeping(EMPTY, committed=committed)
    with pytest.raises(InvalidProducerIdMappingError):
        end_keeping(None, committed=committed)


def test_only_the_present_producer_can_end_a_transaction_and_keep_its_epoch() -> None:
    with pytest.raises(ProducerFencedError):
        end_keeping(ONGOING, ProducerIdAndEpoch(THEIRS.producer_id, THEIRS.epoch - 1))
    with pytest.raises(InvalidProducerIdMappingError):
        end_keeping(ONGOING, ProducerIdAndEpoch(NEW_ID, THEIRS.epoch))


def test_a_fenced_producer_cannot_end_its_transaction_with_the_epoch_that_fences() -> None:
    fencing = states.fence(ONGOING, 50)
    for producer in (THEIRS, fencing.producer):
        with pytest.raises(ProducerFencedError):
            end_keeping(fencing, producer)


def test_the_log_has_the_version_of_a_transaction_whose_producer_keeps_its_epoch() -> None:
    for current in (KEPT[True], states.complete(KEPT[True], 60)):
        record = current.record()
        assert record.value is not None
        assert transaction_of("t", read_transaction_value(record.value)) == current
