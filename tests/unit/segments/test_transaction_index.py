from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.segments.transaction_index import AbortedTransaction, collect_aborted, pack_aborted, read_aborted

offset = st.integers(0, 2**62)
transaction = st.builds(
    lambda producer_id, first, length, stable: AbortedTransaction(
        producer_id=producer_id, first_offset=first, last_offset=first + length, last_stable_offset=stable
    ),
    offset,
    offset,
    st.integers(0, 1000),
    offset,
)


@given(st.lists(transaction))
def test_entries_are_read_as_they_were_written(transactions: list[AbortedTransaction]) -> None:
    assert list(read_aborted(b"".join(map(pack_aborted, transactions)))) == transactions


@pytest.mark.parametrize("damage", [b"\x00", bytes(33), b"\x00\x01" + bytes(32), bytes(10) + b"\x80" + bytes(23)])
def test_damage_is_named(damage: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        list(read_aborted(damage))


def test_only_transactions_of_the_range_are_collected() -> None:
    def aborted(first: int, last: int, stable: int) -> AbortedTransaction:
        return AbortedTransaction(producer_id=1, first_offset=first, last_offset=last, last_stable_offset=stable)

    before, within, late = aborted(0, 9, 10), aborted(5, 15, 12), aborted(30, 40, 35)
    unread = iter([aborted(50, 60, 55)])
    found = collect_aborted([[before, within], [late], unread], 10, 30)
    assert found == [within]
    assert next(unread), "the search ends at the entry whose last stable offset had reached the end"


@pytest.mark.parametrize(
    ("first", "last", "is_within"), [(0, 9, False), (0, 10, True), (29, 40, True), (30, 40, False)]
)
def test_a_transaction_is_within_a_range_by_its_first_offset_and_its_marker(
    first: int, last: int, is_within: bool
) -> None:
    aborted = AbortedTransaction(producer_id=1, first_offset=first, last_offset=last, last_stable_offset=0)
    assert collect_aborted([[aborted]], 10, 30) == [aborted][: int(is_within)]


@pytest.mark.parametrize(("stable", "is_read_on"), [(29, True), (30, False), (31, False)])
def test_entries_behind_one_whose_stable_offset_reached_the_end_are_not_read(stable: int, is_read_on: bool) -> None:
    first, second = (
        AbortedTransaction(producer_id=number, first_offset=12, last_offset=14, last_stable_offset=stable)
        for number in (1, 2)
    )
    assert collect_aborted([[first, second]], 10, 30) == ([first, second] if is_read_on else [first])
