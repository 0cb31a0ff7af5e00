"""Tests of conditions.

The tests cover their text, their limits, and pruning without false exclusions.
"""

import datetime
import pickle
import uuid

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from millrace.errors import UsageError
from millrace.records import statistics
from millrace.schemas import parse_ddl
from pyspark_millrace.columns import available_columns
from pyspark_millrace.filters.binding import bind
from pyspark_millrace.filters.bounds import can_match, limits_of
from pyspark_millrace.filters.condition import (
    NEVER,
    Comparator,
    Comparison,
    Conjunction,
    Disjunction,
    Matching,
    Membership,
    NullCheck,
    TextMatch,
    conjunction,
    negate,
)
from pyspark_millrace.filters.evaluation import rows_matching
from pyspark_millrace.filters.parsing import parse_filter
from pyspark_millrace.filters.pushed import split_pushed
from pyspark_millrace.filters.row_filter import _bounds
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.narrowing import within_offsets, within_times
from pyspark_millrace.planning.offsets import OffsetRange
from pyspark_millrace.reading.layout import and_pushed, default_layout, option_filter

SCHEMA = parse_ddl("number BIGINT, word STRING, ratio DOUBLE, flag BOOLEAN, day DATE, at TIMESTAMP, tags ARRAY<INT>")
COLUMNS = available_columns(SCHEMA)
EQUAL, LESS = Comparator.EQUAL, Comparator.LESS
A1 = Comparison("a", EQUAL, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("number = 1", Comparison("number", EQUAL, 1)),
        ("1 < number", Comparison("number", Comparator.GREATER, 1)),
        ("`odd ``name` == -2.5e1", Comparison("odd `name", EQUAL, -25)),
        ("word='it''s'", Comparison("word", EQUAL, "it's")),
        ("flag", Comparison("flag", EQUAL, True)),
        ("not flag", Comparison("flag", Comparator.UNEQUAL, True)),
        ("a=1 AND b=2 OR c=3", Disjunction((Conjunction((A1, Comparison("b", EQUAL, 2))), Comparison("c", EQUAL, 3)))),
        ("not (a <> 1 or b is null)", Conjunction((A1, NullCheck("b", False)))),
        ("a IN (1, NULL)", Membership("a", (1,), has_null=True)),
        ("a NOT IN (1,2)", Membership("a", (1, 2), negated=True)),
        ("a NOT BETWEEN 1 AND 2", Disjunction((Comparison("a", LESS, 1), Comparison("a", Comparator.GREATER, 2)))),
        ("a LIKE 'x%'", TextMatch("a", Matching.LIKE, "x%")),
        ("a <=> NULL", NullCheck("a", True)),
        ("a = NULL", Membership("a", (), has_null=True)),
        ("a = X'0aFF'", Comparison("a", EQUAL, b"\x0a\xff")),
        ("date > DATE '2024-05-17'", Comparison("date", Comparator.GREATER, datetime.date(2024, 5, 17))),
        ("DATE '2024-05-17' = day", Comparison("day", EQUAL, datetime.date(2024, 5, 17))),
        ("5 < date", Comparison("date", Comparator.GREATER, 5)),
        ("date", Comparison("date", EQUAL, True)),
        ("timestamp IN (TRUE, FALSE)", Membership("timestamp", (True, False))),
        ("5 = `date`", Comparison("date", EQUAL, 5)),
        ("date = 'x'", Comparison("date", EQUAL, "x")),
        ("a IN (NULL)", Membership("a", (), has_null=True)),
        ("a <> TIMESTAMP '2024-05-17T01:00'", Comparison("a", Comparator.UNEQUAL, datetime.datetime(2024, 5, 17, 1))),
    ],
)  # fmt: skip
def test_a_condition_means_what_it_means_in_sql(text, expected):
    assert parse_filter(text) == expected


@pytest.mark.parametrize(
    ("text", "place"),
    [("", 1), ("a =", 4), ("a = 1)", 6), ("(a = 1", 7), ("a ? 1", 3), ("a IN ()", 7), ("a = X'0'", 5),
     ("a = DATE 'x'", 5), ("AND a = 1", 1), ("1 = 2", 5), ("a = b", 5),
     ("a = day '2024-05-17'", 5), ("a = moment '2024-05-17T10:00'", 5),
     ("a = date 5", 5), ("  ?", 3), ("a LIKE 5", 9),
     ("a = 1e999999999999999999999", 5), ("a = " + "1" * 5000, 5), ("(" * 200 + "a" + ")" * 200, 101)],
)  # fmt: skip
def test_an_invalid_condition_is_refused_with_its_position(text, place):
    with pytest.raises(UsageError, match=f"at character {place};"):
        parse_filter(text)


def test_parentheses_beside_each_other_are_no_depth():
    assert parse_filter(" OR ".join(["(a = 1)"] * 300)) == Disjunction((A1,) * 300)
    assert parse_filter("(" * 99 + "a = 1" + ")" * 99) == A1
    with pytest.raises(UsageError, match="too many parentheses"):
        parse_filter("(" * 100 + "a = 1" + ")" * 100)


