"""Tests of groups and metrics, which know each completed batch immediately."""

import json
import ssl
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from millrace.cli.main import main
from millrace.clients import Admin, Producer, TopicPartition
from pyspark_millrace.delta import ingest
from pyspark_millrace.environment.session import _monitor
from pyspark_millrace.monitor import monitor

from ..certificates import Authority
from .connect_job import connect_environment
from .streaming_query import finish
from .waiting import STALL_S, eventually, run_to_end

pytestmark = pytest.mark.spark

CONNECT = """
import sys
from pyspark.sql import SparkSession
from pyspark_millrace.monitor import monitor

servers, topic, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
watching = monitor(spark)
records = spark.readStream.format("millrace").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
records = records.option("startingOffsets", "earliest").option("groupIdPrefix", "connect").load()
query = records.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
from millrace.clients import Admin
import time
with Admin(servers) as admin:
    group_id = f"connect-{query.id}"
    while not any(each.group_id == group_id for each in admin.list_groups()) or not admin.list_group_offsets(group_id):
        time.sleep(0.05)
    print(admin.group_lag(group_id)[0].lag, flush=True)
spark.stop()
"""
FAILS = """
from pyspark.sql import SparkSession
from pyspark_millrace.monitor import monitor

monitor(SparkSession.builder.remote("local[1]").getOrCreate())
raise ValueError("the program is wrong")
"""


@pytest.fixture
def filled(module_broker, topic):
    with Admin(module_broker.bootstrap_servers) as admin:
        admin.create_topic(topic, schema="n BIGINT", configs={"retention.ms": "-1"})
    send(module_broker, topic, 20)
    return topic


def send(broker, topic, count):
    with Producer(broker.bootstrap_servers) as producer:
        producer.send_table(topic, pa.table({"n": range(count)}))


def run(spark, broker, topic, directory, name="query", **options):
    """Copy the available records in batches of 8, and return the query's id."""
    given = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 8,
    }
    query = ingest(
        spark, given | options, str(directory / "table"), checkpoint=str(directory / "checkpoint"), query_name=name
    )
    finish(query)
    assert monitor(spark).drain(STALL_S)
    return query.id


def scrape(port, name, **labels):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=STALL_S) as answer:
        return sample(answer.read().decode(), name, **labels)


def sample(text, name, **labels):
    found = [
        each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.name == f"millrace_spark_{name}" and labels.items() <= each.labels.items()
    ]
    assert len(found) <= 1, f"{name} {labels} is ambiguous"
    return found[0] if found else None


def await_value(check, expected):
    eventually(lambda: check() == expected, f"{expected}", progress=check)


def test_the_last_batch_of_available_now_is_in_the_group(spark, module_broker, filled, tmp_path, capfd):
    group = f"group-{filled}"
    run(spark, module_broker, filled, tmp_path, **{"group.id": group})
    with Admin(module_broker.bootstrap_servers) as admin:
        (lag,) = admin.group_lag(group)
    assert (lag.committed, lag.lag, lag.lag_bytes, lag.lag_seconds) == (20, 0, 0, 0)
    assert main(["groups", "describe", group, "--json", "-b", module_broker.bootstrap_servers]) == 0
    assert json.loads(capfd.readouterr().out)[0]["current_offset"] == 20


def test_the_group_s_name_may_be_made_of_the_query_s_id(spark, module_broker, filled, tmp_path):
    query_id = run(spark, module_broker, filled, tmp_path, groupIdPrefix="nightly")
    with Admin(module_broker.bootstrap_servers) as admin:
        assert admin.list_group_offsets(f"nightly-{query_id}")[TopicPartition(filled, 0)].offset == 20


