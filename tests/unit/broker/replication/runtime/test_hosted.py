"""Tests of UpdateMetadata requests that end a broker's role in a partition."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from millrace.config.topic import TopicConfig
from millrace_broker.decisions import LEADER_DURING_DELETE, LeaderAndIsrState, Leadership, ReplicaAssignment
from millrace_broker.log import LogManager
from millrace_broker.replication.core import Replica, ReplicationSettings
from millrace_broker.replication.runtime import HostedReplica

SETTINGS = ReplicationSettings(replica_lag_time_max_ms=1000, min_insync_replicas=1, replica_fetch_backoff_ms=100)


def state(leader: int, leader_epoch: int, *replicas: int) -> LeaderAndIsrState:
    leadership = Leadership(
        leader=leader, leader_epoch=leader_epoch, isr=replicas, partition_epoch=leader_epoch, controller_epoch=1
    )
    return LeaderAndIsrState(leadership=leadership, assignment=ReplicaAssignment(replicas), is_new=False)


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
