import datetime as dt

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_series_equal

from millrace_streams import StreamsBuilder, TopologyError, TopologyTestDriver, coalesce, col, lit, when
from millrace_streams.expressions import Expression
from millrace_streams.steps.evaluation import polars_schema, result_types, to_polars

FRAME = pl.DataFrame(
    {
        "i": [7, -7, None, 0],
        "j": [2, 2, 2, 0],
        "x": [1.5, None, -0.5, 3.0],
        "s": ["Ab", None, "abc", ""],
        "b": [True, False, None, True],
    }
)


def values(expression: Expression) -> list:
    return FRAME.select(to_polars(expression).alias("result"))["result"].to_list()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (col("i") + 1, [8, -6, None, 1]),
        (1 - col("i"), [-6, 8, None, 1]),
        (col("i") * col("j"), [14, -14, None, 0]),
        (col("i") / 2, [3.5, -3.5, None, 0.0]),
        (col("i") // col("j"), [3, -4, None, None]),
        (col("i") % col("j"), [1, 1, None, None]),
        (-col("x"), [-1.5, None, 0.5, -3.0]),
        (col("x").absolute(), [1.5, None, 0.5, 3.0]),
        (col("i") == 7, [True, False, None, False]),
        (col("i") != 7, [False, True, None, True]),
        (col("i") < 0, [False, True, None, False]),
        (col("x") >= 1.5, [True, None, False, True]),
        (col("x").between(-1, 2), [True, None, True, False]),
        (col("b") & (col("i") > 0), [True, False, None, False]),
        (col("b") | (col("i") == 0), [True, False, None, True]),
        (~col("b"), [False, True, None, False]),
        (col("x").is_null(), [False, True, False, False]),
        (col("x").is_not_null(), [True, False, True, True]),
        (col("s").is_in(["Ab", ""]), [True, None, False, True]),
        (col("s").lower(), ["ab", None, "abc", ""]),
        (col("s").upper(), ["AB", None, "ABC", ""]),
        (col("s").length(), [2, None, 3, 0]),
        (col("s").starts_with("a"), [False, None, True, False]),
        (col("s").contains("b"), [True, None, True, False]),
        (col("s") + "!", ["Ab!", None, "abc!", "!"]),
        (coalesce(col("x"), col("i"), 0.0), [1.5, -7.0, -0.5, 3.0]),
        (when(col("b"), "yes", "no"), ["yes", "no", "no", "yes"]),
        (when(col("b"), col("i")), [7, None, None, 0]),
        (col("i").cast("string"), ["7", "-7", None, "0"]),
        (col("s").cast("int"), [None, None, None, None]),
        (lit(dt.datetime(2013, 1, 1, tzinfo=dt.UTC)).cast("date"), [dt.date(2013, 1, 1)]),
    ],
    ids=repr,
)
def test_an_expression_means_what_sql_means(expression, expected):
    assert values(expression) == expected


def test_is_in_of_nothing_is_never_true():
    assert True not in values(col("s").is_in([]))


def test_an_expression_knows_its_columns_and_its_text():
    expression = (col("dep_delay") > 15) & col("origin").is_in(["JFK", "LGA"]) | ~(lit(1) == col("x").cast("int"))
    assert expression.columns() == {"dep_delay", "origin", "x"}
    assert repr(expression) == ("(((dep_delay > 15) & origin.is_in('JFK', 'LGA')) | (1 == x.cast('int')).not())")
    assert expression.same_as(expression)
    assert not expression.same_as(col("x"))


def test_python_connectives_are_refused_with_the_remedy():
    with pytest.raises(TopologyError, match=r"\(a > 1\) has no truth value: combine with &"):
        bool(col("a") > 1)


def test_what_cannot_be_in_an_expression_is_refused():
    with pytest.raises(TopologyError, match=r"\[\] \(list\) cannot be part"):
        assert (col("a") == []) is not None
    with pytest.raises(TopologyError, match="cast to 'number': not a type; one of bigint, binary"):
        col("a").cast("number")
    with pytest.raises(TopologyError, match="at least one operand"):
        coalesce()


def test_types_are_those_that_polars_computes():
    schema = polars_schema(pa.schema([("i", pa.int32()), ("x", pa.float64()), ("s", pa.string())]))
    expressions = [col("i") + col("x"), col("i") / 2, col("s").length(), col("x") > 1]
    types = result_types([to_polars(expression) for expression in expressions], schema, "node")
    assert types == [pl.Float64, pl.Float64, pl.Int32, pl.Boolean]


def test_types_that_do_not_fit_name_the_node():
    schema = polars_schema(pa.schema([("b", pa.bool_()), ("s", pa.string())]))
    with pytest.raises(TopologyError, match="KSTREAM-X: the expression does not fit"):
        result_types([to_polars(col("s").is_null() & col("s"))], schema, "KSTREAM-X")


@given(st.lists(st.tuples(st.none() | st.integers(-9, 9), st.none() | st.integers(-9, 9))))
def test_division_rounds_down_and_by_zero_gives_null(pairs):
    frame = pl.DataFrame(pairs, schema={"a": pl.Int64, "b": pl.Int64}, orient="row")
    result = frame.select(q=to_polars(col("a") // col("b")), r=to_polars(col("a") % col("b")))
    expected = [divmod(a, b) if a is not None and b else (None, None) for a, b in pairs]
    assert_series_equal(result["q"], pl.Series("q", [q for q, _ in expected], dtype=pl.Int64))
    assert_series_equal(result["r"], pl.Series("r", [r for _, r in expected], dtype=pl.Int64))


def test_a_column_may_have_the_name_of_a_keyword():
    builder = StreamsBuilder()
    schema = pa.schema([("key", pa.string()), ("v", pa.int64())])
    stream = builder.stream("in", schema=schema, key_columns=["key"])
    stream.select((col("v") + 1).alias("name"), "v").to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe("in", [{"key": "a", "v": 1}])
    assert driver.read("out") == [{"key": "a", "name": 2, "v": 1, "__timestamp": 0}]
