"""Tests of Spark Connect.

The tests cover reads, SQL, the sink, streams, direct ingest, and one-sentence errors.
"""

import contextlib
import json
import socket
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from millrace.clients import Admin, Consumer, Producer

from .connect_job import connect_environment
from .waiting import run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NUMBERS = 1000


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("connect")


@pytest.fixture(scope="module")
def default_port_is_taken():
    """Bind the default port of Spark Connect, as another program might."""
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # a program outside the tests may have bound it
            taken.bind(("127.0.0.1", 15002))
            taken.listen()
        yield


@pytest.fixture(scope="module")
def done(module_broker, directory, default_port_is_taken):
    """Return the client's results."""
    with Admin(module_broker.bootstrap_servers) as admin, Producer(module_broker.bootstrap_servers) as producer:
        admin.create_topic("numbers", partitions=2, schema="n BIGINT NOT NULL, word STRING")
        admin.create_topic("copies", partitions=1)
        for n in range(NUMBERS):
            producer.send("numbers", {"n": n, "word": f"w{n % 3}"})
    command = [sys.executable, Path(__file__).with_name("connect_job.py"), module_broker.bootstrap_servers, directory]
    ended = run_to_end(command, env=connect_environment())
    assert ended.returncode == 0, ended.stderr[:5000]
    return json.loads(ended.stdout.splitlines()[-1])


def test_batches_sql_and_the_sink_work_in_spark_connect(done, module_broker):
    assert done["read"] == sum(range(100, NUMBERS))
    assert done["view"] == NUMBERS
    config = {"bootstrap.servers": module_broker.bootstrap_servers, "isolation.level": "read_committed"}
    with Consumer(config) as consumer:
        consumer.assign(consumer.partitions_for("copies"))
        consumer.seek_to_beginning()
        copied = [int(record.value) for _ in range(8) for record in consumer.poll(500, max_records=NUMBERS)]
    assert sorted(copied) == sorted([*range(NUMBERS)] * 2), "once by the batch, once by the stream"


def test_a_direct_ingest_commits_each_batch_once_under_the_query_s_id(done, directory):
    table = DeltaTable(directory / "ingested")
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == list(range(NUMBERS))
    assert table.metadata().partition_columns == ["word"]
    batches = [line.split() for line in (directory / "batches").read_text().splitlines()]
    assert [int(number) for number, _, _ in batches] == [0, 1, 2, 3, 3], "the last batch was run again"
    assert batches[-1] == ["3", "0", "None"]
    assert done["ingest"] == done["again"]
    assert table.transaction_version(done["ingest"]) == 3


def test_errors_are_a_sentence(done):
    errors = done["errors"]
    assert errors["option"] == ["UsageError", "unknown option failondatalos='x': did you mean failOnDataLoss?"]
    assert errors["topic"][0] == "UnknownTopicOrPartitionError"
    assert errors["topic"][1].startswith("topic nowhere: no such topic")
    assert errors["table"][0] == "UsageError", errors["table"]
    assert "no Delta table can be created or opened there" in errors["table"][1]
    assert errors["unnamed"] == [
        "UsageError",
        "the id of the query is unknown here, as in Spark Connect: give application=<a name>",
    ]
