"""Tests of every aggregate and window against the documented rules.

They run in the test driver.
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

from millrace_streams import (
    StreamsBuilder,
    Suppressed,
    TestRecord,
    TopologyError,
    TopologyTestDriver,
    UserFunctionError,
    col,
    count,
    mean,
    row,
    sessions,
)
from millrace_streams import max as max_
from millrace_streams import min as min_
from millrace_streams import sum as sum_
from millrace_streams.aggregates import Aggregate
from millrace_streams.graph import PartialAggregateNode
from millrace_streams.steps.accumulators import accumulate

from . import aggregate_cases as cases


@cache
def driver_after(batch_records: int, chosen: str = "all") -> TopologyTestDriver:
    driver = TopologyTestDriver(cases.topology(chosen))
    script = [TestRecord(cases.TOPIC, each.case, cases.row_of(each), each.time_ms) for each in cases.records()]
    for first in range(0, len(script), batch_records):
        driver.pipe_records(script[first : first + batch_records])
    return driver


@cache
def outputs_of(batch_records: int) -> dict[str, list[cases.Row]]:
    driver = driver_after(batch_records)
    return {
        output: list(cases.rows_of((each.key, each.value) for each in driver.read_records(output)))
        for output in cases.OUTPUTS
    }


@pytest.mark.parametrize("batch_records", [pytest.param(1, marks=pytest.mark.slow), 7, 1000])
@pytest.mark.parametrize("output", cases.OUTPUTS)
def test_aggregates_are_those_of_the_documented_rules(output: str, batch_records: int) -> None:
    found = outputs_of(batch_records)[output]
    assert found
    assert cases.settled(output, found) == cases.expected(output)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [chosen for chosen in cases.SETS if chosen != "all"])
def test_results_do_not_depend_on_the_other_aggregates(chosen: str) -> None:
    driver = driver_after(7, chosen)
    for output in cases.outputs_of(chosen):
        found = list(cases.rows_of((each.key, each.value) for each in driver.read_records(output)))
        assert cases.settled(output, found) == cases.expected(output, chosen), output


def test_without_records_there_are_no_results() -> None:
    driver = TopologyTestDriver(cases.topology())
    driver.pipe_records([])
    assert all(driver.read_records(output) == [] for output in cases.OUTPUTS)


@pytest.mark.parametrize("window", ["none", "tumbling", "hopping"])
def test_aggregates_that_begin_in_the_reader_give_the_same_results(window: str) -> None:
    driver = TopologyTestDriver(cases.partial_topology(window))
    assert any(isinstance(operator.node, PartialAggregateNode) for operator in driver.plan.readers[0].operators)
    script = [TestRecord(cases.TOPIC, each.case, cases.row_of(each), each.time_ms) for each in cases.records()]
    driver.pipe_records(script)
    rows = cases.rows_of_table(driver.table("out").to_dicts())
    assert cases.comparable(rows) == cases.expected_of_partial(window)


LARGEST = 10**38 - 1
TYPES = pa.schema([("key", pa.string()), ("d", pa.decimal128(38, 0))])


@pytest.mark.parametrize("output", [output for output in cases.OUTPUTS if not output.startswith("table-groups")])
def test_a_sum_of_decimals_that_has_too_many_digits_is_an_error_of_its_record(output: str) -> None:
    window, emit = output.split(".")
    builder = StreamsBuilder()
    groups: Any = builder.stream("in", schema=TYPES, key_columns=["key"]).group_by_key()
    if cases.WINDOWS[window] is not None:
        groups = groups.windowed_by(cases.WINDOWS[window])
    groups = groups.emit_strategy("on_window_close") if emit == "final" else groups
    options = {"emit": emit} if emit in ("every", "last") else {}
    groups.aggregate(total=sum_("d"), middle=mean("d"), **options).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    for numbers in ([LARGEST, LARGEST], [1 - LARGEST, -LARGEST], [LARGEST - 1]):
        driver.pipe("in", [{"key": key, "d": Decimal(number)} for key, number in zip("ab", numbers, strict=False)])
    # A sum with fewer digits is exact to its last digit.
    last = [{"key": key, "d": Decimal(number)} for key, number in (("b", 1), ("a", 1), ("a", -1), ("b", 1))]
    with pytest.raises(UserFunctionError, match=r"KSTREAM-AGGREGATE-.*a sum of decimals has more than 38 digits") as e:
        driver.pipe("in", last)
    assert (e.value.topic, e.value.partition, e.value.offset) == ("in", 0, 6)


def test_a_table_of_means_is_looked_up_as_means() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", schema=cases.SCHEMA, key_columns=["case"])
    means = stream.group_by_key().windowed_by(sessions(20, grace=100)).aggregate(m=mean("n"), n=count())
    other = means.map_values(lambda row: {"doubled": row["m"] * 2}, value=row(pa.schema([("doubled", pa.float64())])))
    joined = means.join(other, lambda left, right: (left["m"], left["n"], right["doubled"]).__repr__(), value="string")
    joined.to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    results = []
    for time_ms, number in ((0, 1), (5, 4)):
        driver.pipe("in", [{"case": "a", "n": number}], timestamps_ms=[time_ms])
        results.append({each.value for each in driver.read_records("out")} - {None})
    assert [max(each) for each in results] == ["(1.0, 1, 2.0)", "(2.5, 2, 5.0)"]
    [store] = [name for name in driver._tasks[0].stores if name.startswith("KSTREAM-AGGREGATE")]
    assert [entry.value["m"] for entry in driver.entries(store)] == [2.5]


def test_the_sum_of_a_group_is_exact_after_its_last_value_is_removed() -> None:
    builder = StreamsBuilder()
    table = builder.table(
        "in", schema=pa.schema([("id", pa.string()), ("g", pa.string()), ("x", pa.float64())]), key_columns=["id"]
    )
    table.group_by("g").aggregate(total=sum_("x"), middle=mean("x"), rows=count()).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())

    def group_after(identity: str, group: str | None, x: float | None) -> list[tuple[Any, ...]]:
        driver.pipe_records([TestRecord("in", identity, group and {"id": identity, "g": group, "x": x}, 0)])
        found = driver.read_records("out")
        return [(each.value["g"], each.value["total"], each.value["middle"], each.value["rows"]) for each in found]

    assert group_after("1", "a", math.nan)[0][3] == 1
    assert math.isnan(group_after("2", "a", 0.1)[0][1])
    assert math.isnan(group_after("1", "b", math.nan)[0][1])
    assert group_after("2", "a", None) == [("a", None, None, 1)]
    assert group_after("3", "a", 0.1) == [("a", 0.1, 0.1, 2)]
    assert group_after("2", None, None) == [("a", 0.1, 0.1, 1)]
    assert group_after("3", None, None) == [("a", None, None, 0)]


def test_a_group_may_lose_a_value_that_a_suppression_never_let_out() -> None:
    builder = StreamsBuilder()
    schema = pa.schema([("id", pa.string()), ("g", pa.string()), ("x", pa.float64())])
    table = builder.table("in", schema=schema, key_columns=["id"]).suppress(Suppressed.until_time_limit(5))
    table.group_by("g").aggregate(total=sum_("x"), rows=count()).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    script = [("1", 1.0, 0), ("2", 0.0, 10), ("1", None, 11), ("2", 0.0, 20), ("3", 4.0, 21), ("3", None, 22)]
    for identity, x, time_ms in [*script, ("2", 0.0, 40)]:
        value = {"id": identity, "g": "other" if identity == "2" else "a", "x": x}
        driver.pipe_records([TestRecord("in", identity, value, time_ms)])
    found = [each.value for each in driver.read_records("out") if each.value["g"] == "a"]
    assert [(each["total"], each["rows"]) for each in found] == [(1.0, 1), (None, 1), (None, 1)]


def test_a_group_loses_what_a_function_had_made_of_a_row() -> None:
    builder = StreamsBuilder()
    doubled = builder.table("in", key="string", value="long").map_values(lambda value: value * 2)
    groups = doubled.group_by(lambda key, value: ("all", value), key="string")
    groups.reduce(lambda total, value: total + value, lambda total, value: total - value).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("in", key, value, 0) for key, value in (("a", 1), ("b", 5), ("a", 3), ("b", None))])
    assert [record.value for record in driver.read_records("out")] == [2, 12, 16, 6]


@pytest.mark.parametrize("before", ["-1", "g"], ids=["no key", "no value"])
def test_a_row_leaves_no_group_if_it_had_no_key_or_no_value_there(before: str) -> None:
    def group_of(key: str, value: str) -> tuple[str | None, str | None]:
        return None if value[0] == "-" else value[0], value if value[1:] else None

    builder = StreamsBuilder()
    groups = builder.table("in", key="string", value="string").group_by(group_of, key="string", value="string")
    joined = groups.reduce(lambda total, value: total + value, lambda total, value: total.replace(value, ""))
    joined.to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    script = [("a", before), ("b", "g5"), ("a", "h2"), ("a", before), ("a", None)]
    found = []
    for record in script:
        driver.pipe_records([TestRecord("in", *record, 0)])
        found.append([(each.key, each.value) for each in driver.read_records("out")])
    assert found == [[], [("g", "g5")], [("h", "h2")], [("h", "")], []]


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("emit", ["every", "last"])
def test_the_largest_sum_of_decimals_has_38_digits(emit: str, missing: int) -> None:
    builder = StreamsBuilder()
    groups = builder.stream("in", schema=TYPES, key_columns=["key"]).group_by_key()
    groups.aggregate(total=sum_("d"), emit=emit).to_stream().to("out")  # type: ignore[arg-type]
    driver = TopologyTestDriver(builder.build())
    numbers = [10**37] * 9 + [10**37 - missing]
    rows = [{"key": "a", "d": Decimal(number)} for number in numbers]
    if missing:
        driver.pipe("in", rows)
        assert driver.read_records("out")[-1].value["total"] == 10**38 - 1
    else:
        with pytest.raises(UserFunctionError, match="more than 38 digits"):
            driver.pipe("in", rows)


@pytest.mark.parametrize("emit", ["every", "last"])
def test_extremes_of_decimals_are_found_though_their_sum_would_have_too_many_digits(emit: str) -> None:
    builder = StreamsBuilder()
    groups = builder.stream("in", schema=TYPES, key_columns=["key"]).group_by_key()
    groups.aggregate(least=min_("d"), most=max_("d"), emit=emit).to_stream().to("out")  # type: ignore[arg-type]
    driver = TopologyTestDriver(builder.build())
    driver.pipe("in", [{"key": "a", "d": Decimal(number)} for number in (LARGEST - 1, LARGEST, LARGEST)])
    found = driver.read_records("out")[-1].value
    assert (found["least"], found["most"]) == (LARGEST - 1, LARGEST)


def test_a_group_whose_rows_have_all_left_begins_without_their_rounding() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", key="string", value="double")
    groups = table.group_by(lambda key, value: ("all", value), key="string").aggregate(total=sum_("value"), n=count())
    groups.to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    for key, value in (("a", 1e16), ("b", 1.0), ("a", None), ("b", None), ("c", 5.0)):
        driver.pipe_records([TestRecord("in", key, value, 0)])
    found = [(each.value["total"], each.value["n"]) for each in driver.read_records("out")]
    assert found == [(1e16, 1), (1e16, 2), (0.0, 1), (None, 0), (5.0, 1)]


class Median(Aggregate):
    kind = "median"


@pytest.mark.parametrize(
    ("aggregate", "says"),
    [
        (min_("point"), r"least=min\(point\): struct<.*> has no order"),
        (max_("point"), "has no order"),
        (sum_("point"), "a number is needed, not struct"),
        (Median(col("n")), "median is not an aggregate that millrace knows"),
    ],
)
def test_an_aggregate_that_a_column_cannot_have_is_refused(aggregate: Aggregate, says: str) -> None:
    point = pa.struct([("x", pa.int64())])
    schema = pa.schema([("key", pa.string()), ("point", point), ("n", pa.int64())])
    with pytest.raises(TopologyError, match=f"where: .*{says}"):
        accumulate((("least", aggregate),), schema, "where")
