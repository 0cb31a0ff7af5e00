"""Tests of the rule by which a benchmark row counts as slower.

A row is slower if nine pairs were measured and its whole confidence interval is below 0.97.
"""

from __future__ import annotations

import math

import pytest
from benchmarks.compare.rule import FELL_BELOW, PAIRS, PAIRS_MAX, Verdict, interval, verdict

_SPREAD = (0.98, 0.99, 0.995, 1, 1, 1, 1 / 0.995, 1 / 0.99, 1 / 0.98)
"""Nine ratios whose geometric mean is 1."""


def test_the_interval_is_students_on_the_logarithms() -> None:
    # The logarithms are -1, 0 and 1: mean 0, deviation 1. The t value for two degrees of freedom is 4.303.
    found = interval([math.exp(-1), 1, math.e])
    assert found.mean == pytest.approx(1)
    assert math.log(found.high) == pytest.approx(4.303 / math.sqrt(3))
    assert math.log(found.low) == pytest.approx(-4.303 / math.sqrt(3))


def test_nine_pairs_have_eight_degrees_of_freedom() -> None:
    ratios = [0.9, 1.1] * 4 + [1.0]
    logarithms = [math.log(ratio) for ratio in ratios]
    mean = sum(logarithms) / 9
    deviation = math.sqrt(sum((each - mean) ** 2 for each in logarithms) / 8)
    assert math.log(interval(ratios).high) == pytest.approx(mean + 2.306 * deviation / 3)


def test_the_interval_of_inverted_ratios_is_inverted() -> None:
    found, inverted = interval([0.9, 0.95, 1.1]), interval([1 / 0.9, 1 / 0.95, 1 / 1.1])
    assert inverted.low == pytest.approx(1 / found.high)
    assert inverted.high == pytest.approx(1 / found.low)


@pytest.mark.parametrize("pairs", range(2, PAIRS_MAX + 1))
def test_equal_ratios_have_an_interval_of_no_width(pairs: int) -> None:
    found = interval([0.5] * pairs)
    assert (found.low, found.mean, found.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (FELL_BELOW - 1e-6, Verdict.FELL),
        (FELL_BELOW, Verdict.DID_NOT_FALL),
        (FELL_BELOW + 1e-6, Verdict.DID_NOT_FALL),
        (1.0, Verdict.DID_NOT_FALL),
        (2.0, Verdict.DID_NOT_FALL),
    ],
)
def test_a_row_fell_when_the_upper_end_is_below_the_limit(high: float, expected: Verdict) -> None:
    shift = high / interval(_SPREAD).high
    ratios = [ratio * shift for ratio in _SPREAD]
    if high == FELL_BELOW:  # multiplying round by round ends exactly at the limit
        while interval(ratios).high < FELL_BELOW:
            ratios = [math.nextafter(ratio, 2) for ratio in ratios]
    assert verdict(ratios) == expected


def test_an_upper_end_at_the_limit_itself_is_no_fall() -> None:
    assert verdict([FELL_BELOW] * PAIRS) == Verdict.DID_NOT_FALL


def test_a_low_mean_with_a_wide_interval_is_no_fall() -> None:
    ratios = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.3, 1.5]
    assert interval(ratios).mean < FELL_BELOW < interval(ratios).high
    assert verdict(ratios) == Verdict.DID_NOT_FALL


@pytest.mark.parametrize("pairs", [2, PAIRS - 1, PAIRS + 1])
def test_other_numbers_of_pairs_give_no_verdict(pairs: int) -> None:
    assert verdict([0.1] * pairs) == Verdict.NONE
