"""Tests of transactional producers without a necessary right.

The missing right is to a topic, to a group or to the transactional id.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.acls import AclOperation, ResourceType
from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.errors import (
    AbortableTransactionError,
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from millrace_broker.security import AclAuthorizer, AclIndex
from millrace_broker.testing import EmbeddedBroker

from .access_broker import acl
from .waiting import STALL_S

TOPIC, GROUP, ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
ALLOWED = [
    (AclOperation.ALL, TOPIC, "open"),
    (AclOperation.DESCRIBE, TOPIC, "closed"),
    (AclOperation.ALL, GROUP, "readers"),
]
MINE = (AclOperation.ALL, ID, "mine")


def let(broker: EmbeddedBroker, needs: list[tuple[AclOperation, ResourceType, str]]) -> None:
    """Let everybody do this and nothing else."""
    authorizer = broker.server.broker.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    changes: dict[Any, Any] = {}
    for need in needs:
        pattern, entry = acl(need, principal="User:ANONYMOUS")
        changes[pattern] = changes.get(pattern, frozenset()) | {entry}
    authorizer._store.index = AclIndex().updated(changes)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    options = {"authorizer.class.name": "millrace_broker.security.AclAuthorizer"}
    with EmbeddedBroker(tmp_path / "broker", options=options) as broker:
        let(broker, [(AclOperation.ALL, ResourceType.CLUSTER, "kafka-cluster"), (AclOperation.ALL, TOPIC, "*")])
        with Admin(broker.bootstrap_servers) as admin:
            for name in ("open", "closed"):
                admin.create_topic(name, partitions=1)
        let(broker, [*ALLOWED, MINE])
        yield broker


def producer_of(broker: EmbeddedBroker) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "mine"})
    producer.init_transactions()
    return producer


def committed(broker: EmbeddedBroker) -> list[Any]:
    place = TopicPartition("open", 0)
    with Consumer({"bootstrap.servers": broker.bootstrap_servers, "isolation.level": "read_committed"}) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([place])[place]
        values: list[Any] = []
        while consumer.position(place) < end:
            values += [record.value for record in consumer.poll(1000)]
        return values


def test_after_an_unauthorized_topic_the_transaction_is_aborted_and_the_producer_used_on(
    secured: EmbeddedBroker,
) -> None:
    with producer_of(secured) as producer:
        producer.begin_transaction()
        producer.send("open", b"lost")
        with pytest.raises(TopicAuthorizationError):
            producer.send("closed", b"x").result(STALL_S)
        with pytest.raises(AbortableTransactionError):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("open", b"kept")
        producer.commit_transaction()
    assert committed(secured) == [b"kept"]


def test_after_an_unauthorized_group_the_transaction_is_aborted_and_the_producer_used_on(
    secured: EmbeddedBroker,
) -> None:
    with producer_of(secured) as producer:
        producer.begin_transaction()
        with pytest.raises(GroupAuthorizationError):
            producer.send_offsets_to_transaction({TopicPartition("open", 0): 1}, "others")
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("open", b"kept")
        producer.send_offsets_to_transaction({TopicPartition("open", 0): 1}, "readers")
        producer.commit_transaction()
    assert committed(secured) == [b"kept"]


def test_without_the_right_to_its_id_a_producer_is_unusable(secured: EmbeddedBroker) -> None:
    with producer_of(secured) as producer:
        let(secured, ALLOWED)
        producer.begin_transaction()
        with pytest.raises(TransactionalIdAuthorizationError):
            producer.send("open", b"x").result(STALL_S)
        let(secured, [*ALLOWED, MINE])
        with pytest.raises(TransactionalIdAuthorizationError):
            producer.abort_transaction()
