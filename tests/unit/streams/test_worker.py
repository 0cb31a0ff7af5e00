"""What runs in Spark's workers, run here: packed rows in, packed outputs out, state in lists of chunks as Spark has.

The stream's processor and the bounded run must come to what the test driver gives, whatever the micro-batches are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams import (
    StreamsBuilder,
    Suppressed,
    TestRecord,
    Topology,
    TopologyTestDriver,
    UserFunctionError,
    compile_topology,
    count,
    key_value_store,
    sessions,
    sliding,
    tumbling,
    within,
)
from millrace_streams.compiler import Plan
from millrace_streams.layout import OPAQUE_SHAPE
from millrace_streams.runners.output import newest_rows
from millrace_streams.runners.packing import Packer
from millrace_streams.runners.stream import PackedTask, state_name
from millrace_streams.runners.worker import BoundedRun, Program
from millrace_streams.serdes import LONG, STRING
from millrace_streams.steps.batch import TOMBSTONE
from millrace_streams.steps.chunks import unpack_frame
from millrace_streams.steps.reader import Reader

TYPES = {"key": "string", "value": "long"}


class Deduplicate:
    """Forwards the first record of each key and value."""

    def init(self, context: Any) -> None:
        self.context, self.seen = context, context.store("seen")

    def process(self, record: Any) -> None:
        if record.key is not None and self.seen.put_if_absent(record.key, record.value) is None:
            self.context.forward(record)


def windows(stream: Any) -> None:
    grouped = stream.group_by_key()
    sums = grouped.windowed_by(sessions(5, grace=20)).reduce(lambda one, other: (one or 0) + (other or 0), store="sums")
    sums.to_delta("sessions")
    counts = grouped.windowed_by(tumbling(10, grace=15)).count(store="counts")
    counts.filter(lambda number: number != 2).to_delta("not two")
    counts.suppress(Suppressed.until_window_closes()).to_stream().to_delta("finals")
    grouped.windowed_by(sliding(7, grace=30)).aggregate(lambda: 0, lambda k, v, a: a + v, value="long").to_delta(
        "sliding"
    )


def tables(stream: Any) -> None:
    table = stream.to_table(store="table")
    table.to_delta("table")
    table.join(stream.group_by_key().aggregate(n=count()), lambda value, row: value * row["n"]).to_delta("joined")
    stream.process(Deduplicate, stores=[key_value_store("seen", **TYPES)]).to_delta("distinct")


def two_topics(stream: Any, other: Any) -> None:
    table = other.to_table(store="table")
    stream.left_join(table, lambda left, right: (left or 0) * 10 + (right or 0)).to_delta("looked up")
    both = lambda left, right: (left or 0) * 100 + (right or 0)  # noqa: E731
    stream.outer_join(other, both, window=within(6, grace=3)).to_delta("pairs")
    stream.merge(other).group_by_key().reduce(lambda one, value: one * 2 + value).to_delta("merged")


records = st.tuples(st.sampled_from(["a", "b", "c", None]), st.none() | st.integers(0, 5), st.integers(0, 60))
scripts = st.lists(st.tuples(st.integers(0, 1), records), min_size=2, max_size=20)
Script = list[tuple[int, tuple[Any, ...]]]
"""Records with the number of their topic."""


def topology(build: Callable[..., None]) -> Topology:
    builder = StreamsBuilder()
    topics = ["in", "other"] if build is two_topics else ["in"]
    build(*(builder.stream(topic, **TYPES) for topic in topics))
    return builder.build()


def packed(plan: Plan, script: Script, first: int) -> list[pa.RecordBatch]:
    """Records of opaque topics as their readers pack them; the sequence column has their order."""
    return [
        row
        for number, _ in enumerate(plan.readers)
        for row in packed_source(
            plan, number, [(first + place, record) for place, (topic, record) in enumerate(script) if topic == number]
        )
    ]


def packed_source(plan: Plan, number: int, placed: list[tuple[int, tuple[Any, ...]]]) -> list[pa.RecordBatch]:
    script = [record for _, record in placed]
    places = pa.array([place for place, _ in placed], pa.int64())
    keys = [None if key is None else STRING.serialize(key) for key, _, _ in script]
    values = [None if value is None else LONG.serialize(value) for _, value, _ in script]
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "__partition": pa.array([3] * len(script), pa.int32()),
            "__offset": places,
            "__sequence": places,
            "__timestamp": pa.array([time * 1000 for _, _, time in script], pa.timestamp("us", tz="UTC")),
        }
    )
    reader = plan.readers[number]
    return list(Packer(Reader(reader.source, reader.layout, reader.operators), number)(iter([batch])))


class ListState:
    """As Spark's: a list of rows of one column."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes]] = []

    def get(self) -> Iterator[tuple[bytes]]:
        return iter(self.rows)

    def put(self, rows: list[tuple[bytes]]) -> None:
        self.rows = list(rows)

    def appendList(self, rows: list[tuple[bytes]]) -> None:  # noqa: N802 - Spark's name
        self.rows += rows


