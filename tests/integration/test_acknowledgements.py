"""Tests of acknowledgements and the ISR on real brokers.

The tests show which replicas acks=all waits for, and how long.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import wrap_future
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from millrace.errors import IneligibleReplicaError
from millrace_broker.decisions import IsrChange, Leadership
from millrace_broker.decisions import TopicPartition as Key
from millrace_broker.replication.core import Leader

from .replica_cluster import LAG_MS, LONG_LAG, ReplicaCluster, append, values_of
from .waiting import AN_HOUR_MS, STALL_S, eventually


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicaCluster]:
    """Start three brokers whose followers stay in the ISR until ``set_lag``."""
    with ReplicaCluster(tmp_path, options=LONG_LAG) as running:
        yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicaCluster]:
    """Start two such brokers."""
    with ReplicaCluster(tmp_path, brokers=2, options=LONG_LAG) as running:
        yield running


def test_records_that_an_in_sync_replica_lacks_are_not_read(pair: ReplicaCluster) -> None:
    pair.create("t", (1, 2))
    append(pair, 1, "t", b"a")
    pair.settle("t")
    pair.kill(2)
    assert append(pair, 1, "t", b"b", acks=1).base_offset == 1
    assert (pair.log(1, "t").log_end_offset, pair.log(1, "t").high_watermark) == (2, 1)
    assert values_of(pair, "t") == [b"a"]
    pair.set_lag(LAG_MS, "t")
    pair.wait_for_isr("t", 1)  # after a while only the leader is in sync
    eventually(lambda: pair.log(1, "t").high_watermark == 2)
    assert values_of(pair, "t") == [b"a", b"b"]


def test_appends_are_acknowledged_by_their_acks_and_refused_with_too_small_an_isr(pair: ReplicaCluster) -> None:
    pair.create("t", (1, 2), min_insync_replicas="2")
    assert append(pair, 1, "t", b"all").base_offset == 0
    assert append(pair, 1, "t", b"one", acks=1).base_offset == 1
    append(pair, 1, "t", b"none", acks=0)
    pair.settle("t")
    pair.kill(2)
    late = append(pair, 1, "t", b"late", timeout_ms=100)
    assert late.error.code == 7  # appended, and not acknowledged in time
    pair.set_lag(LAG_MS, "t")
    pair.wait_for_isr("t", 1)
    pair.set_lag(AN_HOUR_MS, "t")
    end = pair.log(1, "t").log_end_offset
    assert append(pair, 1, "t", b"refused").error.code == 19
    assert pair.log(1, "t").log_end_offset == end  # no record was appended
    assert append(pair, 1, "t", b"one more", acks=1).base_offset == end
    pair.start(2)
    pair.tell("t", 2)
    pair.wait_for_isr("t", 1, 2)
    assert append(pair, 1, "t", b"again").base_offset == end + 1
    found = pair.broker(1).statistics().replication
    assert (found.led, found.followed, found.under_replicated, found.under_min_isr) == (1, 0, 0, 0)
    assert (found.isr_shrinks, found.isr_expands, found.waiting.expired) == (1, 1, 1)
    pair.settle("t")
    pair.assert_identical("t")


def test_the_isr_shrinks_and_grows(cluster: ReplicaCluster) -> None:
    cluster.create("t", (1, 2, 3))
    append(cluster, 1, "t", b"a")
    cluster.settle("t")
    cluster.kill(3)
    leader = leader_of(cluster)
    with ThreadPoolExecutor(1) as pool:
        appended = pool.submit(append, cluster, 1, "t", b"b")
        eventually(lambda: leader.followers[2].log_end_offset == 2)
        assert (leader.high_watermark, appended.done()) == (1, False), "the dead broker is in the ISR"
        cluster.set_lag(LAG_MS, "t")
        assert appended.result(STALL_S).base_offset == 1
    assert cluster.isr("t") == {1, 2}
    cluster.set_lag(AN_HOUR_MS, "t")
    cluster.start(3)
    cluster.tell("t", 3)
    cluster.wait_for_isr("t", 1, 2, 3)
    append(cluster, 1, "t", b"c")
    cluster.settle("t")
    cluster.assert_identical("t")
    assert [isr for _, isr in cluster.isr_changes] == [(1, 2), (1, 2, 3)]


def shuts_down(cluster: ReplicaCluster, refusal: Callable[[], Awaitable[None]]) -> Leader:
    """Let broker 3 leave the ISR and ask for it again until its end, as brokers do that shut down; returns the leader.

    The controller refuses to add it when ``refusal`` ends.
    """
    cluster.create("t", (1, 2, 3))
    append(cluster, 1, "t", b"a")
    cluster.settle("t")
    asked = threading.Event()

    async def alter(partition: Key, change: IsrChange) -> Leadership:
        asked.set()
        await refusal()
        raise IneligibleReplicaError(f"{partition}: broker 3 cannot join the ISR, because it shuts down")

    cluster.broker(1).replicas.alter_partition = alter
    cluster.elect("t", 1, isr=(1, 2))
    assert asked.wait(STALL_S)
    cluster.kill(3)
    return leader_of(cluster)


def leader_of(cluster: ReplicaCluster) -> Leader:
    """Return the state of broker 1 as the leader of the topic's partition."""
    hosted = cluster.broker(1).replicas.find("t", 0)
    assert hosted is not None
    return hosted.leader


def test_a_record_is_acknowledged_once_a_broker_that_shuts_down_is_refused(cluster: ReplicaCluster) -> None:
    refusal: Future[None] = Future()
    leader = shuts_down(cluster, lambda: wrap_future(refusal))
    with ThreadPoolExecutor(1) as pool:
        appended = pool.submit(append, cluster, 1, "t", b"b")
        eventually(lambda: leader.followers[2].log_end_offset == 2)
        assert (leader.high_watermark, appended.done()) == (1, False), "broker 3 may be in the ISR"
        refusal.set_result(None)
        assert not appended.result(STALL_S).HasField("error")


def test_a_record_is_acknowledged_once_a_broker_near_the_leader_is_dead(cluster: ReplicaCluster) -> None:
    leader = shuts_down(cluster, partial(asyncio.sleep, 0))
    cluster.broker(1).replicas.brokers_alive(frozenset({1, 2, 3}))  # no broker has noticed yet
    with ThreadPoolExecutor(1) as pool:
        appended = pool.submit(append, cluster, 1, "t", b"b")
        eventually(lambda: leader.followers[2].log_end_offset == 2)
        assert (leader.high_watermark, appended.done()) == (1, False), "broker 3 had caught up"
        cluster._loop.call_soon_threadsafe(cluster.broker(1).replicas.brokers_alive, frozenset({1, 2}))
        assert not appended.result(STALL_S).HasField("error")
