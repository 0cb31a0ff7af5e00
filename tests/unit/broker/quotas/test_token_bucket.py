"""Tests of the token bucket, on a virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_broker.quotas import TokenBucket

RATES = st.floats(0.1, 1e9)
SIZES = st.lists(st.floats(0, 1e7), min_size=1, max_size=50)


@given(RATES, st.floats(0.1, 60), SIZES)
def test_a_client_that_waits_for_its_debt_gets_no_more_than_the_rate(
    rate: float, burst_s: float, sizes: list[float]
) -> None:
    now = start = 5.0
    bucket = TokenBucket(rate, burst_s, now)
    taken = 0.0
    for size in sizes:
        now += bucket.debt_s(now)
        assert taken <= rate * (now - start + burst_s) * (1 + 1e-6) + 1e-6
        bucket.take(size, now)
        taken += size


@given(RATES, SIZES)
def test_a_client_that_always_has_more_uses_the_whole_rate(rate: float, sizes: list[float]) -> None:
    now = 0.0
    bucket = TokenBucket(rate, 1.0, now)
    bucket.take(rate, now)  # the burst
    for size in sizes:
        now += bucket.take(size, now)
    assert now * rate == pytest.approx(sum(sizes), rel=1e-6, abs=1e-6)


@given(RATES, RATES, st.floats(0, 1e7))
def test_a_debt_is_paid_at_a_new_rate(rate: float, other: float, debt: float) -> None:
    bucket = TokenBucket(rate, 1.0, 0.0)
    bucket.take(rate + debt, 0.0)
    bucket.set_rate(other, 0.0)
    assert bucket.debt_s(0.0) == pytest.approx(debt / other, rel=1e-3, abs=rate * 1e-9 / other)


def test_a_lowered_rate_lowers_the_burst() -> None:
    bucket = TokenBucket(100.0, 1.0, 0.0)
    bucket.set_rate(10.0, 0.0)
    assert bucket.take(20.0, 0.0) == 1.0


def test_a_pause_fills_the_bucket_and_no_more() -> None:
    bucket = TokenBucket(100.0, 2.0, 0.0)
    bucket.take(200.0, 0.0)
    assert not bucket.is_full(1.9)
    assert bucket.is_full(1000.0)
    assert bucket.take(200.0, 1000.0) == 0.0
    assert bucket.take(50.0, 1000.0) == 0.5
