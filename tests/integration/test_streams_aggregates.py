"""Tests of every aggregate by every kind of window on Spark.

They run as stream and as batch. The results follow the documented rules.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace_streams.runners.source import Job, JobInputs

from ..unit.streams import aggregate_cases as cases
from .scripted_topologies import many_sources, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

BATCHES = 2
COLUMNS = pa.schema([*cases.SCHEMA, ("__timestamp", pa.timestamp("us", tz="UTC")), ("__offset", pa.int64())])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file for each micro-batch."""
    directory = tmp_path_factory.mktemp("cases")
    rows = [
        {**cases.row_of(record), "__timestamp": record.time_ms * 1000, "__offset": offset}
        for offset, record in enumerate(cases.records())
    ]
    half = len(rows) // BATCHES
    for number, part in enumerate((rows[:half], rows[half:])):
        path = directory / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(part, COLUMNS), path)
        os.utime(path, (1000 + number, 1000 + number))
    return directory


# Sets of aggregates that keep their results in different forms: as accumulators, and as results.
SETS = ("all", "no means")


@pytest.fixture(scope="module", params=SETS)
def chosen(request: pytest.FixtureRequest) -> str:
    """Return the set of aggregates."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def outputs(spark: SparkSession, source: Path, chosen: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of each runner by topic."""
    found = {}
    with many_sources(spark):
        for runner in ("stream", "batch"):
            whole = spark.read.parquet(str(source))
            if runner == "stream":
                whole = spark.readStream.schema(whole.schema).option("maxFilesPerTrigger", 1).parquet(str(source))
            job = Job.prepare(cases.topology(chosen), JobInputs(frames={cases.TOPIC: whole}))
            found[runner] = run_job(spark, runner, job, tmp_path_factory.mktemp(runner))
    return found


@pytest.mark.parametrize("runner", ["stream", "batch"])
@pytest.mark.parametrize("output", cases.OUTPUTS)
def test_aggregates_are_those_of_the_documented_rules(
    output: str, runner: str, chosen: str, outputs: dict[str, Any]
) -> None:
    found = list(cases.rows_of((key, value) for key, value, _ in outputs[runner][output]))
    assert found
    assert cases.settled(output, found) == cases.expected(output, chosen)
