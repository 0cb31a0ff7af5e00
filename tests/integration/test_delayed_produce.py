"""Tests of acks=all appends that wait while leaders change.

Each append gets one immediate answer.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.errors import NotLeaderError
from millrace_broker.purgatory import PurgatoryStatistics

from .replica_cluster import ReplicaCluster, append
from .waiting import eventually

TIMEOUT_MS = 600_000
"""Much longer than a test may take."""
PARKED = 3


@pytest.mark.parametrize(
    "happens", ["another broker leads", "the replica is deleted", "the same leads without who is gone"]
)
def test_appends_that_wait_are_answered_once_when_leaders_change(tmp_path: Path, happens: str) -> None:
    with ReplicaCluster(tmp_path, options={"replica.lag.time.max.ms": str(TIMEOUT_MS)}) as cluster:
        cluster.create("t", (1, 2, 3))
        append(cluster, 1, "t", b"before")
        cluster.settle("t")
        cluster.kill(3)  # still in the ISR, so no record is acknowledged from now on

        def waiting() -> PurgatoryStatistics:
            return cluster.broker(1).statistics().replication.waiting

        completed = waiting().completed
        with ThreadPoolExecutor(PARKED) as pool:
            parked = [
                pool.submit(append, cluster, 1, "t", b"parked %d" % number, timeout_ms=TIMEOUT_MS)
                for number in range(PARKED)
            ]
            eventually(lambda: waiting().delayed == PARKED, "all appends wait")
            if happens == "another broker leads":
                cluster.elect("t", 2, isr=[1, 2])
            elif happens == "the replica is deleted":
                assert cluster.delete_replica("t", 1) is None
            else:
                cluster.elect("t", 1, isr=[1, 2])
            errors = [each.result().error for each in parked]
        if happens == "the same leads without who is gone":
            assert [each.code for each in errors] == [0] * PARKED
        else:
            assert [each.code for each in errors] == [NotLeaderError.code] * PARKED
            assert all("has a new leader" in each.message for each in errors)
        assert (waiting().delayed, waiting().completed - completed, waiting().expired) == (0, PARKED, 0)
        if happens != "the replica is deleted":
            cluster.settle("t")
            cluster.assert_identical("t")
            assert cluster.log(1, "t").high_watermark == 1 + PARKED  # the record is not lost
