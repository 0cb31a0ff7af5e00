"""Tests of bare values whose Python type differs from their column's."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from millrace_streams import StreamsBuilder, TestRecord, Topology, TopologyTestDriver, compile_topology
from millrace_streams.compiler import stages_of
from millrace_streams.runners.worker import WorkerStage
from millrace_streams.steps.batch import Batch

from .test_generated_partitions import read
from .test_worker import Variable, called

TYPES = {"key": "string", "value": "long"}
SCRIPT = [TestRecord("y", "b", 7, 0), TestRecord("x", "a", 1, 1), TestRecord("y", "b", 8, 2)]


def linked(function: Any, value: str) -> Topology:
    """Join a table of a function's results with another by a foreign key."""
    builder = StreamsBuilder()
    x, y = (builder.table(topic, **TYPES) for topic in "xy")
    mapped = x.map_values(function, value=value)
    mapped.join(y, lambda one, other: f"{other}", value="string", foreign_key=lambda _: "b").to_stream().to("out")
    return builder.build()


def in_workers(topology: Topology, batches: list[list[TestRecord]]) -> list[Any]:
    cut, states, found, offset = stages_of(compile_topology(topology, {})), defaultdict(Variable), [], 0  # type: ignore[var-annotated]
    for batch in batches:
        rows = read(cut, batch, offset, 1)
        offset += len(batch)
        for stage in cut.stages:
            worker = WorkerStage.of(cut, stage, 1)
            rows = [row for bucket in {row.bucket for row in rows} for row in called(worker, bucket, rows, states)]
        for row in rows:
            if row.target:
                found += Batch.of_frame(cut.plan.layouts[row.target], row.frame).values
    return found


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("function", "value"),
    [(lambda number: number * 2, "double"), (lambda number: number > 0, "long"), (lambda number: (number, 2), "json")],
    ids=["int in a double", "bool in a long", "tuple in JSON"],
)
def test_a_foreign_key_join_finds_rows_by_the_values_of_their_columns(function: Any, value: str, size: int) -> None:
    topology = linked(function, value)
    batches = [SCRIPT[first : first + size] for first in range(0, len(SCRIPT), size)]
    assert in_workers(topology, batches) == ["7", "8"]
    driver = TopologyTestDriver(topology)
    for batch in batches:
        driver.pipe_records(batch)
    assert [record.value for record in driver.read_records("out")] == ["7", "8"]
