"""Tests of ``emit="last"``.

Each batch gives the last of its updates, for every aggregation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams import (
    StreamsBuilder,
    TestRecord,
    TopologyError,
    TopologyTestDriver,
    count,
    explain,
    hopping,
    sessions,
    sliding,
    tumbling,
    unlimited,
)

TYPES = {"key": "string", "value": "long"}

records = st.builds(
    TestRecord,
    st.sampled_from(["x", "y"]),
    st.sampled_from(["a", "b", None]),
    st.none() | st.integers(0, 9),
    st.integers(0, 40),
)


def add(one: int, value: int | None) -> int | None:
    total = (one or 0) + (value or 0)
    return None if total % 7 == 6 else total


def folded(key: str, value: int | None, aggregate: int) -> int | None:
    return add(aggregate, value)


def merged(key: str, one: int, other: int) -> int:
    return one + other


def zero() -> int:
    return 0


def cogrouped(x: Any, y: Any) -> Any:
    return x.group_by_key().cogroup(folded).cogroup(y.group_by_key(), folded)


def groups(x: Any) -> Any:
    return x.to_table().group_by(lambda key, value: (f"{value % 3}", value))


KINDS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "named": lambda x, y, emit: x.group_by_key().aggregate(n=count(), emit=emit),
    "count in hops": lambda x, y, emit: x.group_by_key().windowed_by(hopping(10, advance=5, grace=9)).count(emit=emit),
    "reduce": lambda x, y, emit: x.group_by_key().reduce(add, emit=emit),
    "aggregate": lambda x, y, emit: x.group_by_key().aggregate(zero, folded, value="long", emit=emit),
    "windows": lambda x, y, emit: x.group_by_key().windowed_by(tumbling(10, grace=9)).reduce(add, emit=emit),
    "unlimited": lambda x, y, emit: x.group_by_key().windowed_by(unlimited()).reduce(add, emit=emit),
    "sliding": lambda x, y, emit: x.group_by_key().windowed_by(sliding(6, grace=9)).count(emit=emit),
    "sessions": lambda x, y, emit: x.group_by_key().windowed_by(sessions(4, grace=9)).count(emit=emit),
    "sessions of a fold": lambda x, y, emit: (
        x.group_by_key().windowed_by(sessions(4, grace=9)).aggregate(zero, folded, merged, value="long", emit=emit)
    ),
    "cogroup": lambda x, y, emit: cogrouped(x, y).aggregate(zero, value="long", emit=emit),
    "cogroup in windows": lambda x, y, emit: (
        cogrouped(x, y).windowed_by(tumbling(10, grace=9)).aggregate(zero, value="long", emit=emit)
    ),
    "cogroup in sessions": lambda x, y, emit: (
        cogrouped(x, y).windowed_by(sessions(4, grace=9)).aggregate(zero, merged, value="long", emit=emit)
    ),
    "count of a table": lambda x, y, emit: groups(x).count(emit=emit),
    "reduce of a table": lambda x, y, emit: groups(x).reduce(add, lambda one, value: one - value, emit=emit),
    "aggregate of a table": lambda x, y, emit: groups(x).aggregate(
        zero, folded, lambda key, value, one: one - value, value="long", emit=emit
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(script=st.lists(records, min_size=1, max_size=20), cuts=st.sets(st.integers(1, 19), max_size=2))
def test_each_batch_gives_the_last_update_of_each_key(kind: str, script: list[TestRecord], cuts: set[int]) -> None:
    builder = StreamsBuilder()
    x, y = (builder.stream(topic, **TYPES) for topic in "xy")
    for emit in ("every", "last"):
        KINDS[kind](x, y, emit).to_delta(emit)
    driver = TopologyTestDriver(builder.build())
    edges = sorted({0, len(script), *(cut for cut in cuts if cut < len(script))})
    for start, end in pairwise(edges):
        driver.pipe_records(script[start:end])
        every = list(enumerate(driver.read_records("every")))
        last = sorted({record.key: (place, record) for place, record in every}.values())
        assert driver.read_records("last") == [record for _, record in last]


def test_an_aggregation_that_must_emit_replaced_values_emits_every_update() -> None:
    builder = StreamsBuilder()
    sums = builder.stream("x", **TYPES).group_by_key().reduce(add, emit="last")
    sums.to_delta("sums")
    sums.group_by(lambda key, value: (f"{value}", value)).count().to_delta("counts")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("x", "a", 1, 0), TestRecord("x", "a", 1, 1)])
    assert [record.value for record in driver.read_records("sums")] == [1, 2]
    assert "emit last" not in explain(driver.plan)


def test_emit_is_explained_and_refused_where_it_has_no_meaning() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("x", **TYPES).group_by_key()
    grouped.reduce(add, emit="last").to_delta("sums")
    assert "emit last" in explain(TopologyTestDriver(builder.build()).plan)
    with pytest.raises(TopologyError, match="emit='first': must be 'every' or 'last'"):
        grouped.reduce(add, emit="first")
    closing = grouped.windowed_by(tumbling(10)).emit_strategy("on_window_close")
    with pytest.raises(TopologyError, match="emit='last': a window gives one result when it closes"):
        closing.count(emit="last")
