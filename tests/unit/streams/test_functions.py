"""Tests of calls and failures of Python functions in a topology."""

import polars as pl
import pyarrow as pa
import pytest

from millrace_streams import (
    StreamsBuilder,
    TestRecord,
    TopicShape,
    TopologyError,
    TopologyTestDriver,
    UserFunctionError,
    batchwise,
)
from millrace_streams.compiler import compile_topology
from millrace_streams.layout import OPAQUE_SHAPE
from millrace_streams.steps.reader import Reader

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64())])
ROWS = [{"k": "a", "x": 1}, {"k": "b", "x": None}, {"k": "a", "x": 3}]
TWICE = pa.schema([("twice", pa.int64())])


def run(build, rows=ROWS, shape=None):
    builder = StreamsBuilder()
    build(builder.stream("in")).to("out")
    driver = TopologyTestDriver(builder.build(), topics={"in": shape or TopicShape(schema=SCHEMA, key_columns=("k",))})
    driver.pipe("in", rows)
    return [{name: value for name, value in row.items() if name != "__timestamp"} for row in driver.read("out")]


def test_a_function_of_the_value_gets_a_dict():
    assert run(lambda s: s.filter(lambda value: (value["x"] or 0) > 1)) == [ROWS[2]]


def test_a_function_of_key_and_value_gets_the_bare_key():
    assert run(lambda s: s.filter(lambda key, value: key == "b")) == [ROWS[1]]
    assert run(lambda s: s.filter_not(lambda key, value: key == "b")) == [ROWS[0], ROWS[2]]


def test_a_key_of_several_columns_is_a_tuple():
    assert run(lambda s: s.select_key("k", "x").filter(lambda key, value: key == ("a", 3))) == [ROWS[2]]


def test_map_values_gives_the_columns_of_its_schema_and_keeps_the_key():
    result = run(lambda s: s.map_values(lambda value: {"twice": (value["x"] or 0) * 2}, schema=TWICE))
    assert result == [{"k": "a", "twice": 2}, {"k": "b", "twice": 0}, {"k": "a", "twice": 6}]


def test_the_next_function_gets_only_the_declared_columns_of_a_result():
    seen = []
    twice = {"k": "a", "twice": 2, "other": 5}
    assert run(lambda s: s.map_values(lambda value: twice, schema=TWICE).peek(seen.append), ROWS[:1]) == seen
    assert seen == [{"k": "a", "twice": 2}]


def test_batchwise_functions_get_a_frame():
    assert run(lambda s: s.filter(batchwise(lambda frame: frame["x"] > 1))) == [ROWS[2]]

    @batchwise
    def twice(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select(twice=pl.col("x") * 2)

    assert [row["twice"] for row in run(lambda s: s.map_values(twice, schema=TWICE))] == [2, None, 6]


def test_functions_of_an_opaque_topic_get_bare_values():
    rows = [{"key": b"a", "value": b"1"}, {"key": None, "value": None}]
    one_value = pa.schema([("value", pa.int64())])
    result = run(
        lambda s: s.map_values(lambda value: None if value is None else int(value), schema=one_value),
        rows,
        OPAQUE_SHAPE,
    )
    assert result == [{"key": b"a", "value": 1}, {"key": None, "value": None}]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda s: s.filter(lambda value: 1 / 0, name="oops"),
            r"oops: .*raised ZeroDivisionError: division by zero "
            r"\(record of topic in, partition 0, offset 0, timestamp 0\)",
        ),
        (
            lambda s: s.map_values(lambda value: 5, schema=TWICE),
            "KSTREAM-MAPVALUES-0000000001: the function must return a dict of twice, not 5",
        ),
        (
            lambda s: s.map_values(lambda value: {"twice": "no"}, schema=TWICE),
            "the function's result {'twice': 'no'} under key 'a' does not fit the row's types",
        ),
        (
            lambda s: s.filter(batchwise(lambda frame: 1 / 0)),
            r"batchwise. raised ZeroDivisionError: division by zero \(batch of 3 records",
        ),
        (lambda s: s.filter(batchwise(lambda frame: frame)), "must return a boolean polars series of 3 rows"),
        (lambda s: s.map_values(batchwise(lambda frame: frame.head(1)), schema=TWICE), "a polars frame of 3 rows"),
        (lambda s: s.map_values(batchwise(lambda frame: frame), schema=TWICE), "the function returned no column twice"),
        (
            lambda s: s.map_values(batchwise(lambda frame: frame.select(twice=pl.lit("no"))), schema=TWICE),
            "a polars frame of 3 rows",
        ),
        (
            lambda s: s.map_values(batchwise(lambda frame: frame.with_columns(twice=pl.lit("no"))), schema=TWICE),
            "KSTREAM-MAPVALUES-0000000001: column twice of the function's result: ",
        ),
        (
            lambda s: s.map_values(lambda value: {"once": 1}, schema=TWICE),
            "the function returned no column twice; it returned once",
        ),
    ],
)
def test_a_functions_failure_names_the_node_and_the_record(build, message):
    with pytest.raises(UserFunctionError, match=message):
        run(build)


