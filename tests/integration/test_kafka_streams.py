"""Tests of random records in the same topologies here and in Kafka Streams, whose results must be equal.

``KAFKA_STREAMS_SCRIPTS`` is the number of scripts for each topology. A failed script is printed, and repeated with
``KAFKA_STREAMS_SEED``.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from benchmarks.peers import jars
from benchmarks.workspace import Workspace

from millrace_streams import StreamsBuilder, TestRecord, TopologyTestDriver

from .kafka_streams.topologies import TOPOLOGIES

JAVA: Final = Path(__file__).parent / "kafka_streams" / "RandomTopologies.java"
MEMORY: Final = Path("/dev/shm")
"""Files in memory, where the system has them."""
INPUTS: Final = dict.fromkeys(TOPOLOGIES, "xy") | {
    "streamTableJoins": "xyz",
    "versions": "xyz",
    "windows": "x",
    "suppressed": "xyz",
    "repartitions": "xyz",
}
"""The input topics of each topology, a letter each."""
WITHOUT_KEY: Final = ("streamJoins", "windows", "cogrouped")
"""Topologies that also get records without a key. Tables and joins with a grace of Kafka Streams fail with one."""
STEPS_MS: Final = ((0, 1, 1, 2, -2, -5), (0, 1, 3, 8, -4, -9, -15), (0, 0, 1))
STEPS_OF_CLOSING_MS: Final = ((0, 0, 1, 1, -2, -4, -9),)
"""Kafka Streams loses results on close if stream time jumps past the retention (docs/streams/semantics.md)."""
UNORDERED: Final = {("foreignKeys", "twice")}
"""Results through two topics, whose order Kafka Streams does not define. Those of one key are in order."""

Results = dict[str, list[tuple[str, ...]]]


def script_of(name: str, seed: int) -> list[str]:
    """Return random records, each as topic, key, value and time ("-" is null)."""
    chance, newest_ms, lines = random.Random(f"{name} {seed}"), 0, []
    steps = chance.choice(STEPS_OF_CLOSING_MS if name == "closing" else STEPS_MS)
    for _ in range(chance.randint(5, 80)):
        time_ms = max(0, newest_ms + chance.choice(steps))
        newest_ms = max(newest_ms, time_ms) if name == "closing" or chance.random() < 0.7 else time_ms
        key = "-" if name in WITHOUT_KEY and chance.random() < 0.04 else chance.choice("abc")
        value = "-" if chance.random() < 0.12 else str(chance.randint(0, 9))
        lines.append(f"{chance.choice(INPUTS[name])} {key} {value} {time_ms}")
    return lines


def results_of(name: str, script: Sequence[str], seed: int) -> Results:
    """Return our results by topic. The records come in batches of random sizes."""
    builder = StreamsBuilder()
    TOPOLOGIES[name](builder)
    driver, chance, start = TopologyTestDriver(builder.build()), random.Random(seed), 0
    fields = [line.split(" ") for line in script]
    records = [
        TestRecord(topic, None if key == "-" else key, None if value == "-" else int(value), int(time_ms))
        for topic, key, value, time_ms in fields
    ]
    while start < len(records):
        size = chance.choice([1, 3, 100])
        driver.pipe_records(records[start : start + size])
        start += size
    topics: list[str] = [sink.topic for sink in driver.plan.sinks]  # type: ignore[union-attr, misc]
    return {
        topic: [
            tuple("-" if each is None else str(each) for each in (found.key, found.value, found.timestamp))
            for found in driver.read_records(topic)
        ]
        for topic in topics
    }


def read_results(path: Path) -> Results:
    """Read the results of Kafka Streams."""
    found: Results = defaultdict(list)
    for line in path.read_text().splitlines():
        topic, *fields = line.split(" ")
        found[topic].append(tuple(fields))
    return found


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif("KAFKA_STREAMS_SCRIPTS" not in os.environ, reason="needs Maven: make soak ONLY=kafka-streams")
def test_any_records_give_the_results_of_kafka_streams(tmp_path: Path) -> None:
    count = int(os.environ["KAFKA_STREAMS_SCRIPTS"])
    first = int(os.environ.get("KAFKA_STREAMS_SEED", time.time_ns()))
    print(f"KAFKA_STREAMS_SEED={first}")
    scripts = {(name, seed): script_of(name, seed) for name in TOPOLOGIES for seed in range(first, first + count)}
    for (name, seed), script in scripts.items():
        (tmp_path / f"{name}-{seed}.in").write_text("\n".join(script))
    # Kafka Streams syncs the files of its stores, and leaves them behind.
    with Workspace() as workspace, TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as stores:
        class_path = f"{jars.resolve(jars.KAFKA_STREAMS_TEST, workspace)}/*:{tmp_path}"
        for command in (
            ["javac", "-cp", class_path, "-d", tmp_path, JAVA],
            ["java", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={stores}", "-cp", class_path, JAVA.stem, tmp_path],
        ):
            subprocess.run(command, check=True)
    differences = []
    for (name, seed), script in scripts.items():
        expected = read_results(tmp_path / f"{name}-{seed}.out")
        for topic, found in results_of(name, script, seed).items():
            theirs = expected[topic]
            if (name, topic) in UNORDERED:
                found, theirs = (sorted(each, key=lambda result: result[0]) for each in (found, theirs))
            if found != theirs:
                differences.append(f"{name} {topic}, KAFKA_STREAMS_SEED={seed}: {'; '.join(script)}")
    assert not differences, "\n".join(differences)
