"""Tests of ACLs with real clients.

The clients are those of millrace and of Kafka, the command line, and brokers of a cluster. No listener of these brokers
authenticates, so every client is ``User:ANONYMOUS``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicCollection
from confluent_kafka import admin as confluent

from millrace import errors
from millrace.acls import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from millrace.cli.main import main
from millrace.clients import Admin, Consumer, Producer
from millrace.config.broker import BrokerConfig
from millrace.coordination.zookeeper import ZooKeeperStore
from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataRequestTopic
from millrace_broker.security import AclStore
from millrace_broker.testing import EmbeddedBroker

from .broker_cluster import Cluster
from .consumer_groups import QUICK, QUICK_GROUPS
from .documented import Reader
from .kafka_wire import EVERY_ACL, KafkaWire
from .waiting import STALL_S, eventually
from .zookeeper_server import ZooKeeperServer

AUTHORIZER = {"authorizer.class.name": "millrace_broker.security.AclAuthorizer"}
ANONYMOUS = "User:ANONYMOUS"
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
READ, WRITE, DESCRIBE, ALTER = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALTER


def acl(
    operation: AclOperation,
    name: str,
    resource_type: ResourceType = ResourceType.TOPIC,
    *,
    principal: str = ANONYMOUS,
    permission: AclPermission = ALLOW,
    pattern_type: PatternType = PatternType.LITERAL,
) -> AclBinding:
    entry = AccessControlEntry(principal, "*", operation, permission)
    return AclBinding(ResourcePattern(resource_type, name, pattern_type), entry)


MANAGES_ACLS = acl(ALTER, CLUSTER_NAME, ResourceType.CLUSTER)


class Secured(EmbeddedBroker):
    """A broker with an authorizer."""

    def let(self, *bindings: AclBinding) -> None:
        """Let these be all ACLs, and let everybody manage them."""
        authorizer = self.server.broker.authorizer
        assert authorizer is not None
        self.administer(authorizer.delete_acls, [AclBindingFilter()])
        assert not any(self.administer(authorizer.create_acls, [MANAGES_ACLS, *bindings]))

    def administer(self, work: Callable[..., Any], *arguments: Any) -> Any:
        import asyncio

        async def run() -> Any:
            return await self.server.broker.executors.administer(work, *arguments)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(STALL_S)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured"), options={**QUICK_GROUPS, **AUTHORIZER}) as running:
        running.let(acl(AclOperation.CREATE, CLUSTER_NAME, ResourceType.CLUSTER), acl(AclOperation.ALL, "*"))
        with Admin(running.bootstrap_servers) as admin:
            for name in ("orders", "secret"):
                admin.create_topic(name, partitions=1)
        yield running


@pytest.fixture
def admin(secured: Secured) -> Iterator[Admin]:
    with Admin(secured.bootstrap_servers) as client:
        yield client


@pytest.fixture
def run(secured: Secured, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs ``millrace acls`` and returns its output."""
    monkeypatch.setenv("MILLRACE_BOOTSTRAP_SERVERS", secured.bootstrap_servers)

    def run(*arguments: str, status: int = 0) -> str:
        capsys.readouterr()
        assert main(["acls", *arguments]) == status, capsys.readouterr().err
        captured = capsys.readouterr()
        return captured.out if status == 0 else captured.err

    return run


# --- clients of millrace -----------------------------------------------------------------------------------------


def test_only_topics_that_may_be_described_are_shown(secured: Secured, admin: Admin) -> None:
    secured.let(acl(DESCRIBE, "orders"))
    assert [each.name for each in admin.list_topics()] == ["orders"]
    with pytest.raises(errors.TopicAuthorizationError, match="User:ANONYMOUS may not DESCRIBE Topic secret"):
        admin.describe_topic("secret")
    with pytest.raises(errors.TopicAuthorizationError):
        admin.describe_topic("does-not-exist")  # a client without the right does not learn that


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_every_listener_refuses_and_names_the_remedy(secured: Secured, transport: str) -> None:
    secured.let(acl(DESCRIBE, "orders"))
    with Admin({"bootstrap.servers": secured.bootstrap_servers, "transport": transport}) as client:
        with pytest.raises(errors.TopicAuthorizationError, match=r"acls add .* --operation Delete --topic orders"):
            client.delete_topic("orders")
        with pytest.raises(errors.ClusterAuthorizationError, match="--cluster"):
            client.alter_configs("0", {"log.retention.ms": "1000"}, resource="broker")
        with pytest.raises(errors.TopicAuthorizationError):
            list(client.read_range("orders", 0, 0, 1))


