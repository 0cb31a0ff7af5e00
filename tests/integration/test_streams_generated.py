"""Topologies made at random, on records disordered in time: stream, batch and test driver put out the same.

Many topologies run as one. A failure names the seed of its topology and script: ``GENERATED_SEED=<seed>`` with
``GENERATED_TOPOLOGIES=1`` runs that one alone.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace_streams import StreamsBuilder, TestRecord, Topology, TopologyTestDriver

from ..unit.streams import generated_topologies
from ..unit.streams.generated_topologies import KEYS, TOPICS, TYPES, VALUES, topology_at_random
from .scripted_topologies import Case, Records, many_sources, outputs_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = int(os.environ.get("GENERATED_SEED", "1"))
AT_ONCE = 16
RECORDS_MAX = 40


def case_of(seed: int) -> Case:
    chance = random.Random(seed)
    inputs = [
        {
            "topic": chance.choice(TOPICS),
            "key": chance.choice(KEYS),
            "value": chance.choice(VALUES),
            "timestamp_ms": max(0, place + chance.randint(-20, 20)),
        }
        for place in range(chance.randint(2, RECORDS_MAX))
    ]
    types = {"key_type": TYPES["key"], "value_type": TYPES["value"]}
    return {"name": f"seed{seed}", "inputs": inputs, "topology": {"input_topics": dict.fromkeys(TOPICS, types)}}


def topology_of(seeds: list[int]) -> Topology:
    builder = StreamsBuilder()
    for seed in seeds:
        topology_at_random(builder, random.Random(seed).choice, f"seed{seed}.")
    return builder.build()


def outputs_of_driver(seed: int) -> dict[str, Records]:
    """By topic, of a driver that takes one record after the other."""
    driver = TopologyTestDriver(topology_of([seed]))
    for record in case_of(seed)["inputs"]:
        topic = f"seed{seed}.{record['topic']}"
        driver.pipe_records([TestRecord(topic, record["key"], record["value"], record["timestamp_ms"])])
    found = {}
    for sink in driver.plan.sinks:
        records = driver.read_records(sink.topic)  # type: ignore[union-attr]
        found[sink.topic] = [(each.key, each.value, each.timestamp) for each in records]  # type: ignore[union-attr]
    return found


@pytest.mark.dial("GENERATED_TOPOLOGIES", seconds=30)
def test_stream_and_batch_put_out_what_the_driver_does(spark: SparkSession, tmp_path: Path, rounds: int) -> None:
    from pyspark import cloudpickle

    # Workers cannot import it: what it defines travels by value.
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
                    assert found[topic] == records, f"{runner}, GENERATED_SEED={seed}, {topic}"
