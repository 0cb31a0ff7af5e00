"""What Kafka Streams itself puts out for scripted inputs, record for record, on both Spark runners.

The cases are those of ``conformance/test_streams.py``. They run many at a time, as one topology: it has each case's
nodes, which know nothing of one another. A stream takes each script in several micro-batches, cut at random; the order
of records across topics, which a script has and Spark has not, is given by the column ``__sequence``.

In ``make test`` the cases take turns at the two runners; ``make soak`` (``SPARK_CASE_RUNNERS=2``) runs each on both.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace_streams import StreamsBuilder, Topology
from millrace_streams.runners.batch import bounded_results
from millrace_streams.runners.output import Counts
from millrace_streams.runners.packing import OUT
from millrace_streams.runners.source import Inputs, Job
from millrace_streams.runners.stream import start
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.chunks import unpack_frame

from ..conformance import stream_cases
from ..conformance.stream_cases import DRIVER_ALONE, QUIRKS, Script, expected_outputs, is_quirk, load_cases

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 39
RUNNERS = ("stream", "batch")
ON_BOTH = int(os.environ.get("SPARK_CASE_RUNNERS", "1")) > 1
"""Whether each case runs on both. Otherwise they take turns, which takes half the time."""
MICRO_BATCHES = 3
CASES_AT_ONCE = 64
SETTINGS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}
"""To make code for each of a hundred sources takes longer than to read their few records without."""
ARROW = {"string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "double": pa.float64()}
COLUMNS = pa.schema(
    [
        ("topic", pa.string()),
        *((f"{part}_{name}", data_type) for part in ("key", "value") for name, data_type in ARROW.items()),
        ("__timestamp", pa.timestamp("us", tz="UTC")),
        ("__offset", pa.int64()),
        ("__sequence", pa.int64()),
    ]
)


class SparkScript(Script):
    """A script whose functions run in workers: what they were shown stays there."""

    def peek(self, call: str, handle: Any, a: dict[str, Any]) -> Any:
        return handle.peek(lambda key, value: None)

    def foreach(self, call: str, handle: Any, a: dict[str, Any]) -> None:
        handle.for_each(lambda key, value: None)


def topology_of(cases: list[dict[str, Any]]) -> Topology:
    builder = StreamsBuilder()
    for case in cases:
        SparkScript(case, builder, f"{case['name']}.")
    return builder.build()


def runners_of(number: int) -> tuple[str, ...]:
    """The runners that a case, by its number, is run on."""
    return RUNNERS if ON_BOTH else (RUNNERS[number % 2],)


def bundles(runner: str) -> Iterator[list[dict[str, Any]]]:
    """Cases that may run together: none of their processors' stores has the name of another's."""
    cases = [case for number, case in enumerate(load_cases()) if runner in runners_of(number)]
    left = [case for case in cases if case["name"] not in DRIVER_ALONE]
    while left:
        names: set[str] = set()
        bundle = []
        for case in left:
            own = {call["args"]["store"] for call in case["topology"]["calls"] if call["op"] == "addStateStore"}
            if len(bundle) < CASES_AT_ONCE and not own & names:
                bundle.append(case)
                names |= own
        left = [case for case in left if case not in bundle]
        yield bundle


def files_of(cases: list[dict[str, Any]], directory: Path) -> None:
    """A file for each micro-batch, with a part of each script."""
    chance = random.Random(SEED)
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
                "__offset": offset,
                "__sequence": sequence,
            }
            parts[sum(cut <= sequence for cut in cuts)].append(dict.fromkeys(COLUMNS.names) | row)
    directory.mkdir(parents=True)
    for number, rows in enumerate(parts):
        path = directory / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, COLUMNS), path)
        # Spark takes files in the order of their times.
        os.utime(path, (1000 + number, 1000 + number))


def frames_of(cases: list[dict[str, Any]], whole: DataFrame) -> dict[str, DataFrame]:
    """The topics' records by topic."""
    return {
        f"{case['name']}.{topic}": whole.where(whole["topic"] == f"{case['name']}.{topic}").selectExpr(
            f"key_{types['key_type']} AS key",
            f"value_{types['value_type']} AS value",
            "__timestamp",
            "__offset",
            "__sequence",
        )
        for case in cases
        for topic, types in case["topology"]["input_topics"].items()
    }


