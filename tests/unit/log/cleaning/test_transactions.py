"""Tests of the transactions in a log that is cleaned."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.records import ControlType
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log.cleaning.transactions import CleanedTransactions


@dataclass
class Batch:
    """A batch of one record."""

    last_offset: int
    producer_id: int = -1
    is_transactional: bool = False
    marker: ControlType | None = None
    is_control: bool = False

    def control_type(self) -> ControlType | None:
        return self.marker


def data(offset: int, producer_id: int) -> Batch:
    return Batch(offset, producer_id, is_transactional=True)


def marker(offset: int, producer_id: int, type_: ControlType | None) -> Batch:
    return Batch(offset, producer_id, is_transactional=True, is_control=True, marker=type_)


def aborted(producer_id: int, first_offset: int, last_offset: int) -> AbortedTransaction:
    return AbortedTransaction(
        producer_id=producer_id, first_offset=first_offset, last_offset=last_offset, last_stable_offset=first_offset
    )


def seen(transactions: CleanedTransactions, *batches: Batch) -> list[bool]:
    """Return for each batch whether it is no longer needed."""
    return [transactions.see(batch) for batch in batches]


def test_data_of_aborted_transactions_goes_and_their_markers_stay_with_it() -> None:
    transactions = CleanedTransactions()
    lost = aborted(1, 2, 5)
    transactions.expect([lost])
    transactions.expect([lost])
    batches = [data(1, 2), data(2, 1), Batch(3), data(4, 2), marker(5, 1, ControlType.ABORT)]
    assert seen(transactions, *batches) == [False, True, False, False, False]
    assert transactions.retained == [lost]
    assert seen(transactions, data(6, 1), marker(7, 1, ControlType.COMMIT)) == [False, False]
    assert transactions.retained == [lost]


def test_a_producers_data_before_its_aborted_transaction_stays() -> None:
    transactions = CleanedTransactions()
    transactions.expect([aborted(1, 4, 5), aborted(1, 7, 8)])
    batches = [data(2, 1), marker(3, 1, ControlType.COMMIT), data(4, 1), marker(5, 1, ControlType.ABORT), data(6, 2)]
    assert seen(transactions, *batches) == [False, False, True, False, False]
    assert seen(transactions, data(7, 1), marker(8, 1, ControlType.ABORT)) == [True, False]
    assert transactions.retained == [aborted(1, 4, 5), aborted(1, 7, 8)]


def test_markers_without_a_batch_of_their_transaction_are_no_longer_needed() -> None:
    transactions = CleanedTransactions()
    transactions.expect([aborted(1, 0, 3)])
    batches = [
        marker(3, 1, ControlType.ABORT),
        marker(4, 9, ControlType.ABORT),
        marker(5, 2, ControlType.COMMIT),
        marker(6, 3, None),
    ]
    assert seen(transactions, *batches) == [True] * 4
    assert transactions.retained == []


def test_a_committed_transaction_is_over_with_its_marker() -> None:
    transactions = CleanedTransactions()
    batches = [data(0, 1), marker(1, 1, ControlType.COMMIT), marker(2, 1, ControlType.COMMIT)]
    assert seen(transactions, *batches) == [False, False, True]


def test_other_control_batches_stay() -> None:
    assert seen(CleanedTransactions(), marker(0, 1, ControlType.LEADER_CHANGE)) == [False]
