"""Tests of records whose payload is JSON's ``null``.

Such records have no value (or no key) for any operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from millrace_streams import StreamsBuilder, compile_topology, sliding
from millrace_streams.compiler import stages_of
from millrace_streams.runners.packed_rows import from_batch
from millrace_streams.runners.worker import SourceRun, WorkerStage
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.reader import Reader

from .test_worker import Variable, called

TYPES = {"key": "json", "value": "json"}


def staged(build: Callable[[Any], Any], records: list[tuple[bytes, bytes | None]]) -> list[tuple[Any, Any]]:
    """Return the results of records that a worker reads as bytes."""
    builder = StreamsBuilder()
    build(builder.stream("x", **TYPES)).to("out")
    cut = stages_of(compile_topology(builder.build(), {}))
    [reader], [prologue], [sink] = cut.plan.readers, cut.prologues, cut.plan.outputs
    run = SourceRun(
        Reader(reader.source, reader.layout, reader.operators), WorkerStage.of(cut, prologue, 1), 0, defaultdict(int)
    )
    places = pa.array(range(len(records)), pa.int64())
    columns = {
        "key": pa.array([key for key, _ in records], pa.binary()),
        "value": pa.array([value for _, value in records], pa.binary()),
        "__partition": pa.array([0] * len(records), pa.int32()),
        "__offset": places,
        "__timestamp": places.cast(pa.timestamp("us", tz="UTC")),
    }
    rows = [row for batch in run(iter([pa.RecordBatch.from_pydict(columns)])) for row in from_batch(batch)]
    states: Any = defaultdict(Variable)
    for stage in cut.stages:
        rows = called(WorkerStage.of(cut, stage, 1), 0, rows, states)
    found = [Batch.of_frame(cut.plan.layouts[sink.name], row.frame) for row in rows if row.target]
    return [pair for batch in found for pair in zip(batch.keys, batch.values, strict=True)]


def add(one: Any, other: Any) -> Any:
    return {"n": one["n"] + other["n"]}


@pytest.mark.parametrize("null", [b"null", b" null\r\n", None])
@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda x: x.group_by_key().reduce(add).to_stream(), [("a", {"n": 1}), ("a", {"n": 3})]),
        (lambda x: x.group_by_key().count().to_stream(), [("a", 1), ("a", 2)]),
        (lambda x: x.to_table().to_stream(), [("a", {"n": 1}), ("a", None), ("a", {"n": 2})]),
        (lambda x: x.join(x.to_table(), lambda one, row: row), [("a", {"n": 1}), ("a", {"n": 2})]),
        (
            lambda x: x.group_by_key().windowed_by(sliding(1)).reduce(add).to_stream(lambda key, row: key.key, key=str),
            [("a", {"n": 1}), ("a", {"n": 3})],
        ),
    ],
    ids=["reduce", "count", "table", "join", "sliding"],
)
def test_a_json_null_is_no_value(build: Callable[[Any], Any], expected: list[Any], null: bytes | None) -> None:
    assert staged(build, [(b'"a"', b'{"n":1}'), (b'"a"', null), (b'"a"', b'{"n":2}')]) == expected


def test_a_json_null_is_no_key() -> None:
    found = staged(lambda x: x.group_by_key().count().to_stream(), [(b"null", b"1"), (b"5", b"1")])
    assert found == [(5, 1)]