def test_a_record_without_event_time_is_named():
    builder = StreamsBuilder()
    builder.stream("in", schema=SCHEMA, timestamp="x").to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(
        UserFunctionError, match="1 records without a valid event time in x, the first at offset 1 of in-0"
    ) as e:
        driver.pipe("in", ROWS)
    error = e.value
    assert (error.node, error.topic, error.partition, error.offset) == ("KSTREAM-SOURCE-0000000000", "in", 0, 1)


@pytest.mark.parametrize(("times", "first"), [([0, 1], None), ([0, -1, 5, -1], 1), ([None, -2], 0)])
def test_the_first_record_before_the_epoch_is_named(times, first):
    builder = StreamsBuilder()
    builder.stream("in", schema=pa.schema([("key", pa.string()), ("t", pa.int64())]), timestamp="t").to_delta("out")
    driver = TopologyTestDriver(builder.build())
    rows = [{"key": "a", "t": time} for time in times]
    if first is None:
        driver.pipe("in", rows)
        assert [row["t"] for row in driver.read("out")] == times
        return
    with pytest.raises(UserFunctionError, match=f"{len(times) // 2 if first else 2} records without a valid") as e:
        driver.pipe("in", rows)
    assert e.value.offset == first


def test_an_event_time_that_is_no_number_is_refused():
    builder = StreamsBuilder()
    builder.stream("in", key="string", value="string", timestamp=lambda value: value).to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserFunctionError, match="must give the event time in whole ms since 1970"):
        driver.pipe_records([TestRecord("in", "a", "noon", 0)])


def record_time(value: str, timestamp: int) -> int:
    return timestamp + len(value)


@pytest.mark.parametrize(
    ("extractor", "time_ms"),
    [
        (lambda value: 10 * len(value), 30),
        (record_time, 1003),
        (lambda key, value, timestamp: timestamp + int(key), 1007),
        (lambda *arguments: arguments[-1] * 2, 2000),
    ],
)
def test_event_time_is_extracted_by_a_function_of_any_of_its_forms(extractor, time_ms):
    builder = StreamsBuilder()
    builder.stream("in", key="string", value="string", timestamp=extractor).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("in", "7", "abc", 1000)])
    assert [record.timestamp for record in driver.read_records("out")] == [time_ms]


