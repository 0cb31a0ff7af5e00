"""Brokers that authenticate to each other, and calls of brokers that others forge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Producer
from millrace.errors import AuthorizationError, InvalidConfigError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.testing import EmbeddedBroker

from ..certificates import Authority
from .broker_cluster import Cluster
from .waiting import STALL_S
from .zookeeper_server import ZooKeeperServer

TOPIC = "orders"


class SecureCluster(Cluster):
    """Two brokers with mutual TLS between them, and their stores."""

    def __init__(self, zookeeper: ZooKeeperServer, directory: Path) -> None:
        authority = Authority.make()
        self.ca = authority.write(directory / "ca.pem")
        self.client = authority.issue("CN=client").write(directory / "client.pem")
        broker = authority.issue("CN=broker").write(directory / "broker.pem")
        super().__init__(
            zookeeper,
            directory,
            listeners="INTERNAL://127.0.0.1:0,SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0,GRPC://127.0.0.1:0",
            listener_security_protocol_map="INTERNAL:SSL",
            inter_broker_listener_name="INTERNAL",
            ssl_client_auth="required",
            ssl_keystore_location=broker,
            ssl_truststore_location=self.ca,
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


@pytest.mark.parametrize("listener", ["INTERNAL", "SSL", "PLAINTEXT", "GRPC"])
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_call_of_a_broker_is_refused(cluster: SecureCluster, listener: str, name: str) -> None:
    with (
        Admin(cluster.config(listener)) as admin,
        pytest.raises(AuthorizationError, match=f"{name} is a call of brokers: .* at listener {listener} is none"),
    ):
        admin._connections.call(lambda stub: getattr(stub, name), FORGED[name])


def test_a_cluster_whose_brokers_could_not_be_told_from_clients_does_not_start(
    cluster: SecureCluster, tmp_path: Path
) -> None:
    options = cluster.options(9, listener_name_internal_ssl_client_auth="none")
    with pytest.raises(InvalidConfigError, match=r"set listener\.name\.internal\.ssl\.client\.auth=required"):
        EmbeddedBroker(tmp_path / "data", options=options).start()
