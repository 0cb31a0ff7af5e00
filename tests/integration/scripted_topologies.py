"""Scripts of records on both Spark runners.

Many topologies run as one. A case is a script in the form of Kafka Streams' cases. It has a ``name``, with which the
names of its topics begin, ``inputs``, and the types of ``input_topics``. Either all inputs name their partition, or
none does.

A stream takes the scripts in several micro-batches, cut at random. A script has an order of records across topics, and
Spark has none. The column ``__sequence`` gives that order.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace_streams import Topology
from millrace_streams.frames.packed import unpack_frame
from millrace_streams.runners.batch import bounded_results
from millrace_streams.runners.packed_rows import OUT
from millrace_streams.runners.results import Results
from millrace_streams.runners.source import Job, JobInputs
from millrace_streams.runners.streaming_query import start
from millrace_streams.steps.batch import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MICRO_BATCHES = 3
SETTINGS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}
"""Generating code for a hundred sources takes longer than reading their few records without it."""
ARROW = {"string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "double": pa.float64()}
COLUMNS = pa.schema(
    [
        ("topic", pa.string()),
        *((f"{part}_{name}", data_type) for part in ("key", "value") for name, data_type in ARROW.items()),
        ("__timestamp", pa.timestamp("us", tz="UTC")),
        ("__partition", pa.int32()),
        ("__offset", pa.int64()),
        ("__sequence", pa.int64()),
    ]
)

Case = dict[str, Any]
Records = list[tuple[Any, Any, int]]
"""Key, value and time."""


@contextmanager
def many_sources(spark: SparkSession) -> Iterator[None]:
    """Return settings for topologies of many sources."""
    before = {name: spark.conf.get(name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, found in before.items():
            spark.conf.set(name, found)


def outputs_on_spark(
    spark: SparkSession, runner: str, topology: Topology, cases: list[Case], directory: Path, chance: random.Random
) -> dict[str, Records]:
    """Return the results of a topology of these cases by topic, run as ``stream`` or ``batch``."""
    source = directory / "in"
    files_of(cases, source, chance)
    whole = spark.read.parquet(str(source))
    if runner == "stream":
        whole = spark.readStream.schema(whole.schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    return run_job(spark, runner, Job.prepare(topology, JobInputs(frames=frames_of(cases, whole))), directory)


def run_job(spark: SparkSession, runner: str, job: Job, directory: Path) -> dict[str, Records]:
    """Return a job's results by topic, run as ``stream`` (with its checkpoint in ``directory``) or ``batch``."""
    collected = Collected()
    if runner == "batch":
        collected.keep(bounded_results(job, spark))
    else:
        checkpoint = str(directory / "checkpoint")
        query = start(job, collected, spark, checkpoint=checkpoint, available_now=True)  # type: ignore[arg-type]
        query.awaitTermination()
        assert query.exception() is None
    return collected.by_topic(job)


def files_of(cases: list[Case], directory: Path, chance: random.Random) -> None:
    """Write a file for each micro-batch, with a part of each script."""
    parts: list[list[dict[str, Any]]] = [[] for _ in range(MICRO_BATCHES)]
    for case in cases:
        cuts = sorted(chance.choices(range(len(case["inputs"]) + 1), k=MICRO_BATCHES - 1))
        offsets: dict[str, int] = {}
        for sequence, record in enumerate(case["inputs"]):
            types = case["topology"]["input_topics"][record["topic"]]
            offset = offsets[record["topic"]] = offsets.get(record["topic"], -1) + 1
            row = {
                "topic": f"{case['name']}.{record['topic']}",
                f"key_{types['key_type']}": record["key"],
                f"value_{types['value_type']}": record["value"],
                "__timestamp": record["timestamp_ms"] * 1000,
                "__partition": record.get("partition"),
                "__offset": offset,
                "__sequence": sequence,
            }
            parts[sum(cut <= sequence for cut in cuts)].append(dict.fromkeys(COLUMNS.names) | row)
    directory.mkdir(parents=True)
    for number, rows in enumerate(parts):
        path = directory / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, COLUMNS), path)
        # Spark reads files in the order of their modification times.
        os.utime(path, (1000 + number, 1000 + number))


def frames_of(cases: list[Case], whole: DataFrame) -> dict[str, DataFrame]:
    """Return frames of records by topic."""
    return {
        f"{case['name']}.{topic}": whole.where(whole["topic"] == f"{case['name']}.{topic}").selectExpr(
            f"key_{types['key_type']} AS key",
            f"value_{types['value_type']} AS value",
            "__timestamp",
            "__offset",
            "__sequence",
            *(["__partition"] if "partition" in case["inputs"][0] else []),
        )
        for case in cases
        for topic, types in case["topology"]["input_topics"].items()
    }


class Collected:
    """Sinks that keep their records."""

    def __init__(self) -> None:
        self.payloads: dict[str, list[bytes]] = {}

    def write(self, results: Results, query_id: str | None, batch_id: int) -> None:
        self.keep(results.frame)

    def keep(self, results: DataFrame) -> None:
        for row in results.where(results["stage"] == OUT).select("target", "payload").collect():
            self.payloads.setdefault(row["target"], []).append(row["payload"])

    def by_topic(self, job: Job) -> dict[str, Records]:
        """Return key, value and time of records by topic, in order."""
        found: dict[str, Records] = {}
        for node in job.plan.outputs:
            records = found.setdefault(node.topic, [])  # type: ignore[union-attr]
            for payload in self.payloads.get(node.name, []):
                batch = Batch.of_frame(job.plan.layouts[node.name], unpack_frame(payload))
                records += zip(batch.keys, batch.values, batch.times, strict=True)
        return found
