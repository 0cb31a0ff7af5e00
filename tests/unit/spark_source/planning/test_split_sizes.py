"""Tests of split sizes at their boundaries, and of their extents."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import OffsetRange
from pyspark_millrace.planning.splits import (
    SPLIT_BYTES_MIN,
    Extent,
    PlannedSplit,
    Sizing,
    even_bytes,
    located_bytes,
    most_of,
    plan_splits,
    split_bytes,
)

SIZING = Sizing(per_core=2, bytes_max=10 * SPLIT_BYTES_MIN)
MIN = SPLIT_BYTES_MIN


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (8 * MIN - 8, MIN), (8 * MIN, MIN), (8 * MIN + 8, MIN + 1), (16 * MIN, 2 * MIN),
        (80 * MIN, 10 * MIN), (80 * MIN + 8, 10 * MIN), (800 * MIN, 10 * MIN), (5, 5), (0, 1),
    ],
)  # fmt: skip
def test_splits_are_sized_by_cores_between_the_smallest_and_the_largest(total: int, expected: int) -> None:
    assert split_bytes(total, cores=4, sizing=SIZING) == expected


@pytest.mark.parametrize(("least", "expected"), [(1, 40), (2, 40), (3, 34), (10, 10), (1000, 1)])
def test_an_asked_size_gives_way_to_the_number_of_splits(least: int, expected: int) -> None:
    assert split_bytes(100, cores=4, sizing=SIZING, asked=40, min_splits=least) == expected


@pytest.mark.parametrize(
    ("total", "size", "expected"),
    [(0, 100, 1), (1, 100, 1), (100, 100, 100), (125, 100, 125), (126, 100, 63), (250, 100, 125), (251, 100, 84)],
)
def test_a_quarter_over_counts_as_fitting(total: int, size: int, expected: int) -> None:
    assert even_bytes(total, size) == expected
    assert most_of(size) == 125


def located(*sizes: int, records: int = 10, partition: int = 0) -> tuple[OffsetRange, tuple[Extent, ...]]:
    """Create a range whose extents have these sizes, each with so many records."""
    extents, position = [], 0
    for number, size in enumerate(sizes):
        extents.append(Extent(number * records, (number + 1) * records, position, position + size, f"/{partition}"))
        position += size
    wanted = OffsetRange(PartitionKey("t", partition), uuid.UUID(int=1), 0, len(sizes) * records)
    return wanted, tuple(extents)


def sizes_of(splits: list[PlannedSplit]) -> list[list[int]]:
    return [[extent.bytes for extent in split.extents] for split in splits]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # Two pieces of 80 each. An eighth more, which is 10, may be added.
        ((40, 40, 40, 40), [[40, 40], [40, 40]]),
        ((40, 50, 35, 35), [[40, 50], [35, 35]]),
        ((40, 51, 35, 34), [[40], [51, 35], [34]]),
        ((160,), [[160]]),
        ((79, 11, 70), [[79, 11], [70]]),
        ((81, 10, 69), [[81], [10, 69]]),
    ],
)
def test_neighbours_are_together_while_they_fit_with_an_eighth_above(
    sizes: tuple[int, ...], expected: list[list[int]]
) -> None:
    assert sizes_of(plan_splits([located(*sizes)], [100])) == expected


def test_a_split_is_at_most_a_quarter_larger_than_asked() -> None:
    # One piece of 120. This leaves no room for an eighth more, because 125 is the maximum.
    assert sizes_of(plan_splits([located(60, 60)], [100])) == [[60, 60]]
    assert sizes_of(plan_splits([located(62, 63)], [100])) == [[62, 63]]
    assert sizes_of(plan_splits([located(63, 63)], [100])) == [[63], [63]]
    # Two pieces of 120. An eighth more would be 15, but 125 is the maximum here too.
    assert sizes_of(plan_splits([located(100, 25, 115)], [100])) == [[100, 25], [115]]
    assert sizes_of(plan_splits([located(100, 26, 114)], [100])) == [[100], [26], [114]]


def offsets_of(splits: list[PlannedSplit]) -> list[tuple[int, int]]:
    return [(split.range.start, split.range.end) for split in splits]


@pytest.mark.parametrize(
    ("most", "expected"),
    [(20, [(0, 20)]), (19, [(0, 10), (10, 20)]), (10, [(0, 10), (10, 20)]), (7, [(0, 6), (6, 13), (13, 20)])],
)
def test_splits_are_cut_by_records(most: int, expected: list[tuple[int, int]]) -> None:
    assert offsets_of(plan_splits([located(50, 50)], [100], max_records=most)) == expected


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        (1, [(0, 20), (0, 20)]), (2, [(0, 20), (0, 20)]), (3, [(0, 10), (10, 20), (0, 10), (10, 20)]),
        (4, [(0, 10), (10, 20), (0, 10), (10, 20)]),
    ],
)  # fmt: skip
def test_splits_are_cut_where_there_are_too_few(least: int, expected: list[tuple[int, int]]) -> None:
    both = [located(50, 50), located(50, 50, partition=1)]
    assert offsets_of(plan_splits(both, [100, 100], min_splits=least)) == expected


def test_no_split_has_less_than_a_record() -> None:
    assert offsets_of(plan_splits([located(50, records=2)], [100], min_splits=9)) == [(0, 1), (1, 2)]
    assert offsets_of(plan_splits([located(50, records=1)], [100], min_splits=9)) == [(0, 1)]
    assert plan_splits([located(50, records=0)], [100], min_splits=9) == []
    assert plan_splits([], [], min_splits=9) == []


def test_extents_that_overlap_are_a_mistake() -> None:
    wanted, extents = located(50, 50)
    with pytest.raises(AssertionError, match="overlap"):
        plan_splits([(wanted, (replace(extents[0], end_offset=11), extents[1]))], [100])


def test_splits_are_in_order_of_partition_and_offset() -> None:
    found = plan_splits([located(90, 90, partition=1), located(90, 90)], [100, 100])
    assert [(split.range.key.partition, split.range.start) for split in found] == [(0, 0), (0, 10), (1, 0), (1, 10)]
    assert located_bytes([located(90, 20), located(5)]) == 115


@pytest.mark.parametrize(
    ("most", "expected"),
    [(8, [[(0, 6)], [(6, 10), (10, 13)], [(13, 20)]]), (10, [[(0, 10)], [(10, 20)]])],
)
def test_a_split_that_is_cut_has_the_extents_that_hold_its_offsets(
    most: int, expected: list[list[tuple[int, int]]]
) -> None:
    found = plan_splits([located(50, 50)], [100], max_records=most)
    assert [[(each.start_offset, each.end_offset) for each in split.extents] for split in found] == expected
