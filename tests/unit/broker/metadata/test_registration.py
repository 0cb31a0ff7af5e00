from __future__ import annotations

import json
import threading

import pytest

from millrace.config.listeners import Listener
from millrace.coordination import Create, EmbeddedStore, paths
from millrace.coordination.nodes import BrokerNode
from millrace.coordination.outcomes import settle
from millrace.errors import EnvironmentProblemError, StorageError
from millrace_broker.metadata import LiveBroker, ProducerIds, registration
from millrace_broker.metadata.producer_ids import BLOCK_SIZE


def _node(port: int) -> BrokerNode:
    return BrokerNode(host="h", port=port, rack="r", timestamp_ms=5)


def test_the_cluster_has_one_id_whichever_broker_asks_first() -> None:
    store = EmbeddedStore()
    first, second = store.connect(), store.connect()
    registration.ensure_roots(first)
    made = registration.cluster_id(first)
    assert len(made) == 22
    assert registration.cluster_id(second) == made
    assert json.loads(first.get(paths.CLUSTER_ID)[0]) == {"version": "1", "id": made}


def test_a_broker_is_live_as_long_as_its_session_and_its_id_is_taken() -> None:
    store = EmbeddedStore()
    first, second = store.connect(), store.connect()
    registration.ensure_roots(first)
    registration.register(first, 3, _node(1))
    with pytest.raises(EnvironmentProblemError, match=r"broker\.id"):
        registration.register(second, 3, _node(2))
    registration.register(second, 1, _node(2))
    assert registration.live_brokers(second) == [
        LiveBroker(broker_id=1, rack="r", endpoints={"PLAINTEXT": Listener("h", 2)}),
        LiveBroker(broker_id=3, rack="r", endpoints={"PLAINTEXT": Listener("h", 1)}),
    ]
    first.close()
    assert [broker.broker_id for broker in registration.live_brokers(second)] == [1]


def test_a_broker_is_registered_with_all_listeners_by_their_names() -> None:
    session = EmbeddedStore().connect()
    registration.ensure_roots(session)
    endpoints = {"INTERNAL": Listener("in", 9092), "EXTERNAL": Listener("::1", 19092), "GRPC": Listener("in", 9093)}
    registration.register(session, 3, registration.broker_node(endpoints, rack="r", timestamp_ms=5))
    written = json.loads(session.get(paths.broker_path(3))[0])
    assert written["endpoints"] == ["INTERNAL://in:9092", "EXTERNAL://[::1]:19092", "GRPC://in:9093"]
    assert written["listener_security_protocol_map"] == dict.fromkeys(endpoints, "PLAINTEXT")
    assert (written["host"], written["port"]) == ("in", 9092)
    assert registration.live_brokers(session) == [LiveBroker(broker_id=3, rack="r", endpoints=endpoints)]


def test_a_registration_of_a_former_release_is_read_and_replaced_at_its_end() -> None:
    """Then gRPC was at the first endpoint and Kafka's framing at one of the name FRAMES."""
    store = EmbeddedStore()
    first, second = store.connect(), store.connect()
    registration.ensure_roots(first)
    former = (
        b'{"version":5,"host":"h","port":9092,"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT",'
        b'"FRAMES":"PLAINTEXT"},"endpoints":["PLAINTEXT://h:9092","FRAMES://h:40001"],"jmx_port":-1,'
        b'"timestamp":"5","features":{}}'
    )
    settle(first, [Create(paths.broker_path(3), former, ephemeral=True)])
    (read,) = registration.live_brokers(second)
    assert read.endpoints == {"PLAINTEXT": Listener("h", 9092), "FRAMES": Listener("h", 40001)}
    ending = threading.Timer(0.05, first.close)
    ending.start()
    endpoints = {"PLAINTEXT": Listener("h", 9092), "GRPC": Listener("h", 40001)}
    node = registration.broker_node(endpoints, rack="", timestamp_ms=6)
    registration.register(second, 3, node, patience_s=30)
    ending.join()
    assert [each.endpoints for each in registration.live_brokers(second)] == [endpoints]


def test_a_broker_waits_for_the_end_of_its_last_session() -> None:
    store = EmbeddedStore()
    first, second = store.connect(), store.connect()
    registration.ensure_roots(first)
    epoch = registration.register(first, 3, _node(1))
    ending = threading.Timer(0.05, first.close)
    ending.start()
    assert registration.register(second, 3, _node(1), patience_s=30) > epoch
    ending.join()
    with pytest.raises(registration.BrokerIdTakenError):
        registration.register(store.connect(), 3, _node(1), patience_s=0.01)


def test_an_address_at_which_another_broker_is_reached_is_refused() -> None:
    # Otherwise requests for either broker would reach the other one under the wrong name.
    store = EmbeddedStore()
    first, second = store.connect(), store.connect()
    registration.ensure_roots(first)
    registration.register(first, 1, _node(9))
    with pytest.raises(registration.EndpointTakenError, match=r"broker 1 .* h:9, so broker 2 cannot"):
        registration.register(second, 2, _node(9), patience_s=0.01)
    assert [broker.broker_id for broker in registration.live_brokers(second)] == [1]
    ending = threading.Timer(0.05, first.close)
    ending.start()
    registration.register(second, 2, _node(9), patience_s=30)
    ending.join()
    assert [broker.broker_id for broker in registration.live_brokers(second)] == [2]


def test_producer_ids_are_unique_over_brokers_and_restarts() -> None:
    store = EmbeddedStore()
    session = store.connect()
    registration.ensure_roots(session)
    one, two = ProducerIds(session, 1), ProducerIds(session, 2)
    ids = [source.next_id() for _ in range(BLOCK_SIZE + 5) for source in (one, two)]
    ids += [ProducerIds(session, 1).next_id()]
    assert len(set(ids)) == len(ids)
    assert min(ids) == 0
    block = json.loads(session.get(paths.PRODUCER_ID_BLOCK)[0])
    assert block == {"version": 1, "broker": 1, "block_start": "4000", "block_end": "4999"}


def test_an_unreadable_producer_id_block_is_an_error() -> None:
    session = EmbeddedStore().connect()
    registration.ensure_roots(session)
    session.set(paths.PRODUCER_ID_BLOCK, b"garbage")
    with pytest.raises(StorageError, match="garbage"):
        ProducerIds(session, 1).next_id()


def test_a_broker_changes_its_addresses_and_keeps_its_registration() -> None:
    session = EmbeddedStore().connect()
    registration.ensure_roots(session)
    epoch = registration.register(session, 3, _node(1))
    changed = threading.Event()
    session.exists(paths.broker_path(3), lambda _: changed.set())
    registration.change_registration(session, 3, epoch, _node(2))
    assert changed.is_set()
    data, stat = session.get(paths.broker_path(3))
    assert (BrokerNode.decode(data).port, stat.created_id, stat.version) == (2, epoch, 1)
    registration.change_registration(session, 3, epoch, _node(2))
    registration.change_registration(session, 3, epoch - 1, _node(7))
    assert session.get(paths.broker_path(3))[1].version == 1, "nothing to change, and the registration of another epoch"
    session.delete(paths.broker_path(3))
    registration.change_registration(session, 3, epoch, _node(7))
    assert registration.live_ids(session) == []