def streamed(plan: Plan, batches: list[Script]) -> dict[str, pl.DataFrame]:
    """What the stream's Delta tables hold after these micro-batches, each in a worker that knows but the state."""
    program = Program.of(plan)
    states = {state_name(spec.name): ListState() for spec in program.stores}
    frames: dict[str, list[pl.DataFrame]] = {}
    first = 0
    for script in batches:
        processor = PackedTask(program)
        processor.init(SimpleNamespace(getListState=lambda name, schema: states[name]))
        rows = [SimpleNamespace(**row) for batch in packed(plan, script, first) for row in batch.to_pylist()]
        first += len(script)
        for output in processor.handleInputRows((3,), iter(rows), None):
            if output.sink:
                frames.setdefault(output.sink, []).append(unpack_frame(output.payload))
    return {sink.table: merged(plan, sink, frames.get(sink.name, [])) for sink in plan.delta_sinks}


def merged(plan: Plan, sink: Any, frames: list[pl.DataFrame]) -> pl.DataFrame:
    """What MERGE and append make of the rows."""
    layout = plan.sink_layout(sink)
    if not frames:
        return pl.DataFrame()
    rows = newest_rows(pl.concat(frames), layout)
    return rows.filter(~pl.col(TOMBSTONE)).drop(TOMBSTONE) if TOMBSTONE in rows.columns else rows


def bounded(plan: Plan, batches: list[Script]) -> dict[str, pl.DataFrame]:
    """What the batch's Delta tables hold."""
    rows, first = [], 0
    for script in batches:
        rows += packed(plan, script, first)
        first += len(script)
    frames: dict[str, list[pl.DataFrame]] = {}
    for batch in BoundedRun(Program.of(plan))(iter(rows)):
        for output in batch.to_pylist():
            if output["sink"]:
                frames.setdefault(output["sink"], []).append(unpack_frame(output["payload"]))
    return {sink.table: pl.concat(frames.get(sink.name, [pl.DataFrame()])) for sink in plan.delta_sinks}


def as_rows(frame: pl.DataFrame) -> list[Any]:
    return sorted(frame.rows(), key=repr)


@pytest.mark.parametrize("build", [windows, tables, two_topics], ids=lambda build: build.__name__)
@settings(max_examples=8)
@given(script=scripts, cuts=st.sets(st.integers(1, 19), max_size=3))
def test_stream_and_batch_come_to_what_the_driver_gives(
    build: Callable[..., None], script: Script, cuts: set[int]
) -> None:
    if build is not two_topics:
        script = [(0, record) for _, record in script]
    edges = sorted({0, len(script), *(cut for cut in cuts if cut < len(script))})
    batches = [script[start:end] for start, end in pairwise(edges)]
    driver = TopologyTestDriver(topology(build))
    driver.pipe_records([TestRecord(["in", "other"][topic], *record) for topic, record in script])
    plan = compile_topology(topology(build), {"in": OPAQUE_SHAPE, "other": OPAQUE_SHAPE})
    for tables_of in (streamed, bounded):
        for name, frame in tables_of(plan, batches).items():
            assert as_rows(frame) == as_rows(driver.table(name)), name


def test_bytes_that_are_not_what_the_serde_says_are_named() -> None:
    plan = compile_topology(topology(tables), {"in": OPAQUE_SHAPE})
    frame = pl.DataFrame({"key": [b"a"], "value": [b"123"], "__offset": [41], "__timestamp": [0]})
    [reader] = plan.readers
    with pytest.raises(
        UserFunctionError, match="the value of the record at offset 41 of in-2 is no long: unpack requires"
    ):
        Reader(reader.source, reader.layout, reader.operators).run(frame, 2)
