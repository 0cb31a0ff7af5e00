"""Tests of topics, schemas, configuration, offsets and ranges through a real broker."""

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.clients import Admin, Producer, SchemaCache, TopicPartition
from millrace.errors import (
    BrokerUnavailableError,
    ClientClosedError,
    IncompatibleSchemaError,
    InconsistentTopicIdError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    SchemaError,
    TopicExistsError,
    UnknownSchemaError,
    UnknownTopicOrPartitionError,
    UsageError,
)
from millrace.records import decode_range, scan_headers
from millrace.segments import map_extent
from millrace_broker.testing import EmbeddedBroker


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Return a bound port at which no process listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_topic_is_created_described_extended_and_deleted(admin: Admin) -> None:
    created = admin.create_topic("life", partitions=3, configs={"retention.ms": 1000})
    assert created == admin.describe_topic("life")
    assert created is not None
    assert (created.num_partitions, created.schema_id, created.schema) == (3, 0, None)
    assert "life" in [topic.name for topic in admin.list_topics()]
    with pytest.raises(TopicExistsError, match="life"):
        admin.create_topic("life")
    admin.create_partitions("life", 5)
    assert admin.describe_topic("life").num_partitions == 5
    with pytest.raises(InvalidPartitionsError):
        admin.create_partitions("life", 2)
    admin.delete_topic("life")
    with pytest.raises(UnknownTopicOrPartitionError, match="topic life does not exist: create it"):
        admin.describe_topic("life")
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topic("life")


def test_several_topics_are_described_at_once(admin: Admin) -> None:
    for name in ("one-of-two", "two-of-two"):
        admin.create_topic(name, partitions=2)
    found = admin.find_topics(["two-of-two", "none-of-two", "one-of-two"])
    assert found == {name: admin.describe_topic(name) for name in ("two-of-two", "one-of-two")}
    assert admin.find_topics([]) == {}
    with pytest.raises(InvalidTopicError):
        admin.find_topics(["one-of-two", "a b"])


def test_validating_creates_nothing(admin: Admin) -> None:
    assert admin.create_topic("checked", validate_only=True) is None
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.describe_topic("checked")
    with pytest.raises(InvalidTopicError):
        admin.create_topic("not a name", validate_only=True)


def test_refused_topics_are_reported_with_the_reason(admin: Admin) -> None:
    with pytest.raises(InvalidConfigError, match=r"retention\.mss"):
        admin.create_topic("refused", configs={"retention.mss": 1})
    with pytest.raises(UsageError, match="key columns belong to a typed topic"):
        admin.create_topic("refused", key_columns=["a"])
    with pytest.raises(SchemaError, match="key column b is not in the schema"):
        admin.create_topic("refused", schema="a INT", key_columns=["b"])


