"""Tests of random records in the same topologies as Kafka Streams.

The results here and in Kafka Streams must be equal. ``KAFKA_STREAMS_SCRIPTS`` is the number of scripts for each
topology, and a quarter of the number of scripts with a random topology. A failed script is printed, and repeated with
``KAFKA_STREAMS_SEED``.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from benchmarks.peers import jars
from benchmarks.workspace import Workspace

from millrace_streams import StreamsBuilder, TestRecord, TopologyTestDriver

from .kafka_streams import generated
from .kafka_streams.topologies import TOPOLOGIES

JAVA: Final = Path(__file__).parent / "kafka_streams"
GENERATED: Final = "generated"
"""Name of the scripts with a topology of their own."""
GENERATED_PER_TOPOLOGY: Final = 4
"""Number of generated topologies for each script of the others."""
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
FINALS: Final = {
    ("closing", topic)
    for topic in ("outer", "inner", "self", "stream", "hopping", "sliding", "sliding-0", "sessions", "sessions-0")
} | {("suppressed", topic) for topic in ("windows", "sliding", "sessions")}
"""Topics with results of closed windows, of which each must have some in a run."""
FINALS_SCRIPTS_MIN: Final = 10
"""Number of scripts for each topology that is enough for results in all of them."""
LAST: Final = {("foreignKeys", "twice")}
"""Results through two topics, whose order Kafka Streams does not define. Only the last one of a key is defined."""

Results = dict[str, list[tuple[str, ...]]]


@dataclass(frozen=True, kw_only=True)
class Script:
    """Random records for a topology.

    Each record is a topic, a key, a value and a time ("-" is null). Results in ``undefined`` topics have no defined
    order, and are not compared.
    """

    name: str
    seed: int
    build: Callable[[StreamsBuilder], None]
    records: Sequence[str]
    program: generated.Program = ()
    undefined: frozenset[str] = frozenset()

    @property
    def lines(self) -> list[str]:
        """The lines of the script's file."""
        return [*self.program, *([""] if self.program else []), *self.records]


def script_of(name: str, seed: int) -> Script:
    """Return the script of a topology of ``topologies.py``."""
    chance, newest_ms, lines = random.Random(f"{name} {seed}"), 0, []
    steps = chance.choice(STEPS_MS)
    for _ in range(chance.randint(5, 80)):
        time_ms = max(0, newest_ms + chance.choice(steps))
        newest_ms = max(newest_ms, time_ms) if chance.random() < 0.7 else time_ms
        key = "-" if name in WITHOUT_KEY and chance.random() < 0.04 else chance.choice("abc")
        value = "-" if chance.random() < 0.12 else str(chance.randint(0, 9))
        lines.append(f"{chance.choice(INPUTS[name])} {key} {value} {time_ms}")
    return Script(name=name, seed=seed, build=TOPOLOGIES[name], records=lines)


def generated_script(seed: int) -> Script:
    """Return a script with a topology of its own."""
    chance, newest_ms, lines = random.Random(f"{GENERATED} {seed}"), 0, []
    steps = chance.choice(STEPS_MS)
    program, undefined = generated.generate(chance)
    for _ in range(chance.randint(5, 60)):
        time_ms = max(0, newest_ms + chance.choice(steps))
        newest_ms = max(newest_ms, time_ms) if chance.random() < 0.7 else time_ms
        value = "-" if chance.random() < 0.12 else str(chance.randint(0, 9))
        lines.append(f"{chance.choice('xy')} {chance.choice('abc')} {value} {time_ms}")
    build = partial(generated.build, program=program)
    return Script(name=GENERATED, seed=seed, build=build, records=lines, program=program, undefined=undefined)


def results_of(script: Script) -> Results:
    """Return our results by topic. The records come in batches of random sizes."""
    builder = StreamsBuilder()
    script.build(builder)
    driver, chance, start = TopologyTestDriver(builder.build()), random.Random(script.seed), 0
    fields = [line.split(" ") for line in script.records]
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


def differences_of(script: Script, expected: Results) -> list[str]:
    """Return the topics whose results differ, with all that repeats the script."""
    found = []
    for topic, ours in results_of(script).items():
        theirs = expected[topic]
        if (script.name, topic) in LAST:
            ours, theirs = (sorted({result[0]: result for result in each}.values()) for each in (ours, theirs))
        if topic not in script.undefined and ours != theirs:
            found.append(f"{script.name} {topic}, KAFKA_STREAMS_SEED={script.seed}: {'; '.join(script.lines)}")
    return found


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif("KAFKA_STREAMS_SCRIPTS" not in os.environ, reason="needs Maven: make soak ONLY=kafka-streams")
def test_any_records_give_the_results_of_kafka_streams(tmp_path: Path) -> None:
    count = int(os.environ["KAFKA_STREAMS_SCRIPTS"])
    first = int(os.environ.get("KAFKA_STREAMS_SEED", time.time_ns()))
    print(f"KAFKA_STREAMS_SEED={first}")
    scripts = [script_of(name, seed) for name in TOPOLOGIES for seed in range(first, first + count)]
    scripts += map(generated_script, range(first, first + GENERATED_PER_TOPOLOGY * count))
    for script in scripts:
        (tmp_path / f"{script.name}-{script.seed}.in").write_text("\n".join(script.lines))
    # Kafka Streams syncs the files of its stores, and leaves them behind.
    with Workspace() as workspace, TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as stores:
        class_path = f"{jars.resolve(jars.KAFKA_STREAMS_TEST, workspace)}/*:{tmp_path}"
        java = ["java", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={stores}", "-cp", class_path]
        subprocess.run(["javac", "-cp", class_path, "-d", tmp_path, *JAVA.glob("*.java")], check=True)
        subprocess.run([*java, "RandomTopologies", str(tmp_path)], check=True)
    expected = [(script, read_results(tmp_path / f"{script.name}-{script.seed}.out")) for script in scripts]
    differences = [difference for script, results in expected for difference in differences_of(script, results)]
    assert not differences, "\n".join(differences)
    if count >= FINALS_SCRIPTS_MIN:
        assert not FINALS - {(script.name, topic) for script, results in expected for topic in results}
