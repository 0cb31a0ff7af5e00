"""Tests of producers that are committed together.

All of them are committed or none, and each epoch once.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from millrace.coordinator_records import TransactionState
from millrace.errors import InvalidRequestError, InvalidTxnStateError, ProducerFencedError
from millrace_broker.transactions import (
    CommitDecision,
    ProducerIdAndEpoch,
    TransactionalProducer,
    TransactionMetadata,
    external_commits,
    states,
)
from millrace_broker.transactions.metadata import LAST_EPOCH, ExternalCommit

KNOWN = {
    name: TransactionMetadata(
        transactional_id=name,
        producer_id=number,
        epoch=3,
        timeout_ms=1000,
        updated_ms=0,
        state=TransactionState.ONGOING,
        partitions=frozenset({("a", number)}),
    )
    for number, name in enumerate("abc")
}
KNOWN["empty"] = replace(KNOWN["a"], transactional_id="empty", state=TransactionState.EMPTY)
KNOWN["ending"] = replace(KNOWN["a"], transactional_id="ending", state=TransactionState.PREPARE_ABORT)
KNOWN["last"] = replace(KNOWN["a"], transactional_id="last", epoch=LAST_EPOCH)
LAST = ExternalCommit(external_id="query", external_epoch=6, committed_ms=1)


def member(name: str, epoch: int | None = None) -> TransactionalProducer:
    current = KNOWN[name]
    return TransactionalProducer(
        name, ProducerIdAndEpoch(current.producer_id, current.epoch if epoch is None else epoch)
    )


def decide(
    committed: str | list[TransactionalProducer],
    aborted: str | list[TransactionalProducer] = "",
    epoch: int = 7,
    last: ExternalCommit | None = LAST,
) -> CommitDecision:
    def members(names: str | list[TransactionalProducer]) -> list[TransactionalProducer]:
        return [member(name) for name in names.split()] if isinstance(names, str) else names

    return external_commits.decide(
        last,
        "query",
        epoch,
        committed=members(committed),
        aborted=members(aborted),
        find=KNOWN.get,
        new_producer_ids=count(100),
        now_ms=50,
    )


def states_of(decision: CommitDecision) -> dict[str, TransactionState]:
    return {each.transactional_id: each.state for each in decision.transactions}


@pytest.mark.parametrize("last", [None, LAST])
def test_a_new_epoch_commits_some_and_aborts_others(last: ExternalCommit | None) -> None:
    decision = decide("a b", "c", last=last)
    prepared = TransactionState.PREPARE_COMMIT
    assert states_of(decision) == {"a": prepared, "b": prepared, "c": TransactionState.PREPARE_ABORT}
    assert all(each.epoch == 4 for each in decision.transactions)
    assert decision.commit == ExternalCommit(external_id="query", external_epoch=7, committed_ms=50, updated_ms=50)
    assert (decision.was_committed_before, decision.last_committed_epoch) == (False, 7)


@pytest.mark.parametrize("epoch", [6, 5, 0])
def test_an_epoch_that_was_committed_is_not_committed_again(epoch: int) -> None:
    decision = decide("a b", "c", epoch=epoch)
    assert set(states_of(decision).values()) == {TransactionState.PREPARE_ABORT}
    assert (decision.commit, decision.was_committed_before, decision.last_committed_epoch) == (None, True, 6)


def test_an_epoch_without_members_is_committed_too() -> None:
    assert decide("").commit is not None


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (
            [TransactionalProducer("nobody", ProducerIdAndEpoch(1, 1))],
            "is not known here: initialise it with the external id",
        ),
        ([member("b", epoch=2)], "it was fenced, or timed out"),
        ([TransactionalProducer("b", ProducerIdAndEpoch(9, 3))], "it was fenced, or timed out"),
        ([member("empty")], "has no open transaction, because its state is Empty"),
        ([member("ending")], "has no open transaction, because its state is PrepareAbort"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_committed_if_one_cannot_be(wrong: list[TransactionalProducer], problem: str) -> None:
    with pytest.raises(InvalidTxnStateError, match=problem):
        decide([member("a"), *wrong])
    decision = decide("a", wrong)
    assert states_of(decision) == {"a": TransactionState.PREPARE_COMMIT}, (
        "there is no transaction to abort, which is no error"
    )


def test_requests_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="twice"):
        decide("a b", "a")
    with pytest.raises(InvalidRequestError, match="expected a name"):
        decide("a", epoch=-1)


def test_a_member_whose_epochs_are_used_up_continues_with_another_id() -> None:
    assert external_commits.count_needing_producer_ids([member("a"), member("last")], KNOWN.get) == 1
    after = next(each for each in decide("a last").transactions if each.transactional_id == "last")
    assert states.next_producer(after) == ProducerIdAndEpoch(100, 0)
    assert next(each for each in decide("a", "last").transactions if each.transactional_id == "last") == replace(
        after, state=TransactionState.PREPARE_ABORT
    )


@pytest.mark.parametrize(
    ("external_id", "epoch", "is_valid"), [("query", 0, True), ("query", -1, False), ("", 0, False)]
)
def test_a_commit_has_a_name_and_a_number_from_zero(external_id: str, epoch: int, is_valid: bool) -> None:
    def commit() -> CommitDecision:
        return external_commits.decide(
            None,
            external_id,
            epoch,
            committed=[member("a")],
            aborted=[],
            find=KNOWN.get,
            new_producer_ids=iter(()),
            now_ms=50,
        )

    if is_valid:
        assert commit().commit == ExternalCommit(external_id="query", external_epoch=0, committed_ms=50, updated_ms=50)
    else:
        with pytest.raises(InvalidRequestError, match="expected a name"):
            commit()


@pytest.mark.parametrize(
    ("names", "needed"), [("", 0), ("a", 0), ("last", 1), ("a last", 1), ("last old", 2), ("last over", 1)]
)
def test_a_producer_without_epochs_needs_an_id_unless_it_ends_already(names: str, needed: int) -> None:
    known = {
        **KNOWN,
        "old": replace(KNOWN["last"], transactional_id="old", producer_id=8),
        "over": replace(KNOWN["last"], transactional_id="over", state=TransactionState.PREPARE_COMMIT),
    }
    members = [TransactionalProducer(name, known[name].producer) for name in names.split()]
    assert external_commits.count_needing_producer_ids(members, known.get) == needed
    assert external_commits.count_needing_producer_ids(members, lambda _: None) == 0


BEGUN = replace(LAST, begun_epoch=7, attempt="present", former_attempts=("former",))


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        ("", {"a": "PREPARE_COMMIT", "b": "PREPARE_ABORT"}),
        ("present", {"a": "PREPARE_COMMIT", "b": "PREPARE_ABORT", "c": "PREPARE_ABORT", "empty": "EMPTY"}),
    ],
)
def test_an_attempt_fences_the_other_transactions_in_use(attempt: str, expected: dict[str, str]) -> None:
    decision = external_commits.decide(
        BEGUN,
        "query",
        7,
        committed=[member("a")],
        aborted=[member("b")],
        find=KNOWN.get,
        new_producer_ids=iter(()),
        now_ms=50,
        attempt=attempt,
        in_use=[KNOWN[name] for name in ("a", "b", "c", "empty", "ending")],
    )
    assert {name: state.name for name, state in states_of(decision).items()} == expected
    assert len(decision.transactions) == len(expected)
    assert all(each.epoch == 4 for each in decision.transactions)
    assert decision.commit == replace(BEGUN, external_epoch=7, committed_ms=50, updated_ms=50)


@pytest.mark.parametrize(
    ("epoch", "attempt", "error"),
    [(7, "former", "is fenced"), (8, "present", "has not begun epoch 8"), (7, "present", ""), (6, "former", "")],
)
def test_the_present_attempt_commits_and_any_learns_of_committed_epochs(epoch: int, attempt: str, error: str) -> None:
    def commit() -> CommitDecision:
        return external_commits.decide(
            BEGUN,
            "query",
            epoch,
            committed=[member("a")],
            aborted=[],
            find=KNOWN.get,
            new_producer_ids=iter(()),
            now_ms=50,
            attempt=attempt,
            in_use=[KNOWN["b"]],
        )

    if error:
        with pytest.raises(ProducerFencedError, match=error):
            commit()
    else:
        decision = commit()
        assert decision.was_committed_before is (epoch == 6)
        assert len(decision.transactions) == (1 if epoch == 6 else 2), "a commit again fences no later transaction"


def test_an_attempt_that_is_aborted_fences_what_can_still_write() -> None:
    exhausted = replace(KNOWN["empty"], epoch=2**15 - 1)
    fenced = external_commits.fence_all([KNOWN["a"], KNOWN["empty"], KNOWN["ending"], exhausted], 50)
    assert [(each.transactional_id, each.epoch) for each in fenced] == [("a", 4), ("empty", 4)]
