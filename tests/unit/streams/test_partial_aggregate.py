"""Tests of aggregations in two parts against single records.

Records may be late.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams import StreamsBuilder, TopologyTestDriver, count, hopping, tumbling
from millrace_streams import max as max_
from millrace_streams import min as min_
from millrace_streams import sum as sum_
from millrace_streams.compiler import Plan
from millrace_streams.graph import PartialAggregateNode
from millrace_streams.steps import partial_aggregate
from millrace_streams.windows import TimeWindows

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
AGGREGATES = {"records": count(), "some": count("n"), "total": sum_("n"), "least": min_("x"), "most": max_("n")}
WINDOWS = {"tumbling": tumbling(10, grace=4), "hopping": hopping(10, advance=4, grace=3), "none": None}

Batches = list[list[dict[str, Any]]]
records = st.fixed_dictionaries(
    {
        "word": st.sampled_from(["a", "b", None]),
        "n": st.one_of(st.none(), st.integers(-5, 5)),
        "x": st.one_of(st.none(), st.floats(-3, 3)),
        "__timestamp": st.integers(0, 60),
    }
)


def driver_of(emit: str, window: TimeWindows | None) -> TopologyTestDriver:
    builder = StreamsBuilder()
    groups = builder.stream("words", schema=SCHEMA, key_columns=["word"]).group_by_key()
    table = (groups if window is None else groups.windowed_by(window)).aggregate(**AGGREGATES, store="s", emit=emit)
    table.to_delta("out")
    return TopologyTestDriver(builder.build())


def is_split(plan: Plan) -> bool:
    return any(isinstance(operator.node, PartialAggregateNode) for operator in plan.readers[0].operators)


def newest_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last row of each key and window, in their order."""
    last = {(row["word"], row.get("window_start")): place for place, row in enumerate(rows)}
    return [rows[place] for place in sorted(last.values())]


@settings(max_examples=25)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("sample_rows", [1, 32_768], ids=["left-as-they-are", "folded"])
@given(batches=st.lists(st.lists(records, max_size=12), max_size=5))
def test_results_state_and_dropped_records_are_those_of_single_records(
    name: str, sample_rows: int, batches: Batches
) -> None:
    parts, whole = driver_of("last", WINDOWS[name]), driver_of("every", WINDOWS[name])
    assert is_split(parts.plan)
    assert not is_split(whole.plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_aggregate, "_SAMPLE_ROWS", sample_rows)
        for batch in batches:
            parts.pipe("words", batch)
            whole.pipe("words", batch)
            assert parts.read("out") == newest_of(whole.read("out"))
    assert parts.dropped_records == whole.dropped_records
    assert {tuple(row) for row in parts.store("s").rows()} == {tuple(row) for row in whole.store("s").rows()}


def plan_of(build: Any) -> Plan:
    builder = StreamsBuilder()
    build(builder.stream("words", schema=SCHEMA, key_columns=["word"]))
    return TopologyTestDriver(builder.build()).plan


def test_only_aggregations_with_equal_results_are_split() -> None:
    assert is_split(plan_of(lambda words: words.group_by_key().count().to_delta("t")))
    # Reasons against two parts: every update is needed, doubles are added in order, records are repartitioned, or a
    # function may fail.
    assert not is_split(plan_of(lambda words: words.group_by_key().count().to_stream().to("t")))
    assert not is_split(plan_of(lambda words: words.group_by_key().aggregate(x=sum_("x"), store="s").to_delta("t")))
    assert not is_split(plan_of(lambda words: words.group_by("n").count().to_delta("t")))
    assert not is_split(
        plan_of(lambda words: words.group_by_key().count(emit="last").map_values(str, value="string").to_delta("t"))
    )
    assert not is_split(plan_of(lambda words: [words.group_by_key().count().to_delta("t"), words.to("u")]))