def test_schemas_evolve_by_nullable_columns(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("evolving", schema="id BIGINT NOT NULL COMMENT 'key', name STRING", key_columns=["id"])
    topic = admin.describe_topic("evolving")
    assert topic.schema is not None
    assert topic.key_columns == ("id",)
    assert topic.schema.field("id").metadata == {b"comment": b"key"}
    newer = admin.evolve_schema("evolving", "id BIGINT NOT NULL, name STRING, tip DOUBLE")
    assert newer.version == 2
    assert [version.id for version in admin.topic_schemas("evolving")] == [topic.schema_id, newer.id]
    assert admin.describe_topic("evolving").schema_version == 2
    with pytest.raises(IncompatibleSchemaError, match="column id is dropped, and it is a key column"):
        admin.evolve_schema("evolving", "name STRING")
    cache = SchemaCache(module_broker.bootstrap_servers)
    assert cache.schema_of(topic.schema_id).names == ["id", "name"]
    assert cache.schema_of(newer.id).names == ["id", "name", "tip"]
    with pytest.raises(UnknownSchemaError, match=r"no schema .* has id 999999"):
        cache.schema_of(999_999)
    cache.close()


def test_configurations_change_and_return_to_defaults(admin: Admin) -> None:
    admin.create_topic("configured")
    default = admin.describe_configs("configured")["retention.ms"]
    admin.alter_configs("configured", {"retention.ms": 5, "segment.bytes": 1000})
    assert admin.describe_configs("configured")["retention.ms"].value == "5"
    assert admin.describe_configs("configured")["retention.ms"].source != default.source
    admin.alter_configs("configured", delete=["retention.ms"])
    assert admin.describe_configs("configured")["retention.ms"] == default
    with pytest.raises(InvalidConfigError):
        admin.alter_configs("configured", {"retention.ms": "soon"})
    assert "broker.id" in admin.describe_configs("0", resource="broker")
    with pytest.raises(UsageError):
        admin.describe_configs("configured", resource="table")


def send(broker: EmbeddedBroker, value: bytes) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send("small", value).result()


def sources(admin: Admin, option: str, topic: str, topic_option: str) -> tuple[str, ...]:
    found = (
        admin.describe_configs("0", resource="broker")[option],
        admin.describe_configs(topic)[topic_option],
    )
    return tuple(f"{each.value} {each.source}" for each in found)


def test_a_brokers_options_change_while_it_runs_and_stay_when_it_starts_again(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("small")
        send(broker, b"x" * 2000)
        admin.alter_configs("", {"message.max.bytes": 1000, "log.cleaner.threads": 2}, resource="broker")
        expected = "1000 DYNAMIC_DEFAULT_BROKER_CONFIG"
        assert sources(admin, "message.max.bytes", "small", "max.message.bytes") == (expected, expected)
        assert admin.describe_configs("", resource="broker").keys() == {"message.max.bytes", "log.cleaner.threads"}
        with pytest.raises(MessageTooLargeError):
            send(broker, b"x" * 2000)
        admin.alter_configs("0", {"message.max.bytes": 3000, "num.io.threads": 8}, resource="broker")
        send(broker, b"x" * 2000)
        with pytest.raises(InvalidConfigError, match=r"num.io.threads=2: the broker has 8"):
            admin.alter_configs("0", {"num.io.threads": 2}, resource="broker")
        with pytest.raises(InvalidConfigError, match=r"log.dirs cannot be changed while a broker runs"):
            admin.alter_configs("0", {"log.dirs": "elsewhere"}, resource="broker")
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        expected = "3000 DYNAMIC_BROKER_CONFIG"
        assert sources(admin, "message.max.bytes", "small", "max.message.bytes") == (expected, expected)
        admin.alter_configs("0", delete=["message.max.bytes"], resource="broker")
        admin.alter_configs("", delete=["message.max.bytes"], resource="broker")
        assert admin.describe_configs("small")["max.message.bytes"].source == "DEFAULT_CONFIG"
        send(broker, b"x" * 2000)


def test_offsets_are_listed_by_time(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("timed", partitions=1)
    partition = TopicPartition("timed", 0)
    with Producer(module_broker.bootstrap_servers) as producer:
        for stamp in (1000, 3000, 2000):
            producer.send_table("timed", {"value": [b"x"] * 2}, timestamps=stamp).result()

    def at(when: str | int | datetime) -> tuple[int, int]:
        found = admin.list_offsets({partition: when})[partition]
        return found.offset, found.timestamp_ms

    assert at("earliest")[0] == 0
    assert at("latest")[0] == 6
    assert at("max-timestamp") == (2, 3000)
    assert at(1500) == (2, 3000)
    assert at(datetime.fromtimestamp(2.5, UTC)) == (2, 3000)
    assert at(3001) == (-1, -1)
    with pytest.raises(UsageError, match="has no time zone"):
        at(datetime(2024, 1, 1))
    assert at(datetime(1960, 1, 1, tzinfo=UTC)) == (0, 1000)
    with pytest.raises(UsageError, match="'soon'"):
        at("soon")
    assert at(-1) == at("latest")
    with pytest.raises(UsageError, match="time -7 ms is negative"):
        at(-7)
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 7"):
        admin.list_offsets({TopicPartition("timed", 7): "latest"})


def test_ranges_are_located_and_read_the_same_both_ways(admin: Admin, module_broker: EmbeddedBroker) -> None:
    topic = admin.create_topic("ranged", partitions=1, configs={"segment.bytes": 20_000})
    assert topic is not None
    with Producer(module_broker.bootstrap_servers) as producer:
        for start in range(0, 1000, 100):
            values = [str(number).encode() * 20 for number in range(start, start + 100)]
            producer.send_table("ranged", {"value": values}).result()
    located = admin.locate_range("ranged", 0, 150, 920, split_bytes=10_000, topic_id=topic.topic_id)
    assert located.high_watermark == 1000
    assert len({extent.path for extent in located.extents}) > 1
    assert located.extents[0].start_offset == 150
    assert located.extents[-1].end_offset == 920

    def values(buffer: pa.Buffer, start: int, end: int) -> list[bytes]:
        batches = decode_range(buffer, start, end, lambda schema_id: pa.schema([]))
        return [value for batch in batches for value in batch.columns.column("value").to_pylist()]

    mapped = [
        value
        for extent in located.extents
        for value in values(
            map_extent(Path(extent.path), extent.start_position, extent.end_position),
            extent.start_offset,
            extent.end_offset,
        )
    ]
    streamed = b"".join(admin.read_range("ranged", 0, 150, 920, topic_id=topic.topic_id))
    assert mapped == values(pa.py_buffer(streamed), 150, 920) == [str(n).encode() * 20 for n in range(150, 920)]
    assert all(header.next_offset > 150 for _, header in scan_headers(streamed))


def test_ranges_of_missing_offsets_and_topics_are_refused(admin: Admin) -> None:
    topic = admin.create_topic("absent", partitions=1)
    assert topic is not None
    with pytest.raises(OffsetOutOfRangeError):
        admin.locate_range("absent", 0, 5, 6)
    with pytest.raises(OffsetOutOfRangeError):
        list(admin.read_range("absent", 0, 5, 6))
    admin.delete_topic("absent")
    admin.create_topic("absent", partitions=1)
    with pytest.raises(InconsistentTopicIdError):
        admin.locate_range("absent", 0, 0, topic_id=topic.topic_id)


def test_no_broker_is_a_quick_and_clear_error(unused_port: int) -> None:
    config = {"bootstrap.servers": f"127.0.0.1:{unused_port}", "socket.connection.setup.timeout.ms": 300}
    with (
        Admin(config) as admin,
        pytest.raises(BrokerUnavailableError, match=f"no broker answers at 127.0.0.1:{unused_port}"),
    ):
        admin.list_topics()


def test_the_second_bootstrap_server_is_tried(module_broker: EmbeddedBroker, unused_port: int) -> None:
    servers = f"127.0.0.1:{unused_port},{module_broker.bootstrap_servers}"
    with Admin({"bootstrap.servers": servers}) as admin:
        assert admin.broker_version()


def test_a_closed_client_says_so(module_broker: EmbeddedBroker) -> None:
    admin = Admin(module_broker.bootstrap_servers)
    admin.close()
    admin.close()
    with pytest.raises(ClientClosedError):
        admin.list_topics()


def test_the_cluster_is_described(admin: Admin, module_broker: EmbeddedBroker) -> None:
    cluster = admin.describe_cluster()
    assert cluster.cluster_id
    assert [(broker.host, broker.port) for broker in cluster.brokers] == [("127.0.0.1", module_broker.port)]
