"""Tests of the entries that a growing segment's indexes get."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from millrace_broker.log.index_builder import IndexBuilder

BASE = 100


class Indexed(NamedTuple):
    size_bytes: int
    last_offset: int
    max_timestamp: int


def built(interval_bytes: int, *batches: Indexed, at_once: bool = False) -> IndexBuilder:
    builder, position = IndexBuilder(BASE, interval_bytes), 0
    if at_once:
        builder.take(builder.growth(0, batches))
        return builder
    for batch in batches:
        builder.take(builder.growth(position, (batch,)))
        position += batch.size_bytes
    return builder


def entries(builder: IndexBuilder) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    return [tuple(entry) for entry in builder.offset_index], [tuple(entry) for entry in builder.time_index]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("interval_bytes", "positions"), [(0, [10, 20, 30, 40]), (9, [10, 20, 30, 40])])
@pytest.mark.parametrize("start_ms", [0, 1000])
def test_each_batch_after_the_interval_gets_an_entry(
    interval_bytes: int, positions: list[int], at_once: bool, start_ms: int
) -> None:
    batches = [Indexed(10, BASE + n, start_ms + n) for n in range(5)]
    offsets, times = entries(built(interval_bytes, *batches, at_once=at_once))
    assert offsets == [(BASE + n, 10 * n) for n in (1, 2, 3, 4)]
    assert [position for _, position in offsets] == positions
    assert times == [(start_ms + n, BASE + n) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("interval_bytes", "numbers"), [(10, [2, 4, 6]), (19, [2, 4, 6]), (20, [3, 6]), (29, [3, 6]), (70, [])]
)
def test_entries_are_more_than_the_interval_apart(interval_bytes: int, numbers: list[int], at_once: bool) -> None:
    batches = [Indexed(10, BASE + 2 * n, 1000) for n in range(8)]
    builder = built(interval_bytes, *batches, at_once=at_once)
    assert entries(builder)[0] == [(BASE + 2 * n, 10 * n) for n in numbers]
    assert entries(builder)[1] == ([(1000, BASE)] if numbers else [])


@pytest.mark.parametrize("at_once", [False, True])
def test_a_time_entry_has_the_first_batch_with_the_largest_time(at_once: bool) -> None:
    times_ms = [500, 900, 900, 700, 901]
    builder = built(0, *(Indexed(10, BASE + n, time_ms) for n, time_ms in enumerate(times_ms)), at_once=at_once)
    assert entries(builder)[1] == [(900, BASE + 1), (901, BASE + 4)]
    assert builder.largest == (901, BASE + 4)
    builder.finish()
    assert entries(builder)[1] == [(900, BASE + 1), (901, BASE + 4)]


def test_the_end_of_a_segment_gets_an_entry_for_its_largest_time() -> None:
    builder = built(100, Indexed(10, BASE + 3, 500), Indexed(10, BASE + 5, 400))
    assert entries(builder) == ([], [])
    builder.finish()
    assert entries(builder) == ([], [(500, BASE + 3)])
    without_times = built(0, Indexed(10, BASE, -1), Indexed(10, BASE + 1, -1))
    without_times.finish()
    assert entries(without_times) == ([(BASE + 1, 10)], [])


def test_a_builder_goes_back_to_a_mark_and_continues_like_one_that_never_left_it() -> None:
    first, second, third = Indexed(10, BASE, 500), Indexed(10, BASE + 1, 600), Indexed(10, BASE + 2, 550)
    for interval_bytes in (0, 10, 15):
        builder = built(interval_bytes, first, second)
        mark = builder.mark()
        builder.take(builder.growth(20, [Indexed(50, BASE + 9, 9000), Indexed(50, BASE + 19, 9900)]))
        builder.reset(mark)
        builder.take(builder.growth(20, [third]))
        assert entries(builder) == entries(built(interval_bytes, first, second, third))
        assert builder.largest == (600, BASE + 1)


def test_a_builder_resumes_from_the_entries_of_a_segment() -> None:
    batches = [Indexed(10, BASE + n, 1000 + n) for n in range(6)]
    before = built(10, *batches)
    resumed = IndexBuilder(BASE, 10)
    resumed.resume(bytes(before.offset_bytes), bytes(before.time_bytes))
    assert entries(resumed) == entries(before)
    assert resumed.largest == (1004, BASE + 4)
    for number in (4, 5, 6):  # from the batch of the last entry on
        resumed.take(resumed.growth(10 * number, [Indexed(10, BASE + number, 1000 + number)]))
    assert entries(resumed) == entries(built(10, *batches, Indexed(10, BASE + 6, 1006)))