def test_a_producer_needs_write_and_a_consumer_read_and_its_group(secured: Secured) -> None:
    servers = {"bootstrap.servers": secured.bootstrap_servers}
    secured.let(acl(DESCRIBE, "orders"))
    with Producer({**servers, "enable.idempotence": "false"}) as producer:
        with pytest.raises(errors.TopicAuthorizationError, match="may not WRITE Topic orders"):
            producer.send("orders", b"refused").result(STALL_S)
        secured.let(acl(WRITE, "orders"))
        producer.send("orders", b"taken").result(STALL_S)
    secured.let(acl(READ, "orders"), acl(READ, "readers", ResourceType.GROUP))
    with Consumer({**servers, **QUICK, "group.id": "readers", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe("orders")
        seen: list[bytes | None] = []
        eventually(lambda: seen.extend(each.value for each in consumer.poll(0.1)) or b"taken" in seen, "a record")

    with Consumer({**servers, **QUICK, "group.id": "others"}) as consumer:
        consumer.subscribe("orders")
        with pytest.raises(errors.GroupAuthorizationError, match="Group others"):
            eventually(lambda: bool(list(consumer.poll(0.1))), "the refusal")


def test_an_idempotent_producer_needs_no_more_than_write_to_some_topic(secured: Secured) -> None:
    secured.let(acl(WRITE, "ord", pattern_type=PatternType.PREFIXED))
    with Producer({"bootstrap.servers": secured.bootstrap_servers, "enable.idempotence": "true"}) as producer:
        producer.send("orders", b"v").result(STALL_S)


def test_paths_of_segments_are_given_to_nobody_unless_direct_reads_are_enabled(
    secured: Secured, admin: Admin, tmp_path: Path
) -> None:
    secured.let(acl(AclOperation.ALL, "orders"))
    with Producer({"bootstrap.servers": secured.bootstrap_servers, "enable.idempotence": "false"}) as producer:
        producer.send("orders", b"v").result(STALL_S)
    located = admin.locate_range("orders", 0, 0)
    assert located.extents
    assert not any(each.path for each in located.extents)
    with Secured(tmp_path / "data", options={**AUTHORIZER, "direct.reads.enable": "local"}) as direct:
        direct.let(acl(AclOperation.ALL, "orders"))
        with Admin(direct.bootstrap_servers) as other:
            other.create_topic("orders", partitions=1)
            with Producer({"bootstrap.servers": direct.bootstrap_servers, "enable.idempotence": "false"}) as producer:
                producer.send("orders", b"v").result(STALL_S)
            assert all(each.path for each in other.locate_range("orders", 0, 0).extents)
            direct.let(acl(WRITE, "orders"))
            with pytest.raises(errors.TopicAuthorizationError):
                other.locate_range("orders", 0, 0)


@pytest.mark.parametrize("may_create", [False, True])
def test_a_topic_deleted_during_a_metadata_request_is_created_again_only_with_the_right_to_create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_create: bool
) -> None:
    options = {**AUTHORIZER, "auto.create.topics.enable": "true"}
    with Secured(tmp_path / "data", options=options) as secured, KafkaWire(secured) as wire:
        create = acl(AclOperation.CREATE, CLUSTER_NAME, ResourceType.CLUSTER)
        secured.let(create, acl(DESCRIBE, "orders"))
        with Admin(secured.bootstrap_servers) as admin:
            admin.create_topic("orders", partitions=1)
        secured.let(acl(DESCRIBE, "orders"), *((create,) if may_create else ()))
        broker = secured.server.broker
        find = broker.partitions.find_topic

        async def delete_first(name: str) -> Any:
            if name in broker.catalog.topics:
                deleted = await broker.executors.administer(broker.changes.delete, name)
                assert await broker.member.topics.gone(deleted, 30_000)
            return await find(name)

        monkeypatch.setattr(broker.partitions, "find_topic", delete_first)
        request = MetadataRequest(topics=(MetadataRequestTopic(name="orders"),), allow_auto_topic_creation=True)
        (topic,) = wire.call(request, 9).topics
        assert topic.error_code == (0 if may_create else errors.TopicAuthorizationError.code)
        assert ("orders" in broker.catalog.topics) == may_create


def test_without_an_authorizer_there_are_no_acls(module_broker: EmbeddedBroker) -> None:
    with Admin(module_broker.bootstrap_servers) as admin:
        with pytest.raises(errors.SecurityDisabledError, match=r"set authorizer\.class\.name"):
            admin.describe_acls()
        with pytest.raises(errors.SecurityDisabledError):
            admin.create_acls([MANAGES_ACLS])
        with pytest.raises(errors.SecurityDisabledError):
            admin.delete_acls([AclBindingFilter()])
    with KafkaWire(module_broker) as wire:
        described = wire.call(EVERY_ACL, 3)
    assert described.error_code == errors.SecurityDisabledError.code
    assert "authorizer.class.name" in described.error_message


def test_an_unknown_authorizer_is_refused_at_start(tmp_path: Path) -> None:
    with (
        pytest.raises(
            errors.InvalidConfigError, match=r"authorizer\.class\.name=no\.such\.Class: there is no such class"
        ),
        EmbeddedBroker(tmp_path / "data", options={"authorizer.class.name": "no.such.Class"}),
    ):
        pass
    with pytest.raises(errors.InvalidConfigError, match="expected Type:name"):
        BrokerConfig.load({"super.users": "admin"})


class OnlyReads:
    """An authorizer that lets everybody read and describe."""

    def __init__(self, config: BrokerConfig, store: AclStore) -> None:
        self.config = config

    def authorize(
        self, request: Any, operation: AclOperation, resource_type: ResourceType, name: str, *, is_logged: bool = True
    ) -> bool:
        return operation in (READ, DESCRIBE)

    def authorize_by_resource_type(self, request: Any, operation: AclOperation, resource_type: ResourceType) -> bool:
        return False


def test_another_authorizer_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    module = types.ModuleType("authorizers_of_a_company")
    module.OnlyReads = OnlyReads  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    options = {"authorizer.class.name": f"{module.__name__}.OnlyReads"}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, Admin(broker.bootstrap_servers) as admin:
        assert admin.list_topics() == []
        with pytest.raises(errors.TopicAuthorizationError):
            admin.create_topic("orders")


def test_no_call_of_an_authorized_client_fails_during_a_hundred_changes(secured: Secured, admin: Admin) -> None:
    secured.let(acl(AclOperation.ALL, "orders"))
    changes = [acl(READ, "orders", principal=f"User:{number}", permission=DENY) for number in range(50)]
    with Producer({"bootstrap.servers": secured.bootstrap_servers, "enable.idempotence": "false"}) as producer:
        for each in changes:
            sent = [producer.send("orders", b"v") for _ in range(10)]
            assert admin.create_acls([each]) == {each: None}
            assert admin.delete_acls([AclBindingFilter.of(each)]) == [each]
            for record in sent:
                record.result(STALL_S)
    assert changes[0] not in admin.describe_acls()


def test_acls_survive_a_restart(tmp_path: Path) -> None:
    broker = Secured(tmp_path / "data", options=AUTHORIZER)
    with broker:
        broker.let(acl(DESCRIBE, "orders"))
    with broker, Admin(broker.bootstrap_servers) as admin:
        assert admin.describe_acls() == sorted([MANAGES_ACLS, acl(DESCRIBE, "orders")])


# --- the command line --------------------------------------------------------------------------------------------


def test_acls_are_added_listed_and_removed_by_commands(secured: Secured, run: Callable[..., str]) -> None:
    secured.let()
    added = run("add", "--allow-principal", "User:alice", "--producer", "--topic", "orders", "--transactional-id", "tx")
    assert "TransactionalId" in added
    run("add", "--allow-principal", "User:bob", "--consumer", "--topic", "ord", "--group", "g",
        "--resource-pattern-type", "prefixed")  # fmt: skip
    run("add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.7", "--operation", "read", "--topic", "*")
    listed = json.loads(run("list", "--topic", "orders", "--resource-pattern-type", "match", "--json"))
    assert {(each["principal"], each["name"], each["operation"], each["permission"]) for each in listed} == {
        ("User:alice", "orders", "Write", "Allow"),
        ("User:alice", "orders", "Describe", "Allow"),
        ("User:alice", "orders", "Create", "Allow"),
        ("User:bob", "ord", "Read", "Allow"),
        ("User:bob", "ord", "Describe", "Allow"),
        ("User:bob", "*", "Read", "Deny"),
    }
    may = {
        (each["principal"], each["host"]): each["operations"]
        for each in json.loads(run("who", "--topic", "orders", "--json"))
    }
    assert may == {
        ("User:alice", "*"): ["Write", "Create", "Describe"],
        ("User:bob", "*"): ["Read", "Describe"],
        ("User:bob", "10.0.0.7"): ["Describe"],
    }
    assert "removed 5 ACLs" in run("remove", "--allow-principal", "User:alice", "--producer", "--topic", "orders",
                                   "--transactional-id", "tx", "--force")  # fmt: skip
    assert "alice" not in run("list")
    assert "removed 2 ACLs" in run("remove", "--topic", "ord", "--resource-pattern-type", "prefixed", "--force")


def test_the_commands_of_the_page_run_as_they_stand(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured.let()
    printed = Reader(secured, None, tmp_path, monkeypatch).follow("docs/authorization.md")
    assert "removed 1 ACLs" in printed
    (shown,) = [line for line in printed.splitlines() if line.split()[:2] == ["User:bob", "10.0.0.7"]]
    assert "Read" not in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["add", "--topic", "orders"], "name a principal"),
        (["add", "--allow-principal", "User:a"], "name the resources"),
        (["add", "--allow-principal", "alice", "--topic", "t"], "expected Type:name"),
        (["add", "--allow-principal", "User:a", "--topic", "t", "--operation", "Sing"], "is none of"),
        (["add", "--allow-principal", "User:a", "--group", "g", "--operation", "Write"], "a Group has Read"),
        (["add", "--allow-principal", "User:a", "--consumer", "--topic", "t"], "--consumer needs --topic and --group"),
        (["add", "--allow-host", "10.0.0.1", "--topic", "t"], "--allow-host needs --allow-principal"),
        (
            ["add", "--allow-principal", "User:a", "--topic", "t", "--resource-pattern-type", "match"],
            "literal or prefixed",
        ),
        (["add", "--deny-principal", "user:a", "--topic", "t"], "use User:a"),
        (
            ["add", "--deny-principal", "User:a", "--topic", "*", "--resource-pattern-type", "prefixed"],
            "use a literal ACL on '*'",
        ),
        (["remove", "--force"], "name the resources"),
        (["who"], "name one resource"),
    ],
)
def test_an_impossible_acl_is_refused_with_the_remedy(
    run: Callable[..., str], arguments: list[str], problem: str
) -> None:
    assert problem in run(*arguments, status=2)


