"""Tests of ``millrace offsets``.

The command shows and resets a checkpoint, and the query continues there.
"""

import json
import uuid

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from millrace.cli.main import main
from millrace.clients import Admin, Producer
from pyspark_millrace.delta import ingest
from pyspark_millrace.monitor import monitor

from .streaming_query import finish
from .waiting import STALL_S

pytestmark = pytest.mark.spark


class Numbers:
    """A topic of numbers with queries that copy it into a table."""

    def __init__(self, broker, spark, directory):
        self.spark, self.servers, self.topic = spark, broker.bootstrap_servers, f"reset-{uuid.uuid4().hex[:8]}"
        self.table, self.checkpoint = directory / "table", directory / "checkpoint"
        with Admin(self.servers) as admin:
            admin.create_topic(self.topic, schema="n BIGINT", configs={"retention.ms": "-1"})
        self.sent = 0
        self.send(20)

    def send(self, count):
        with Producer(self.servers) as producer:
            for number in range(self.sent, self.sent + count):
                producer.send(self.topic, {"n": number})
        self.sent += count

    @property
    def options(self):
        return {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": 10,
        }

    def ingest(self):
        assert ingest(self.spark, self.options, str(self.table), checkpoint=str(self.checkpoint)).awaitTermination(
            STALL_S
        )

    def writer(self):
        records = self.spark.readStream.format("millrace").options(**self.options).load()
        return records.writeStream.format("delta").option("checkpointLocation", str(self.checkpoint))

    def sink(self):
        finish(self.writer().trigger(availableNow=True).start(str(self.table)))

    def rows(self):
        return sorted(DeltaTable(str(self.table)).to_pyarrow_table()["n"].to_pylist())

    def command(self, name, *arguments, code=0):
        # This process ran the query and holds the lock until Spark has reported the end of the run.
        assert monitor(self.spark).drain(STALL_S)
        servers = ["--bootstrap-server", self.servers] if name == "reset" else []
        assert main(["offsets", name, "--checkpoint", str(self.checkpoint), *servers, *arguments]) == code


@pytest.fixture
def numbers(module_broker, spark, tmp_path):
    return Numbers(module_broker, spark, tmp_path)


@pytest.mark.parametrize("sink", ["ingest", "sink"])
def test_a_query_reads_again_after_a_reset_to_earlier_offsets(numbers, sink, capfd):
    run = getattr(numbers, sink)
    run()
    assert numbers.rows() == list(range(20))

    numbers.command("reset", "--shift-by", "-5")
    shown = capfd.readouterr()
    assert "nothing was changed" in shown.err
    assert shown.out.split()[-5:] == [numbers.topic, "0", "20", "15", "-5"]
    run()
    assert numbers.rows() == list(range(20)), "the reset was a dry run"

    numbers.command("reset", "--shift-by", "-5", "--execute")
    numbers.send(3)
    run()
    assert numbers.rows() == sorted([*range(23), *range(15, 20)])
    assert (
        DeltaTable(str(numbers.table)).transaction_version(
            json.loads((numbers.checkpoint / "metadata").read_text())["id"]
        )
        >= 3
    )
    run()
    assert len(numbers.rows()) == 28


def test_a_query_skips_records_after_a_reset_to_later_offsets(numbers, capfd):
    numbers.ingest()
    numbers.send(5)
    numbers.command("reset", "--to-latest", "--execute")
    capfd.readouterr()
    numbers.command("show")
    assert "batch 2, not finished" in capfd.readouterr().out
    numbers.send(2)
    numbers.ingest()
    assert numbers.rows() == [*range(20), 25, 26]


def test_exported_offsets_are_restored(numbers, tmp_path, capfd):
    numbers.ingest()
    numbers.command("show", "--export")
    exported = tmp_path / "offsets.csv"
    exported.write_text(capfd.readouterr().out)
    numbers.send(10)
    numbers.ingest()
    numbers.command("reset", "--from-file", str(exported), "--execute", "--json")
    told = json.loads(capfd.readouterr().out)
    assert told["offsets"] == [{"topic": numbers.topic, "partition": 0, "old_offset": 30, "new_offset": 20}]
    assert told["executed"]
    numbers.ingest()
    assert numbers.rows() == sorted([*range(30), *range(20, 30)])


def test_a_running_query_ends_rather_than_continuing_beside_a_reset(numbers, spark):
    # Our lock is not visible from another host, for example. The first to log the batch wins, and the query fails with
    # a clear error.
    query = numbers.writer().start(str(numbers.table))
    try:
        while len(numbers.rows() if DeltaTable.is_deltatable(str(numbers.table)) else []) < 20:
            query.awaitTermination(0.1)
        query.processAllAvailable()
        (numbers.checkpoint / "_millrace" / "lock").unlink()
        numbers.command("reset", "--to-earliest", "--execute")
        numbers.send(1)
        with pytest.raises(StreamingQueryException, match="CONCURRENT_STREAM_LOG_UPDATE"):
            finish(query)
    finally:
        query.stop()
    numbers.sink()
    assert numbers.rows() == sorted([*range(20), *range(21)])


def test_contradicting_or_unknown_targets_of_a_reset_are_refused(numbers, capfd):
    numbers.ingest()
    numbers.command("reset", "--to-latest", "--to-earliest", code=2)
    assert "name the target by one of" in capfd.readouterr().err
    numbers.command("reset", "--to-latest", "--topic", "elsewhere", code=1)
    with Admin(numbers.servers) as admin:
        admin.create_topic("elsewhere")
    numbers.command("reset", "--to-latest", "--topic", "elsewhere", code=2)
    assert f"the query does not read elsewhere: it reads {numbers.topic}" in capfd.readouterr().err