numbers, words = st.integers(-3, 3), st.text("ab%", max_size=3)
floats = st.sampled_from([-1.5, -0.0, 0.0, 2.0, float("inf")])
operators = st.sampled_from(list(Comparator))
leaves = st.one_of(
    st.builds(Comparison, st.just("number"), operators, numbers),
    st.builds(Comparison, st.just("word"), operators, words),
    st.builds(Comparison, st.just("ratio"), operators, floats),
    st.builds(Comparison, st.just("flag"), operators, st.booleans()),
    st.builds(NullCheck, st.sampled_from(["number", "word", "ratio", "tags"]), st.booleans()),
    st.builds(Membership, st.just("number"), st.lists(numbers, max_size=3).map(tuple), st.booleans(), st.booleans()),
    st.builds(Membership, st.just("ratio"), st.lists(floats, max_size=3).map(tuple), st.booleans(), st.booleans()),
    st.builds(Membership, st.just("word"), st.lists(words, max_size=3).map(tuple), st.booleans(), st.booleans()),
    st.builds(TextMatch, st.just("word"), st.sampled_from(list(Matching)), words, st.booleans()),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda terms: Conjunction(tuple(terms))),
        st.lists(inner, max_size=3).map(lambda terms: Disjunction(tuple(terms))),
    ),
    max_leaves=6,
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.none() | numbers,
            "word": st.none() | words,
            "ratio": st.none() | floats | st.just(float("nan")),
            "flag": st.none() | st.booleans(),
            "tags": st.none() | st.just([1]),
        }
    ),
    min_size=1,
    max_size=6,
)


@given(condition=conditions, rows=rows)
def test_nothing_is_ruled_out_that_matches(condition, rows):
    bound = bind(condition, COLUMNS)
    table = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    matching = rows_matching(bound, table.column, len(rows))
    known = {name: _bounds(statistics.column_statistics(table.column(name))) for name in table.schema.names}
    if matching.true_count:
        assert can_match(bound, known.get)
        assert can_match(bound, lambda _: None)
    numbers = [row["number"] for row, matches in zip(rows, matching.to_pylist(), strict=True) if matches]
    low, high = limits_of(bound, "number", known.get)
    if (low, high) != (None, None):
        assert all((low is None or low <= number) and (high is None or number <= high) for number in numbers)
    # A negation is true exactly where the condition is false.
    negated = rows_matching(bind(negate(condition), COLUMNS), table.column, len(rows))
    assert negated.to_pylist() == [None if each is None else not each for each in matching.to_pylist()]


@pytest.mark.parametrize("condition", ["ratio = 0.0", "ratio IN (0.0, 5.0)", "ratio IN (-0.0)", "NOT ratio <> -0.0"])
def test_both_zeros_are_equal(condition):
    table = pa.RecordBatch.from_pylist([{"ratio": each} for each in (-0.0, 0.0, 7.0, None)], schema=SCHEMA)
    matching = rows_matching(bind(parse_filter(condition), COLUMNS), table.column, 4)
    assert matching.to_pylist() == [True, True, False, None]


@pytest.mark.parametrize(
    ("condition", "matches"),
    [("word LIKE 'b%'", False), ("word >= 'aaz'", True), ("word > 'ab'", False), ("word = 'aaaaa'", True),
     ("number > 9", False), ("number IS NULL", False), ("ratio = 1.0", True), ("flag IS NOT NULL", False)],
)  # fmt: skip
def test_bounds_rule_out_what_lies_outside_of_them(condition, matches):
    known = {
        "word": statistics.ColumnStatistics(0, bounds=(b"a", b"aaz"), is_prefix=True),
        "number": statistics.ColumnStatistics(0, bounds=(0, 9)),
        "ratio": statistics.ColumnStatistics(3),
        "flag": statistics.ColumnStatistics(9, only_nulls=True),
    }
    bound = bind(parse_filter(condition), COLUMNS)
    assert can_match(bound, lambda name: _bounds(known[name])) == matches


def test_spark_keeps_the_filters_that_are_not_understood():
    mine = [spark.EqualTo(("number",), 5), spark.Not(spark.In(("word",), ("a", None))), spark.IsNotNull(("tags",))]
    theirs = [
        spark.EqualTo(("tags", "element"), 5),
        spark.EqualTo(("number",), 2.5),
        spark.EqualTo(("tags",), [1]),
        spark.StringStartsWith(("word",), None),
        spark.EqualTo(("ratio",), float("nan")),
    ]
    taken, left = split_pushed([*theirs[:2], *mine, *theirs[2:]], COLUMNS)
    assert left == theirs
    assert [type(term) for term in taken.terms] == [Comparison, Membership, NullCheck]
    layout, left = and_pushed(theirs, default_layout(SCHEMA, include_headers=False, include_metadata=False))
    assert (layout.row_filter, left) == (None, theirs)