def test_a_dry_run_adds_nothing(secured: Secured, run: Callable[..., str], admin: Admin) -> None:
    secured.let()
    assert "User:alice" in run("add", "--allow-principal", "User:alice", "--topic", "orders", "--dry-run")
    assert admin.describe_acls() == [MANAGES_ACLS]


# --- clients of Kafka --------------------------------------------------------------------------------------------


def test_kafkas_admin_client_manages_acls(secured: Secured) -> None:
    secured.let()
    client = confluent.AdminClient({"bootstrap.servers": secured.bootstrap_servers})
    binding = confluent.AclBinding(
        confluent.ResourceType.TOPIC,
        "ord",
        confluent.ResourcePatternType.PREFIXED,
        "User:carol",
        "10.0.0.1",
        confluent.AclOperation.READ,
        confluent.AclPermissionType.DENY,
    )
    for future in client.create_acls([binding]).values():
        future.result(STALL_S)
    wanted = confluent.AclBindingFilter(
        confluent.ResourceType.TOPIC,
        "orders",
        confluent.ResourcePatternType.MATCH,
        None,
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )
    assert client.describe_acls(wanted).result(STALL_S) == [binding]
    deleted = [future.result(STALL_S) for future in client.delete_acls([wanted]).values()]
    assert deleted == [[binding]]
    assert client.describe_acls(wanted).result(STALL_S) == []


