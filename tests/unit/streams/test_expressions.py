import datetime as dt
from functools import cache

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_series_equal

from millrace_streams import StreamsBuilder, TopologyError, TopologyTestDriver, coalesce, col, lit, when
from millrace_streams.expressions import TYPE_NAMES, Expression
from millrace_streams.frames.evaluation import polars_schema, result_types, to_polars

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


@pytest.mark.parametrize(
    ("text", "date", "instant", "boolean"),
    [
        ("2020-01-31", (2020, 1, 31), (2020, 1, 31), None),
        (" 2020-1-31 3:4 ", (2020, 1, 31), (2020, 1, 31, 3, 4), None),
        ("2020-01-31T03:04:05Z", (2020, 1, 31), (2020, 1, 31, 3, 4, 5), None),
        ("2020-01-31 03:04:05.123456789", (2020, 1, 31), (2020, 1, 31, 3, 4, 5, 123_456), None),
        ("2020-01-31 23:04:05.5-02:30", (2020, 1, 31), (2020, 2, 1, 1, 34, 5, 500_000), None),
        ("2020-01-31 later", (2020, 1, 31), None, None),
        ("2020-13-31", None, None, None),
        (" Yes ", None, None, True),
        ("f", None, None, False),
        ("on", None, None, None),
        (None, None, None, None),
    ],
)
def test_a_text_is_cast_to_a_time_or_a_boolean(text, date, instant, boolean):
    frame = pl.DataFrame({"s": [text]}, schema={"s": pl.String})
    found = [frame.select(to_polars(col("s").cast(name))).item() for name in ("date", "timestamp", "boolean")]
    assert found == [date and dt.date(*date), instant and dt.datetime(*instant, tzinfo=dt.UTC), boolean]


CELLS = {
    pl.Boolean: True,
    pl.Int64: -1,
    pl.Float64: 1.5,
    pl.Decimal(9, 2): 3,
    pl.String: "1",
    pl.Binary: b"1",
    pl.Date: dt.date(2020, 1, 31),
    pl.Time: dt.time(1),
    pl.Datetime("us", "UTC"): dt.datetime(2020, 1, 31, tzinfo=dt.UTC),
    pl.Datetime("us"): dt.datetime(2020, 1, 31),
    pl.Duration("us"): dt.timedelta(seconds=1),
    pl.List(pl.Int64): [1],
    pl.Struct({"a": pl.Int64}): {"a": 1},
}


@pytest.mark.parametrize("name", sorted(TYPE_NAMES))
@pytest.mark.parametrize("data_type", CELLS, ids=str)
def test_a_cast_is_refused_by_the_compiler_or_works(data_type, name):
    cast = to_polars(col("c").cast(name))
    frame = pl.DataFrame({"c": [CELLS[data_type], None]}, schema={"c": data_type})
    try:
        [wanted] = result_types([cast], frame.schema, "node")
    except TopologyError:
        assert data_type not in (pl.Boolean, pl.Int64, pl.Float64, pl.String)
    else:
        assert frame.select(cast).to_series().dtype == wanted


def test_is_in_of_nothing_is_never_true():
    assert True not in values(col("s").is_in([]))


def test_an_expression_knows_its_columns_and_its_text():
    expression = (col("dep_delay") > 15) & col("origin").is_in(["JFK", "LGA"]) | ~(lit(1) == col("x").cast("int"))
    assert expression.columns() == {"dep_delay", "origin", "x"}
    assert repr(expression) == ("(((dep_delay > 15) & origin.is_in('JFK', 'LGA')) | (1 == x.cast('int')).not())")
    assert expression.same_as(expression)
    assert not expression.same_as(col("x"))


def test_python_connectives_are_refused_with_the_remedy():
    with pytest.raises(TopologyError, match=r"\(a > 1\) has no truth value: combine expressions with &"):
        bool(col("a") > 1)


def test_an_invalid_expression_is_refused():
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


@cache
def times():
    """Create a frame in a test and not on import, because that starts threads of Polars (tests/mutation)."""
    return pl.DataFrame(
        {
            "t": pl.Series(
                [dt.datetime(2024, 2, 29, 23, 5, 59, 7000), None], dtype=pl.Datetime("us")
            ).dt.replace_time_zone("UTC"),
            "d": pl.Series([dt.date(2024, 12, 1), None], dtype=pl.Date),
            "s": ["GET /a/b.html 404", None],
            "x": [2.5, None],
            "r": pl.Series([{"n": 3, "u": "v"}, None], dtype=pl.Struct({"n": pl.Int64, "u": pl.String})),
        }
    )


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (col("t").part("year"), 2024),
        (col("t").part("month"), 2),
        (col("t").part("day"), 29),
        (col("t").part("hour"), 23),
        (col("t").part("minute"), 5),
        (col("t").part("second"), 59),
        (col("t").part("day_of_week"), 5),
        (col("d").part("day_of_week"), 1),
        (col("t").part("day_of_year"), 60),
        (col("t").part("milliseconds"), 1_709_247_959_007),
        (col("t").truncate("hour"), dt.datetime(2024, 2, 29, 23, tzinfo=dt.UTC)),
        (col("t").truncate("week"), dt.datetime(2024, 2, 26, tzinfo=dt.UTC)),
        (col("d").truncate("quarter"), dt.date(2024, 10, 1)),
        (col("s").ends_with("404"), True),
        ((lit("  ") + col("s")).trim(), "GET /a/b.html 404"),
        (col("s").substring(1, 3), "GET"),
        (col("s").substring(-3, 2), "40"),
        (col("s").substring(16, 9), "04"),
        (col("s").split_part(" ", 2), "/a/b.html"),
        (col("s").split_part(" ", -1), "404"),
        (col("s").split_part(" ", 4), ""),
        (col("s").matches(r"\d{3}$"), True),
        (col("s").matches("^/"), False),
        (col("s").extract(r"(\w+)\.html"), "b"),
        (col("s").extract(r"\d+", 0), "404"),
        (col("s").extract("(POST)"), None),
        (col("s").replace(r"/(\w)", "-$1"), "GET -a-b.html 404"),
        (col("x").round(), 3.0),
        ((col("x") / -10).round(1), -0.3),
        (col("r").field("n") + 1, 4),
    ],
)
def test_times_texts_and_structs_are_taken_apart(expression, expected):
    found = times().select(to_polars(expression).alias("result"))["result"].to_list()
    assert found == [expected, None]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: col("t").part("century"), r"part\('century'\): not a part of a time; one of year, month"),
        (lambda: col("t").truncate("decade"), r"truncate\('decade'\): not a unit of time; one of second"),
        (lambda: col("s").substring(0, 1), "1 is the first character"),
        (lambda: col("s").split_part(",", 0), "parts begin with 1"),
        (lambda: to_polars(col("s").matches("(")), r"'\(' is not a regular expression: "),
        (lambda: result_types([to_polars(col("s").part("year"))], times().schema, "mine"), "mine: the expression does"),
        (lambda: result_types([to_polars(col("r").field("m"))], times().schema, "mine"), "mine: the expression does"),
        (lambda: result_types([to_polars(col("d").part("hour"))], times().schema, "mine"), "mine: the expression does"),
    ],
)
def test_a_value_that_cannot_be_unpacked_is_refused(make, message):
    with pytest.raises(TopologyError, match=message):
        make()
