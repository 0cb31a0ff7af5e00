"""Tests of quotas of Spark's queries.

The broker limits a backfill and a writer to the rates of their client ids, and does not delay other queries.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from millrace.clients import Admin, Producer
from millrace.quotas import QuotaEntity
from millrace_broker.testing import EmbeddedBroker

from .quota_use import RATE, RECORD, check_rate
from .waiting import STALL_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COUNT = 96
CLIENT_ID = "backfill"


def test_all_tasks_of_a_backfill_share_the_rate_of_its_client_id(
    spark: SparkSession, module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=2)
    with Producer(module_broker.bootstrap_servers) as producer:
        sent = [producer.send(topic, RECORD, partition=number % 2) for number in range(COUNT)]
        for each in sent:
            each.result(STALL_S)
    entity = QuotaEntity.of([("client-id", CLIENT_ID)])
    admin.alter_client_quotas(entity, {"consumer_byte_rate": RATE})
    try:
        options = {"kafka.bootstrap.servers": module_broker.bootstrap_servers, "directReads": "never"}
        options |= {"subscribe": topic, "startingOffsets": "earliest"}
        began = time.monotonic()
        limited = spark.read.format("millrace").options(**options).option("kafka.client.id", CLIENT_ID).load()
        assert limited.select("value").distinct().count() == 1  # so that the values are read
        ended = time.monotonic()
        quotas = module_broker.server.broker.client_quotas
        (use,) = [each for each in quotas.statistics() if each.key == "consumer_byte_rate"]
        assert use.client_id == CLIENT_ID
        assert use.throttled_s > 0
        check_rate(COUNT * len(RECORD), began, ended, unwaited_bytes=2 * RATE)  # of two tasks
        assert spark.read.format("millrace").options(**options).load().select("value").distinct().count() == 1
        (after,) = [each for each in quotas.statistics() if each.key == "consumer_byte_rate"]
        assert after.throttled_s == use.throttled_s, "another query uses nothing of it"
    finally:
        admin.alter_client_quotas(entity, {}, remove=["consumer_byte_rate"])


def test_a_writer_waits_as_the_quota_of_its_client_id_wants(
    spark: SparkSession, module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=2)
    entity = QuotaEntity.of([("client-id", topic)])
    admin.alter_client_quotas(entity, {"producer_byte_rate": RATE})
    try:
        options = {"kafka.bootstrap.servers": module_broker.bootstrap_servers, "topic": topic}
        frame = spark.range(COUNT).selectExpr(f"cast(repeat('x', {len(RECORD)}) AS BINARY) AS value").repartition(2)
        began = time.monotonic()
        writer = frame.write.format("millrace").options(**options).option("kafka.client.id", topic)
        writer.option("kafka.compression.type", "none").mode("append").save()
        check_rate(COUNT * len(RECORD), began, time.monotonic(), unwaited_bytes=2 * RATE)  # of two tasks
        (use,) = [each for each in module_broker.server.broker.client_quotas.statistics() if each.client_id == topic]
        assert use.key == "producer_byte_rate"
        assert use.throttled_s > 0
    finally:
        admin.alter_client_quotas(entity, {}, remove=["producer_byte_rate"])
