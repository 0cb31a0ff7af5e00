"""Tests of the two ways to find records.

A search batch by batch and a search in all batches at the same time give equal results.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.records.record_bounds import RecordBounds, _ends_abreast, _ends_in_turn, find_records
from millrace.records.varint import write_varint

SIZES = st.sampled_from([0, 1, 2, 62, 63, 64, 65, 126, 127, 128, 8_190, 8_191]) | st.integers(0, 300)
"""Around the lengths that take another byte. The first length of three bytes is 8,192."""
BATCHES = st.lists(st.lists(SIZES, min_size=1, max_size=6), min_size=32, max_size=60)


def body_of(sizes: list[int], filler: int = 0) -> bytes:
    return b"".join(write_varint(size) + bytes([filler]) * size for size in sizes)


def ends_in_turn(body: bytes, sizes: list[int], counts: list[int]) -> list[int] | None:
    try:
        return _ends_in_turn(body, sizes, counts).tolist()
    except CorruptBatchError:
        return None


@given(BATCHES, st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
def test_records_of_many_batches_are_found_where_they_are(batches: list[list[int]], filler: int) -> None:
    found = find_records([body_of(sizes, filler) for sizes in batches], [len(sizes) for sizes in batches])
    lengths = np.array([size for sizes in batches for size in sizes])
    assert (found.ends - found.after_lengths).tolist() == lengths.tolist()
    assert found.starts.tolist() == [0, *found.ends.tolist()[:-1]]
    assert found.ends[-1] == sum(len(body_of(sizes)) for sizes in batches)


@given(BATCHES, st.data())
def test_damaged_batches_have_the_same_ends_or_none(batches: list[list[int]], data: st.DataObject) -> None:
    counts = [len(sizes) for sizes in batches]
    bodies = [body_of(sizes) for sizes in batches]
    damaged = bytearray(b"".join(bodies))
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    sizes = [len(body) for body in bodies]
    if data.draw(st.booleans()):
        number = data.draw(st.integers(0, len(counts) - 1))
        counts[number] = max(1, counts[number] + data.draw(st.sampled_from([-1, 1])))
    abreast = _ends_abreast(bytes(damaged) + bytes(max(counts) + 1), sizes, counts)
    in_turn = ends_in_turn(bytes(damaged), sizes, counts)
    # Lengths of three bytes are left to the other way.
    assert abreast is None or abreast.tolist() == in_turn
    if in_turn is not None and max(np.diff([0, *in_turn])) < 8_000:
        assert abreast is not None


@pytest.mark.parametrize("last", [8_191, 8_192, 100_000])
def test_a_record_of_any_size_is_found_in_many_batches(last: int) -> None:
    bodies = [body_of([100, 200])] * 40 + [body_of([100, last])]
    found = find_records(bodies, [2] * 41)
    assert found.ends[-1] == sum(map(len, bodies))
    assert (found.ends - found.after_lengths)[-2:].tolist() == [100, last]


@pytest.mark.parametrize("counts", [[2] * 39 + [3], [2] * 39 + [1], [0] + [2] * 39, [1_000] + [2] * 39])
def test_a_wrong_number_of_records_is_refused(counts: list[int]) -> None:
    with pytest.raises(CorruptBatchError):
        find_records([body_of([100, 200])] * 40, counts)


def test_a_large_record_that_begins_where_its_batch_ends_is_refused() -> None:
    bodies = [body_of([100, 200])] * 39 + [body_of([9_000, 200])]
    with pytest.raises(CorruptBatchError):
        find_records(bodies, [2] * 38 + [3, 2])


def test_many_batches_are_not_read_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.records.record_bounds._ends_in_turn", None)
    found = find_records([body_of([100] * 150)] * 40 + [body_of([100] * 20)], [150] * 40 + [20])
    assert isinstance(found, RecordBounds)
    assert found.ends.tolist() == [102 * number for number in range(1, 6_021)]


def test_batches_of_which_one_is_much_longer_are_read_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.records.record_bounds._ends_abreast", None)  # 15,000 would take 1,000 steps each
    found = find_records([body_of([100])] * 15_000 + [body_of([100] * 1_000)], [1] * 15_000 + [1_000])
    assert found.ends.tolist() == [102 * number for number in range(1, 16_001)]