def test_metrics_can_be_scraped(spark, module_broker, filled, tmp_path):
    before = set(monitor(spark).outlets.ports)
    monitor(spark, port=0)
    (port,) = set(monitor(spark, port=0).outlets.ports) - before
    query_id = run(spark, module_broker, filled, tmp_path, name="copy")
    query, topic = {"query_id": query_id, "query": "copy"}, {"query_id": query_id, "topic": filled}
    assert scrape(port, "batches_total", **query) == 3
    assert scrape(port, "query_running", **query) == 0
    assert scrape(port, "batch_id", **query) == 2
    assert scrape(port, "batch_seconds_total", **query, phase="commitOffsets") > 0
    await_value(lambda: scrape(port, "read_rows_total", **topic), 20)
    assert scrape(port, "read_tasks_total", **topic) == 3
    assert scrape(port, "read_bytes_total", **topic) > 0
    assert scrape(port, "decode_seconds_total", **topic) > 0
    assert scrape(port, "lag_records", **topic, partition="0") == 0
    # No process runs the query, and its lag grows.
    send(module_broker, filled, 5)
    await_value(lambda: scrape(port, "lag_records", **topic, partition="0"), 5)
    assert scrape(port, "lag_bytes", **topic, partition="0") > 0
    assert scrape(port, "lag_seconds", **topic, partition="0") > 0
    run(spark, module_broker, filled, tmp_path, name="copy")
    await_value(lambda: scrape(port, "lag_records", **topic, partition="0"), 0)
    assert scrape(port, "offset", **topic, partition="0") == 25


def test_settings_of_the_session_secure_the_metrics(spark, tmp_path):
    authority = Authority.make()
    settings = {
        "port": "0",
        "host": "localhost",
        "security.protocol": "SSL",
        "ssl.keystore.location": authority.issue("CN=driver").write(tmp_path / "driver.pem"),
        "ssl.client.auth": "none",
    }
    before = set(monitor(spark).outlets.ports)
    for name, value in settings.items():
        spark.conf.set(f"spark.millrace.monitor.{name}", value)
    try:
        _monitor(spark)
    finally:
        for name in settings:
            spark.conf.unset(f"spark.millrace.monitor.{name}")
    [port] = set(monitor(spark).outlets.ports) - before
    trusted = ssl.create_default_context(cafile=authority.write(tmp_path / "ca.pem"))
    with urllib.request.urlopen(f"https://localhost:{port}/metrics", context=trusted) as answer:
        assert b"millrace_spark_group_commits_total" in answer.read()


def test_metrics_are_written_to_a_file_and_pushed(spark, module_broker, filled, tmp_path):
    pushed = []

    class Gateway(BaseHTTPRequestHandler):
        def do_PUT(self):
            pushed.append((self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Gateway) as gateway:
        serving = threading.Thread(target=gateway.serve_forever)
        serving.start()
        try:
            file = tmp_path / "millrace.prom"
            outlets = monitor(spark, textfile=file, pushgateway=f"127.0.0.1:{gateway.server_port}").outlets
            query_id = run(spark, module_broker, filled, tmp_path)
        finally:
            outlets._gateways.clear()
            outlets._textfiles.clear()
            gateway.shutdown()
            serving.join()
    assert sample(file.read_text(), "batches_total", query_id=query_id) == 3
    path, text = pushed[-1]
    assert path.startswith("/metrics/job/millrace_spark/instance/")
    assert sample(text, "lag_records", query_id=query_id, topic=filled) == 0


def test_a_query_that_runs_keeps_its_checkpoint_from_being_reset(spark, module_broker, filled, tmp_path, capfd):
    given = {"kafka.bootstrap.servers": module_broker.bootstrap_servers, "subscribe": filled}
    records = spark.readStream.format("millrace").options(**given, startingOffsets="earliest").load()
    checkpoint = str(tmp_path / "checkpoint")
    query = records.writeStream.format("noop").option("checkpointLocation", checkpoint).queryName("locked").start()
    reset = ["offsets", "reset", "-c", checkpoint, "--to-earliest", "-b", module_broker.bootstrap_servers, "--execute"]
    try:
        query.processAllAvailable()
        assert main(reset) == 2
        assert "is running (query locked, process" in capfd.readouterr().err
    finally:
        query.stop()
    assert monitor(spark).drain(STALL_S)
    assert main(reset) == 0


@pytest.mark.slow
def test_the_monitor_works_in_spark_connect(module_broker, filled, tmp_path):
    script = tmp_path / "connect.py"
    script.write_text(CONNECT)
    command = [sys.executable, str(script), module_broker.bootstrap_servers, filled, str(tmp_path / "checkpoint")]
    done = run_to_end(command, env=connect_environment())
    assert done.returncode == 0, done.stderr[:3000]
    assert done.stdout.split()[-1] == "0"


@pytest.mark.slow
def test_a_program_that_fails_in_spark_connect_ends(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    done = run_to_end([sys.executable, str(script)], env=connect_environment())
    assert done.returncode == 1
    assert "the program is wrong" in done.stderr
