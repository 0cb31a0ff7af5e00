"""Tests of Kafka's admin clients.

The tests cover groups, configurations, partitions, records, and the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ElectionType,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    OffsetSpec,
    ResourceType,
)

from millrace.clients import Admin
from millrace.kafka_protocol.calls import alter_configs
from millrace.kafka_protocol.calls.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millrace.kafka_protocol.calls.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.kafka_protocol.calls.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.kafka_protocol.calls.list_config_resources import ListConfigResourcesRequest
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import address, consumer, create_topic, producer, read, send
from .kafka_wire import KafkaWire
from .waiting import STALL_S, eventually

_BROKER, _CLIENT_METRICS, _GROUP = 4, 16, 32
_INVALID_CONFIG, _INVALID_REQUEST = 40, 42
BROKER_OPTIONS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def client(module_broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": address(module_broker)})


def test_the_cluster_is_described(module_broker: EmbeddedBroker, client: AdminClient) -> None:
    found = client.describe_cluster(include_authorized_operations=True).result(STALL_S)
    assert [(node.id, node.port) for node in found.nodes] == [(0, module_broker.port)]
    assert found.cluster_id == module_broker.server.cluster_id
    assert found.controller.id == 0
    assert found.authorized_operations


def test_topics_are_described_with_their_ids_and_replicas(
    module_broker: EmbeddedBroker, client: AdminClient, topic: str
) -> None:
    create_topic(module_broker, topic, 2)
    found = client.describe_topics(TopicCollection([topic]), include_authorized_operations=True)[topic].result(STALL_S)
    assert found.name == topic
    assert [[node.id for node in each.replicas] for each in found.partitions] == [[0], [0]]
    assert found.authorized_operations
    assert not found.is_internal


def test_partitions_are_added(module_broker: EmbeddedBroker, client: AdminClient, topic: str) -> None:
    create_topic(module_broker, topic)
    client.create_partitions([NewPartitions(topic, 3)])[topic].result(STALL_S)
    assert len(client.list_topics(topic, STALL_S).topics[topic].partitions) == 3
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        client.create_partitions([NewPartitions(topic, 2)])[topic].result(STALL_S)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.INVALID_PARTITIONS


def test_options_of_a_topic_are_set_appended_subtracted_and_deleted(
    module_broker: EmbeddedBroker, client: AdminClient, topic: str
) -> None:
    create_topic(module_broker, topic, retention_ms="60000")

    def described() -> dict[str, Any]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries: dict[str, Any] = client.describe_configs([resource])[resource].result(STALL_S)
        return entries

    def alter(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        client.incremental_alter_configs([resource])[resource].result(STALL_S)

    in_order = [name for name in described() if name in ("cleanup.policy", "compression.type", "retention.ms")]
    assert in_order == ["compression.type", "cleanup.policy", "retention.ms"], "this is the order of Kafka"
    assert described()["retention.ms"].value == "60000"
    assert not described()["retention.ms"].is_default
    assert described()["segment.bytes"].is_default
    alter("retention.ms", "70000", AlterConfigOpType.SET)
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert described()["retention.ms"].value == "70000"
    assert described()["cleanup.policy"].value == "delete,compact"
    alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    assert described()["cleanup.policy"].value == "compact"
    alter("cleanup.policy", "compact", AlterConfigOpType.SUBTRACT)
    assert described()["cleanup.policy"].value == "", "a topic may have no policy, and then keeps all records"
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert described()["cleanup.policy"].value == "compact"
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    assert described()["retention.ms"].is_default
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        alter("retention.ms", "soon", AlterConfigOpType.SET)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.INVALID_CONFIG


def test_the_deletion_of_an_option_that_no_topic_has_changes_nothing(
    module_broker: EmbeddedBroker, client: AdminClient, topic: str
) -> None:
    create_topic(module_broker, topic, retention_ms="60000")
    deleted = [
        ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
        for name in ("message.format.version", "retention.ms")
    ]
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=deleted)
    client.incremental_alter_configs([wanted])[wanted].result(STALL_S)
    assert client.describe_configs([wanted])[wanted].result(STALL_S)["retention.ms"].is_default


def test_no_names_of_options_mean_all(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic)

    def described(names: tuple[str, ...] | None) -> list[str]:
        wanted = DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=names)
        with KafkaWire(module_broker) as wire:
            return [each.name for each in wire.call(DescribeConfigsRequest(resources=(wanted,)), 4).results[0].configs]

    assert described(("retention.ms",)) == ["retention.ms"]
    assert described(()) == described(None)
    assert "compression.zstd.level" in described(())


def test_an_option_has_the_values_of_all_sources(
    module_broker: EmbeddedBroker, client: AdminClient, topic: str
) -> None:
    create_topic(module_broker, topic, retention_ms="60000")
    wanted = ConfigResource(ResourceType.TOPIC, topic)

    def sources(option: str) -> list[tuple[str, str, str]]:
        found = client.describe_configs([wanted])[wanted].result(STALL_S)[option]
        return [(each.name, each.value, ConfigSource(each.source).name) for each in found.synonyms.values()]

    with Admin(module_broker.bootstrap_servers) as admin:
        admin.alter_configs("", {"log.segment.bytes": 3000000}, resource="broker")
        # confluent-kafka keeps the last one of each name.
        assert sources("retention.ms") == [
            ("retention.ms", "60000", "DYNAMIC_TOPIC_CONFIG"),
            ("log.retention.ms", "604800000", "DEFAULT_CONFIG"),
        ]
        assert sources("segment.bytes") == [("log.segment.bytes", "1073741824", "DEFAULT_CONFIG")]
        assert sources("remote.storage.enable") == [("remote.storage.enable", "false", "DEFAULT_CONFIG")]
        admin.alter_configs("", delete=["log.segment.bytes"], resource="broker")


def test_the_answer_to_a_created_topic_has_its_options(module_broker: EmbeddedBroker, topic: str) -> None:
    wanted = CreatableTopic(
        name=topic,
        num_partitions=3,
        replication_factor=1,
        assignments=(),
        configs=(CreatableTopicConfig(name="retention.ms", value="60000"),),
    )
    with KafkaWire(module_broker) as wire:
        (created,) = wire.call(CreateTopicsRequest(topics=(wanted,), timeout_ms=10_000), 7).topics
    assert (created.num_partitions, created.replication_factor) == (3, 1)
    options = {each.name: (each.value, each.config_source) for each in created.configs}
    assert options["retention.ms"] == ("60000", 1)
    assert options["cleanup.policy"] == ("delete", 5)


@pytest.mark.parametrize(
    ("option", "value"), [("log.cleaner.threads", "many"), ("message.max.bytes", "-7"), ("log.dirs", "/elsewhere")]
)
def test_a_wrong_change_of_a_brokers_option_is_an_invalid_request(
    module_broker: EmbeddedBroker, option: str, value: str
) -> None:
    with KafkaWire(module_broker) as wire:
        for name in ("", "0"):
            assert alter(wire, _BROKER, name, {option: value}) == _INVALID_REQUEST
            assert replace_all(wire, _BROKER, name, {option: value}) == _INVALID_REQUEST


def test_only_lists_of_a_broker_can_be_appended_to(module_broker: EmbeddedBroker) -> None:
    appended = AlterableConfig(name="message.max.bytes", config_operation=2, value="7")
    wanted = AlterConfigsResource(resource_type=_BROKER, resource_name="", configs=(appended,))
    with KafkaWire(module_broker) as wire:
        answer = wire.call(IncrementalAlterConfigsRequest(resources=(wanted,), validate_only=False), 1)
    assert answer.responses[0].error_code == _INVALID_CONFIG


def test_options_of_a_group_are_set_described_and_replaced(module_broker: EmbeddedBroker, topic: str) -> None:
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    with KafkaWire(module_broker) as wire:
        assert alter(wire, _GROUP, topic, {session: "50000", heartbeat: "6000"}) == 0
        options = described(wire, _GROUP, topic)
        assert (options[session].value, options[session].config_source) == ("50000", 8)
        assert [(each.name, each.value, each.source) for each in options[session].synonyms] == [
            (session, "50000", 8),
            (f"group.{session}", "45000", 5),
        ]
        reset = options["share.auto.offset.reset"]
        assert (reset.value, reset.config_source) == ("latest", 5)
        assert alter(wire, _GROUP, topic, {session: "1"}) == _INVALID_CONFIG
        assert alter(wire, _GROUP, topic, {"no.such.option": "1"}) == _INVALID_CONFIG
        assert (_GROUP, topic) in resources(wire, _GROUP)
        assert replace_all(wire, _GROUP, topic, {session: "55000"}) == 0
        options = described(wire, _GROUP, topic)
        assert (options[session].value, options[heartbeat].value) == ("55000", "5000")
        assert alter(wire, _GROUP, topic, {session: None}) == 0
        assert (_GROUP, topic) not in resources(wire, _GROUP)


def test_client_metrics_subscriptions_are_kept_listed_and_deleted(module_broker: EmbeddedBroker, topic: str) -> None:
    name = f"{topic}/α"
    with KafkaWire(module_broker) as wire:
        assert described(wire, _CLIENT_METRICS, name)["interval.ms"].value == "300000"
        assert (_CLIENT_METRICS, name) not in resources(wire, _CLIENT_METRICS)
        set_now = {"interval.ms": "1000", "metrics": "org.apache", "match": "client_id=a.*,client_source_port=9[0-9]+"}
        assert alter(wire, _CLIENT_METRICS, name, set_now) == 0
        options = described(wire, _CLIENT_METRICS, name)
        assert {option: found.value for option, found in options.items()} == set_now
        assert {found.config_source for found in options.values()} == {7}
        types = {option: found.config_type for option, found in options.items()}
        assert types == {"interval.ms": 3, "metrics": 7, "match": 7}
        assert (_CLIENT_METRICS, name) in resources(wire, _CLIENT_METRICS)
        assert (_CLIENT_METRICS, name) in resources(wire)
        older = wire.call(ListConfigResourcesRequest(), 0).config_resources  # ListClientMetricsResources
        assert [each.resource_name for each in older] == [name]
        assert alter(wire, _CLIENT_METRICS, name, {"interval.ms": "99"}) == _INVALID_REQUEST
        assert alter(wire, _CLIENT_METRICS, name, {"no.such.option": "1"}) == _INVALID_REQUEST
        assert alter(wire, _CLIENT_METRICS, name, {"match": "client_name=a"}) == _INVALID_CONFIG
        assert alter(wire, _CLIENT_METRICS, name, {"match": "client_id=("}) == _INVALID_CONFIG
        assert alter(wire, _CLIENT_METRICS, "", {"interval.ms": "1000"}) == _INVALID_REQUEST
        assert alter(wire, _CLIENT_METRICS, name, dict.fromkeys(set_now)) == 0
        assert (_CLIENT_METRICS, name) not in resources(wire, _CLIENT_METRICS)


def test_options_of_all_brokers_are_replaced_without_those_of_one(module_broker: EmbeddedBroker) -> None:
    with KafkaWire(module_broker) as wire:
        assert alter(wire, _BROKER, "0", {"log.retention.ms": "70000"}) == 0
        assert alter(wire, _BROKER, "", {"log.segment.bytes": "3000000", "log.cleaner.backoff.ms": "1000"}) == 0
        assert replace_all(wire, _BROKER, "", {"log.segment.bytes": "4000000"}) == 0
        options = described(wire, _BROKER, "")
        assert {option: found.value for option, found in options.items()} == {"log.segment.bytes": "4000000"}
        assert options["log.segment.bytes"].config_source == 3
        options = described(wire, _BROKER, "0")
        assert (options["log.retention.ms"].value, options["log.retention.ms"].config_source) == ("70000", 2)
        assert (options["log.segment.bytes"].value, options["log.segment.bytes"].config_source) == ("4000000", 3)
        assert replace_all(wire, _BROKER, "0", {}) == 0
        options = described(wire, _BROKER, "0")
        assert options["log.retention.ms"].config_source == 5
        assert options["log.segment.bytes"].value == "4000000"
        assert replace_all(wire, _BROKER, "", {}) == 0
        assert described(wire, _BROKER, "") == {}


def alter(wire: KafkaWire, kind: int, name: str, options: Mapping[str, str | None]) -> int:
    """Set options; None deletes one. Return the error code."""
    configs = tuple(
        AlterableConfig(name=option, config_operation=int(value is None), value=value)
        for option, value in options.items()
    )
    wanted = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = wire.call(IncrementalAlterConfigsRequest(resources=(wanted,), validate_only=False), 1)
    (found,) = answer.responses
    code: int = found.error_code
    return code


def replace_all(wire: KafkaWire, kind: int, name: str, options: Mapping[str, str]) -> int:
    """Set options, and delete all others. Return the error code."""
    configs = tuple(alter_configs.AlterableConfig(name=option, value=value) for option, value in options.items())
    wanted = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = wire.call(alter_configs.AlterConfigsRequest(resources=(wanted,), validate_only=False), 2)
    (found,) = answer.responses
    code: int = found.error_code
    return code


def described(wire: KafkaWire, kind: int, name: str) -> dict[str, Any]:
    wanted = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    (found,) = wire.call(DescribeConfigsRequest(resources=(wanted,), include_synonyms=True), 4).results
    assert not found.error_code, found.error_message
    return {each.name: each for each in found.configs}


def resources(wire: KafkaWire, *kinds: int) -> list[tuple[int, str]]:
    """List the configuration resources of some types, or all."""
    found = wire.call(ListConfigResourcesRequest(resource_types=kinds), 1).config_resources
    return [(each.resource_type, each.resource_name) for each in found]


def test_options_of_the_broker_are_described(client: AdminClient) -> None:
    resource = ConfigResource(ResourceType.BROKER, "0")
    found = client.describe_configs([resource])[resource].result(STALL_S)
    assert found["log.dirs"].is_read_only
    assert not found["listeners"].is_read_only
    assert found["advertised.listeners"].is_read_only
    sources = {name: ConfigSource(found[name].source).name for name in ("listeners", "broker.id")}
    assert sources == {"listeners": "STATIC_BROKER_CONFIG", "broker.id": "DEFAULT_CONFIG"}
    assert not found["num.io.threads"].is_read_only


def test_records_are_deleted_and_offsets_listed(module_broker: EmbeddedBroker, client: AdminClient, topic: str) -> None:
    create_topic(module_broker, topic)
    send(producer(module_broker), topic, [{"value": b"x", "timestamp": 1000 + number} for number in range(10)])
    partition = TopicPartition(topic, 0, 4)
    assert client.delete_records([partition])[partition].result(STALL_S).low_watermark == 4

    def offset(spec: OffsetSpec) -> int:
        wanted = TopicPartition(topic, 0)
        found: int = client.list_offsets({wanted: spec})[wanted].result(STALL_S).offset
        return found

    assert offset(OffsetSpec.earliest()) == 4
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.max_timestamp()) == 9
    assert offset(OffsetSpec.for_timestamp(1006)) == 6


def test_groups_are_listed_described_and_deleted(
    module_broker: EmbeddedBroker, client: AdminClient, topic: str
) -> None:
    create_topic(module_broker, topic)
    send(producer(module_broker), topic, [{"value": b"x"}] * 5)
    reader = consumer(module_broker, topic, client_id="member", enable_auto_commit="false")
    reader.subscribe([topic])
    read(reader, 5)
    reader.commit(asynchronous=False)

    listed = client.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(STALL_S)
    assert topic in [group.group_id for group in listed.valid]
    described = client.describe_consumer_groups([topic], include_authorized_operations=True)[topic].result(STALL_S)
    assert described.state is ConsumerGroupState.STABLE
    (member,) = described.members
    assert member.client_id == "member"
    assert member.host == "/127.0.0.1"
    assert [(each.topic, each.partition) for each in member.assignment.topic_partitions] == [(topic, 0)]
    assert described.authorized_operations
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        client.delete_consumer_groups([topic])[topic].result(STALL_S)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.NON_EMPTY_GROUP
    reader.close()

    wanted = ConsumerGroupTopicPartitions(topic)
    offsets = client.list_consumer_group_offsets([wanted])[topic].result(STALL_S).topic_partitions
    assert [(each.topic, each.offset) for each in offsets] == [(topic, 5)]
    altered = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 2)])
    client.alter_consumer_group_offsets([altered])[topic].result(STALL_S)
    offsets = client.list_consumer_group_offsets([wanted])[topic].result(STALL_S).topic_partitions
    assert [each.offset for each in offsets] == [2]
    client.delete_consumer_groups([topic])[topic].result(STALL_S)
    listed = client.list_consumer_groups().result(STALL_S)
    assert topic not in [group.group_id for group in listed.valid]


def test_kafka_python_administers_topics_and_groups(module_broker: EmbeddedBroker, topic: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=address(module_broker))
    admin.create_topics([kafka.admin.NewTopic(topic, 2, 1)])
    assert topic in admin.list_topics()
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
    admin.close()


def test_a_broker_by_itself_needs_no_elections_and_no_reassignments(
    module_broker: EmbeddedBroker, client: AdminClient, topic: str
) -> None:
    create_topic(module_broker, topic)
    wanted, unknown = TopicPartition(topic, 0), TopicPartition(topic, 7)
    elected = client.elect_leaders(ElectionType.PREFERRED, [wanted, unknown]).result(STALL_S)
    codes = {partition.partition: error and error.name() for partition, error in elected.items()}
    assert codes == {0: "ELECTION_NOT_NEEDED", 7: "UNKNOWN_TOPIC_OR_PART"}
    assert client.elect_leaders(ElectionType.UNCLEAN, None).result(STALL_S) == {}

    admin = kafka.KafkaAdminClient(bootstrap_servers=address(module_broker))
    partition = kafka.TopicPartition(topic, 0)
    for replicas, error in (
        ([0], None),
        ([0, 1], kafka.errors.InvalidReplicationAssignmentError),
        ([1], kafka.errors.InvalidReplicationAssignmentError),
        (None, kafka.errors.NoReassignmentInProgressError),
    ):
        assert admin.alter_partition_reassignments({partition: replicas}) == {partition: error}
    assert admin.list_partition_reassignments() == {}
    admin.close()


def test_a_partition_moves_to_another_log_directory(tmp_path: Path, topic: str) -> None:
    directories = [str(tmp_path / name) for name in "ab"]
    with EmbeddedBroker(tmp_path / "a", options=BROKER_OPTIONS, log_dirs=",".join(directories)) as broker:
        create_topic(broker, topic)
        values = [str(number).encode() * 100 for number in range(2000)]
        send(producer(broker), topic, [{"value": value} for value in values[:1000]])
        admin = kafka.KafkaAdminClient(bootstrap_servers=address(broker))

        def homes() -> list[str]:
            (described,) = admin.describe_log_dirs({topic: [0]})
            return [each["log_dir"] for each in described["log_dirs"] if each["topics"]]

        (before,) = homes()
        (target,) = set(directories) - {before}
        replica = (topic, 0, 0)
        assert list(admin.alter_replica_log_dirs({replica: target}).values()) == [kafka.errors.NoError]
        send(producer(broker), topic, [{"value": value} for value in values[1000:]])
        eventually(lambda: homes() == [target], "the move")
        reader = consumer(broker, topic)
        reader.subscribe([topic])
        assert [message.value() for message in read(reader, 2000)] == values
        reader.close()
        assert (Path(target) / f"{topic}-0").is_dir()
        wrong = admin.alter_replica_log_dirs({replica: str(tmp_path / "c")})
        assert list(wrong.values()) == [kafka.errors.LogDirNotFoundError]
        admin.close()
