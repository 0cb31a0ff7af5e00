"""Tests of random topologies on Spark.

The stream, the batch and the test driver give the same results. Records are out of order in time. Many topologies run
as one. A failure names the seed of its topology and script: ``GENERATED_SEED=<seed>`` with ``GENERATED_TOPOLOGIES=1``
runs that one alone.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace_streams import StreamsBuilder, TestRecord, Topology, TopologyTestDriver
from millrace_streams.compiler import Plan, stages_of

from ..unit.streams import generated_topologies
from ..unit.streams.generated_topologies import KEYS, TOPICS, TYPES, VALUES, settled, topology_at_random
from ..unit.streams.test_generated_partitions import Updates, comparable
from .scripted_topologies import Case, Records, many_sources, outputs_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = int(os.environ.get("GENERATED_SEED") or random.SystemRandom().getrandbits(32))
AT_ONCE = 16
RECORDS_MAX = 40


def case_of(seed: int, partitions: int | None = None) -> Case:
    """Create a script.

    With ``partitions`` each record has one: those of a key the same, and those of a global table none.
    """
    chance = random.Random(seed)
    topics = TOPICS if partitions is None else TOPICS[:2]
    inputs = [
        {
            "topic": chance.choice(topics),
            "key": chance.choice(KEYS),
            "value": chance.choice(VALUES),
            "timestamp_ms": max(0, place + chance.randint(-20, 20)),
        }
        for place in range(chance.randint(2, RECORDS_MAX))
    ]
    if partitions is not None:
        for place, record in enumerate(inputs):
            record["partition"] = (place if record["key"] is None else KEYS.index(record["key"])) % partitions
    types = {"key_type": TYPES["key"], "value_type": TYPES["value"]}
    return {"name": f"seed{seed}", "inputs": inputs, "topology": {"input_topics": dict.fromkeys(topics, types)}}


def topology_of(seeds: list[int], *, timeless: bool = False) -> Topology:
    builder = StreamsBuilder()
    for seed in seeds:
        choose = random.Random(seed).choice
        topology_at_random(builder, choose, f"seed{seed}.", timeless=timeless, with_global=not timeless)
    return builder.build()


def outputs_of_driver(seed: int) -> dict[str, Records]:
    """Return a driver's results by topic. The driver processes one record after the other."""
    driver = TopologyTestDriver(topology_of([seed]))
    for record in case_of(seed)["inputs"]:
        topic = f"seed{seed}.{record['topic']}"
        driver.pipe_records([TestRecord(topic, record["key"], record["value"], record["timestamp_ms"])])
    found = {}
    for sink in driver.plan.outputs:
        records = driver.read_records(sink.topic)  # type: ignore[union-attr]
        found[sink.topic] = [(each.key, each.value, each.timestamp) for each in records]  # type: ignore[union-attr]
    return found


@pytest.mark.dial("GENERATED_TOPOLOGIES", seconds=30)
def test_stream_and_batch_put_out_what_the_driver_does(spark: SparkSession, tmp_path: Path, rounds: int) -> None:
    from pyspark import cloudpickle

    # Workers cannot import this module, so its definitions are pickled by value.
    cloudpickle.register_pickle_by_value(generated_topologies)
    for first in range(SEED, SEED + rounds, AT_ONCE):
        seeds = list(range(first, min(first + AT_ONCE, SEED + rounds)))
        cases = [case_of(seed) for seed in seeds]
        for runner in ("stream", "batch"):
            directory = tmp_path / f"{runner}-{first}"
            with many_sources(spark):
                found = outputs_on_spark(spark, runner, topology_of(seeds), cases, directory, random.Random(first))
            for seed in seeds:
                for topic, records in outputs_of_driver(seed).items():
                    assert settled(topic, found[topic]) == settled(topic, records), (
                        f"{runner}, GENERATED_SEED={seed}, {topic}"
                    )


@pytest.mark.dial("GENERATED_TOPOLOGIES", seconds=30)
def test_with_several_partitions_keys_have_the_updates_that_they_have_with_one(
    spark: SparkSession, tmp_path: Path, rounds: int
) -> None:
    # The topologies do not depend on stream time, because each partition has its own. There are a quarter as many.
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(generated_topologies)
    for first in range(SEED, SEED + max(1, rounds // 4), AT_ONCE):
        seeds = list(range(first, min(first + AT_ONCE, SEED + max(1, rounds // 4))))
        topology = topology_of(seeds, timeless=True)
        cases = [case_of(seed, partitions=2 + seed % 2) for seed in seeds]
        driver = TopologyTestDriver(topology)
        for case in cases:
            for each in case["inputs"]:
                record = TestRecord(f"{case['name']}.{each['topic']}", each["key"], each["value"], each["timestamp_ms"])
                driver.pipe_records([record])
        topics = [node.topic for node in driver.plan.outputs]  # type: ignore[union-attr]
        expected = {
            topic: [(each.key, each.value, each.timestamp) for each in driver.read_records(topic)] for topic in topics
        }
        for runner in ("stream", "batch"):
            directory = tmp_path / f"{runner}-{first}"
            with many_sources(spark):
                found = outputs_on_spark(spark, runner, topology, cases, directory, random.Random(first))
            for name, records in updates(driver.plan, expected).items():
                assert updates(driver.plan, found)[name] == records, f"{runner}, GENERATED_SEED={seeds}, {name}"


def updates(plan: Plan, found: dict[str, Records]) -> Updates:
    """Return values and times by topic and key."""
    by_key: Updates = {topic: {} for topic in found}
    for topic, records in found.items():
        for key, value, time_ms in records:
            by_key[topic].setdefault(key, []).append((value, time_ms))
    return comparable(stages_of(plan), by_key)
