"""Tests of the waits before retries and reconnects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.backoff import ReconnectBackoff, exponential
from millrace.config.client import ClientConfig

JITTER = 0.2


class _Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def _backoff(clock: _Clock, **options: Any) -> ReconnectBackoff:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return ReconnectBackoff(ClientConfig.of(named), clock.monotonic)


@given(first=st.integers(0, 10_000), longest=st.integers(0, 100_000), attempt=st.integers(0, 10_000))
def test_a_wait_doubles_up_to_the_longest(first: int, longest: int, attempt: int) -> None:
    wait = exponential(first, longest, attempt)
    assert wait <= longest
    assert exponential(first, longest, attempt + 1) == min(2 * wait, longest) or attempt >= 30


def test_the_wait_to_reconnect_doubles_with_each_failure_and_ends_with_a_connection() -> None:
    clock = _Clock()
    backoff = _backoff(clock, reconnect_backoff_ms=100, reconnect_backoff_max_ms=300)
    assert backoff.wait_s == 0
    for expected_s in (0.1, 0.2, 0.3, 0.3):
        backoff.failed(clock.now)
        assert backoff.wait_s == pytest.approx(expected_s, rel=JITTER)
        clock.now += backoff.wait_s
    assert backoff.wait_s == 0
    backoff.failed(clock.now)
    backoff.connected()
    assert backoff.wait_s == 0
    backoff.failed(clock.now)
    assert backoff.wait_s == pytest.approx(0.1, rel=JITTER)


def test_attempts_at_the_same_time_count_as_one_failure() -> None:
    clock = _Clock()
    backoff = _backoff(clock, reconnect_backoff_ms=100)
    clock.now = 0.01
    for _ in range(5):
        backoff.failed(0.0)
    assert backoff.wait_s == pytest.approx(0.1, rel=JITTER)


@pytest.mark.parametrize(
    ("options", "second_s"),
    [
        ({}, 0.1),
        ({"reconnect_backoff_ms": 5_000}, 5),
        ({"reconnect_backoff_ms": 5_000, "reconnect_backoff_max_ms": 1_000}, 1),
        ({"reconnect_backoff_max_ms": 70}, 0.07),
    ],
)
def test_the_wait_to_reconnect_is_constant_if_only_the_first_is_set(options: dict[str, Any], second_s: float) -> None:
    clock = _Clock()
    backoff = _backoff(clock, **options)
    backoff.failed(clock.now)
    clock.now += backoff.wait_s
    backoff.failed(clock.now)
    assert backoff.wait_s == pytest.approx(second_s, rel=JITTER)