def test_never_is_the_empty_disjunction_and_nothing_is_no_condition():
    assert not can_match(NEVER, lambda _: None)
    assert conjunction(None, None) is None


TOPIC_ID = uuid.UUID(int=1)


def offsets(partition, start, end):
    return OffsetRange(PartitionKey("t", partition), TOPIC_ID, start, end)


def row_filter(text, schema=SCHEMA):
    layout = default_layout(schema, include_headers=False, include_metadata=True)
    return pickle.loads(pickle.dumps(option_filter(text, schema, layout, topics="topic t")))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("__offset >= 5 AND __offset < 7", [offsets(0, 5, 7), offsets(1, 5, 7)]),
        ("__partition = 0 AND __offset < 3 OR __partition = 1 AND __offset > 8", [offsets(0, 0, 3), offsets(1, 9, 10)]),
        ("__partition = 1", [offsets(1, 0, 10)]),
        ("__topic <> 't'", []),
        ("__partition = 0 OR number = 1", [offsets(0, 0, 10), offsets(1, 0, 10)]),
        ("__offset IN (2, 4)", [offsets(0, 2, 5), offsets(1, 2, 5)]),
        ("__offset = 10", []),
    ],
)  # fmt: skip
def test_offsets_and_partitions_are_left_out_before_anything_is_read(text, left):
    assert within_offsets([offsets(0, 0, 10), offsets(1, 0, 10)], row_filter(text)) == left


def test_ranges_are_kept_without_a_filter_and_left_out_without_records():
    assert within_offsets([offsets(0, 5, 7), offsets(1, 5, 5)], None) == [offsets(0, 5, 7), offsets(1, 5, 5)]
    assert within_offsets([offsets(0, 5, 5), offsets(1, 5, 6)], row_filter("number = 1")) == [offsets(1, 5, 6)]


def test_ranges_with_lost_records_stay_so_that_the_loss_is_reported():
    assert within_offsets([offsets(0, 7, 5)], row_filter("__offset = 100")) == [offsets(0, 7, 5)]


@pytest.mark.parametrize(("ms", "asked"), [("000", []), ("001", [{PartitionKey("t", 0): 1}])])
def test_times_are_looked_up_if_there_can_be_earlier_ones(ms, asked):
    found = []

    def first_offsets_from(times):
        found.extend([times] if times else [])
        return dict.fromkeys(times, 4)

    since = row_filter(f"timestamp >= TIMESTAMP '1970-01-01T00:00:00.{ms}'", None)
    timely, late = within_times([offsets(0, 0, 10)], since, first_offsets_from)
    assert (found, late) == (asked, [])
    assert timely == [offsets(0, 4 if asked else 0, 10)]


@pytest.mark.parametrize(("operator", "asked"), [("<", []), ("<=", [{PartitionKey("t", 0): 1}])])
def test_the_end_of_a_time_is_looked_up_if_it_is_not_before_1970(operator, asked):
    found = []

    def first_offsets_from(times):
        found.extend([times] if times else [])
        return dict.fromkeys(times, 4)

    until = row_filter(f"timestamp {operator} TIMESTAMP '1970-01-01T00:00:00Z'", None)
    timely, late = within_times([offsets(0, 0, 10)], until, first_offsets_from)
    assert found == asked
    assert (timely, late) == (([offsets(0, 0, 4)], [offsets(0, 4, 10)]) if asked else ([offsets(0, 0, 10)], []))


def test_records_before_the_first_of_a_time_are_left_out_and_those_after_the_last_set_apart():
    asked = []

    def first_offsets_from(times):
        asked.append(set(times.values()))
        # Partition 0 has a record each second, partition 1 has none.
        return {key: time // 1000 if key.partition == 0 else None for key, time in times.items()}

    ranges = [offsets(0, 0, 10), offsets(1, 0, 10)]
    since, until = (f"TIMESTAMP '1970-01-01T00:00:0{seconds}Z'" for seconds in ("3.9991", "7.0001"))
    assert within_times(ranges, row_filter(f"__timestamp > {since} AND __timestamp < {until}"), first_offsets_from) == (
        [offsets(0, 4, 7)],
        [offsets(0, 7, 10)],
    )
    assert asked == [{4000}, {7001}]
    assert within_times(ranges, row_filter("timestamp < TIMESTAMP '1960-01-01'", None), first_offsets_from) == (
        ranges,
        [],
    )
    assert within_times(ranges, row_filter("number = 1"), lambda times: {} if not times else 1 / 0) == (ranges, [])
    assert within_times(ranges, None, first_offsets_from) == (ranges, [])
    opaque = row_filter("timestamp <= TIMESTAMP '1970-01-01T00:00:09'", None)
    assert within_times([offsets(0, 5, 7), offsets(1, 0, 1)], opaque, first_offsets_from) == (
        [offsets(0, 5, 7), offsets(1, 0, 1)],
        [],
    )
