"""Tests of the row filter.

The tests cover skipped batches, and the Spark filters that it accepts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark

from millrace.errors import UsageError
from millrace.records import Record, build_rows_batch, read_header
from millrace.records.statistics import BatchStatistics, ColumnStatistics
from millrace.schemas import parse_ddl
from pyspark_millrace.columns import available_columns
from pyspark_millrace.filters.binding import bind
from pyspark_millrace.filters.evaluation import rows_matching
from pyspark_millrace.filters.literals import UnfitLiteralError
from pyspark_millrace.filters.parsing import parse_filter
from pyspark_millrace.filters.pushed import split_pushed
from pyspark_millrace.filters.row_filter import RowFilter, row_filter_of
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.reading.layout import and_pushed, default_layout, option_filter

TOPIC = UUID(int=1)
KEY = PartitionKey("t", 2)
SCHEMA = parse_ddl("number INT, word STRING, ratio FLOAT, at TIMESTAMP")
STORED = pa.schema([("word", pa.large_utf8()), ("ratio", pa.float64()), ("number", pa.int64()), ("at", pa.int64())])
"""A later version with other positions and wider numbers. ``at`` had another meaning before."""


def filter_of(text: str, schema: pa.Schema | None = SCHEMA) -> RowFilter:
    layout = default_layout(schema, include_headers=False, include_metadata=True)
    found = option_filter(text, schema, layout, topics="topic t")
    assert found is not None
    return found


def is_read(text: str, statistics: BatchStatistics | None, *, schema: pa.Schema | None = SCHEMA, **header: Any) -> bool:
    """Tell whether a batch of offsets 10 to 19, with its last record at 5,000 ms, is read.

    Its header is passed on if it is not.
    """
    batch = build_rows_batch([Record(key=None, value=b"", timestamp_ms=0)])
    fields = {"base_offset": 10, "last_offset_delta": 9, "max_timestamp": 5_000} | header
    sound = read_header(batch)._replace(**fields)
    asked: list[int] = []
    skipped: list[Any] = []

    def schema_of(schema_id: int) -> pa.Schema:
        asked.append(schema_id)
        return {1: SCHEMA, 2: STORED, 3: pa.schema([("ratio", pa.int64())])}[schema_id]

    wanted = filter_of(text, schema).wanted(KEY, schema_of, skipped.append)
    found = wanted(sound, statistics)
    assert wanted(sound, statistics) is found
    assert skipped == ([] if found else [sound, sound])
    assert len(asked) <= 1, "each version of the schema is requested once"
    return found


def of_column(place: int, low: Any, high: Any, *, schema_id: int = 1, nulls: int = 0) -> BatchStatistics:
    return BatchStatistics(schema_id, {place: ColumnStatistics(nulls, bounds=(low, high))}, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__offset = 9", False), ("__offset = 10", True), ("__offset = 19", True), ("__offset = 20", False),
        ("__partition = 2", True), ("__partition = 1", False), ("__topic = 't'", True), ("__topic = 'u'", False),
        ("__offset IS NULL", False), ("__partition IS NULL", False),
        ("__topic IS NULL", False), ("number = 5", True),
        ("__timestamp > TIMESTAMP '1970-01-01T00:00:05Z'", False),
        ("__timestamp >= TIMESTAMP '1970-01-01T00:00:05Z'", True),
        ("__timestamp < TIMESTAMP '1970-01-01T00:00:00Z'", True), ("__timestamp IS NULL", False),
    ],
)  # fmt: skip
def test_a_batch_without_statistics_is_known_by_its_header(text: str, expected: bool) -> None:
    assert is_read(text, None) is expected


def test_with_append_time_all_records_have_the_headers_time() -> None:
    earlier = "__timestamp < TIMESTAMP '1970-01-01T00:00:05Z'"
    assert is_read(earlier, None)
    assert not is_read(earlier, None, attributes=0b1000)
    assert is_read("__timestamp = TIMESTAMP '1970-01-01T00:00:05Z'", None, attributes=0b1000)


@pytest.mark.parametrize(("time", "expected"), [("02.999", False), ("03", True), ("04", True), ("04.001", False)])
def test_times_in_the_statistics_count_more_than_the_header(time: str, expected: bool) -> None:
    statistics = BatchStatistics(1, {}, (3_000, 4_000))
    text = f"__timestamp = TIMESTAMP '1970-01-01T00:00:{time}Z'"
    assert is_read(text, statistics, attributes=0b1000) is expected
    assert is_read("__timestamp = TIMESTAMP '1970-01-01T00:00:04.5Z'", BatchStatistics(1, {}, None))


def test_columns_are_known_by_their_place_in_the_batchs_version_of_the_schema() -> None:
    assert is_read("number = 7", of_column(0, 5, 9))
    assert not is_read("number = 4", of_column(0, 5, 9))
    assert is_read("number = 4", of_column(1, 5, 9)), "the statistics are of another column"
    assert not is_read("__partition = 1 AND number = 7", of_column(0, 5, 9)), "metadata are known too"
    assert not is_read("number = 4", of_column(2, 5, 9, schema_id=2)), "integers of any width compare"
    assert not is_read("ratio = 4", of_column(1, 5.0, 9.0, schema_id=2)), "floats compare too"
    assert is_read("at > TIMESTAMP '1970-01-01T00:00:00Z'", of_column(0, 5, 9, schema_id=3)), "the column did not exist"
    assert is_read("at = TIMESTAMP '1970-01-01T00:00:00Z'", of_column(3, 5, 9, schema_id=2)), (
        "the column was a number in an earlier version"
    )
    assert is_read("ratio = 4", of_column(0, 5, 9, schema_id=3)), "this column was a number too"
    assert not is_read("number IS NULL", of_column(0, 5, 9))
    assert is_read("number IS NULL", of_column(0, 5, 9, nulls=1))
    assert not is_read("number IS NOT NULL", BatchStatistics(1, {0: ColumnStatistics(3, only_nulls=True)}, None))


def test_keys_and_values_of_an_opaque_topic_are_its_first_and_second_column() -> None:
    assert not is_read("key = 'x'", of_column(0, b"a", b"c", schema_id=0), schema=None)
    assert is_read("value = 'x'", of_column(0, b"a", b"c", schema_id=0), schema=None)
    assert not is_read("value = 'x'", of_column(1, b"a", b"c", schema_id=0), schema=None)


@pytest.mark.parametrize(("end", "expected"), [(15, False), (16, True)])
def test_the_end_of_a_range_is_not_part_of_it(end: int, expected: bool) -> None:
    assert filter_of("__offset >= 15").covers(KEY, 10, end) is expected
    assert not filter_of("__offset < 10").covers(KEY, 10, end)
    assert filter_of("__offset <= 10").covers(KEY, 10, end)
    assert not filter_of("__offset IS NULL").covers(KEY, 10, end)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("timestamp >= TIMESTAMP '1970-01-01T00:00:01.000Z'", (1000, None)),
        ("timestamp >= TIMESTAMP '1970-01-01T00:00:01.000001Z'", (1001, None)),
        ("timestamp <= TIMESTAMP '1970-01-01T00:00:01.000Z'", (None, 1000)),
        ("timestamp <= TIMESTAMP '1970-01-01T00:00:01.000999Z'", (None, 1000)),
        ("timestamp < TIMESTAMP '1970-01-01T00:00:01.000Z'", (None, 999)),
        ("timestamp <= TIMESTAMP '1970-01-01T00:00:03Z' AND __timestamp <= TIMESTAMP '1970-01-01T00:00:02Z' "
         "AND timestamp >= TIMESTAMP '1970-01-01T00:00:00Z' AND __timestamp >= TIMESTAMP '1970-01-01T00:00:01Z'",
         (1000, 2000)),
        ("offset = 5", (None, None)),
    ],
)  # fmt: skip
def test_limits_of_time_are_whole_milliseconds_that_leave_nothing_out(text: str, limits: Any) -> None:
    assert filter_of(text, None).time_limits_ms(KEY) == limits
    assert filter_of("offset = 5 AND __offset = 5", None).offset_limits(KEY) == (5, 5)


COLUMNS = available_columns(
    parse_ddl("tiny TINYINT, small SMALLINT, number INT, long BIGINT, ratio FLOAT, wide DOUBLE, word STRING")
)
VALUES: dict[str, pa.Array] = {
    "tiny": pa.array([1, None, 2], pa.int8()),
    "small": pa.array([1, None, 2], pa.int16()),
    "number": pa.array([1, None, 2], pa.int32()),
    "long": pa.array([1, None, 2], pa.int64()),
    "ratio": pa.array([1, None, float("nan")], pa.float32()),
    "wide": pa.array([1, None, float("nan")], pa.float64()),
    "word": pa.array(["ab", None, "b%"], pa.string()),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((f"{column} < 5000000000", [True, None, True]) for column in ("tiny", "small", "number", "long")),
        *((f"{column} IN (2, 5000000000)", [False, None, True]) for column in ("tiny", "small", "number", "long")),
        *((f"{column} NOT IN (2)", [True, None, False]) for column in ("tiny", "small", "number", "long")),
        *((f"{column} > 1", [False, None, True]) for column in ("ratio", "wide")),
        *((f"{column} >= 1.0", [True, None, True]) for column in ("ratio", "wide")),
        *((f"{column} < 2", [True, None, False]) for column in ("ratio", "wide")),
        *((f"{column} IN (1, 7)", [True, None, False]) for column in ("ratio", "wide")),
        ("ratio = 1.0000000001", [False, None, False]),
        ("number <=> 1", [True, False, False]),
        ("NOT number <=> 1", [False, True, True]),
        ("number IN (1, NULL)", [True, None, None]),
        ("number NOT IN (1, NULL)", [False, None, None]),
        ("number = NULL", [None, None, None]),
        ("number IS NULL", [False, True, False]),
        ("number IS NOT NULL", [True, False, True]),
        ("word LIKE 'a%'", [True, None, False]),
        ("word NOT LIKE 'a%'", [False, None, True]),
        ("number = 1 OR word = 'b%'", [True, None, True]),
        ("number = 1 AND word = 'b%'", [False, None, False]),
        ("number IN (1) OR number IS NULL", [True, True, False]),
    ],
)  # fmt: skip
def test_rows_match_as_sql_says(text: str, expected: list[bool | None]) -> None:
    assert rows_matching(bind(parse_filter(text), COLUMNS), VALUES.__getitem__, 3).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nmber = 1", "filter='nmber = 1': topic t: no column 'nmber': did you mean number"),
        ("zzz = 1", "no column 'zzz': the columns are __topic, .*, number, word, ratio, at"),
        ("number LIKE 'a'", "column number: LIKE is for STRING"),
        ("number = 'a'", "column number: INT is compared with a whole number, not 'a'"),
        ("__headers = 'a'", "column __headers can only be compared by IS NULL"),
    ],
)
def test_a_condition_that_does_not_fit_the_columns_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        filter_of(text)


def test_capitals_matter_only_where_two_columns_differ_by_them() -> None:
    twins = available_columns(pa.schema([("a", pa.int64()), ("A", pa.int64()), ("Word", pa.string())]))
    assert bind(parse_filter("A = 1"), twins) != bind(parse_filter("a = 1"), twins)
    bound = bind(parse_filter("wORD = 'x'"), twins)
    assert getattr(bound, "column", None) == "Word"
    others = available_columns(pa.schema([("ab", pa.int64()), ("AB", pa.int64())]))
    with pytest.raises(UnfitLiteralError, match="no column 'aB'"):
        bind(parse_filter("aB = 1"), others)


def test_headers_can_be_null() -> None:
    columns = filter_of("__headers IS NULL").columns
    assert [column.name for column in columns] == ["__headers"]


@pytest.mark.parametrize(
    ("pushed", "expected"),
    [
        (spark.StringStartsWith(("word",), "a"), [True, None, False]),
        (spark.StringEndsWith(("word",), "%"), [False, None, True]),
        (spark.StringContains(("word",), "b"), [True, None, True]),
        (spark.In(("word",), ("ab",)), [True, None, False]),
        (spark.In(("word",), ("ab", None)), [True, None, None]),
        (spark.EqualNullSafe(("word",), None), [False, True, False]),
        (spark.EqualTo(("word",), None), [None, None, None]),
        (spark.IsNull(("word",)), [False, True, False]),
        (spark.Not(spark.GreaterThanOrEqual(("number",), 2)), [True, None, False]),
        (spark.GreaterThan(("number",), 1), [False, None, True]),
        (spark.LessThan(("number",), 2), [True, None, False]),
        (spark.LessThanOrEqual(("number",), 1), [True, None, False]),
    ],
)
def test_a_pushed_filter_means_what_it_means_in_spark(pushed: spark.Filter, expected: list[bool | None]) -> None:
    taken, left = split_pushed([pushed], COLUMNS)
    assert left == []
    assert taken is not None
    assert rows_matching(taken, VALUES.__getitem__, 3).to_pylist() == expected


def test_a_filter_of_a_kind_that_is_not_known_stays_with_spark() -> None:
    @dataclass(frozen=True)
    class Later(spark.Filter):
        attribute: tuple[str, ...]

    assert split_pushed([Later(("word",))], COLUMNS) == (None, [Later(("word",))])


def test_pushed_filters_are_added_to_the_option() -> None:
    layout = default_layout(SCHEMA, include_headers=False, include_metadata=True)
    available = available_columns(SCHEMA)
    own = row_filter_of(bind(parse_filter("number > 1"), available), available)
    pushed = [spark.In(("word",), ("a", None)), spark.In(("number",), (3,)), spark.Not(spark.EqualTo(("ratio",), 1.5))]
    together, left = and_pushed(pushed, layout)
    assert left == []
    assert together.row_filter is not None
    assert [column.name for column in together.row_filter.columns] == ["word", "number", "ratio"]
    rows = {"word": pa.array(["a", "b"]), "number": pa.array([3, 3]), "ratio": pa.array([1.0, 1.5])}
    assert together.row_filter.rows_matching(rows, 2).to_pylist() == [True, False]
    both, left = and_pushed([spark.EqualTo(("number",), 5)], replace(layout, row_filter=own))
    assert left == []
    assert both.row_filter is not None
    assert both.row_filter.rows_matching({"number": pa.array([1, 5, 7])}, 3).to_pylist() == [False, True, False]
    assert row_filter_of(None, available) is None
