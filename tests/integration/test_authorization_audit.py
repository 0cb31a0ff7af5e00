"""Tests of the audit of authorization decisions.

The tests cover clients of Kafka and of millrace, readers of the audit topic itself, outages, and clusters.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from millrace.acls import AclOperation, ResourceType
from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.coordinator_records import AUDIT_COLUMNS
from millrace.errors import (
    AuthorizationError,
    CoordinatorNotAvailableError,
    InvalidConfigError,
    InvalidTopicError,
    SaslAuthenticationError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace.schemas import parse_ddl
from millrace.security.scram import ScramCredential
from millrace_broker.audit import Audit
from millrace_broker.metadata.scram_credentials import ScramChange
from millrace_broker.security import AclAuthorizer, AclIndex
from millrace_broker.testing import EmbeddedBroker

from ..certificates import Authority
from ..planted_secrets import planted
from .access_broker import acl
from .broker_cluster import Cluster
from .consumer_groups import QUICK_GROUPS
from .waiting import STALL_S, eventually
from .zookeeper_server import ZooKeeperServer

TOPIC = ResourceType.TOPIC
AUDIT = "__audit"
OPTIONS = {
    **QUICK_GROUPS,
    "authorizer.class.name": "millrace_broker.security.AclAuthorizer",
    "audit.decisions": "all",
    "audit.interval.ms": "50",
    "audit.topic.num.partitions": "1",
    "metrics.port": "0",
}
PASSWORD = planted("audited")
ANYBODY: dict[str, Any] = {"principal": "User:ANONYMOUS"}


def let(broker: EmbeddedBroker, *needs: tuple[AclOperation, ResourceType, str]) -> None:
    """Let everybody do this."""
    authorizer = broker.server.broker.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    changes = {}
    for need in needs:
        pattern, entry = acl(need, **ANYBODY)
        changes[pattern] = changes.get(pattern, frozenset()) | {entry}
    authorizer._store.index = AclIndex().updated(changes)


def audit_of(broker: EmbeddedBroker) -> Audit:
    audit = broker.server.broker.audit
    assert audit is not None
    return audit


ALL_TOPICS = (AclOperation.ALL, TOPIC, "*")
ALL_GROUPS = (AclOperation.ALL, ResourceType.GROUP, "*")
ALL_CLUSTER = (AclOperation.ALL, ResourceType.CLUSTER, "kafka-cluster")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("audited"), options=OPTIONS) as running:
        let(running, ALL_TOPICS, ALL_CLUSTER)
        with Admin(running.bootstrap_servers) as admin:
            for name in ("orders", "secret"):
                admin.create_topic(name, partitions=1)
        yield running


@pytest.fixture(scope="module")
def password_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker where alice has a password for each mechanism."""
    options = {
        **OPTIONS,
        "audit.decisions": "denied",
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,GRPC://127.0.0.1:0",
        "listener.protocol.map": "GRPC:grpc",
        "listener.security.protocol.map": "GRPC:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.jaas.config": f'PlainLoginModule required user_alice="{PASSWORD}";',
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("passwords"), options=options) as running:
        credential = ScramCredential.of_password("SCRAM-SHA-256", PASSWORD)
        running.server.broker.scram_credentials.alter("alice", [ScramChange("SCRAM-SHA-256", credential)])
        yield running


