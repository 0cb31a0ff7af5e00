"""Tests of Kafka Streams' own scripted cases on both Spark runners.

The results are compared record for record. The cases are those of ``conformance/test_streams.py``. Many of them run as
one topology, which has the independent nodes of each case. A stream takes each script in several micro-batches, cut at
random. A script has an order of records across topics, and Spark has none; the column ``__sequence`` gives that order.

In ``make test`` the cases alternate between the two runners. ``make soak`` (``SPARK_CASE_RUNNERS=2``) runs each case on
both.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millrace_streams import StreamsBuilder, Topology

from ..conformance import stream_cases
from ..conformance.stream_cases import (
    DRIVER_ALONE,
    QUIRKS,
    SPARK_RUNNERS,
    Script,
    expected_outputs,
    is_quirk,
    load_cases,
    turn_of,
)
from .scripted_topologies import many_sources, outputs_on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 39
ON_BOTH = int(os.environ.get("SPARK_CASE_RUNNERS", "1")) > 1
"""True if each case runs on both runners. Otherwise the cases alternate, which takes half the time."""
CASES_AT_ONCE = 64


class SparkScript(Script):
    """A script whose functions run in workers. Their calls are recorded there and not here."""

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
    """Return the runners of a case by its number."""
    return SPARK_RUNNERS if ON_BOTH else (turn_of(number),)


def bundles(runner: str, chosen: set[str]) -> Iterator[list[dict[str, Any]]]:
    """Return cases that may run together, because their processors' stores have different names."""
    cases = [case for number, case in enumerate(load_cases()) if runner in runners_of(number)]
    left = [case for case in cases if case["name"] not in DRIVER_ALONE and case["name"] in chosen]
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


class Outcomes:
    """The results of the chosen cases (``-k``) on Spark.

    The first access computes them.
    """

    def __init__(self, spark: SparkSession, directory: Path, chosen: set[str]) -> None:
        self._chosen = chosen
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
        for number, cases in enumerate(bundles(runner, self._chosen)):
            directory = self._directory / runner / str(number)
            found |= outputs_on_spark(self._spark, runner, topology_of(cases), cases, directory, random.Random(SEED))
        return found


@pytest.fixture(scope="module")
def outcomes(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Outcomes]:
    from pyspark import cloudpickle

    # Workers cannot import this module, so its definitions are pickled by value.
    cloudpickle.register_pickle_by_value(stream_cases)
    tests = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    chosen = {item.callspec.params["case"]["name"] for item in tests}
    with many_sources(spark):
        yield Outcomes(spark, tmp_path_factory.mktemp("conformance"), chosen)


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
@pytest.mark.parametrize(("case", "runner"), list(marked_cases()))
def test_results_on_spark_are_those_of_kafka_streams(case: dict[str, Any], runner: str, outcomes: Outcomes) -> None:
    found = getattr(outcomes, runner)
    for topic, expected in expected_outputs(case).items():
        assert found[f"{case['name']}.{topic}"] == expected, f"cut with seed {SEED}"
