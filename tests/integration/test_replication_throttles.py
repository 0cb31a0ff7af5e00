"""Tests of replication throttles on real brokers (KIP-73).

A lagging replica waits, and does not delay in-sync replicas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from .replica_cluster import LONG_LAG, ReplicaCluster, append
from .waiting import eventually

LIMIT_BYTES_PER_S = 50_000
LARGE = b"x" * 100_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicaCluster]:
    """Start two brokers. A follower that is in sync stays in the ISR."""
    with ReplicaCluster(tmp_path, brokers=2, options=LONG_LAG) as running:
        yield running


def test_replicas_that_are_catching_up_are_throttled(pair: ReplicaCluster) -> None:
    pair.create("t", (1,), leader_replication_throttled_replicas="0:1")
    for _ in range(30):
        append(pair, 1, "t", LARGE)
    for broker_id in (1, 2):
        pair.broker(broker_id).replicas.set_throttle_rates(
            leader_bytes_per_s=LIMIT_BYTES_PER_S, follower_bytes_per_s=math.inf
        )
    pair.assign("t", 1, 2)
    eventually(lambda: pair.log(2, "t").log_end_offset > 0)
    eventually(lambda: pair.broker(1).replicas.throttles.to_followers.is_exceeded)
    assert pair.log(2, "t").log_end_offset < 30  # ten seconds' worth of the throttle at once, and not much more
    assert pair.isr("t") == {1}
    assert append(pair, 1, "t", b"acknowledged without it").base_offset == 30
    pair.broker(1).replicas.set_throttle_rates(leader_bytes_per_s=math.inf, follower_bytes_per_s=math.inf)
    pair.wait_for_isr("t", 1, 2)
    pair.settle("t")
    pair.assert_identical("t")


def test_a_follower_that_takes_little_keeps_none_in_sync_waiting(pair: ReplicaCluster) -> None:
    pair.create("t", (1, 2), (1,), follower_replication_throttled_replicas="*")
    append(pair, 1, "t", b"in sync")
    for _ in range(30):
        append(pair, 1, "t", LARGE, partition=1)
    follower = pair.broker(2).replicas
    follower.set_throttle_rates(leader_bytes_per_s=math.inf, follower_bytes_per_s=LIMIT_BYTES_PER_S)
    pair.assign("t", 1, 2, partition=1)
    limit = follower.throttles.from_leaders
    eventually(lambda: limit.is_exceeded)
    for number in range(5):
        assert append(pair, 1, "t", b"acknowledged").base_offset == number + 1
    assert pair.isr("t") == {1, 2}  # no append was acknowledged without it
    assert limit.is_exceeded
    assert pair.log(2, "t", 1).log_end_offset < 30
    follower.set_throttle_rates(leader_bytes_per_s=math.inf, follower_bytes_per_s=math.inf)
    pair.wait_for_isr("t", 1, 2, partition=1)
    for partition in (0, 1):
        pair.settle("t", partition)
        pair.assert_identical("t", partition)
