"""Tests of ACLs in the metadata store.

The tests cover Kafka's nodes, changes by several brokers, and change notifications.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.acls import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from millrace.coordination import Coordination, EmbeddedStore, NoNodeError, paths
from millrace.coordination.acl_nodes import AclChangeNode, AclNode, ExtendedAclChangeNode
from millrace.errors import InvalidRequestError, StorageError
from millrace_broker.cluster.notifications import acl_notice, acl_notifications
from millrace_broker.security import AclStore

ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")
PREFIX = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "tx", PatternType.PREFIXED)
ALICE = AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermission.ALLOW)
BOB = AccessControlEntry("User:bob", "10.0.0.1", AclOperation.DESCRIBE_CONFIGS, AclPermission.DENY)


@pytest.fixture
def coordination(tmp_path: Path) -> Iterator[Coordination]:
    store = EmbeddedStore(tmp_path / "metadata", now_ms=lambda: 0)
    yield store.connect()
    store.close()


def opened(coordination: Coordination) -> AclStore:
    return AclStore(coordination, lambda pattern: [acl_notice(pattern)])


def test_nodes_and_notices_are_those_of_kafka(coordination: Coordination) -> None:
    store = opened(coordination)
    assert store.create([AclBinding(ORDERS, ALICE), AclBinding(PREFIX, BOB)]) == [None, None]
    assert json.loads(coordination.get("/kafka-acl/Topic/orders")[0]) == {
        "version": 1,
        "acls": [{"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"}],
    }
    assert json.loads(coordination.get("/kafka-acl-extended/prefixed/TransactionalId/tx")[0]) == {
        "version": 1,
        "acls": [
            {
                "principal": "User:bob",
                "permissionType": "Deny",
                "operation": "DescribeConfigs",
                "host": "10.0.0.1",
            }
        ],
    }
    (literal,) = coordination.children("/kafka-acl-changes")
    assert literal == "acl_changes_0000000000"
    assert coordination.get(f"/kafka-acl-changes/{literal}")[0] == b"Topic:orders"
    (extended,) = coordination.children("/kafka-acl-extended-changes")
    assert json.loads(coordination.get(f"/kafka-acl-extended-changes/{extended}")[0]) == {
        "version": 1,
        "resourceType": "TRANSACTIONAL_ID",
        "name": "tx",
        "patternType": "PREFIXED",
    }


def test_acls_survive_and_the_node_of_a_pattern_without_any_is_deleted(coordination: Coordination) -> None:
    opened(coordination).create([AclBinding(ORDERS, ALICE), AclBinding(ORDERS, BOB)])
    store = opened(coordination)
    assert store.index.acls == {ORDERS: {ALICE, BOB}}
    assert store.delete([AclBindingFilter(principal="User:alice"), AclBindingFilter(name="none")]) == [
        [AclBinding(ORDERS, ALICE)],
        [],
    ]
    assert store.index.acls == {ORDERS: {BOB}}
    store.delete([AclBindingFilter()])
    assert store.index.acls == {}
    with pytest.raises(NoNodeError):
        coordination.get("/kafka-acl/Topic/orders")


def test_a_change_is_made_on_what_another_broker_wrote(coordination: Coordination) -> None:
    first, second = opened(coordination), opened(coordination)
    first.create([AclBinding(ORDERS, ALICE)])
    second.create([AclBinding(ORDERS, BOB)])  # without having seen the notice of the first
    assert second.index.acls == {ORDERS: {ALICE, BOB}}
    second.delete([AclBindingFilter(principal="User:alice")])
    first.create([AclBinding(ORDERS, ALICE._replace(host="10.0.0.9"))])
    assert first.index.acls == {ORDERS: {BOB, ALICE._replace(host="10.0.0.9")}}


def test_no_change_of_brokers_at_the_same_time_is_lost(coordination: Coordination) -> None:
    entries = [ALICE._replace(principal=f"User:{number}") for number in range(40)]
    stores = [opened(coordination) for _ in range(4)]

    def work(place: int) -> None:
        for entry in entries[place::4]:
            assert stores[place].create([AclBinding(ORDERS, entry)]) == [None]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened(coordination).index.acls == {ORDERS: set(entries)}


def test_notices_bring_changes_to_other_brokers(coordination: Coordination) -> None:
    first, second = opened(coordination), opened(coordination)
    notifications = acl_notifications()

    def take() -> None:
        for each in notifications:
            each.take(coordination, lambda _: None, second.reload)

    first.create([AclBinding(ORDERS, ALICE), AclBinding(PREFIX, BOB)])
    take()
    assert second.index.acls == {ORDERS: {ALICE}, PREFIX: {BOB}}
    first.delete([AclBindingFilter(resource_type=ResourceType.TOPIC)])
    take()
    assert second.index.acls == {PREFIX: {BOB}}


def test_an_acl_that_exists_is_no_error_and_writes_nothing(coordination: Coordination) -> None:
    store = opened(coordination)
    store.create([AclBinding(ORDERS, ALICE)])
    assert store.create([AclBinding(ORDERS, ALICE), AclBinding(ORDERS, ALICE)]) == [None, None]
    assert len(coordination.children(paths.ACL_CHANGES)) == 1


def test_a_bad_acl_is_refused_and_the_others_are_kept(coordination: Coordination) -> None:
    store = opened(coordination)
    refused, kept = store.create([AclBinding(ORDERS, ALICE._replace(principal="alice")), AclBinding(ORDERS, BOB)])
    assert isinstance(refused, InvalidRequestError)
    assert kept is None
    assert store.index.acls == {ORDERS: {BOB}}


def test_a_node_that_cannot_be_read_is_named(coordination: Coordination) -> None:
    opened(coordination)
    coordination.create("/kafka-acl/Topic/orders", b'{"version":1,"acls":[{"principal":"User:a"}]}')
    with pytest.raises(StorageError, match=r"/kafka-acl/Topic/orders: .* Correct the node, or delete it"):
        opened(coordination)


def test_nodes_are_read_as_they_were_written() -> None:
    node = AclNode(frozenset((ALICE, BOB)))
    assert AclNode.decode(node.encode()) == node
    literal = ResourcePattern(ResourceType.GROUP, "a:b")
    assert AclChangeNode.decode(AclChangeNode(literal).encode()).pattern == literal
    assert ExtendedAclChangeNode.decode(ExtendedAclChangeNode(PREFIX).encode()).pattern == PREFIX
    for broken in (b"Topic", b"Nothing:orders"):
        with pytest.raises(StorageError):
            AclChangeNode.decode(broken)
    for damaged in (b'{"version":2,"acls":[]}', b'{"version":1,"acls":[{"operation":"Sing"}]}', b"[]"):
        with pytest.raises(StorageError):
            AclNode.decode(damaged)
