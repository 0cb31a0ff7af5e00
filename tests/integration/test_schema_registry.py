"""Tests of schema versions and payload schemas in a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli.schemas import app
from millrace.clients import Admin, Consumer, Producer, RegisteredSchema, SchemaReference, TopicPartition
from millrace.clients.payload_schemas import read_dump, write_dump
from millrace.errors import (
    IncompatibleSchemaError,
    InvalidConfigError,
    InvalidRequestError,
    MillraceError,
    SchemaError,
    UnknownSchemaError,
)
from millrace.payloads import PayloadKind
from millrace.schemas import parse_schema, to_ddl
from millrace_broker.testing import EmbeddedBroker


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


# --- schemas of payloads ----------------------------------------------------------------------------------------

ADDRESS = '{"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}'
ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "to", "type": "shop.Address"}]}'


def _avro(schema_id: int, text: str, *subjects: tuple[str, int], refers: bool = False) -> RegisteredSchema:
    references = (SchemaReference(name="shop.Address", subject="address-value", version=1),) if refers else ()
    return RegisteredSchema(
        id=schema_id, kind=PayloadKind.AVRO, text=text, references=references, subjects=tuple(subjects)
    )


def test_payload_schemas_are_kept_under_their_ids(tmp_path: Path) -> None:
    order = _avro(100, ORDER, ("orders-value", 2), refers=True)
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.register_payload_schemas([_avro(7, ADDRESS, ("address-value", 1)), order])
        [again] = admin.register_payload_schemas([_avro(7, ADDRESS, ("other", 3))])
        assert again.subjects == (("address-value", 1), ("other", 3))
        [same] = admin.register_payload_schemas([_avro(0, ADDRESS)])
        [new] = admin.register_payload_schemas([_avro(0, ADDRESS.replace("city", "town"))])
        assert (same.id, new.id) == (7, 101)
        [tried] = admin.register_payload_schemas([_avro(0, ADDRESS.replace("city", "x"))], validate_only=True)
        assert tried.id == 102
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        registry = admin.payload_registry()
        assert sorted(registry.schemas) == [7, 100, 101]
        assert registry.latest("orders-value") == 100
        assert to_ddl(registry.payload_schema(100).columns()) == "to STRUCT<city: STRING NOT NULL> NOT NULL"
        assert read_dump(json.dumps(write_dump([registry.schemas[7], order]))) == [registry.schemas[7], order]
        admin.delete_payload_schemas([7])
        with pytest.raises(UnknownSchemaError, match="version 1 of subject address-value"):
            admin.payload_registry().payload_schema(100)
        with pytest.raises(UnknownSchemaError, match="millrace schemas import --id 7"):
            admin.payload_registry().payload_schema(7)
        with pytest.raises(UnknownSchemaError, match="no payload schema has id 8"):
            admin.delete_payload_schemas([100, 8])
        assert 100 in admin.payload_registry().schemas


def test_the_schema_of_an_id_does_not_change(admin: Admin) -> None:
    admin.register_payload_schemas([_avro(501, ADDRESS, ("s", 1))])
    with pytest.raises(SchemaError, match="id 501 has another schema"):
        admin.register_payload_schemas([_avro(501, ADDRESS.replace("city", "town"))])
    with pytest.raises(SchemaError, match="version 1 of subject s has id 501, not 502"):
        admin.register_payload_schemas([_avro(502, ADDRESS.replace("city", "town"), ("s", 1))])
    with pytest.raises(SchemaError, match="payload schema 503: the Avro schema is not valid"):
        admin.register_payload_schemas([_avro(503, '{"type": "nothing"}'), _avro(504, ADDRESS.replace("c", "d"))])
    with pytest.raises(SchemaError, match=r"payload schema 505: the \.proto schema is not valid"):
        admin.register_payload_schemas([RegisteredSchema(id=505, kind=PayloadKind.PROTOBUF, text="message A {")])
    assert not {502, 503, 504, 505} & admin.payload_registry().schemas.keys()


def test_dumps_of_other_registries_are_read() -> None:
    answer = [
        {"subject": "a", "version": 1, "id": 1, "schema": '"string"'},
        {"subject": "b", "version": 2, "id": 1, "schema": '"string"', "schemaType": "AVRO"},
        {"subject": "c", "version": 1, "id": 2, "schema": "{}", "schemaType": "JSON", "references": []},
    ]
    lines = [
        {"keytype": "NOOP", "magic": 0},
        *[{"key": {"keytype": "SCHEMA"}, "value": json.dumps(entry)} for entry in answer],
        {"subject": "d", "version": 1, "id": 3, "schema": "{}", "deleted": True},
    ]
    expected = [("a", 1), ("b", 2)]
    for text in (json.dumps(answer), "\n".join(map(json.dumps, answer)), "\n".join(map(json.dumps, lines))):
        first, second = read_dump(text)
        assert (first.id, list(first.subjects), second.kind) == (1, expected, PayloadKind.JSON)
    for broken in ("{", "3", '[{"schema": 3, "id": "x"}]', '[{"schema": "3", "id": 1, "schemaType": "XML"}]'):
        with pytest.raises(SchemaError):
            read_dump(broken)


# --- the command ------------------------------------------------------------------------------------------------


def test_the_commands_import_export_and_check_schemas(
    module_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_BOOTSTRAP_SERVERS", module_broker.bootstrap_servers)

    def run(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, arguments)
        if code == 1 and isinstance(done.exception, MillraceError):
            return done.output + done.exception.message
        assert done.exit_code == code, done.output + str(done.exception)
        return done.output

    with Admin(module_broker.bootstrap_servers) as admin:
        admin.create_topic("shop.orders", schema="id BIGINT NOT NULL, city STRING", key_columns=["id"])
    file = tmp_path / "new.avsc"
    file.write_text(run("export", "shop.orders", "--as", "avro").replace('"city"', '"town"'))
    assert "it may be version 2" in run("check", "shop.orders", "--schema", str(file))
    narrowed = run("check", "shop.orders", "--ddl", "id BIGINT NOT NULL, city INT", code=1)
    assert "city" in narrowed
    assert "never possible" in narrowed
    widened = ("check", "shop.orders", "--ddl", "id BIGINT NOT NULL, city STRING NOT NULL")
    assert "schema.compatibility=FULL" in run(*widened, code=1)
    assert "it may be version 2" in run(*widened, "--compatibility", "FORWARD")
    run("evolve", "shop.orders", "--schema", str(file))
    listed = json.loads(run("list", "shop.orders", "--json"))
    assert [(each["version"], each["compatibility"]) for each in listed] == [(1, "FULL"), (2, "FULL")]
    assert run("show", "shop.orders", "--version", "1").strip() == "id BIGINT NOT NULL, city STRING"
    assert "message ShopOrders {" in run("show", "shop.orders", "--as", "protobuf")
    assert "2020-12" in run("show", "shop.orders", "--as", "json")
    assert "shop.orders" in run("list")
    assert "has 1, 2" in run("show", "shop.orders", "--version", "3", code=1)

    address = tmp_path / "address.avsc"
    address.write_text(ADDRESS.replace("shop", "cli"))
    assert "registered avro schema 900" in run("import", "--id", "900", "--subject", "cli-value", str(address))
    assert run("show", "--id", "900").strip() == address.read_text()
    run("export", "--payloads", "-o", str(tmp_path / "dump.json"))
    assert "registered avro schema 900" in run("import", "--dump", str(tmp_path / "dump.json"))
    assert "cli-value v1" in run("list", "--payloads")
    assert "deleted 900" in run("delete", "900")
    assert "no payload schema has id 900" in run("show", "--id", "900", code=1)
