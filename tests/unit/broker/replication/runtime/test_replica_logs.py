"""Tests of the logs that a LeaderAndIsr names."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from millrace.config.topic import TopicConfig
from millrace.coordination import EmbeddedStore
from millrace.errors import InconsistentTopicIdError, UnknownTopicOrPartitionError
from millrace_broker.decisions import (
    LeaderAndIsrRequest,
    LeaderAndIsrState,
    Leadership,
    ReplicaAssignment,
    TopicPartition,
)
from millrace_broker.log import LogManager, PartitionLog
from millrace_broker.metadata import TopicCatalog, TopicInfo, registration
from millrace_broker.replication.runtime.replica_logs import ReplicaLogs

PARTITION: Final = TopicPartition("t", 0)
TOPIC_ID: Final = uuid.uuid4()


@pytest.fixture
def catalog() -> Iterator[TopicCatalog]:
    """A catalog without topics."""
    store = EmbeddedStore()
    session = store.connect()
    registration.ensure_roots(session)
    yield TopicCatalog(session, TopicConfig())
    store.close()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    logs = LogManager.open([tmp_path], broker_id=1, cluster_id="c", defaults=TopicConfig())
    yield logs
    logs.close()


def lead(topic_id: uuid.UUID) -> LeaderAndIsrRequest:
    leadership = Leadership(leader=1, leader_epoch=0, isr=(1,), partition_epoch=0, controller_epoch=1)
    state = LeaderAndIsrState(leadership=leadership, assignment=ReplicaAssignment((1,)), is_new=False)
    return LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=1,
        topic_ids={PARTITION.topic: topic_id},
        partitions={PARTITION: state},
        live_leaders=(1,),
    )


def test_a_log_is_found_although_the_catalog_lacks_its_topic(catalog: TopicCatalog, logs: LogManager) -> None:
    log = logs.create_log(PARTITION.topic, TOPIC_ID, PARTITION.partition)
    assert ReplicaLogs(catalog, logs).find(lead(TOPIC_ID), {}) == {PARTITION: log}


def test_a_log_of_another_topic_id_is_refused(catalog: TopicCatalog, logs: LogManager) -> None:
    logs.create_log(PARTITION.topic, TOPIC_ID, PARTITION.partition)
    found = ReplicaLogs(catalog, logs).find(lead(uuid.uuid4()), {})
    assert isinstance(found[PARTITION], InconsistentTopicIdError)


def test_no_log_of_an_unknown_topic_is_created(catalog: TopicCatalog, logs: LogManager) -> None:
    found = ReplicaLogs(catalog, logs).find(lead(TOPIC_ID), {})
    assert isinstance(found[PARTITION], UnknownTopicOrPartitionError)
    assert logs.get(*PARTITION) is None


def test_a_log_of_a_topic_that_is_marked_for_deletion_is_created(catalog: TopicCatalog, logs: LogManager) -> None:
    config = TopicConfig(segment_bytes=5000)
    marked = TopicInfo(name="t", topic_id=TOPIC_ID, partitions={}, overrides={}, config=config)
    found = ReplicaLogs(catalog, logs).find(lead(TOPIC_ID), {"t": marked})
    log = found[PARTITION]
    assert isinstance(log, PartitionLog)
    assert log.config.segment_bytes == 5000
