"""Tests of topics, their configurations and schemas, over the wire."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace import errors
from millrace.clients import Admin
from millrace.kafka_protocol.calls.metadata import MetadataRequest
from millrace.kafka_protocol.calls.table import ApiKey
from millrace.protocol import millrace_pb2 as pb
from millrace.schemas import deserialize_schema, parse_schema, serialize_schema, to_ddl
from millrace_broker.cluster.topic_lookups import TopicLookups
from millrace_broker.runtime.turns import Turns
from millrace_broker.testing import EmbeddedBroker

from .kafka_wire import KafkaWire
from .waiting import AN_HOUR_MS, STALL_S, eventually_async


def _schema(ddl: str) -> bytes:
    return serialize_schema(parse_schema(ddl))


_ON_0 = pb.PartitionReplicas(partition=0, replicas=[0])


def test_a_created_topic_is_described_with_its_id_partitions_and_leader(calls: Any, topic: str) -> None:
    created = calls.create(topic, partitions=3)
    assert created.error.code == 0
    assert created.num_partitions == 3
    described = calls.topics(topic)[topic]
    assert described.topic_id == created.topic_id
    assert len(uuid.UUID(bytes=described.topic_id).bytes) == 16
    assert [(p.partition, p.leader, list(p.replicas), list(p.isr)) for p in described.partitions] == [
        (number, 0, [0], [0]) for number in range(3)
    ]
    assert topic in calls.topics()


def test_a_topic_without_a_partition_count_has_the_brokers_default(calls: Any, topic: str) -> None:
    assert calls.create(topic, partitions=-1).num_partitions == 1


@pytest.mark.parametrize(
    ("name", "fields", "code", "message"),
    [
        ("", {}, 17, "empty"),
        ("..", {}, 17, "directories"),
        ("with space", {}, 17, "a-z A-Z 0-9 . _ -"),
        ("ü", {}, 17, "a-z"),
        ("x" * 250, {}, 17, "249"),
        ("p0", {"partitions": 0}, 37, "at least 1"),
        ("p-2", {"partitions": -2}, 37, "at least 1"),
        ("p-many", {"partitions": 1_000_000}, 44, "at most"),
        ("r2", {"replication_factor": 2}, 38, "between 1 and 1"),
        ("r0", {"replication_factor": 0}, 38, "between 1 and 1"),
        ("a1", {"partitions": -1, "replication_factor": -1, "assignment": [_ON_0, _ON_0]}, 39, "assigned twice"),
        ("c1", {"configs": {"retention.sm": "1"}}, 40, "retention.sm"),
        ("c2", {"configs": {"retention.ms": "soon"}}, 40, "retention.ms"),
        ("c3", {"configs": {"compression.type": "gzip"}, "ddl": "a INT"}, 40, "columnar"),
        ("k1", {"key_columns": ["a"]}, 1000, "no schema"),
        ("k2", {"ddl": "a INT", "key_columns": ["b"]}, 1000, "b"),
        ("s1", {"arrow_schema": b"not a schema"}, 1000, "schema"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_and_leaves_nothing(
    calls: Any, name: str, fields: dict[str, Any], code: int, message: str
) -> None:
    result = calls.create(name, **fields)
    assert (result.error.code, message in result.error.message) == (code, True), result.error.message
    assert name not in calls.topics()


def test_a_topic_cannot_be_created_twice_nor_beside_one_that_differs_in_dots(calls: Any, topic: str) -> None:
    calls.create(f"{topic}.a")
    assert calls.create(f"{topic}.a").error.code == errors.TopicExistsError.code
    collision = calls.create(f"{topic}_a").error
    assert collision.code == errors.InvalidTopicError.code
    assert f"{topic}.a" in collision.message


def test_a_name_twice_in_a_request_creates_nothing(calls: Any, topic: str) -> None:
    new = pb.NewTopic(name=topic, num_partitions=1, replication_factor=1)
    response = calls.call("CreateTopics", pb.CreateTopicsRequest(topics=[new, new], timeout_ms=AN_HOUR_MS))
    assert [result.error.code for result in response.results] == [errors.InvalidRequestError.code] * 2
    assert topic not in calls.topics()


def test_validating_creates_nothing(calls: Any, topic: str) -> None:
    new = pb.NewTopic(name=topic, num_partitions=1, replication_factor=1)
    response = calls.call("CreateTopics", pb.CreateTopicsRequest(topics=[new], validate_only=True))
    assert response.results[0].error.code == 0
    assert calls.topics(topic)[topic].error.code == errors.UnknownTopicOrPartitionError.code


def test_a_deleted_topic_is_gone_and_its_name_free_with_a_new_id(calls: Any, topic: str) -> None:
    first = calls.create(topic)
    calls.produce(topic, calls.batch(b"gone"))
    deleted = calls.call("DeleteTopics", pb.DeleteTopicsRequest(names=[topic, "never-there"], timeout_ms=AN_HOUR_MS))
    assert [result.error.code for result in deleted.results] == [0, 3]
    assert deleted.results[0].topic_id == first.topic_id
    assert calls.topics(topic)[topic].error.code == 3
    assert calls.produce(topic, calls.batch(b"x")).error.code == 3
    second = calls.create(topic)
    assert second.topic_id != first.topic_id
    assert calls.offset(topic, -1).offset == 0
    assert calls.produce(topic, calls.batch(b"x"), topic_id=first.topic_id).error.code == 103


def test_partitions_can_only_be_added(calls: Any, topic: str) -> None:
    calls.create(topic, partitions=2)
    calls.produce(topic, calls.batch(b"kept"))

    def change(count: int, name: str = topic, validate_only: bool = False, assigned: Sequence[int] = ()) -> pb.Error:
        chosen = [pb.PartitionReplicas(partition=number, replicas=[0]) for number in assigned]
        wanted = pb.CreatePartitionsRequest.TopicCount(name=name, count=count, assignment=chosen)
        request = pb.CreatePartitionsRequest(topics=[wanted], validate_only=validate_only, timeout_ms=AN_HOUR_MS)
        error: pb.Error = calls.call("CreatePartitions", request).results[0].error
        return error

    assert change(2).code == change(1).code == change(0).code == errors.InvalidPartitionsError.code
    assert "would add none" in change(1).message
    assert change(3, name="never-there").code == 3
    for assigned in ([2], [2, 3, 4], [2, 2]):
        assert change(4, assigned=assigned).code == errors.InvalidReplicaAssignmentError.code
    assert change(4, validate_only=True).code == 0
    assert len(calls.topics(topic)[topic].partitions) == 2
    assert change(4).code == 0
    assert len(calls.topics(topic)[topic].partitions) == 4
    assert calls.produce(topic, calls.batch(b"new"), partition=3).base_offset == 0
    assert calls.offset(topic, -1).offset == 1


def test_partitions_of_all_topics_are_created_before_the_call_waits_for_leaders(
    module_broker: EmbeddedBroker, calls: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, led, catalog = [f"{topic}-1", f"{topic}-2"], TopicLookups.led, module_broker.server.broker.catalog
    for name in names:
        calls.create(name)
    assert len(catalog.topics[names[-1]].partitions) == 1

    async def late(self: TopicLookups, waited: Sequence[str], timeout_ms: int) -> Sequence[str]:
        """Let the leaders be late until the last topic has its partitions."""
        await eventually_async(lambda: len(catalog.topics[names[-1]].partitions) == 2)
        return [*(await led(self, waited, timeout_ms)), names[0]]

    monkeypatch.setattr(TopicLookups, "led", late)
    counts = [pb.CreatePartitionsRequest.TopicCount(name=name, count=2) for name in names]
    request = pb.CreatePartitionsRequest(topics=counts, timeout_ms=AN_HOUR_MS)
    codes = [each.error.code for each in calls.call("CreatePartitions", request).results]
    assert codes == [errors.RequestTimedOutError.code, 0]


def _describe(calls: Any, resource_type: Any, name: str) -> tuple[dict[str, pb.ConfigEntry], pb.Error]:
    resource = pb.ConfigResource(type=resource_type, name=name)
    result = calls.call("DescribeConfigs", pb.DescribeConfigsRequest(resources=[resource])).results[0]
    return {entry.name: entry for entry in result.entries}, result.error


def _alter(calls: Any, name: str, *, delete: tuple[str, ...] = (), kind: Any = pb.TOPIC, **values: str) -> pb.Error:
    alteration = pb.AlterConfigsRequest.Alteration(
        resource=pb.ConfigResource(type=kind, name=name),
        set={option.replace("_", "."): value for option, value in values.items()},
        delete=delete,
    )
    error: pb.Error = calls.call("AlterConfigs", pb.AlterConfigsRequest(alterations=[alteration])).results[0].error
    return error


def test_a_topics_options_can_be_set_and_deleted(calls: Any, topic: str) -> None:
    calls.create(topic)
    assert _alter(calls, topic, max_message_bytes="1000", retention_ms="5").code == 0
    entries, _ = _describe(calls, pb.TOPIC, topic)
    assert (entries["max.message.bytes"].value, entries["max.message.bytes"].source) == ("1000", "DYNAMIC_TOPIC_CONFIG")
    assert (entries["segment.bytes"].value, entries["segment.bytes"].source) == (str(2**30), "DEFAULT_CONFIG")
    assert entries["segment.bytes"].documentation
    assert calls.produce(topic, calls.batch(b"x" * 2000)).error.code == errors.MessageTooLargeError.code
    assert _alter(calls, topic, delete=("max.message.bytes",)).code == 0
    assert calls.produce(topic, calls.batch(b"x" * 2000)).error.code == 0
    assert _describe(calls, pb.TOPIC, topic)[0]["retention.ms"].value == "5"


@pytest.mark.parametrize(
    ("values", "delete", "code"),
    [
        ({"retention_ms": "soon"}, (), 40),
        ({"no_such": "1"}, (), 40),
        ({}, ("no.such",), 40),
        ({"retention_ms": "1"}, ("retention.ms",), 42),
        ({"retention_bytes": "9", "segment_bytes": "0"}, (), 40),
    ],
)
def test_a_wrong_alteration_changes_nothing(
    calls: Any, topic: str, values: dict[str, str], delete: tuple[str, ...], code: int
) -> None:
    calls.create(topic)
    before = _describe(calls, pb.TOPIC, topic)
    assert _alter(calls, topic, delete=delete, **values).code == code
    assert _describe(calls, pb.TOPIC, topic) == before


def test_a_brokers_options_are_shown_but_not_altered(calls: Any) -> None:
    entries, _ = _describe(calls, pb.BROKER, "0")
    assert entries["listeners"].source == "STATIC_BROKER_CONFIG"
    assert entries["auto.create.topics.enable"].value == "false"
    assert entries["log.retention.ms"].value == "604800000"
    refused = _alter(calls, "0", kind=pb.BROKER, num_partitions="3")
    assert refused.code == errors.InvalidConfigError.code
    assert "restart" in refused.message
    assert _describe(calls, pb.BROKER, "7")[1].code == errors.InvalidRequestError.code
    assert _describe(calls, pb.UNKNOWN_RESOURCE, "x")[1].code == errors.InvalidRequestError.code


def test_a_typed_topic_has_schema_versions_with_ids_of_the_cluster(calls: Any, topic: str) -> None:
    created = calls.create(topic, ddl="id BIGINT NOT NULL, name STRING", key_columns=["id"])
    described = calls.topics(topic, include_schemas=True)[topic]
    assert (described.schema_id, list(described.key_columns)) == (created.schema_id, ["id"])
    assert to_ddl(deserialize_schema(described.schema.arrow_schema)) == "id BIGINT NOT NULL, name STRING"
    assert not calls.topics(topic)[topic].HasField("schema")

    new = _schema("id BIGINT NOT NULL, name STRING, city STRING")
    evolved = calls.call("EvolveSchema", pb.EvolveSchemaRequest(topic=topic, arrow_schema=new)).schema
    assert (evolved.version, evolved.id > created.schema_id) == (2, True)
    again = calls.call("EvolveSchema", pb.EvolveSchemaRequest(topic=topic, arrow_schema=new)).schema
    assert again == evolved
    versions = calls.call("GetSchemas", pb.GetSchemasRequest(topic=topic)).schemas
    assert [(v.id, v.version) for v in versions] == [(created.schema_id, 1), (evolved.id, 2)]
    assert list(calls.call("GetSchemas", pb.GetSchemasRequest(ids=[evolved.id])).schemas) == [evolved]


def test_schema_ids_are_not_used_again(calls: Any, topic: str) -> None:
    first = calls.create(topic, ddl="a INT")
    calls.call("DeleteTopics", pb.DeleteTopicsRequest(names=[topic], timeout_ms=AN_HOUR_MS))
    assert isinstance(calls.error("GetSchemas", pb.GetSchemasRequest(ids=[first.schema_id])), errors.UnknownSchemaError)
    assert calls.create(topic, ddl="a INT").schema_id > first.schema_id


@pytest.mark.parametrize(
    ("ddl", "error"),
    [
        ("name STRING", errors.IncompatibleSchemaError),
        ("id INT NOT NULL, name STRING", errors.IncompatibleSchemaError),
        ("id BIGINT NOT NULL, name STRING, age INT NOT NULL", errors.IncompatibleSchemaError),
        ("id BIGINT NOT NULL, name BINARY", errors.IncompatibleSchemaError),
        ("id BIGINT, name STRING", errors.IncompatibleSchemaError),
    ],
)
def test_a_schema_change_that_breaks_readers_is_refused(
    calls: Any, topic: str, ddl: str, error: type[errors.MillraceError]
) -> None:
    calls.create(topic, ddl="id BIGINT NOT NULL, name STRING", key_columns=["id"])
    refused = calls.error("EvolveSchema", pb.EvolveSchemaRequest(topic=topic, arrow_schema=_schema(ddl)))
    assert isinstance(refused, error)
    assert len(calls.call("GetSchemas", pb.GetSchemasRequest(topic=topic)).schemas) == 1


def test_an_opaque_topic_has_no_schema_to_evolve(calls: Any, topic: str) -> None:
    calls.create(topic)
    refused = calls.error("EvolveSchema", pb.EvolveSchemaRequest(topic=topic, arrow_schema=_schema("a INT")))
    assert isinstance(refused, errors.InvalidRequestError)
    assert list(calls.call("GetSchemas", pb.GetSchemasRequest(topic=topic)).schemas) == []


def test_a_topic_that_is_deleted_while_all_are_listed_is_not_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion comes between two turns of the list."""
    is_listing, goes_on = threading.Event(), threading.Event()

    class LongTurns(Turns):
        async def next(self) -> None:
            is_listing.set()
            await asyncio.to_thread(goes_on.wait, STALL_S)

    with (
        EmbeddedBroker(tmp_path / "data", auto_create_topics_enable="true") as broker,
        KafkaWire(broker) as wire,
        Admin(broker.bootstrap_servers) as admin,
    ):
        catalog = broker.server.broker.catalog
        admin.create_topic("kept")
        admin.create_topic("deleted")
        monkeypatch.setattr("millrace_broker.api.metadata.Turns", LongTurns)
        wire.send(MetadataRequest(topics=None, allow_auto_topic_creation=True), 12)
        assert is_listing.wait(STALL_S)
        admin.delete_topic("deleted")
        goes_on.set()
        assert [each.name for each in wire.receive(ApiKey.METADATA, 12)[1].topics] == ["kept"]
        assert list(catalog.topics) == ["kept"]
