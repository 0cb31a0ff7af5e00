"""Tests of authentication between brokers, and of forged calls.

Brokers authenticate to each other. Other clients forge calls of brokers, which are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Producer
from millrace.errors import AuthorizationError, ClusterAuthorizationError, InvalidConfigError
from millrace.kafka_protocol.calls import fetch as kafka_fetch
from millrace.kafka_protocol.calls import write_txn_markers
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.testing import EmbeddedBroker

from ..certificates import Authority
from .broker_cluster import Cluster
from .kafka_wire import KafkaWire
from .waiting import AN_HOUR_MS, STALL_S, eventually
from .zookeeper_server import ZooKeeperServer

TOPIC = "orders"


class SecureCluster(Cluster):
    """Two brokers with mutual TLS between them, and their stores."""

    def __init__(self, zookeeper: ZooKeeperServer, directory: Path, **options: str) -> None:
        authority = Authority.make()
        self.ca = authority.write(directory / "ca.pem")
        self.client = authority.issue("CN=client").write(directory / "client.pem")
        self.broker = authority.issue("CN=broker").write(directory / "broker.pem")
        super().__init__(
            zookeeper,
            directory,
            listeners="INTERNAL://127.0.0.1:0,SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0,GRPC://127.0.0.1:0",
            listener_security_protocol_map="INTERNAL:SSL",
            inter_broker_listener_name="INTERNAL",
            ssl_client_auth="required",
            ssl_keystore_location=self.broker,
            ssl_truststore_location=self.ca,
            **options,
        )

    def config(self, listener: str) -> dict[str, Any]:
        servers = ",".join(f"127.0.0.1:{each.server.ports[listener]}" for each in self.brokers.values())
        if listener in ("PLAINTEXT", "GRPC"):
            return {"bootstrap.servers": servers, "transport": "grpc" if listener == "GRPC" else "auto"}
        stores = {"ssl.truststore.location": self.ca, "ssl.keystore.location": self.client}
        return {"bootstrap.servers": servers, "security.protocol": "SSL", **stores}


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    with SecureCluster(zookeeper_server, tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start(1, 2)
        with Admin(cluster.config("SSL")) as admin:
            admin.create_topic(TOPIC, assignment={0: [1, 2]}, configs={"min.insync.replicas": "2"})
        yield cluster


def test_brokers_replicate_with_mutual_tls(cluster: SecureCluster) -> None:
    with Producer(cluster.config("SSL")) as producer:
        producer.send(TOPIC, b"value").result(STALL_S)
        assert cluster.brokers[1].server.broker.logs.get(TOPIC, 0).log_end_offset >= 1
        assert cluster.brokers[2].server.broker.logs.get(TOPIC, 0).log_end_offset >= 1


def test_the_registration_has_the_security_protocols(cluster: SecureCluster) -> None:
    node = cluster.member(1)._node
    assert {each.listener: each.protocol for each in node.endpoints} == {
        "INTERNAL": "SSL",
        "SSL": "SSL",
        "PLAINTEXT": "PLAINTEXT",
        "GRPC": "PLAINTEXT",
    }
    assert node.port == cluster.brokers[1].server.ports["PLAINTEXT"], "as Kafka's, for old tools"


FORGED = {
    "LeaderAndIsr": pb.LeaderAndIsrRequest(),
    "StopReplica": pb.StopReplicaRequest(),
    "UpdateMetadata": pb.UpdateMetadataRequest(),
    "AlterPartition": pb.AlterPartitionRequest(),
    "ControlledShutdown": pb.ControlledShutdownRequest(),
    "WriteTxnMarkers": pb.WriteTxnMarkersRequest(),
    "Fetch": pb.FetchRequest(replica_id=2),
    "ListOffsets": pb.ListOffsetsRequest(replica_id=2),
}


LISTENERS = ("INTERNAL", "SSL", "PLAINTEXT", "GRPC")


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_call_of_a_broker_is_refused(cluster: SecureCluster, listener: str, name: str) -> None:
    with (
        Admin(cluster.config(listener)) as admin,
        pytest.raises(AuthorizationError, match=f"{name} is a call of brokers: .* at listener {listener} is none"),
    ):
        admin._connections.call(lambda stub: getattr(stub, name), FORGED[name])


def test_forged_transaction_markers_in_kafkas_framing_are_refused(cluster: SecureCluster) -> None:
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=0,
        producer_epoch=0,
        transaction_result=True,
        topics=(write_txn_markers.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=(0,)),),
        coordinator_epoch=0,
    )
    with KafkaWire(cluster.brokers[1].server.ports["PLAINTEXT"]) as wire:
        answer = wire.call(write_txn_markers.WriteTxnMarkersRequest(markers=(marker,)), 1)
    assert answer.markers[0].topics[0].partitions[0].error_code == ClusterAuthorizationError.code


def test_a_cluster_whose_brokers_could_not_be_told_from_clients_does_not_start(
    cluster: SecureCluster, tmp_path: Path
) -> None:
    options = cluster.options(9, listener_name_internal_ssl_client_auth="none")
    with pytest.raises(InvalidConfigError, match=r"set listener\.name\.internal\.ssl\.client\.auth=required"):
        EmbeddedBroker(tmp_path / "data", options=options).start()


def test_a_forged_fetch_of_a_follower_acknowledges_no_record(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    """The follower stops, in sync. A client's fetch with its id is refused; only one of a broker acknowledges."""
    long_ms = {"replica_lag_time_max_ms": str(AN_HOUR_MS), "zookeeper_session_timeout_ms": "30000"}
    with SecureCluster(zookeeper_server, tmp_path, **long_ms) as cluster:
        cluster.start(1, 2)
        leader, address = cluster.brokers[1].server, cluster.brokers[1].server.ports
        configs = {
            listener: {**cluster.config(listener), "bootstrap.servers": f"127.0.0.1:{address[listener]}"}
            for listener in LISTENERS
        }
        with Producer(cluster.config("SSL")) as producer, Admin(configs["SSL"]) as admin:
            admin.create_topic(TOPIC, assignment={0: [1, 2]}, configs={"min.insync.replicas": "2"})
            producer.send(TOPIC, b"first").result(STALL_S)
            log = leader.broker.logs.get(TOPIC, 0)
            goes_on = threading.Event()
            cluster.brokers[2]._loop.call_soon_threadsafe(goes_on.wait)
            try:
                waiting = producer.send(TOPIC, b"second")
                eventually(lambda: log.log_end_offset == 2)
                fetch = pb.FetchRequest(replica_id=2, max_bytes=1000)
                wanted = fetch.topics.add(name=TOPIC, topic_id=log.topic_id.bytes).partitions
                epoch, _ = log.epochs.entries[-1]
                wanted.add(partition=0, fetch_offset=2, partition_max_bytes=1000, current_leader_epoch=epoch)
                for listener, config in configs.items():
                    with Admin(config) as forger, pytest.raises(AuthorizationError, match="is a call of brokers"):
                        forger._connections.call(lambda stub: stub.Fetch, fetch)
                    assert (log.high_watermark, waiting.done()) == (1, False), listener
                with KafkaWire(address["PLAINTEXT"]) as wire:  # where Kafka's framing has the id, it counts for nothing
                    position = kafka_fetch.FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=1000)
                    asked = kafka_fetch.FetchTopic(topic=TOPIC, partitions=(position,))
                    fetched = wire.call(
                        kafka_fetch.FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=0, topics=(asked,)), 11
                    )
                    assert fetched.responses[0].partitions[0].high_watermark == log.high_watermark == 1
                of_a_broker = configs["INTERNAL"] | {"ssl.keystore.location": cluster.broker}
                with Admin(of_a_broker) as broker:
                    broker._connections.call(lambda stub: stub.Fetch, fetch)
                assert waiting.result(STALL_S).offset == 1
            finally:
                goes_on.set()
