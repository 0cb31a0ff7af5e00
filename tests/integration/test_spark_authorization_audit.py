"""Tests of Spark's reads of the audit of decisions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from millrace.clients import Admin, Producer
from millrace.errors import AuthorizationError
from millrace_broker.testing import EmbeddedBroker
from pyspark_millrace.spark_errors import explain

from .documented import Reader
from .test_authorization_audit import ALL_CLUSTER, ALL_TOPICS, AUDIT, OPTIONS, TOPIC, AclOperation, audit_of, let
from .waiting import STALL_S, eventually

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("audited"), options=OPTIONS) as running:
        let(running, ALL_CLUSTER, ALL_TOPICS)
        with Admin(running.bootstrap_servers) as admin:
            admin.create_topic("orders", partitions=1)
        let(running, (AclOperation.DESCRIBE, TOPIC, "*"), (AclOperation.IDEMPOTENT_WRITE, *ALL_CLUSTER[1:]))
        config = {"bootstrap.servers": running.bootstrap_servers, "client.id": "till"}
        with Producer(config) as producer, pytest.raises(AuthorizationError):
            producer.send("orders", b"1").result(STALL_S)
        audit = audit_of(running)
        eventually(lambda: audit.statistics().written == audit.statistics().recorded)
        yield running


def audit_table(spark: SparkSession, broker: EmbeddedBroker) -> DataFrame:
    reader = spark.read.format("millrace").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    return reader.option("subscribe", AUDIT).option("startingOffsets", "earliest").load()


def test_the_audit_is_a_table_with_columns(spark: SparkSession, broker: EmbeddedBroker) -> None:
    let(broker, (AclOperation.READ, TOPIC, AUDIT))
    frame = audit_table(spark, broker)
    denied: list[Any] = frame.where("client_id = 'till' AND NOT allowed").collect()
    assert {(row.principal, row.call, row.operation, row.resource) for row in denied} == {
        ("User:ANONYMOUS", "Produce", "WRITE", "orders")
    }
    assert dict(frame.dtypes)["time"] == "timestamp"
    created = frame.where("operation = 'CREATE' AND allowed").groupBy("principal").sum("decisions").collect()
    assert created[0][1] >= 1


def test_the_blocks_of_the_page_run_as_they_stand(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(broker, (AclOperation.READ, TOPIC, AUDIT))
    assert "orders" in Reader(broker, spark, tmp_path, monkeypatch).follow("docs/audit.md")


def test_an_audit_table_without_the_right_to_read_is_refused(spark: SparkSession, broker: EmbeddedBroker) -> None:
    let(broker)
    with pytest.raises(Exception, match=AUDIT) as caught:
        audit_table(spark, broker).collect()
    assert AUDIT in explain(caught.value)