@pytest.mark.parametrize("filtered", [False, True])
def test_a_record_whose_extracted_time_is_negative_is_dropped_and_counted(filtered):
    builder = StreamsBuilder()
    stream = builder.stream("in", key="string", value="long", timestamp=lambda value: value)
    (stream.filter(lambda value: value != 7) if filtered else stream).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("in", "a", value, 0) for value in (5, -5, 6)])
    assert [(record.value, record.timestamp) for record in driver.read_records("out")] == [(5, 5), (6, 6)]
    assert driver.dropped_records == 1
    # The reader of Spark's workers keeps the places of the records that are left.
    [reader] = compile_topology(builder.build(), {}).readers
    values = [value.to_bytes(8, "big", signed=True) for value in (-1, 5, 7, -5, 6)]
    decoded = pl.DataFrame(
        {"key": [b"a"] * 5, "value": values, "__offset": [40, 41, 42, 43, 44], "__timestamp": [0] * 5}
    )
    rows, dropped = Reader(reader.source, reader.layout, reader.operators).run(decoded, 0)
    expected = [(5, 5, 41), (6, 6, 44)] if filtered else [(5, 5, 41), (7, 7, 42), (6, 6, 44)]
    assert (rows.select("value", "__timestamp", "__offset").rows(), dropped) == (expected, 2)


def test_an_extractor_without_a_time_stops_at_its_record():
    builder = StreamsBuilder()
    builder.stream("in", key="string", value="long", timestamp=lambda value: value or None).to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserFunctionError, match="1 records without a valid event time in __timestamp, the first") as e:
        driver.pipe_records([TestRecord("in", "a", value, 0) for value in (-5, 5, 0)])
    assert e.value.offset == 2


@pytest.mark.parametrize("time", [1.5, "5", 2**63])
def test_an_extracted_time_that_is_no_whole_number_is_an_error_of_its_record(time):
    builder = StreamsBuilder()
    builder.stream("in", key="string", value="long", timestamp=lambda value: time if value else 7).to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserFunctionError, match=f"must give the event time in whole ms .* and not {time!r}") as e:
        driver.pipe_records([TestRecord("in", "a", value, 0) for value in (0, 1, 1)])
    assert (e.value.topic, e.value.partition, e.value.offset) == ("in", 0, 1)


@pytest.mark.parametrize(
    "build",
    [
        lambda b, s, t, f: s.map(f),
        lambda b, s, t, f: s.flat_map(f),
        lambda b, s, t, f: s.flat_map_values(f),
        lambda b, s, t, f: s.select_key(f),
        lambda b, s, t, f: s.group_by(f),
        lambda b, s, t, f: s.peek(f),
        lambda b, s, t, f: s.for_each(f),
        lambda b, s, t, f: s.join(t, f),
        lambda b, s, t, f: s.join(b.global_table("g", key="string", value="long"), lambda a, b: a, selector=f),
        lambda b, s, t, f: t.map_values(f),
        lambda b, s, t, f: t.group_by(f),
        lambda b, s, t, f: t.to_stream(f),
        lambda b, s, t, f: t.join(t, f),
        lambda b, s, t, f: t.join(t, lambda a, b: a, foreign_key=f),
        lambda b, s, t, f: b.stream("o", key="string", value="long", timestamp=f),
    ],
)
def test_a_function_of_frames_is_refused_where_single_records_are_needed(build):
    builder = StreamsBuilder()
    stream, table = (make("s", key="string", value="long") for make in (builder.stream, builder.table))
    with pytest.raises(TopologyError, match=r": a batchwise function is taken by filters, branches and map_values\(\)"):
        build(builder, stream, table, batchwise(lambda frame: frame))


@pytest.mark.parametrize("kind", ["filter", "filter_not"])
def test_tables_and_branches_take_functions_of_frames(kind):
    builder = StreamsBuilder()
    table = builder.table("in", key="string", value="long")
    getattr(table, kind)(batchwise(lambda frame: frame["value"] > 1)).to_stream().to("rows")
    builder.stream("in", key="string", value="long").split().branch(batchwise(lambda frame: frame["value"] > 1)).to("b")
    driver = TopologyTestDriver(builder.build())
    driver.pipe("in", [{"key": "a", "value": number} for number in (1, 2, 1)])
    passed = [record.value for record in driver.read_records("rows")]
    assert passed == ([None, 2, None] if kind == "filter" else [1, None, 1])
    assert [record.value for record in driver.read_records("b")] == [2]
