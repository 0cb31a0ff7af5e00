"""Tests of replication throttles.

The tests cover which replicas a throttle names, and when it is exceeded.
"""

from __future__ import annotations

import math

import pytest

from millrace_broker.replication.runtime.throttles import ReplicationQuota, is_throttled


@pytest.mark.parametrize(
    ("replicas", "expected"), [("*", True), ("0:1", True), ("1:1,0:1", True), ("0:11", False), ("", False)]
)
def test_only_the_listed_replicas_are_throttled(replicas: str, expected: bool) -> None:
    assert is_throttled(replicas, 0, 1) is expected


def test_replicated_bytes_count_for_eleven_seconds() -> None:
    now = [100.0]
    quota = ReplicationQuota(lambda: now[0])
    quota.used(10**9)
    assert not quota.is_exceeded
    quota.bytes_per_s = 100
    assert quota.is_exceeded
    now[0] += 12
    assert not quota.is_exceeded
    quota.used(1000)
    assert not quota.is_exceeded  # ten seconds' worth at once
    quota.used(1)
    assert quota.is_exceeded
    quota.bytes_per_s = math.inf
    assert not quota.is_exceeded


def test_steady_replication_stays_below_its_throttle() -> None:
    now, sent = [0.0], 0
    quota = ReplicationQuota(lambda: now[0])
    quota.bytes_per_s = 1000
    while now[0] < 100:
        if not quota.is_exceeded:
            quota.used(100)
            sent += 100
        now[0] += 0.05
    assert 90_000 <= sent <= 115_000
