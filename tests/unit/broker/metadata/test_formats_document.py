"""Test of ``docs/formats.md``.

The document suffices to read a stopped broker's metadata. The reader imports nothing of millrace.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.clients import Admin, Producer
from millrace_broker.testing import EmbeddedBroker


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, bytes]:
    """Return the nodes that a broker left, by path."""
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("plain", partitions=2, configs={"retention.ms": 1000})
        admin.create_topic("typed", schema="id BIGINT NOT NULL COMMENT 'number', city STRING", key_columns=["id"])
        admin.evolve_schema("typed", "id BIGINT NOT NULL COMMENT 'number', city STRING, tip DOUBLE")
        admin.create_topic("gone", schema="id BIGINT")
        admin.delete_topic("gone")
        with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            producer.send("plain", b"x").result()
    database = sqlite3.connect(tmp_path / "millrace-metadata.sqlite")
    try:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
        return dict(database.execute("SELECT path, data FROM node"))
    finally:
        database.close()


def test_a_stopped_brokers_metadata_can_be_read_from_the_document(nodes: dict[str, bytes], tmp_path: Path) -> None:
    def read(path: str) -> Any:
        return json.loads(nodes[path])

    plain, typed = read("/brokers/topics/plain"), read("/brokers/topics/typed")
    assert (plain["version"], plain["partitions"]) == (3, {"0": [0], "1": [0]})
    state = read("/brokers/topics/plain/partitions/1/state")
    assert (state["leader"], state["leader_epoch"], state["isr"]) == (0, 0, [0])
    assert read("/config/topics/plain")["config"] == {"retention.ms": "1000"}
    for topic in (plain, typed):
        uuid.UUID(bytes=base64.urlsafe_b64decode(topic["topic_id"] + "=="))
    assert f"topic_id: {plain['topic_id']}\n" in (tmp_path / "plain-0" / "partition.metadata").read_text()
    assert read("/latest_producer_id_block")["block_end"] == "999"
    assert nodes["/controller_epoch"] == b"1"
    assert f"cluster.id={read('/cluster/id')['id']}\n" in (tmp_path / "meta.properties").read_text()

    assert "/millrace/topics/plain" not in nodes
    versions = read("/millrace/topics/typed")
    assert versions["key_columns"] == ["id"]
    schemas = []
    for number, schema_id in enumerate(versions["schema_ids"], start=1):
        node = read(f"/millrace/schemas/{schema_id}")
        assert (node["topic_id"], node["schema_version"]) == (typed["topic_id"], number)
        schemas.append(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(node["arrow_schema"]))))
    assert schemas[0].names == ["id", "city"]
    assert schemas[1] == pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string()), pa.field("tip", pa.float64())]
    )
    assert schemas[1].field("id").metadata == {b"comment": b"number"}
    assert nodes["/millrace/schemas"] == b"3"  # the id of the deleted topic is not used again

    # Nothing is left of the deleted topic or of the session's ephemeral nodes.
    assert not [path for path in nodes if "gone" in path]
    assert "/brokers/ids/0" not in nodes
    assert "/controller" not in nodes
