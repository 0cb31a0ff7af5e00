"""Tests of Spark with a broker that authenticates and authorizes.

A job and a topology use the properties of one user.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from millrace.cli.paths import jobs_dir
from millrace.clients import Admin, Consumer, TopicPartition
from millrace_broker.testing import EmbeddedBroker
from millrace_streams import StreamsBuilder, col, run_stream

from ..properties_files import write_properties
from .security_files import SecurityFiles
from .waiting import AN_HOUR_MS, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_job_fills_a_topic_and_a_topology_copies_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SecurityFiles(tmp_path / "security")
    with EmbeddedBroker(tmp_path / "data", options=files.broker()) as broker:
        given = files.client("admin", broker)
        path = tmp_path / "admin.properties"
        write_properties(path, given)
        monkeypatch.setenv("MILLRACE_CLIENT_CONFIG", str(path))
        monkeypatch.delenv("MILLRACE_BOOTSTRAP_SERVERS", raising=False)
        monkeypatch.setattr(sys, "argv", ["make_examples.py", "--data", "prices", "--rows", "200"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(jobs_dir() / "make_examples.py"), run_name="__main__")
        assert not ended.value.code
        with Admin(given) as admin:
            [topic] = admin.list_topics()
            admin.create_topic("copies", schema="symbol STRING", partitions=1)
        builder = StreamsBuilder()
        builder.stream(topic.name).select(symbol=col("symbol")).to("copies")
        options = {
            f"kafka.{name}": f"${{file:{path}:{name}}}" if "jaas" in name else str(value)
            for name, value in given.items()
        }
        query = run_stream(
            builder.build(),
            spark,
            checkpoint=str(tmp_path / "checkpoint"),
            bootstrap_servers=given["bootstrap.servers"],
            options=options,
            available_now=True,
        )
        query.awaitTermination()
        with Consumer(given) as consumer:
            consumer.assign([TopicPartition("copies", 0)])
            consumer.seek_to_beginning()
            found: list[object] = []
            eventually(lambda: found.extend(consumer.poll(timeout_ms=500)) or len(found) >= 200)
        written = [each for each in (tmp_path / "checkpoint").rglob("*") if each.is_file()]
        assert written
        assert not [each for each in written if any(secret.encode() in each.read_bytes() for secret in files.secrets())]


def test_queries_with_a_wrong_password_fail_at_once_with_the_option_to_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = SecurityFiles(tmp_path / "security")
    with EmbeddedBroker(tmp_path / "data", options=files.broker()) as broker:
        given = files.client("admin", broker)
        with Admin(given) as admin:
            admin.create_topic("orders", schema="n BIGINT")
        (tmp_path / "wrong.properties").write_text("password=not the password\n")
        patient = {"request.timeout.ms": AN_HOUR_MS, "default.api.timeout.ms": AN_HOUR_MS}
        wrong = {f"kafka.{name}": value for name, value in (given | patient).items() if name != "sasl.jaas.config"}
        wrong |= {"kafka.sasl.username": "admin"}
        wrong |= {"kafka.sasl.password": f"${{file:{tmp_path}/wrong.properties:password}}"}
        rows = spark.createDataFrame([(1,)], "n BIGINT")

        def batch() -> None:
            spark.read.format("millrace").options(**wrong, subscribe="orders").load().count()

        def write() -> None:
            writing = wrong | {"kafka.delivery.timeout.ms": 2 * AN_HOUR_MS}
            rows.write.format("millrace").mode("append").options(**writing, topic="orders").save()

        def stream() -> None:
            read = spark.readStream.format("millrace").options(**wrong, subscribe="orders").load()
            checkpoint = str(tmp_path / "checkpoint")
            read.writeStream.format("noop").option("checkpointLocation", checkpoint).start().awaitTermination()

        for query in (batch, write, stream):
            with pytest.raises(PySparkException, match=r"check sasl\.username and sasl\.password") as raised:
                query()
            assert "not the password" not in str(raised.value)
