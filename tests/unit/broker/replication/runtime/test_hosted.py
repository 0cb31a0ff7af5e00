"""Tests of a replica's role and its unread appends."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from millrace.config.topic import TopicConfig
from millrace.records import Record, build_rows_batch
from millrace_broker.decisions import LEADER_DURING_DELETE, LeaderAndIsrState, Leadership, ReplicaAssignment
from millrace_broker.log import LogManager
from millrace_broker.replication.core import Replica, ReplicationSettings
from millrace_broker.replication.runtime import HostedReplica
from millrace_broker.replication.runtime.hosted import UNREAD_MAX

SETTINGS = ReplicationSettings(replica_lag_time_max_ms=1000, min_insync_replicas=1, replica_fetch_backoff_ms=100)


def state(leader: int, leader_epoch: int, *replicas: int) -> LeaderAndIsrState:
    leadership = Leadership(
        leader=leader, leader_epoch=leader_epoch, isr=replicas, partition_epoch=leader_epoch, controller_epoch=1
    )
    return LeaderAndIsrState(leadership=leadership, assignment=ReplicaAssignment(replicas), is_new=False)


def test_appends_after_a_high_watermark_that_stands_take_bounded_memory(tmp_path: Path) -> None:
    logs = LogManager.open([tmp_path], broker_id=1, cluster_id="c", defaults=TopicConfig())
    log = logs.create_log("t", uuid.uuid4(), 0)
    log.hold_watermark(0)
    replica = HostedReplica(("t", 0), log.topic_id, log, Replica("t-0", 1, SETTINGS))
    record = build_rows_batch([Record(key=None, value=b"v", timestamp_ms=1)])
    for size_bytes in range(UNREAD_MAX + 10):
        log.append(record)
        replica.add_unread(size_bytes)
    assert len(replica.unread) == UNREAD_MAX
    log.raise_watermark(3)
    assert replica.take_readable_bytes() == 0 + 1 + 2
    log.raise_watermark(log.log_end_offset)
    assert replica.take_readable_bytes() == sum(range(3, UNREAD_MAX + 10))
    assert not replica.unread
    logs.close()


@pytest.mark.parametrize(
    ("told", "is_moved"),
    [
        (state(1, 6, 1, 2), False),
        (state(2, 6, 1, 2), True),
        (state(2, 5, 1, 2), False),
        (state(2, 6, 2, 3), True),
        (state(LEADER_DURING_DELETE, 6, 1, 2), False),
        (state(LEADER_DURING_DELETE, 6, 2, 3), True),
    ],
)
def test_a_leader_stops_for_a_later_leader_epoch_elsewhere_but_not_for_a_mark_of_deletion(
    tmp_path: Path, told: LeaderAndIsrState, is_moved: bool
) -> None:
    logs = LogManager.open([tmp_path], broker_id=1, cluster_id="c", defaults=TopicConfig())
    log = logs.create_log("t", uuid.uuid4(), 0)
    machine = Replica("t-0", 1, SETTINGS)
    machine.decided(state(1, 5, 1, 2).decision(1), log, now_ms=0)
    replica = HostedReplica(("t", 0), log.topic_id, log, machine)
    assert replica.is_moved_from(1, told) is is_moved
    logs.close()
