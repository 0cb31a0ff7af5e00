"""Tests of intervals against sets and counters of offsets."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyspark_millrace.audit.intervals import compared, counted, difference, intersection, normalized, size, text

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def offsets(intervals):
    return Counter(offset for start, end in intervals for offset in range(start, end))


def is_normal(intervals):
    return all(start < end for start, end in intervals) and all(one[1] < other[0] for one, other in pairwise(intervals))


@given(spans, spans)
def test_intervals_are_combined_like_sets_of_offsets(ones, others):
    first, second = set(offsets(ones)), set(offsets(others))
    for found, expected in (
        (normalized(ones), first),
        (intersection(ones, others), first & second),
        (difference(ones, others), first - second),
    ):
        assert is_normal(found)
        assert set(offsets(found)) == expected
        assert size(found) == len(expected)


@given(spans, spans)
def test_counts_of_offsets_are_compared_between_two_lists(ones, others):
    first, second = offsets(ones), offsets(others)
    found = {offset: (a, b) for start, end, a, b in compared(ones, others) for offset in range(start, end)}
    assert found == {offset: (first[offset], second[offset]) for offset in first.keys() | second.keys()}
    assert sum(n * (end - start) for start, end, n in counted(ones)) == first.total()


def test_intervals_are_formatted_for_readers():
    assert text([(3, 8), (12, 13)]) == "3..7, 12"
    assert text([(n, n + 1) for n in range(0, 20, 2)], most=2) == "0, 2 and 8 more"
