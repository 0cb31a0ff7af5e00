"""Tests of random topologies.

Batches of any size give the results of single records. These tests use the test driver;
``integration/test_streams_generated.py`` has the same tests on Spark.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace_streams import StreamsBuilder, TestRecord, TopologyTestDriver

from .generated_topologies import KEYS, TOPICS, VALUES, settled, topology_at_random

records = st.builds(
    TestRecord, st.sampled_from(TOPICS), st.sampled_from(KEYS), st.sampled_from(VALUES), st.integers(0, 60)
)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data(), script=st.lists(records, min_size=2, max_size=25), cuts=st.sets(st.integers(1, 24), max_size=5))
def test_batches_of_any_size_agree(data: st.DataObject, script: list[TestRecord], cuts: set[int]) -> None:
    builder = StreamsBuilder()
    topology_at_random(builder, lambda options: data.draw(st.sampled_from(options)))
    topology = builder.build()
    edges = sorted({0, len(script), *(cut for cut in cuts if cut < len(script))})
    one_by_one = results(topology, [[record] for record in script])
    assert results(topology, [script[start:end] for start, end in pairwise(edges)]) == one_by_one


def results(topology: Any, batches: list[list[TestRecord]]) -> dict[str, Any]:
    driver = TopologyTestDriver(topology)
    for batch in batches:
        driver.pipe_records(batch)
    topics = [node.topic for node in driver.plan.outputs]  # type: ignore[union-attr]
    return {
        topic: settled(topic, [(each.key, each.value, each.timestamp) for each in driver.read_records(topic)])
        for topic in topics
    }
