"""Tests of attempts to commit several producers.

One attempt commits, and earlier ones are fenced. An unknown attempt is refused.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.coordinator_records import TransactionState, read_external_commit
from millrace.errors import CommitOwnerError, InvalidRequestError, ProducerFencedError
from millrace_broker.transactions import (
    Attempt,
    ProducerIdAndEpoch,
    TransactionalProducer,
    TransactionMetadata,
    attempts,
)
from millrace_broker.transactions.metadata import ExternalCommit, commit_of, numbered_id
from millrace_broker.transactions.state_manager import StateChange, TransactionStateManager

BEGUN = ExternalCommit(
    external_id="query",
    external_epoch=6,
    committed_ms=1,
    owner="mine",
    begun_epoch=7,
    attempt="third",
    former_attempts=("second", "first"),
    updated_ms=2,
)


def attempt(epoch: int, name: str, owner: str = "mine") -> Attempt:
    return Attempt(external_id="query", external_epoch=epoch, name=name, owner=owner)


def test_the_first_attempt_of_all_begins_and_owns_the_id() -> None:
    begun = attempts.begin(None, replace(attempt(3, "first"), retention_ms=9), 50)
    assert begun == ExternalCommit(
        external_id="query", owner="mine", begun_epoch=3, attempt="first", updated_ms=50, retention_ms=9
    )
    assert attempts.begin(begun, attempt(3, "first"), 60) is None, "the attempt's other tasks find it begun"


def test_an_attempt_that_is_new_takes_over_and_fences_those_before() -> None:
    begun = attempts.begin(BEGUN, attempt(7, "fourth"), 50)
    assert begun is not None
    assert (begun.attempt, begun.former_attempts) == ("fourth", ("third", "second", "first"))
    assert begun.external_epoch == 6
    for former in ("third", "second", "first"):
        with pytest.raises(ProducerFencedError, match="attempt fourth has taken over"):
            attempts.begin(begun, attempt(7, former), 60)
        with pytest.raises(ProducerFencedError, match="attempt fourth has taken over"):
            attempts.check_is_current(begun, "query", 7, former)
    attempts.check_is_current(begun, "query", 7, "fourth")


def test_the_next_epoch_begins_without_a_past() -> None:
    begun = attempts.begin(BEGUN, attempt(8, "next"), 50)
    assert begun is not None
    assert (begun.begun_epoch, begun.attempt, begun.former_attempts) == (8, "next", ())
    with pytest.raises(ProducerFencedError, match="8 has begun"):
        attempts.begin(begun, attempt(7, "third"), 60)
    with pytest.raises(ProducerFencedError, match="has not begun epoch 7"):
        attempts.check_is_current(begun, "query", 7, "third")
    with pytest.raises(ProducerFencedError, match="has not begun epoch 0"):
        attempts.check_is_current(None, "query", 0, "third")


def test_no_more_former_attempts_are_kept_than_the_limit() -> None:
    last = BEGUN
    for number in range(2 * attempts.FORMER_ATTEMPTS_MAX):
        after = attempts.begin(last, attempt(7, f"attempt-{number}"), 50)
        assert after is not None
        last = after
    assert len(last.former_attempts) == attempts.FORMER_ATTEMPTS_MAX


def test_another_user_cannot_use_an_id_that_has_an_owner() -> None:
    with pytest.raises(CommitOwnerError, match="committed 6 last: choose another external id for theirs"):
        attempts.begin(BEGUN, attempt(0, "theirs", owner="theirs"), 50)
    assert attempts.begin(BEGUN, attempt(8, "nobody's", owner=""), 50) is not None


@pytest.mark.parametrize("wrong", [{"name": ""}, {"external_id": ""}, {"external_epoch": -1}, {"retention_ms": -1}])
def test_attempts_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="expected an external id"):
        attempts.begin(None, replace(attempt(1, "a"), **wrong), 50)  # type: ignore[arg-type]


def test_an_id_is_forgotten_when_it_is_not_used_for_its_time() -> None:
    kept = replace(BEGUN, retention_ms=100)
    assert not attempts.is_expired(kept, 101)
    assert attempts.is_expired(kept, 102)
    assert not attempts.is_expired(BEGUN, 2**62), "an attempt without a retention time stays"
    manager = TransactionStateManager()
    manager.apply(StateChange(commit=kept))
    change = manager.expire(102, 1, 10)
    assert change is not None
    manager.apply(change)
    assert manager.last_commit("query") is None
    reread = TransactionStateManager()
    for record in (*StateChange(commit=kept).records(), *change.records()):
        reread.replay(record)
    assert reread.last_commit("query") is None


def test_a_record_says_all_of_it_and_older_records_are_read() -> None:
    value = BEGUN.record().value
    assert value is not None
    assert commit_of("query", read_external_commit(value)) == BEGUN
    # As version 0 wrote it, with epoch and time.
    old = (0).to_bytes(2) + (6).to_bytes(8) + (1).to_bytes(8) + b"\0"
    assert commit_of("query", read_external_commit(old)) == ExternalCommit(
        external_id="query", external_epoch=6, committed_ms=1
    )


def open_transaction(number: int, external_id: str = "query") -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id=numbered_id(external_id, number),
        producer_id=number,
        epoch=3,
        timeout_ms=1000,
        updated_ms=0,
        state=TransactionState.ONGOING,
        partitions=frozenset({("a", 0)}),
        external_id=external_id,
    )


def manager_of(*transactions: TransactionMetadata) -> TransactionStateManager:
    manager = TransactionStateManager()
    manager.apply(StateChange(transactions, commit=BEGUN))
    return manager


def states(transactions: tuple[TransactionMetadata, ...]) -> dict[str, TransactionState]:
    return {each.transactional_id: each.state for each in transactions}


ABORTED = TransactionState.PREPARE_ABORT


def test_the_next_producer_of_an_id_aborts_its_open_transactions_and_no_others() -> None:
    manager = manager_of(
        open_transaction(0), open_transaction(1), open_transaction(2, "query-1"), open_transaction(3, "other")
    )
    change = manager.begin_attempt(attempt(7, "fourth"), (), 50)
    assert change is not None
    assert states(change.transactions) == {"query-0": ABORTED, "query-1": ABORTED}
    manager.apply(change)
    assert manager.begin_attempt(attempt(7, "fourth"), (), 60) is None


@pytest.mark.parametrize("assigned", [(), ("query-0",)], ids=["not assigned", "taken by a client since"])
def test_an_id_that_a_client_has_chosen_belongs_to_no_attempt(assigned: tuple[str, ...]) -> None:
    manager = manager_of(replace(open_transaction(0), external_id=""))
    change = manager.begin_attempt(attempt(7, "fourth"), assigned, 50)
    assert change is not None
    assert change.transactions == ()
    assert [manager.is_free("query", name) for name in ("query-0", "query-1")] == [False, True]


def test_a_client_that_takes_an_assigned_id_keeps_it() -> None:
    manager = TransactionStateManager()
    for external_id in ("query", ""):
        change = manager.init_producer_id(
            "query-0", None, timeout_ms=1000, new_producer_id=5, now_ms=50, external_id=external_id
        )
        reread = TransactionStateManager()
        for record in change.records():
            reread.replay(record)
        assert reread.is_free("query", "query-0") is (external_id == "query")
        manager.apply(change)


def test_a_commit_aborts_what_its_attempt_has_open_beside_the_winners() -> None:
    manager = manager_of(open_transaction(0), open_transaction(1), open_transaction(2))
    decision, _ = manager.commit_transactions(
        "query",
        7,
        committed=[TransactionalProducer("query-1", ProducerIdAndEpoch(1, 3))],
        aborted=[],
        new_producer_ids=iter(()),
        now_ms=50,
        attempt="third",
    )
    committed = {"query-1": TransactionState.PREPARE_COMMIT, "query-0": ABORTED, "query-2": ABORTED}
    assert states(decision.transactions) == committed
    assert decision.commit == replace(BEGUN, external_epoch=7, committed_ms=50, updated_ms=50)


def test_a_member_that_was_fenced_does_not_keep_open_what_is_in_its_place_now() -> None:
    manager = manager_of(open_transaction(0), open_transaction(1))
    decision, _ = manager.commit_transactions(
        "query",
        7,
        committed=[],
        aborted=[
            TransactionalProducer("query-0", ProducerIdAndEpoch(0, 2)),
            TransactionalProducer("query-1", ProducerIdAndEpoch(1, 3)),
        ],
        new_producer_ids=iter(()),
        now_ms=50,
        attempt="third",
    )
    assert states(decision.transactions) == {"query-0": ABORTED, "query-1": ABORTED}


def test_an_attempt_that_was_fenced_commits_nothing() -> None:
    manager = manager_of(open_transaction(0))
    with pytest.raises(ProducerFencedError, match="attempt third has taken over"):
        manager.commit_transactions(
            "query",
            7,
            committed=[TransactionalProducer("query-0", ProducerIdAndEpoch(0, 3))],
            aborted=[],
            new_producer_ids=iter(()),
            now_ms=50,
            attempt="second",
        )


def test_an_attempt_can_be_aborted_while_it_is_the_present_one() -> None:
    manager = manager_of(open_transaction(0), open_transaction(1))
    change = manager.abort_attempt("query", 7, "third", (), 50)
    assert change is not None
    assert set(states(change.transactions).values()) == {ABORTED}
    assert manager.abort_attempt("query", 6, "any", (), 50) is None, "the committed transaction stays"
    with pytest.raises(ProducerFencedError):
        manager.abort_attempt("query", 7, "second", (), 50)
    manager.apply(change)
    with pytest.raises(ProducerFencedError, match="it was aborted"):
        manager.begin_attempt(attempt(7, "third"), (), 60)
    begun = manager.begin_attempt(attempt(7, "fourth"), (), 60)
    assert begun is not None
    assert begun.commit is not None
    assert begun.commit.former_attempts == ("third", "second", "first")


@pytest.mark.parametrize("event", ["taken over", "aborted", "committed"])
def test_a_producer_that_had_not_begun_cannot_begin_after_the_attempt(event: str) -> None:
    # A task that was about to write when its attempt ended would leave an open transaction that no client ends.
    waiting = replace(open_transaction(0), state=TransactionState.EMPTY, partitions=frozenset())
    manager = manager_of(waiting, open_transaction(1))
    assigned = ["query-0", "query-1", "query-2"]
    if event == "taken over":
        change = manager.begin_attempt(attempt(7, "fourth"), assigned, 50)
    elif event == "aborted":
        change = manager.abort_attempt("query", 7, "third", assigned, 50)
    else:
        _, change = manager.commit_transactions(
            "query",
            7,
            committed=[TransactionalProducer("query-1", ProducerIdAndEpoch(1, 3))],
            aborted=[],
            new_producer_ids=iter(()),
            now_ms=50,
            attempt="third",
            assigned=assigned,
        )
    assert change is not None
    manager.apply(change)
    with pytest.raises(ProducerFencedError):
        manager.add_partitions("query-0", waiting.producer, [("a", 0)], 60)


@pytest.mark.parametrize(("last", "expected"), [(None, (False, False, False)), (BEGUN, (True, True, False))])
def test_an_epoch_up_to_the_last_one_was_committed(last: ExternalCommit | None, expected: tuple[bool, ...]) -> None:
    assert tuple(attempts.was_committed(last, epoch) for epoch in (5, 6, 7)) == expected


@pytest.mark.parametrize(
    ("epoch", "is_begun"), [(0, False), (6, False), (7, True), (8, False)], ids=["first", "below", "at", "above"]
)
def test_an_attempt_is_the_present_one_of_the_begun_epoch_only(epoch: int, is_begun: bool) -> None:
    if is_begun:
        attempts.check_is_current(BEGUN, "query", epoch, "third")
        return
    with pytest.raises(ProducerFencedError, match=f"has not begun epoch {epoch} of query"):
        attempts.check_is_current(BEGUN, "query", epoch, "third")


def test_an_attempt_begins_the_first_epoch_without_an_owner() -> None:
    begun = attempts.begin(None, attempt(0, "first", owner=""), 50)
    assert begun == ExternalCommit(external_id="query", begun_epoch=0, attempt="first", updated_ms=50)


@pytest.mark.parametrize(
    ("present", "owner", "is_refused"),
    [("", "", False), ("", "mine", False), ("mine", "", False), ("mine", "mine", False), ("mine", "theirs", True)],
)
def test_an_owner_is_refused_by_another_one_only(present: str, owner: str, is_refused: bool) -> None:
    last = replace(BEGUN, owner=present)
    if is_refused:
        with pytest.raises(CommitOwnerError, match=f"belongs to {present}"):
            attempts.check_owner(last, "query", owner)
        return
    attempts.check_owner(last, "query", owner)
    attempts.check_owner(None, "query", owner)
    begun = attempts.begin(last, attempt(8, "next", owner=owner), 50)
    assert begun is not None
    assert begun.owner == (owner or present)


@pytest.mark.parametrize("count", [attempts.FORMER_ATTEMPTS_MAX - 1, attempts.FORMER_ATTEMPTS_MAX])
def test_an_abandoned_attempt_is_the_first_of_the_remembered_ones(count: int) -> None:
    former = tuple(f"attempt-{number}" for number in range(count))
    after = attempts.abandoned(replace(BEGUN, former_attempts=former), 50)
    kept = ("third", *former)[: attempts.FORMER_ATTEMPTS_MAX]
    assert after == replace(BEGUN, attempt="", former_attempts=kept, updated_ms=50)
    assert "third" in kept


def test_an_attempt_after_an_abandoned_one_remembers_the_same_former_ones() -> None:
    begun = attempts.begin(attempts.abandoned(BEGUN, 50), attempt(7, "fourth"), 60)
    assert begun == replace(BEGUN, attempt="fourth", former_attempts=("third", "second", "first"), updated_ms=60)


@pytest.mark.parametrize(
    ("retention_ms", "now_ms", "is_expired"),
    [(0, 2, False), (0, 9, False), (1, 2, False), (1, 3, True), (10, 11, False), (10, 12, True), (10, 13, True)],
)
def test_an_external_id_expires_at_its_retention_time(retention_ms: int, now_ms: int, is_expired: bool) -> None:
    assert attempts.is_expired(replace(BEGUN, retention_ms=retention_ms), now_ms) is is_expired
