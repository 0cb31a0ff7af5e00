"""Versions of schemas and schemas of payloads in a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.errors import IncompatibleSchemaError, InvalidConfigError, InvalidRequestError
from millrace.schemas import parse_schema
from millrace_broker.embedded import EmbeddedBroker


def test_records_of_all_versions_are_read_in_one_schema(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("prices", schema="id INT NOT NULL, price FLOAT, city STRING", key_columns=["id"])
    admin.alter_configs("prices", {"schema.compatibility": "NONE"})
    steps = [
        ({"id": [1], "price": [1.5], "city": ["Bern"]}, "id INT NOT NULL, price DOUBLE NOT NULL"),
        ({"id": [2], "price": [0.1]}, "tip TINYINT NOT NULL, id INT NOT NULL, price DOUBLE NOT NULL"),
        ({"id": [3], "price": [0.2], "tip": [7]}, None),
    ]
    for data, next_version in steps:
        with Producer({"bootstrap.servers": module_broker.bootstrap_servers}) as producer:
            producer.send_table("prices", data)
        if next_version:
            admin.evolve_schema("prices", next_version)
    topic = admin.describe_topic("prices")
    assert topic.schema == parse_schema("tip TINYINT NOT NULL, id INT NOT NULL, price DOUBLE NOT NULL")
    assert topic.read_schema == parse_schema("tip TINYINT, id INT NOT NULL, price DOUBLE")
    with Consumer({"bootstrap.servers": module_broker.bootstrap_servers}) as consumer:
        consumer.assign([TopicPartition("prices", 0)])
        consumer.seek_to_beginning()
        rows = []
        while len(rows) < 3:
            table = consumer.poll_table(timeout_ms=10_000)
            assert table.schema == topic.read_schema
            rows += table.to_pylist()
    assert rows == [
        {"tip": None, "id": 1, "price": 1.5},
        {"tip": None, "id": 2, "price": 0.1},
        {"tip": 7, "id": 3, "price": 0.2},
    ]


def test_checking_changes_nothing(admin: Admin) -> None:
    admin.create_topic("checked", schema="id INT NOT NULL", configs={"schema.compatibility": "BACKWARD"})
    would_be = admin.check_schema("checked", "id BIGINT NOT NULL")
    assert (would_be.id, would_be.version, would_be.schema.field("id").type) == (0, 2, "int64")
    with pytest.raises(IncompatibleSchemaError, match=r"column id .*schema\.compatibility=FULL .*version 1"):
        admin.check_schema("checked", "id BIGINT NOT NULL", compatibility="full")
    with pytest.raises(InvalidConfigError, match="fully: expected one of NONE, BACKWARD"):
        admin.check_schema("checked", "id BIGINT NOT NULL", compatibility="fully")
    with pytest.raises(InvalidConfigError, match=r"schema\.compatibility"):
        admin.alter_configs("checked", {"schema.compatibility": "SOME"})
    assert [version.version for version in admin.topic_schemas("checked")] == [1]
    assert admin.check_schema("checked", "id INT NOT NULL").version == 1
    admin.create_topic("bytes")
    with pytest.raises(InvalidRequestError, match="opaque"):
        admin.check_schema("bytes", "id INT")


def test_versions_and_modes_are_there_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("t", schema="a INT NOT NULL", configs={"schema.compatibility": "FORWARD"})
        admin.evolve_schema("t", "a SMALLINT NOT NULL")
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        assert admin.describe_topic("t").read_schema == parse_schema("a INT NOT NULL")
        with pytest.raises(IncompatibleSchemaError, match="FORWARD"):
            admin.evolve_schema("t", "a INT NOT NULL")
