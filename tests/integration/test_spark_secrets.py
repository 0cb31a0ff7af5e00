"""Tests of secrets in query options, which are never shown or written.

This applies to Spark's output and to ours.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from millrace.clients import Admin, Producer
from millrace_broker.testing import EmbeddedBroker

from ..planted_secrets import planted
from .waiting import run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECRET = planted("hunter-2")


@pytest.fixture
def broker(tmp_path_factory):
    """A broker whose clients authenticate with the secret."""
    options = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": f'PlainLoginModule required user_alice="{SECRET}";',
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=options) as running:
        yield running


JOB = """
import sys
from pyspark.sql import SparkSession
from pyspark_millrace import DefaultSource

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(DefaultSource)
options = {
    "kafka.bootstrap.servers": sys.argv[1],
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "${env:ORDERS_USER}",
    "kafka.sasl.password": "${file:client.properties:sasl.password}",
    "directReads": "never",
    "subscribe": "numbers",
    "startingOffsets": "earliest",
}
print("rows:", spark.read.format("millrace").options(**options).load().select("value").distinct().count())
"""


def test_executors_get_credentials_through_sparks_configuration(broker, tmp_path, monkeypatch):
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        admin.create_topic("numbers", partitions=1)
        for n in range(10):
            producer.send("numbers", b"%d" % n)
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "client.properties").write_text(f"sasl.password={SECRET}\n")
    conf = {
        "spark.master": "local-cluster[1,1,1024]",
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.ORDERS_USER": "alice",
    }
    (tmp_path / "spark.properties").write_text("".join(f"{name} {value}\n" for name, value in conf.items()))
    monkeypatch.setenv("ORDERS_USER", "alice")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    submit = Path(sys.executable).with_name("spark-submit")
    options = ["--properties-file", "spark.properties", "--files", "client.properties"]
    command = [submit, *options, "job.py", f"127.0.0.1:{broker.server.ports['SASL_PLAINTEXT']}"]
    work = Path(pyspark.__file__).with_name("work")
    before = set(work.glob("*"))
    with (tmp_path / "log").open("w") as log:
        run_to_end(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)
    output = (tmp_path / "log").read_text()
    for directory in set(work.glob("*")) - before:
        if list(directory.rglob("client.properties")):
            shutil.rmtree(directory)  # a copy of the secret
    assert "rows: 10" in output, output[-5000:]
    assert SECRET not in output


def test_a_planted_secret_is_found_nowhere(broker, tmp_path):
    with Admin(broker.bootstrap_servers) as admin, Producer(broker.bootstrap_servers) as producer:
        for topic in ("numbers", "copies"):
            admin.create_topic(topic, partitions=1)
        for n in range(10):
            producer.send("numbers", b"%d" % n)
    job = Path(__file__).with_name("secret_job.py")
    (tmp_path / "secrets.properties").write_text(f"name={SECRET}\nwait=12345\n")
    command = [sys.executable, job, f"127.0.0.1:{broker.server.ports['SASL_PLAINTEXT']}", tmp_path]
    with (tmp_path / "log").open("w") as log:
        ended = run_to_end(command, stdout=log, stderr=subprocess.STDOUT)
    output = (tmp_path / "log").read_text()
    assert ended.returncode == 0, output[-5000:]
    refusals = [line for line in output.splitlines() if line.startswith("refused:")]
    reasons = [
        "are both set: remove one",
        "authentication failed: invalid credentials",
        "request.timeout.ms='${file:",
        "cannot be resolved",
        "belong together: set both",
        "unknown option password=(hidden)",
    ]
    assert len(refusals) == len(reasons)
    for refusal, reason in zip(refusals, reasons, strict=True):
        assert reason in refusal
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "secrets.properties"]
    places = {path.relative_to(tmp_path).parts[0] for path in files}
    assert places >= {"log", "shown", "events", "checkpoints", "table"}
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    # Check that there was output: a view's options in the web interface, and the finest log lines.
    assert "CreateTempViewUsing" in (tmp_path / "shown").read_text()
    assert " DEBUG " in output
