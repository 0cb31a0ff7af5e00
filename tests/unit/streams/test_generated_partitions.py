"""Tests of random topologies over topics of several partitions.

The updates of each key are the same as with one partition. Records go through the workers' stages as on Spark, stage by
stage and micro-batch by micro-batch. A sequence column gives their order. Operators that depend on stream time are
excluded, because each partition has its own.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace_streams import StreamsBuilder, TestRecord, Topology, TopologyTestDriver, compile_topology
from millrace_streams.compiler import Stages, stages_of
from millrace_streams.compiler.repartitions import decided
from millrace_streams.runners.packed_rows import OUT, Packed, from_batch
from millrace_streams.runners.worker import SourceRun, WorkerStage
from millrace_streams.serdes import LONG, STRING
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.reader import Reader

from .generated_topologies import KEYS, TOPICS, VALUES, topology_at_random
from .test_worker import Variable, called

records = st.builds(
    TestRecord, st.sampled_from(TOPICS), st.sampled_from(KEYS), st.sampled_from(VALUES), st.integers(0, 60)
)
Updates = dict[str, dict[Any, list[Any]]]
"""Values and times by topic and key."""


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    partitions=st.sampled_from([2, 3]),
    data=st.data(),
    script=st.lists(records, min_size=2, max_size=25),
    cuts=st.sets(st.integers(1, 24), max_size=3),
)
def test_keys_have_the_updates_that_they_have_with_one_partition(
    partitions: int, data: st.DataObject, script: list[TestRecord], cuts: set[int]
) -> None:
    builder = StreamsBuilder()
    topology_at_random(builder, lambda options: data.draw(st.sampled_from(options)), timeless=True)
    topology = builder.build()
    # A micro-batch reads global tables first, so the first batch has them.
    script = sorted(script, key=lambda record: record.topic != "global")
    first = sum(record.topic == "global" for record in script)
    edges = sorted({0, first, len(script), *(cut for cut in cuts if first < cut < len(script))})
    batches = [script[start:end] for start, end in pairwise(edges)]
    assert updates_in_workers(topology, batches, partitions) == updates_of_driver(topology, script)


def updates_of_driver(topology: Topology, script: list[TestRecord]) -> Updates:
    driver = TopologyTestDriver(topology)
    driver.pipe_records(script)
    found: Updates = {}
    for sink in driver.plan.outputs:
        by_key = found.setdefault(sink.topic, defaultdict(list))  # type: ignore[union-attr]
        for record in driver.read_records(sink.topic):  # type: ignore[union-attr]
            by_key[record.key].append((record.value, record.timestamp))
    return comparable(stages_of(driver.plan), found)


def updates_in_workers(topology: Topology, batches: list[list[TestRecord]], partitions: int) -> Updates:
    cut = stages_of(compile_topology(topology, {}))
    states: Any = defaultdict(Variable)
    sinks = {node.name: node.topic for node in cut.plan.outputs}  # type: ignore[union-attr]
    found: Updates = {topic: defaultdict(list) for topic in sinks.values()}
    offset = 0
    for batch in batches:
        rows = read(cut, batch, offset, partitions)
        offset += len(batch)
        for stage in cut.stages:
            worker_stage = WorkerStage.of(cut, stage, partitions)
            rows = [
                row for bucket in {row.bucket for row in rows} for row in called(worker_stage, bucket, rows, states)
            ]
        for row in rows:
            assert row.stage == OUT
            if row.target:
                results = Batch.of_frame(cut.plan.layouts[row.target], row.frame)
                for key, value, time_ms in zip(results.keys, results.values, results.times, strict=True):
                    found[sinks[row.target]][key].append((value, time_ms))
    return comparable(cut, found)


def comparable(cut: Stages, found: Updates) -> Updates:
    """Sort rows that have no defined order. Rows of one key are in order only if one bucket writes them.

    Behind two repartitions the results of one record come from several buckets in an order that differs from one
    partition. Their final state is the same.
    """
    ordered = {node.topic for node in cut.plan.outputs if decided(cut.plan.layouts[node.parents[0]])}  # type: ignore[union-attr]
    late = {node.topic for stage in cut.stages[2:] for node in stage.outputs}  # type: ignore[union-attr]
    return {
        topic: {
            key: _in_order(topic, rows, topic in ordered and key is not None, topic in late)
            for key, rows in each.items()
        }
        for topic, each in found.items()
    }


def _in_order(topic: str, rows: list[Any], ordered: bool, late: bool) -> list[Any]:
    if topic.endswith("last"):
        return rows[-1:]
    if late:
        return rows[-1:] if ordered else []
    return rows if ordered else sorted(rows, key=repr)


def read(cut: Stages, script: list[TestRecord], offset: int, partitions: int) -> list[Packed]:
    """Return records as they are read, those of a key in one partition, and those without a key in any."""
    found = []
    for reader, prologue in zip(cut.plan.readers, cut.prologues, strict=True):
        topic, broadcast = reader.source.topic, reader.source.broadcast
        everywhere = {send.stage: partitions for send in prologue.sends if send.way == "all"}
        run = SourceRun(
            Reader(reader.source, reader.layout, reader.operators),
            WorkerStage.of(cut, prologue, partitions),
            0,
            everywhere,
        )
        for partition in range(partitions):
            own = [
                (place, record)
                for place, record in enumerate(script, start=offset)
                if record.topic == topic and partition == _partition(place, record.key, 1 if broadcast else partitions)
            ]
            found += [row for batch in run(iter([decoded(own, partition)])) for row in from_batch(batch)]
    return found


def _partition(place: int, key: Any, partitions: int) -> int:
    return (place if key is None else KEYS.index(key)) % partitions


def decoded(placed: list[tuple[int, TestRecord]], partition: int) -> pa.RecordBatch:
    places = pa.array([place for place, _ in placed], pa.int64())
    keys = [None if record.key is None else STRING.serialize(record.key) for _, record in placed]
    values = [None if record.value is None else LONG.serialize(record.value) for _, record in placed]
    times = [record.timestamp_ms * 1000 for _, record in placed]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "__partition": pa.array([partition] * len(placed), pa.int32()),
            "__offset": places,
            "__sequence": places,
            "__timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
        }
    )