def test_kafkas_clients_are_told_what_they_may_do_and_refused_the_rest(secured: Secured) -> None:
    secured.let(acl(WRITE, "orders"), acl(DESCRIBE, "secret"), acl(READ, "readers", ResourceType.GROUP))
    servers = {"bootstrap.servers": secured.bootstrap_servers}
    client = confluent.AdminClient(servers)
    described = client.describe_topics(TopicCollection(["orders"]), include_authorized_operations=True)
    operations = described["orders"].result(STALL_S).authorized_operations
    assert {each.name for each in operations} == {"WRITE", "DESCRIBE"}
    assert set(client.list_topics(timeout=STALL_S).topics) == {"orders", "secret"}
    cluster = client.describe_cluster(include_authorized_operations=True).result(STALL_S)
    assert {each.name for each in cluster.authorized_operations} == {"ALTER", "DESCRIBE"}
    failures: list[Any] = []
    producer = confluent_kafka.Producer(servers)
    for topic in ("orders", "secret"):
        producer.produce(topic, b"v", on_delivery=lambda error, message: failures.append((message.topic(), error)))
    producer.flush(STALL_S)
    told = dict(failures)
    assert told["orders"] is None
    assert told["secret"].code() == errors.TopicAuthorizationError.code
    consumer = confluent_kafka.Consumer({**servers, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    try:
        seen: list[int] = []

        def is_refused() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is not None:
                seen.append(message.error().code())
            return errors.TopicAuthorizationError.code in seen

        eventually(is_refused, "the refusal of the fetch")
    finally:
        consumer.close()


# --- clusters ----------------------------------------------------------------------------------------------------


def test_a_change_reaches_the_other_brokers_of_a_cluster_within_a_second(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    options = {"authorizer_class_name": AUTHORIZER["authorizer.class.name"], "super_users": ANONYMOUS}
    with Cluster(zookeeper_server, tmp_path, **options) as cluster:
        cluster.start(1, 2)
        other = cluster.brokers[2].server.broker.authorizer
        assert other is not None
        wanted = [acl(READ, "orders"), acl(WRITE, "ord", pattern_type=PatternType.PREFIXED)]
        with Admin(cluster.brokers[1].bootstrap_servers) as admin:
            admin.create_acls(wanted)
            eventually(lambda: other.acls(AclBindingFilter()) == sorted(wanted), "the other broker to have the ACLs")
            admin.delete_acls([AclBindingFilter()])
            eventually(lambda: other.acls(AclBindingFilter()) == [], "the other broker to have no ACL")
        cluster.stop(2)
        with Admin(cluster.brokers[1].bootstrap_servers) as admin:
            admin.create_acls(wanted)
        cluster.start(2)
        started_again = cluster.brokers[2].server.broker.authorizer
        assert started_again is not None
        assert started_again.acls(AclBindingFilter()) == sorted(wanted)


def test_brokers_need_cluster_action_and_no_more(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    options = {"authorizer_class_name": AUTHORIZER["authorizer.class.name"]}
    with Cluster(zookeeper_server, tmp_path, **options) as cluster:
        store = ZooKeeperStore(BrokerConfig.load({"zookeeper.connect": cluster.connect}).zookeeper)
        try:
            AclStore(store.connect()).create(
                [
                    acl(AclOperation.CLUSTER_ACTION, CLUSTER_NAME, ResourceType.CLUSTER),
                    acl(AclOperation.CREATE, "orders"),
                    acl(WRITE, "orders"),
                ]
            )
        finally:
            store.close()
        cluster.start(1, 2)
        cluster.admin.create_topic("orders", partitions=1, replication_factor=2)
        producer_config = {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "enable.idempotence": "false"}
        with Producer(producer_config) as producer:
            producer.send("orders", b"replicated").result(STALL_S)
        eventually(lambda: len(cluster.admin.describe_topic("orders").partitions[0].isr) == 2, "both replicas in sync")
        with pytest.raises(errors.TopicAuthorizationError):
            cluster.admin.delete_topic("orders")