class Rows:
    """Rows of the audit that one consumer reads, all of them kept."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        config = {"bootstrap.servers": broker.bootstrap_servers, "direct.reads": "never", "client.id": "auditor"}
        eventually(lambda: AUDIT in broker.server.broker.catalog.topics, "the first write, which creates the topic")
        self._consumer = Consumer(config)
        self.found: list[dict[str, Any]] = []

    def __enter__(self) -> Rows:
        self._consumer.assign([TopicPartition(AUDIT, 0)])
        self._consumer.seek_to_beginning()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self) -> None:
        table = self._consumer.poll_table(100)
        if table is not None:
            self.found += table.to_pylist()

    def wait_for(self, **values: Any) -> list[dict[str, Any]]:
        def matching() -> list[dict[str, Any]]:
            self.read()
            return [row for row in self.found if values.items() <= row.items()]

        return eventually(matching, f"a row of the audit with {values}")


def test_decisions_for_clients_of_millrace_are_rows(broker: EmbeddedBroker) -> None:
    let(broker, ALL_TOPICS, ALL_CLUSTER)
    with Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "till"}) as producer:
        producer.send("orders", b"1").result(STALL_S)
        let(broker, (AclOperation.DESCRIBE, TOPIC, "secret"))
        with pytest.raises(AuthorizationError):
            producer.send("secret", b"1").result(STALL_S)
    let(broker, ALL_TOPICS)
    with Rows(broker) as rows:
        (allowed, *_) = rows.wait_for(client_id="till", call="Produce", resource="orders", allowed=True)
        (denied, *_) = rows.wait_for(client_id="till", call="Produce", resource="secret", allowed=False)
    for row in (allowed, denied):
        assert (row["principal"], row["host"], row["listener"]) == ("User:ANONYMOUS", "127.0.0.1", "PLAINTEXT")
        assert (row["operation"], row["resource_type"], row["broker_id"]) == ("WRITE", "TOPIC", 0)
        assert row["decisions"] >= 1
        assert row["time"] <= row["last_time"]


def test_a_forged_call_of_a_broker_is_a_denial_even_for_a_super_user(tmp_path: Path) -> None:
    authority = Authority.make()
    options = {
        **OPTIONS,
        "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "INTERNAL:SSL",
        "inter.broker.listener.name": "INTERNAL",
        "ssl.client.auth": "required",
        "ssl.keystore.location": authority.issue("CN=broker").write(tmp_path / "broker.pem"),
        "ssl.truststore.location": authority.write(tmp_path / "ca.pem"),
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedBroker(tmp_path / "broker", options=options) as broker:
        config = {"bootstrap.servers": f"127.0.0.1:{broker.server.ports['PLAINTEXT']}", "client.id": "forger"}
        with Admin(config) as admin, pytest.raises(AuthorizationError, match="LeaderAndIsr is a call of brokers"):
            admin._connections.call(lambda stub: stub.LeaderAndIsr, pb.LeaderAndIsrRequest())
        with Rows(broker) as rows:
            (row,) = rows.wait_for(client_id="forger", call="LeaderAndIsr", allowed=False)
    assert (row["operation"], row["resource_type"]) == ("CLUSTER_ACTION", "CLUSTER")


@pytest.mark.parametrize(
    ("listener", "mechanism", "user", "resource"),
    [
        ("SASL_PLAINTEXT", "SCRAM-SHA-256", "alice", "alice"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256", "a password", ""),
        ("SASL_PLAINTEXT", "PLAIN", "alice", "alice"),
        ("SASL_PLAINTEXT", "PLAIN", "a password", ""),
        ("GRPC", "SCRAM-SHA-256", "alice", "alice"),
        ("GRPC", "PLAIN", "a password", ""),
    ],
)
def test_a_failed_login_is_a_denial(
    password_broker: EmbeddedBroker, listener: str, mechanism: str, user: str, resource: str
) -> None:
    ports = password_broker.server.ports
    config = {
        "bootstrap.servers": f"127.0.0.1:{ports[listener]}",
        "client.id": f"{listener} {mechanism} {user}",
        "security.protocol": "SASL_PLAINTEXT",
        "transport": "grpc" if listener == "GRPC" else "auto",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'LoginModule required username="{user}" password="wrong";',
    }
    with pytest.raises(SaslAuthenticationError), Admin(config) as admin:
        admin.list_topics()
    with Rows(password_broker) as rows:
        (row, *_) = rows.wait_for(client_id=config["client.id"], operation="AUTHENTICATE")
    assert (row["principal"], row["host"], row["listener"]) == ("User:ANONYMOUS", "127.0.0.1", listener)
    assert (row["call"], row["resource_type"], row["resource"]) == ("SaslAuthenticate", "USER", resource)
    assert not row["allowed"]


def test_decisions_for_clients_of_kafka_are_rows(broker: EmbeddedBroker) -> None:
    let(broker, ALL_GROUPS, (AclOperation.DESCRIBE, TOPIC, "secret"))
    config = {"bootstrap.servers": broker.bootstrap_servers, "client.id": "kafka", "group.id": "workers"}
    consumer = confluent_kafka.Consumer(config)
    consumer.assign([confluent_kafka.TopicPartition("secret", 0, 0)])
    message = eventually(lambda: consumer.poll(0.1))
    assert message.error().code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()
    let(broker, ALL_TOPICS)
    with Rows(broker) as rows:
        (row, *_) = rows.wait_for(client_id="kafka", call="Fetch", allowed=False)
        assert (row["operation"], row["resource"]) == ("READ", "secret")
        rows.wait_for(client_id="kafka", call="Metadata", operation="DESCRIBE", resource="secret", allowed=True)


def test_a_look_up_of_a_topic_that_exists_is_no_creation(broker: EmbeddedBroker) -> None:
    let(broker, ALL_TOPICS, ALL_CLUSTER)
    kafka = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "lookup"})
    assert set(kafka.list_topics("orders", timeout=STALL_S).topics) == {"orders"}
    with Rows(broker) as rows:
        rows.wait_for(client_id="lookup", call="Metadata", operation="DESCRIBE", resource="orders", allowed=True)
        assert not [row for row in rows.found if (row["client_id"], row["operation"]) == ("lookup", "CREATE")]


def test_a_changed_option_is_one_decision(broker: EmbeddedBroker) -> None:
    let(broker, ALL_TOPICS, ALL_CLUSTER)
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
    kafka = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "client.id": "alters"})
    kafka.incremental_alter_configs([wanted])[wanted].result(STALL_S)
    with Rows(broker) as rows:
        found = rows.wait_for(client_id="alters", operation="ALTER_CONFIGS", resource="orders")
        assert [row["decisions"] for row in found] == [1]


def test_consumers_of_kafka_read_the_audit_topic_as_json(broker: EmbeddedBroker) -> None:
    let(broker, ALL_GROUPS, (AclOperation.READ, TOPIC, AUDIT))
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "auditors", "client.id": "reader"}
    )
    consumer.assign([confluent_kafka.TopicPartition(AUDIT, 0, 0)])
    message = eventually(lambda: (found := consumer.poll(0.1)) is not None and found.error() is None and found)
    assert b'"operation"' in message.value()
    consumer.close()


def test_reading_the_audit_is_no_endless_source_of_rows(broker: EmbeddedBroker) -> None:
    let(broker, ALL_TOPICS)
    with Rows(broker) as rows:
        (row,) = rows.wait_for(client_id="auditor", call="Fetch", resource=AUDIT, allowed=True)[:1]
        assert row["operation"] == "READ"
        recorded = audit_of(broker).statistics().recorded
        for _ in range(20):
            rows.read()
        assert audit_of(broker).statistics().recorded == recorded


def test_clients_may_neither_write_nor_delete_the_audit_topic(broker: EmbeddedBroker) -> None:
    let(broker, ALL_TOPICS, ALL_CLUSTER)
    with Rows(broker) as rows:
        forged = pa.Table.from_pylist(rows.wait_for()[:1], schema=parse_ddl(AUDIT_COLUMNS))
    with Producer(broker.bootstrap_servers) as producer:
        written = producer.send_table(AUDIT, forged)
        with pytest.raises(InvalidTopicError, match="internal topic"):
            written.result(STALL_S)
    with Admin(broker.bootstrap_servers) as admin, pytest.raises(InvalidTopicError, match="internal topic"):
        admin.delete_topic(AUDIT)
    kafka = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    errors: list[Any] = []
    kafka.produce(AUDIT, b"{}", on_delivery=lambda error, _: errors.append(error))
    kafka.flush(STALL_S)
    assert errors[0].code() == confluent_kafka.KafkaError.TOPIC_EXCEPTION


def test_an_outage_is_spooled_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker(tmp_path, options={**OPTIONS, "audit.decisions": "denied"}) as broker:
        audit = audit_of(broker)
        let(broker)
        with Admin({"bootstrap.servers": broker.bootstrap_servers, "client.id": "outage"}) as admin:
            with pytest.raises(AuthorizationError):
                admin.create_topic("first", partitions=1)
            eventually(lambda: audit.statistics().written == audit.statistics().recorded > 0)
            appends = broker.server.broker.appends

            async def fail(*_: Any, **__: Any) -> Any:
                raise CoordinatorNotAvailableError("the disk of the topic is gone")

            with monkeypatch.context() as patch:
                patch.setattr(appends, "append", fail)
                with pytest.raises(AuthorizationError):
                    admin.create_topic("second", partitions=1)
                eventually(lambda: audit.statistics().is_failing and audit.statistics().spooled_batches > 0)
            eventually(lambda: not audit.statistics().is_failing)
        statistics = audit.statistics()
        assert (statistics.spooled_batches, statistics.dropped) == (0, 0)
        assert statistics.written == statistics.recorded
        let(broker, ALL_TOPICS)
        with Rows(broker) as rows:
            rows.wait_for(client_id="outage", resource="second", allowed=False)
            assert [
                row["resource"] for row in rows.found if row["resource_type"] == "TOPIC" and not row["allowed"]
            ] == [
                "first",
                "second",
            ]


def test_rows_of_the_last_moment_are_written_at_the_next_start(tmp_path: Path) -> None:
    options = {**OPTIONS, "audit.decisions": "denied", "audit.interval.ms": "3600000"}
    with EmbeddedBroker(tmp_path, options=options) as broker:
        let(broker)
        with (
            Admin({"bootstrap.servers": broker.bootstrap_servers, "client.id": "last"}) as admin,
            pytest.raises(AuthorizationError),
        ):
            admin.create_topic("last", partitions=1)
        assert audit_of(broker).statistics().written == 0
    with EmbeddedBroker(tmp_path, options=OPTIONS) as again:
        let(again, ALL_TOPICS)
        with Rows(again) as rows:
            assert len(rows.wait_for(client_id="last", resource="last", allowed=False)) == 1


def test_the_audit_topic_needs_an_acl_although_other_topics_need_none(tmp_path: Path) -> None:
    options = {**OPTIONS, "allow.everyone.if.no.acl.found": "true"}
    with EmbeddedBroker(tmp_path, options=options) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("open", partitions=1)
        audit = audit_of(broker)
        eventually(lambda: audit.statistics().written == audit.statistics().recorded > 0)
        assert [topic.name for topic in admin.list_topics(include_internal=True)] == ["open"]
        let(broker, (AclOperation.DESCRIBE, TOPIC, AUDIT))
        assert {topic.name for topic in admin.list_topics(include_internal=True)} == {AUDIT, "open"}


def test_the_state_of_the_audit_is_in_the_metrics(broker: EmbeddedBroker) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=STALL_S) as answer:
        text = answer.read().decode()
    assert "millrace_audit_failing 0.0" in text
    assert "millrace_audit_lost_total 0.0" in text


def test_the_audit_is_refused_without_an_authorizer() -> None:
    with pytest.raises(InvalidConfigError, match=r"audit\.decisions=all .*set authorizer\.class\.name too"):
        EmbeddedBroker("unused", options={"audit.decisions": "all"})


@pytest.mark.parametrize("security", ["PLAINTEXT", "SSL"])
def test_each_broker_of_a_cluster_writes_its_rows_although_another_broker_leads(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, security: str
) -> None:
    """With SSL, brokers have certificates for each other. A broker that writes at another one needs no ACL."""
    options = {
        **OPTIONS,
        "super.users": "User:ANONYMOUS",
        "audit.decisions": "writes",
        "audit.topic.replication.factor": "1",
        "audit.topic.min.isr": "1",
    }
    if security == "SSL":
        authority = Authority.make()
        options |= {
            "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:0",
            "listener.security.protocol.map": "INTERNAL:SSL",
            "inter.broker.listener.name": "INTERNAL",
            "ssl.client.auth": "required",
            "ssl.keystore.location": authority.issue("CN=broker").write(tmp_path / "broker.pem"),
            "ssl.truststore.location": authority.write(tmp_path / "ca.pem"),
        }
    named = {name.replace(".", "_"): value for name, value in options.items()}
    with Cluster(zookeeper_server, tmp_path, **named) as cluster:
        cluster.start(1, 2)
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("both", assignment={0: [1], 1: [2]})
        with Producer(cluster.bootstrap_servers) as producer:
            for number in (0, 1):
                producer.send("both", b"x", partition=number).result(STALL_S)
        for each in (1, 2):
            audit = audit_of(cluster.brokers[each])
            eventually(lambda audit=audit: 0 < audit.statistics().recorded == audit.statistics().written)
        with Consumer({"bootstrap.servers": cluster.bootstrap_servers, "direct.reads": "never"}) as consumer:
            consumer.assign([TopicPartition(AUDIT, 0)])
            consumer.seek_to_beginning()
            writers: set[int] = set()

            def read() -> bool:
                table = consumer.poll_table(100)
                if table is not None:
                    writers.update(
                        row["broker_id"]
                        for row in table.to_pylist()
                        if (row["call"], row["resource"]) == ("Produce", "both")
                    )
                return writers == {1, 2}

            eventually(read)