class Collected:
    """Sinks that keep what they are given."""

    def __init__(self) -> None:
        self.payloads: dict[str, list[bytes]] = {}

    def write(self, results: DataFrame, counts: Counts, query_id: str | None, batch_id: int) -> None:
        for row in results.where(results["stage"] == OUT).select("target", "payload").collect():
            self.payloads.setdefault(row["target"], []).append(row["payload"])

    def by_topic(self, job: Job) -> dict[str, list[tuple[Any, Any, int]]]:
        """Key, value and time of records, by topic, in order."""
        found: dict[str, list[tuple[Any, Any, int]]] = {}
        for node in job.plan.outputs:
            records = found.setdefault(node.topic, [])  # type: ignore[union-attr]
            for payload in self.payloads.get(node.name, []):
                batch = Batch.of_frame(job.plan.layouts[node.name], unpack_frame(payload))
                records += zip(batch.keys, batch.values, batch.times, strict=True)
        return found


class Outcomes:
    """What the cases give on Spark, found when it is first asked for."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory

    @cached_property
    def stream(self) -> dict[str, list[tuple[Any, Any, int]]]:
        return self._all("stream")

    @cached_property
    def batch(self) -> dict[str, list[tuple[Any, Any, int]]]:
        return self._all("batch")

    def _all(self, runner: str) -> dict[str, list[tuple[Any, Any, int]]]:
        found = {}
        for number, cases in enumerate(bundles(runner)):
            found |= self._outputs(runner, cases, self._directory / runner / str(number))
        return found

    def _outputs(
        self, runner: str, cases: list[dict[str, Any]], directory: Path
    ) -> dict[str, list[tuple[Any, Any, int]]]:
        source = directory / "in"
        files_of(cases, source)
        whole = self._spark.read.parquet(str(source))
        if runner == "stream":
            whole = self._spark.readStream.schema(whole.schema).option("maxFilesPerTrigger", 1).parquet(str(source))
        job = Job.prepare(topology_of(cases), Inputs(frames=frames_of(cases, whole)))
        collected = Collected()
        if runner == "batch":
            collected.write(bounded_results(job, self._spark), Counts(records=0, rows={}, dropped=0), None, 0)
        else:
            checkpoint = str(directory / "checkpoint")
            query = start(job, collected, self._spark, checkpoint=checkpoint, available_now=True)  # type: ignore[arg-type]
            query.awaitTermination()
            assert query.exception() is None
        return collected.by_topic(job)


@pytest.fixture(scope="module")
def outcomes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    from pyspark import cloudpickle

    # Workers cannot import it: what it defines travels by value.
    cloudpickle.register_pickle_by_value(stream_cases)
    before = {name: spark.conf.get(name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield Outcomes(spark, tmp_path_factory.mktemp("conformance"))
    for name, found in before.items():
        spark.conf.set(name, found)


def marked_cases() -> Iterator[Any]:
    for number, case in enumerate(load_cases()):
        marks = []
        if case["name"] in DRIVER_ALONE:
            marks.append(pytest.mark.skip(reason=DRIVER_ALONE[case["name"]]))
        elif is_quirk(case):
            marks.append(pytest.mark.xfail(reason=QUIRKS[case["name"]], strict=True))
        for runner in runners_of(number):
            yield pytest.param(case, runner, id=f"{runner}-{case['category']}-{case['name']}", marks=marks)


# The first case of a runner waits for all of them.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("case", "runner"), list(marked_cases()))
def test_gives_what_kafka_streams_gives(case: dict[str, Any], runner: str, outcomes: Outcomes) -> None:
    found = getattr(outcomes, runner)
    for topic, expected in expected_outputs(case).items():
        assert found[f"{case['name']}.{topic}"] == expected, f"cut with seed {SEED}"
