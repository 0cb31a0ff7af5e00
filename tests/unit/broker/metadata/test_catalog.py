"""Tests of topics that a controller announces to a broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.config.topic import TopicConfig
from millrace.coordination import Create, EmbeddedStore, NoNodeError, paths
from millrace.coordination.nodes import TopicNode
from millrace_broker.decisions import (
    LeaderAndIsrState,
    Leadership,
    ReplicaAssignment,
    TopicPartition,
    UpdateMetadataRequest,
)
from millrace_broker.metadata import TopicCatalog, registration

TOPIC_ID = uuid.uuid4()


class LaggingServer:
    """A session of a ZooKeeper server that lags.

    The server has no topics before the session syncs.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self.syncs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get(self, path: str) -> Any:
        if not self.syncs and path.startswith(paths.TOPICS):
            raise NoNodeError(path)
        return self._session.get(path)

    def sync(self) -> None:
        self.syncs += 1


@pytest.fixture
def server() -> Iterator[LaggingServer]:
    store = EmbeddedStore()
    session = store.connect()
    registration.ensure_roots(session)
    session.multi([Create(paths.topic_path("t"), TopicNode(TOPIC_ID, {0: (1, 2)}).encode())])
    yield LaggingServer(session)
    store.close()


@pytest.fixture
def catalog(server: Any) -> TopicCatalog:
    return TopicCatalog(server, TopicConfig())


def test_a_topic_of_a_leader_and_isr_is_found_although_the_server_lags(
    catalog: TopicCatalog, server: LaggingServer
) -> None:
    catalog.refresh_unknown({"t": TOPIC_ID})
    assert catalog.topic("t").topic_id == TOPIC_ID
    catalog.refresh_unknown({"t": TOPIC_ID})
    assert server.syncs == 1, "a known topic needs no sync"


def test_one_sync_serves_all_topics_of_a_request(catalog: TopicCatalog, server: LaggingServer) -> None:
    other = uuid.uuid4()
    server.multi([Create(paths.topic_path("u"), TopicNode(other, {0: (1,)}).encode())])
    catalog.refresh_unknown({"t": TOPIC_ID, "u": other, "gone": uuid.uuid4()})
    assert sorted(catalog.topics) == ["t", "u"]
    assert server.syncs == 1


def test_a_topic_of_an_update_metadata_is_found_although_the_server_lags(catalog: TopicCatalog) -> None:
    leadership = Leadership(leader=2, leader_epoch=3, isr=(2,), partition_epoch=4, controller_epoch=5)
    state = LeaderAndIsrState(leadership=leadership, assignment=ReplicaAssignment((1, 2)), is_new=False)
    request = UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=5,
        broker_epoch=6,
        topic_ids={"t": TOPIC_ID},
        partitions={TopicPartition("t", 0): state},
        live_brokers=(1, 2),
    )
    catalog.update_metadata(request)
    assert catalog.topic("t").partitions[0].leader == 2


def test_a_stale_id_of_a_topic_does_not_hide_the_topic(catalog: TopicCatalog) -> None:
    catalog.refresh_unknown({"t": TOPIC_ID})
    catalog.refresh_unknown({"t": uuid.uuid4()})
    assert catalog.topic("t").topic_id == TOPIC_ID


def test_a_topic_that_is_marked_for_deletion_is_returned_but_not_in_the_catalog(
    catalog: TopicCatalog, server: LaggingServer
) -> None:
    server.create(paths.delete_topic_path("t"))
    assert catalog.refresh_unknown({"t": TOPIC_ID})["t"].topic_id == TOPIC_ID
    assert "t" not in catalog.topics
    assert catalog.refresh_unknown({"t": uuid.uuid4()}) == {}


@pytest.mark.parametrize("data", [b"", b"nonsense", b'{"version":1,"partitions":{"0":[1,2]}}'])
def test_an_unreadable_topic_is_left_out_and_the_others_are_loaded(
    catalog: TopicCatalog, server: LaggingServer, data: bytes
) -> None:
    server.sync()
    server.create(paths.topic_path("bad"), data)
    catalog.load()
    assert list(catalog.topics) == ["t"]
    assert catalog.refresh("bad") is None
