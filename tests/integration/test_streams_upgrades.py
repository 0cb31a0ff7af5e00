"""Tests of exported stores and reset applications.

The checkpoints are those of topologies over topics.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from typer.testing import CliRunner

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace_streams import IncompatibleStateError, StreamsBuilder, Topology, run_stream
from millrace_streams.application import load_topology
from millrace_streams.cli.streams import app
from millrace_streams.queries import open_state

from .job_kills import MILLRACE
from .waiting import STALL_S, eventually, work_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace_broker.testing import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def counting() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", key="string", value="long")
    words.group_by_key().count(store="counts").to_delta("counts")
    return builder.build()


REBUILT = """
from millrace_streams import StreamsBuilder

def topology():
    builder = StreamsBuilder()
    words = builder.stream("words", key="string", value="long")
    words.group_by_key().count(store="counts").to_delta("counts")
    words.group_by(lambda key, value: key[0], key="string").count(store="initials").to_stream().to("initials")
    return builder.build()
"""


class Application:
    """A topology over the topic words, on Spark, with its checkpoint."""

    def __init__(self, spark: SparkSession, servers: str, directory: Path) -> None:
        self.spark, self.servers, self.directory = spark, servers, directory
        self.checkpoint = directory / "checkpoint"

    def send(self, words: str) -> None:
        with Producer({"bootstrap.servers": self.servers}) as producer:
            for word in words.split():
                producer.send("words", (1).to_bytes(8, "big"), key=word)

    def run(self, topology: Topology) -> None:
        run_stream(
            topology,
            self.spark,
            checkpoint=str(self.checkpoint),
            tables={name: str(self.directory / name) for name in topology.tables},
            bootstrap_servers=self.servers,
            available_now=True,
        ).awaitTermination()

    def command(self, name: str, *arguments: str) -> str:
        options = ["--checkpoint", str(self.checkpoint)]
        ended = CliRunner().invoke(app, [name, *arguments, *options])
        assert ended.exit_code == 0, ended.output + repr(ended.exception)
        return ended.stdout

    def counts(self, store: str = "counts") -> dict[str, Any]:
        with open_state(self.checkpoint, spark=self.spark) as state:
            return {entry.key: entry.value for entry in state.store(store).all()}


@pytest.fixture
def application(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> Application:
    servers = broker.bootstrap_servers
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topic("words", partitions=1)
    return Application(spark, servers, tmp_path)


def test_state_is_exported_and_an_application_is_reset(application: Application) -> None:
    application.send("a b a c")
    application.run(counting())
    assert application.counts() == {"a": 2, "b": 1, "c": 1}
    here = application.directory
    application.command("export-state", "counts", "--output", str(here / "counts.parquet"))
    application.command("export-state", "counts", "--output", str(here / "counts.jsonl"))
    application.command("export-state", "counts", "--topic", "exported", "-b", application.servers)
    rows = [{"key": "a", "count": 2}, {"key": "b", "count": 1}, {"key": "c", "count": 1}]
    assert pl.read_parquet(here / "counts.parquet").select("key", "count").to_dicts() == rows
    lines = (here / "counts.jsonl").read_text().splitlines()
    assert [{name: json.loads(line)[name] for name in ("key", "count")} for line in lines] == rows
    with Consumer({"bootstrap.servers": application.servers}) as consumer:
        consumer.assign([TopicPartition("exported", 0)])
        consumer.seek_to_beginning()
        assert consumer.poll_table(timeout_ms=10_000).select(["key", "count"]).to_pylist() == rows

    shown = application.command("reset", "--to-offset", "2", "-b", application.servers)
    assert "deleted stores: counts" in shown
    assert application.counts() == {"a": 2, "b": 1, "c": 1}, "the dry run changed nothing"
    told = json.loads(
        application.command("reset", "--to-offset", "2", "-b", application.servers, "--execute", "--json")
    )
    assert told["offsets"] == [{"topic": "words", "partition": 0, "old_offset": 4, "new_offset": 2}]
    application.send("c")
    application.run(counting())
    assert application.counts() == {"a": 1, "c": 2}
    found = application.spark.read.format("delta").load(str(here / "counts")).toArrow().to_pylist()
    assert {row["key"]: row["count"] for row in found} == {"a": 1, "b": 1, "c": 2}, "the table keeps its rows"

    application.command("reset", "--execute")
    assert sum(path.name.startswith("checkpoint.before-reset") for path in here.iterdir()) == 2
    application.run(counting())
    assert application.counts() == {"a": 2, "b": 1, "c": 2}


def test_a_changed_topology_gets_state_as_if_it_had_been_there_from_the_beginning(application: Application) -> None:
    application.send("ab a b")
    application.run(counting())
    changed = application.directory / "changed.py"
    changed.write_text(REBUILT)
    with pytest.raises(IncompatibleStateError, match=r"store initials is new.*millrace streams rebuild"):
        application.run(load_topology(str(changed)))
    # The rebuilt application reads the records after the last batch, not the rebuild.
    application.send("ba a")
    with Admin({"bootstrap.servers": application.servers}) as admin:
        admin.create_topic("initials", partitions=1)
    told = application.command("rebuild", "--topology", str(changed), "-b", application.servers)
    assert "has new state" in told
    assert application.counts() == {"ab": 1, "a": 1, "b": 1}
    assert application.counts("initials") == {"a": 2, "b": 1}
    application.run(load_topology(str(changed)))
    assert application.counts() == {"ab": 1, "a": 2, "b": 1, "ba": 1}
    with Consumer({"bootstrap.servers": application.servers, "isolation.level": "read_committed"}) as consumer:
        consumer.assign([TopicPartition("initials", 0)])
        consumer.seek_to_beginning()
        written = consumer.poll_table(timeout_ms=10_000).to_pylist()
    assert [(row["key"], int.from_bytes(row["value"])) for row in written] == [(b"b", 2), (b"a", 3)]


def test_a_batch_that_a_changed_topology_runs_again_is_written_once(application: Application) -> None:
    with Admin({"bootstrap.servers": application.servers}) as admin:
        for topic in ("one", "other"):
            admin.create_topic(topic, partitions=1)

    def run(*topics: str, changed: bool) -> None:
        builder = StreamsBuilder()
        words = builder.stream("words", key="string", value="long")
        for topic in topics:
            (words.filter(lambda value: value > 0) if changed else words).to(topic)
        application.run(builder.build())

    application.send("a b")
    run("one", "other", changed=False)
    # The driver died after the commits of the sinks, and before Spark's.
    (application.checkpoint / "commits" / "0").unlink()
    (application.checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    run("other", "one", changed=True)
    application.send("c")
    run("other", "one", changed=True)
    with Consumer({"bootstrap.servers": application.servers, "isolation.level": "read_committed"}) as consumer:
        for topic in ("one", "other"):
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek_to_beginning()
            end, found = consumer.end_offsets([partition])[partition], list[Any]()
            while consumer.position(partition) < end:
                found += [record.key for record in consumer.poll(100)]
            assert found == [b"a", b"b", b"c"]


@pytest.mark.dial("REBUILD_KILL_ROUNDS", seconds=60)
def test_a_rebuild_that_is_killed_continues_and_spoils_nothing(application: Application, rounds: int) -> None:
    seed = int(os.environ.get("REBUILD_KILL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"REBUILD_KILL_SEED={seed}")
    chance = random.Random(seed)
    words = [f"{letter}{number % 3}" for number in range(8 + 4 * rounds) for letter in "abc"]
    application.send(" ".join(words))
    application.run(counting())
    before = application.counts()
    changed = application.directory / "changed.py"
    changed.write_text(REBUILT)
    arguments = ["--topology", str(changed), "-b", application.servers, "-o", "maxOffsetsPerTrigger=6"]
    fresh = application.directory / "checkpoint.rebuilding"
    first_batch = fresh / "commits" / "0"
    done: list[int] = []
    for number in range(rounds):
        wanted = len(done) + 1 + chance.randrange(2)
        command = [MILLRACE, "streams", "rebuild", "-c", application.checkpoint, *arguments]
        log = application.directory / f"rebuild-{number}.log"
        with log.open("w") as output:
            rebuild = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        eventually(
            lambda rebuild=rebuild, wanted=wanted: (
                rebuild.poll() is not None or len(list(first_batch.parent.glob("[0-9]*"))) >= wanted
            ),
            "some batches",
            progress=lambda rebuild=rebuild: work_of(rebuild.pid),
        )
        assert rebuild.poll() is None, log.read_text()
        os.killpg(rebuild.pid, signal.SIGKILL)
        rebuild.wait(STALL_S)
        done = [int(path.name) for path in first_batch.parent.glob("[0-9]*")]
        assert application.counts() == before, f"REBUILD_KILL_SEED={seed}"
    begun = first_batch.stat().st_mtime_ns
    assert "has new state" in application.command("rebuild", *arguments)
    assert not fresh.exists()
    assert (application.checkpoint / "commits" / "0").stat().st_mtime_ns == begun, (
        "the application started from the beginning"
    )
    assert application.counts() == before, f"REBUILD_KILL_SEED={seed}"
    assert application.counts("initials") == {letter: len(words) // 3 for letter in "abc"}, f"REBUILD_KILL_SEED={seed}"
