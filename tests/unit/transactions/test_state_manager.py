"""Tests of the transactional ids of one partition.

The tests cover ids in use, and changes that are being written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace.coordinator_records import TransactionState
from millrace.errors import (
    AbortableTransactionError,
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
)
from millrace_broker.transactions import Attempt, ProducerIdAndEpoch, TransactionalProducer, TransactionMetadata
from millrace_broker.transactions.metadata import LAST_EPOCH, ExternalCommit
from millrace_broker.transactions.state_manager import StateChange, TransactionStateManager

IN_USE = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
PREPARED = IN_USE[1:]
BEGUN = ExternalCommit(
    external_id="query", external_epoch=6, committed_ms=1, begun_epoch=7, attempt="third", updated_ms=2, retention_ms=10
)


def transaction(
    name: str, state: TransactionState = TransactionState.EMPTY, *, updated_ms: int = 0
) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id=name,
        producer_id=5,
        epoch=3,
        timeout_ms=1000,
        updated_ms=updated_ms,
        state=state,
        external_id="query" if name.startswith("query-") else "",
    )


def manager_of(*transactions: TransactionMetadata, commit: ExternalCommit | None = None) -> TransactionStateManager:
    manager = TransactionStateManager()
    manager.apply(StateChange(transactions, commit=commit))
    return manager


@pytest.mark.parametrize("state", [each for each in TransactionState if each is not TransactionState.DEAD])
def test_an_id_is_in_use_while_its_transaction_is_open_or_its_markers_are_missing(state: TransactionState) -> None:
    manager = manager_of(transaction("query-1", state), transaction("rest"))
    assert (manager.is_busy("query-1"), manager.is_free("query", "query-1")) == (state in PREPARED, state not in IN_USE)
    assert manager.ids_in_use("query") == (["query-1"] if state is TransactionState.ONGOING else [])
    assert [each.transactional_id for each in manager.open()] == manager.ids_in_use("query")
    assert [each.transactional_id for each in manager.prepared()] == (["query-1"] if state in PREPARED else [])
    for name in ("rest", "unknown"):
        assert (manager.is_busy(name), manager.is_free("query", name)) == (False, name == "unknown")


def test_open_transactions_are_in_the_order_of_their_ids() -> None:
    manager = manager_of(*(transaction(name, TransactionState.ONGOING) for name in ("b", "c", "a")))
    assert [each.transactional_id for each in manager.open()] == ["a", "b", "c"]
    assert len(manager) == 3
    manager.apply(StateChange(forgotten=("b",)))
    assert [each.transactional_id for each in manager.open()] == ["a", "c"]
    manager.apply(StateChange((transaction("c", TransactionState.PREPARE_ABORT),)))
    assert [each.transactional_id for each in manager.open()] == ["a"]
    assert (len(manager), manager.find("b")) == (2, None)


@pytest.mark.parametrize(("epoch", "needs_id"), [(LAST_EPOCH - 1, False), (LAST_EPOCH, True)])
def test_the_end_of_the_last_epoch_needs_a_producer_id(epoch: int, needs_id: bool) -> None:
    manager = manager_of(replace(transaction("a", TransactionState.ONGOING), epoch=epoch))
    assert manager.end_needs_producer_id("a") is needs_id
    assert manager.end_needs_producer_id("unknown") is False


def test_records_are_verified_against_the_open_transaction() -> None:
    producer = ProducerIdAndEpoch(5, 3)
    manager = manager_of(replace(transaction("a", TransactionState.ONGOING), partitions=frozenset({("t", 0)})))
    manager.verify("a", producer, ("t", 0))
    with pytest.raises(AbortableTransactionError):
        manager.verify("a", producer, ("t", 1))
    with pytest.raises(InvalidProducerIdMappingError):
        manager.verify("unknown", producer, ("t", 0))


def init(manager: TransactionStateManager) -> object:
    return manager.init_producer_id("query-1", None, timeout_ms=1000, new_producer_id=9, now_ms=50)


def add(manager: TransactionStateManager) -> object:
    return manager.add_partitions("query-1", ProducerIdAndEpoch(5, 3), [("a", 0)], 50)


def end(manager: TransactionStateManager) -> object:
    return manager.end("query-1", ProducerIdAndEpoch(5, 3), committed=True, new_producer_id=9, now_ms=50)


def end_keeping_epoch(manager: TransactionStateManager) -> object:
    return manager.end(
        "query-1", ProducerIdAndEpoch(5, 3), committed=True, new_producer_id=9, now_ms=50, keeps_epoch=True
    )


def commit(manager: TransactionStateManager, *, aborted: bool = False) -> object:
    member = [TransactionalProducer("query-1", ProducerIdAndEpoch(5, 3))]
    return manager.commit_transactions(
        "query",
        7,
        committed=[] if aborted else member,
        aborted=member if aborted else [],
        new_producer_ids=iter(()),
        now_ms=50,
    )


def abort(manager: TransactionStateManager) -> object:
    return commit(manager, aborted=True)


def begin_attempt(manager: TransactionStateManager) -> object:
    attempt = Attempt(external_id="query", external_epoch=7, name="fourth", owner="")
    return manager.begin_attempt(attempt, ["query-1"], 50)


def abort_attempt(manager: TransactionStateManager) -> object:
    return manager.abort_attempt("query", 7, "third", ["query-1"], 50)


@pytest.mark.parametrize("request_of", [init, add, end, end_keeping_epoch, commit, abort, begin_attempt, abort_attempt])
def test_a_change_that_is_being_written_refuses_other_requests_for_the_id(
    request_of: Callable[[TransactionStateManager], object],
) -> None:
    manager = manager_of(transaction("query-1", TransactionState.ONGOING), commit=BEGUN)
    change = StateChange((transaction("query-1", TransactionState.PREPARE_COMMIT),))
    manager.begin(change)
    assert (manager.is_busy("query-1"), manager.is_free("query", "query-1")) == (True, False)
    with pytest.raises(ConcurrentTransactionsError):
        request_of(manager)
    assert manager.time_out("query-1", ProducerIdAndEpoch(5, 3), 50) is None
    manager.withdraw(change)
    assert not manager.is_busy("query-1")
    assert request_of(manager) is not None
    assert manager.time_out("query-1", ProducerIdAndEpoch(5, 3), 50) is not None


@pytest.mark.parametrize("request_of", [commit, abort, begin_attempt, abort_attempt])
def test_a_commit_that_is_being_written_refuses_other_requests_for_the_external_id(
    request_of: Callable[[TransactionStateManager], object],
) -> None:
    manager = manager_of(transaction("query-1", TransactionState.ONGOING), commit=BEGUN)
    change = StateChange(commit=replace(BEGUN, external_epoch=7))
    manager.begin(change)
    assert (manager.is_committing("query"), manager.is_committing("other")) == (True, False)
    with pytest.raises(ConcurrentTransactionsError):
        request_of(manager)
    manager.withdraw(change)
    assert not manager.is_committing("query")
    assert request_of(manager) is not None
    assert manager.last_commit("query") == BEGUN, "a change that could not be written does not count"


def test_unused_ids_expire_except_those_that_are_being_written() -> None:
    manager = manager_of(
        transaction("a"), transaction("b", updated_ms=1), transaction("c", TransactionState.ONGOING), commit=BEGUN
    )
    assert manager.expire(9, 10, 10) is None
    assert manager.expire(10, 10, 10) == StateChange(forgotten=("a",))
    assert manager.expire(12, 10, 1) == StateChange(forgotten=("a",), forgotten_commits=("query",))
    assert manager.expire(12, 10, 2) == StateChange(forgotten=("a", "b"), forgotten_commits=("query",))
    other = replace(BEGUN, external_id="other")
    manager.apply(StateChange(commit=other))
    assert manager.expire(12, 10, 1) == StateChange(forgotten=("a",), forgotten_commits=("query",))
    manager.apply(StateChange(forgotten_commits=("other",)))
    manager.begin(StateChange((transaction("a"),), commit=BEGUN))
    assert manager.expire(12, 10, 2) == StateChange(forgotten=("b",))
    manager.begin(StateChange((transaction("b"),)))
    assert manager.expire(12, 10, 2) is None
