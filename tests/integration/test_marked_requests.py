"""Tests of client requests that claim to come from a broker.

At the tested broker, everybody has each right without ACLs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.acls import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclBinding,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from millrace.clients import Admin
from millrace.errors import ClusterAuthorizationError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.testing import EmbeddedBroker

OPTIONS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:0",
    "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "authorizer.class.name": "millrace_broker.security.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
MARKED = {
    "Fetch": pb.FetchRequest(replica_id=-1, by_broker=True),
    "OffsetForLeaderEpoch": pb.OffsetForLeaderEpochRequest(replica_id=0),
    "AddPartitionsToTxn": pb.AddPartitionsToTxnRequest(transactional_id="t", by_broker=True),
    "AddOffsetsToTxn": pb.AddOffsetsToTxnRequest(transactional_id="t", group_id="g", by_broker=True),
    "DescribeGroups": pb.DescribeGroupsRequest(group_ids=["g"], by_broker=True),
    "ElectLeaders": pb.ElectLeadersRequest(is_forwarded=True),
    "AlterPartitionReassignments": pb.AlterPartitionReassignmentsRequest(is_forwarded=True),
    "ListPartitionReassignments": pb.ListPartitionReassignmentsRequest(is_forwarded=True),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("marked"), options=OPTIONS) as running:
        yield running


@pytest.mark.parametrize(
    ("name", "request_"),
    [*MARKED.items(), ("AddPartitionsToTxn", pb.AddPartitionsToTxnRequest(transactional_id="t", verify_only=True))],
)
def test_a_request_in_the_name_of_a_broker_is_refused_to_others(
    broker: EmbeddedBroker, name: str, request_: Any
) -> None:
    with (
        Admin(broker.bootstrap_servers) as admin,
        pytest.raises(ClusterAuthorizationError, match=f"{name} is a call of brokers: .* at listener PLAINTEXT"),
    ):
        admin._connections.call(lambda stub: getattr(stub, name), request_)


def test_transaction_markers_of_an_administrator_need_alter_on_the_cluster(tmp_path: Path) -> None:
    cluster = ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)

    def allow(running: EmbeddedBroker, operation: AclOperation) -> None:
        assert running.server.broker.authorizer is not None
        entry = AccessControlEntry("User:ANONYMOUS", "*", operation, AclPermission.ALLOW)
        assert running.server.broker.authorizer.create_acls([AclBinding(cluster, entry)]) == [None]

    options = OPTIONS | {"allow.everyone.if.no.acl.found": "false"}
    with EmbeddedBroker(tmp_path / "data", options=options) as running, Admin(running.bootstrap_servers) as admin:
        allow(running, AclOperation.CLUSTER_ACTION)
        with pytest.raises(ClusterAuthorizationError, match="WriteTxnMarkers is a call of brokers"):
            admin._connections.call(lambda stub: stub.WriteTxnMarkers, pb.WriteTxnMarkersRequest())
        allow(running, AclOperation.ALTER)
        admin._connections.call(lambda stub: stub.WriteTxnMarkers, pb.WriteTxnMarkersRequest())
