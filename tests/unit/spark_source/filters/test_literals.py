"""Tests of literals that fit column types exactly or are refused."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types

from pyspark_millrace.filters.literals import BoundLiteral, UnfitLiteralError, literal_of, parse_date, parse_timestamp

LONG, DOUBLE, MONEY = types.LongType(), types.DoubleType(), types.DecimalType(5, 2)
DAY, MOMENT, LOCAL = types.DateType(), types.TimestampType(), types.TimestampNTZType()
ZONE = datetime.timezone(datetime.timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (True, types.BooleanType(), BoundLiteral(True, 1)),
        (False, types.BooleanType(), BoundLiteral(False, 0)),
        (-(2**63), LONG, BoundLiteral(-(2**63), -(2**63))),
        (2**63 - 1, LONG, BoundLiteral(2**63 - 1, 2**63 - 1)),
        (Decimal("3.0"), types.IntegerType(), BoundLiteral(3, 3)),
        (Decimal(2**63 - 1), LONG, BoundLiteral(2**63 - 1, 2**63 - 1)),
        (3, DOUBLE, BoundLiteral(3.0, 3.0)),
        (Decimal("0.5"), types.FloatType(), BoundLiteral(0.5, 0.5)),
        (2.5, DOUBLE, BoundLiteral(2.5, 2.5)),
        (float("-inf"), DOUBLE, BoundLiteral(float("-inf"), float("-inf"))),
        (Decimal("999.99"), MONEY, BoundLiteral(Decimal("999.99"), 99999)),
        (Decimal("-999.99"), MONEY, BoundLiteral(Decimal("-999.99"), -99999)),
        (7, MONEY, BoundLiteral(Decimal("7.00"), 700)),
        (0, MONEY, BoundLiteral(Decimal("0.00"), 0)),
        (Decimal("-0.01"), MONEY, BoundLiteral(Decimal("-0.01"), -1)),
        ("é", types.StringType(), BoundLiteral("é", "é".encode())),
        ("é", types.BinaryType(), BoundLiteral("é".encode(), "é".encode())),
        (b"\xff", types.BinaryType(), BoundLiteral(b"\xff", b"\xff")),
        (bytearray(b"\xff"), types.BinaryType(), BoundLiteral(b"\xff", b"\xff")),
        (datetime.date(1970, 1, 3), DAY, BoundLiteral(datetime.date(1970, 1, 3), 2)),
        (" 1969-12-31 ", DAY, BoundLiteral(datetime.date(1969, 12, 31), -1)),
        ("1970-01-01T00:00:01Z", MOMENT, BoundLiteral(1_000_000, 1_000_000)),
        ("1970-01-01T00:00:01", MOMENT, BoundLiteral(1_000_000, 1_000_000)),
        (datetime.datetime(1970, 1, 1, 2, 0, 0, 3, tzinfo=ZONE), MOMENT, BoundLiteral(3, 3)),
        (datetime.datetime(1970, 1, 1, 0, 0, 0, 7), LOCAL, BoundLiteral(7, 7)),
    ],
)  # fmt: skip
def test_a_value_that_fits_is_converted_to_the_column_type(value: Any, data_type: Any, expected: BoundLiteral) -> None:
    found = literal_of(value, data_type)
    assert found == expected
    assert type(found.value) is type(expected.value)
    if isinstance(expected.value, Decimal):
        assert found.value.as_tuple() == expected.value.as_tuple(), "the column's digits after the decimal point"


@pytest.mark.parametrize(
    ("value", "data_type", "says"),
    [
        (1, types.BooleanType(), "BOOLEAN is compared with TRUE or FALSE, not 1"),
        (True, LONG, "BIGINT is compared with no truth value, not True"),
        (True, DOUBLE, "DOUBLE is compared with no truth value"),
        (2**63, LONG, "BIGINT is compared with a whole number"),
        (-(2**63) - 1, LONG, "BIGINT is compared with a whole number"),
        (Decimal("3.5"), LONG, "BIGINT is compared with a whole number"),
        (3.0, LONG, "BIGINT is compared with a whole number"),
        ("3", DOUBLE, "DOUBLE is compared with a number"),
        (float("nan"), DOUBLE, "DOUBLE is compared with a number"),
        (10**400, DOUBLE, "a number of its range"),
        (Decimal("1e400"), DOUBLE, "a number of its range"),
        (Decimal("1e999999999"), LONG, "a whole number"),
        (Decimal("nan"), LONG, "a whole number"),
        (Decimal("1e-999999999999"), MONEY, "a number of its digits"),
        (Decimal("1e999999999"), MONEY, "a number of its digits"),
        (Decimal(f"1.{'0' * 110}1"), MONEY, "a number of its digits"),
        (Decimal("1000.00"), MONEY, r"DECIMAL\(5,2\) is compared with a number of its digits"),
        (Decimal("-1000"), MONEY, "a number of its digits"),
        (Decimal("0.001"), MONEY, "a number of its digits"),
        (1.5, MONEY, "a number of its digits"),
        (Decimal("inf"), MONEY, "DECIMAL"),
        (Decimal("sNaN"), MONEY, "a number"),
        (5, types.StringType(), "STRING is compared with a 'text'"),
        ("a", types.StringType("UNICODE_CI"), "is compared with a 'text'"),
        (5, types.BinaryType(), "BINARY is compared with a 'text' or X'hex'"),
        (5, DAY, "DATE is compared with DATE '2024-05-17', not 5"),
        (datetime.datetime(2024, 5, 17), DAY, "DATE is compared with DATE"),
        ("x", DAY, "'x' is not a date such as"),
        ("x", MOMENT, "'x' is not a time such as"),
        (datetime.date(2024, 5, 17), MOMENT, "TIMESTAMP is compared with TIMESTAMP '2024-05-17T10:00:00Z'"),
        (datetime.datetime(2024, 5, 17, tzinfo=ZONE), LOCAL, "TIMESTAMP_NTZ is compared with TIMESTAMP '.*00'"),
        (1, types.ArrayType(LONG), "cannot be compared: only IS NULL"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(value: Any, data_type: Any, says: str) -> None:
    with pytest.raises(UnfitLiteralError, match=says):
        literal_of(value, data_type)


def test_dates_and_times_are_read_in_iso_form() -> None:
    assert parse_date(" 2024-05-17") == datetime.date(2024, 5, 17)
    assert parse_timestamp("2024-05-17T10:00:00+02:00 ") == datetime.datetime(2024, 5, 17, 10, tzinfo=ZONE)
