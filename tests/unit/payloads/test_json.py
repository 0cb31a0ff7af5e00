"""Tests of JSON payloads.

Payloads that are read together give the same rows and errors as payloads that are read one by one.
"""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from millrace.payloads.json_objects import JsonReader
from millrace.schemas import parse_ddl

COLUMNS = (
    "b BOOLEAN, t TINYINT, i INT, l BIGINT NOT NULL, f FLOAT, d DOUBLE, n DECIMAL(9,2), s STRING, z BINARY, "
    "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, clock TIME, took INTERVAL DAY TO SECOND, "
    "list ARRAY<STRUCT<x: INT, y: STRING>>, o STRUCT<p: STRING, q: STRUCT<r: DATE>>"
)
SCHEMA = parse_ddl(COLUMNS)

_nullable = {
    "b": st.booleans(),
    "t": st.integers(-128, 127),
    "i": st.integers(-(2**31), 2**31 - 1),
    "f": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "d": st.floats(allow_nan=False, allow_infinity=False),
    "n": st.integers(-(10**9) + 1, 10**9 - 1).map(lambda number: str(Decimal(number).scaleb(-2))),
    "s": st.text(max_size=10),
    "z": st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode()),
    "day": st.dates().map(datetime.date.isoformat),
    "at": st.datetimes(datetime.datetime(1700, 1, 1), timezones=st.just(datetime.UTC)).map(datetime.datetime.isoformat),
    "local": st.datetimes(datetime.datetime(1700, 1, 1)).map(datetime.datetime.isoformat),
    "clock": st.times().map(datetime.time.isoformat),
    "took": st.integers(0, 10**6).map("PT{}S".format),
    "list": st.lists(
        st.none() | st.fixed_dictionaries({}, optional={"x": st.none() | st.integers(0, 9), "y": st.text(max_size=3)})
    ),
    "o": st.fixed_dictionaries(
        {}, optional={"p": st.text(max_size=3), "q": st.none() | st.just({"r": "2020-02-29"}), "unknown": st.just([1])}
    ),
}
_objects = st.fixed_dictionaries(
    {"l": st.integers(-(2**63), 2**63 - 1)},
    optional={name: st.none() | each for name, each in _nullable.items()}
    | {"unknown": st.sampled_from([1, "a", [{"l": 1}, 2], {"l": {}, "x": []}])},
)
_payloads = st.tuples(_objects, st.booleans(), st.sampled_from([None, 1])).map(
    lambda each: json.dumps(each[0], ensure_ascii=each[1], indent=each[2]).encode()
)


def _read(payloads: list[bytes], schema: pa.Schema = SCHEMA) -> tuple[list[Any], dict[int, str]]:
    faults: dict[int, str] = {}
    batch = JsonReader(schema).read(pa.array(payloads, pa.binary()), faults.__setitem__)
    batch.validate(full=True)
    return [None if row in faults else value for row, value in enumerate(_rows(batch))], faults


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    at = batch.schema.get_field_index("clock")
    if at >= 0:
        batch = batch.set_column(at, "clock", batch.column(at).cast(pa.int64()))
    return batch.to_pylist()


@settings(max_examples=60)
@given(st.lists(_payloads, min_size=20, max_size=40))
def test_at_once_and_one_by_one_are_the_same(payloads: list[bytes]) -> None:
    together, faults = _read(payloads)
    assert faults == {}
    assert together == [_read([payload])[0][0] for payload in payloads]
    for row, payload in zip(together, payloads, strict=True):
        sent = json.loads(payload)
        assert {name: row[name] for name in "btilds"} == {name: sent.get(name) for name in "btilds"}


BROKEN = (
    [b"", b" ", b"{", b"}", b'{"l":', b"1}", b'{"l":1}}', b'{"l":1}{"l":2}', b'{"l":1},{"l":2}', b"null", b"[]", b"3",
     b'{"l":1},"v":{"l":2}', b'{"l":1}}\n{"v":{"l":2}',
     b'{"l":1},"x":"lost"', b'{"o":{}}\n, "l":1', b'{"l":1}],"x":[{"l":2}', b'{"l":"1"}', b'{"l":null}', b"{}",
     b'{"l":1,"d":NaN}', b'{"l":1,"d":1e999}', b'{"l":1,"f":1e300}', b'{"l":1,"t":300}',
     b'{"l":1,"s":5}', b'{"l":1,"s":"\xff"}', b'{"l":1,"s":"\\ud800"}',
     b'{"l":1,"s":"a\nb"}',
     b'{"l":1,"day":"2020-02-30"}', b'{"l":1,"at":"2020-01-01T00:00:00"}', b'{"l":1,"local":"2020-01-01T00:00:00Z"}',
     b'{"l":1,"n":1.234}', b'{"l":1,"n":"x"}', b'{"l":1,"z":"?"}', b'{"l":1,"clock":"25:00"}', b'{"l":1,"took":"P1M"}',
     b'{"l":1,"list":{}}', b'{"l":1,"list":[{"x":"1"}]}', b'{"l":1,"o":[]}', b'{"l":1,"at":"2020-01-01"}', b'{"l":01}',
     b'{"l":1,"unknown":NaN}', b'{"l":1,"unknown":[ -Infinity]}', b'{"l":1e-99999999999999999999}',
     b'{"l":1,"n":1e-99999999999999999999}', b'{"l":1,"n":"1_0.5"}', b'{"l":1,"n":" 1.5 "}', b'{"l":1,"n":1e7}',
     b'{"l":1,"day":"0000-01-01"}', b'{"l":1,"day":"10000-01-01"}', b'{"l":1,"local":"0000-12-31T23:59:59"}',
     b'{"l":1,"at":"9999-12-31T23:59:59-23:00"}', b'{"l":1,"at":"0001-01-01T00:00:00+01:00"}',
     b'{"l":1,"took":"P999999999D"}', '{"l":1,"took":"PT\u0661S"}'.encode(), '{"l":1}'.encode("utf-16"),
     '{"l":1}'.encode("utf-16-le"), '{"l":1}'.encode("utf-32")]
)  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_payload_among_valid_ones_is_refused(broken: bytes) -> None:
    rows, faults = _read([b'{"l":1,"more":{}}', *[b'{"l":1}'] * 20, broken])
    assert list(faults) == [21]
    assert rows[:21] == _read([b'{"l":1}'])[0] * 21


@settings(max_examples=60)
@given(st.lists(st.tuples(_payloads, st.none() | st.sampled_from(BROKEN)), min_size=18, max_size=40))
def test_a_broken_payload_affects_no_other(pairs: list[tuple[bytes, bytes | None]]) -> None:
    payloads = [broken if broken is not None else good for good, broken in pairs]
    rows, faults = _read(payloads)
    assert sorted(faults) == [at for at, (_, broken) in enumerate(pairs) if broken is not None]
    for at, (good, broken) in enumerate(pairs):
        assert rows[at] == (None if broken is not None else _read([good])[0][0])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"{", "it is not JSON: Expecting property name"),
        (b"[]", "expected an object, found list"),
        (b"{}", "l: it is missing, or null"),
        (b'{"l": "1"}', 'l: "1" is not a valid BIGINT'),
        (b'{"l": 1, "list": [{"x": true}]}', "list.element.x: true is not a valid INT"),
        (b'{"l": 1, "o": {"q": {"r": "today"}}}', 'o.q.r: "today" is not a valid DATE'),
        (b'{"l": 1, "d": NaN}', "it is not JSON: NaN is not a number"),
        (b'{"l": 1, "n": 12345678.9}', "n: "),
    ],
)
def test_faults_name_the_place(payload: bytes, reason: str) -> None:
    assert _read([payload])[1][0].startswith(reason)


def test_maps_and_whole_numbers_with_a_decimal_point_are_read() -> None:
    schema = parse_ddl("m MAP<STRING, INT>, l BIGINT")
    rows, faults = _read([b'{"m": {"a": 1, "b": null}, "l": 2.0}', b'{"m": {"a": "x"}}', b"{}"], schema)
    assert rows == [{"m": [("a", 1), ("b", None)], "l": 2}, None, {"m": None, "l": None}]
    assert faults == {1: 'm.a: "x" is not a valid INT'}


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("DECIMAL(9,2)", "1.25" + "0" * 46, Decimal("1.25")),
        ("DECIMAL(9,2)", '"12.5e1"', Decimal("125.00")),
        ("DECIMAL(9,2)", "0e99999", Decimal("0.00")),
        (
            "DECIMAL(38,9)",
            "12345678901234567890123456789.123456789",
            Decimal("12345678901234567890123456789.123456789"),
        ),
        ("DOUBLE", "1e-99999999999999999999", 0.0),
        ("DATE", '"0001-01-01"', datetime.date(1, 1, 1)),
        ("DATE", '"9999-12-31"', datetime.date(9999, 12, 31)),
        ("TIMESTAMP_NTZ", '"9999-12-31T23:59:59.999999"', datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)),
        ("TIMESTAMP_NTZ", '"0001-01-01T00:00:00"', datetime.datetime(1, 1, 1)),
        ("STRING", '"NaN"', "NaN"),
    ],
)
@pytest.mark.parametrize("more", ["", ',"unknown":1e-99999999999999999999', ',"unknown":"NaN"'])
def test_a_value_at_a_limit_is_read_alone_and_among_others(column: str, text: str, value: Any, more: str) -> None:
    schema = parse_ddl(f"v {column}")
    payload = f'{{"v":{text}{more}}}'.encode()
    assert _read([payload], schema) == ([{"v": value}], {})
    assert _read([payload] * 20, schema) == ([{"v": value}] * 20, {})


def test_a_map_key_with_half_of_a_surrogate_pair_is_a_fault() -> None:
    _, faults = _read([b'{"m":{"\\ud800":1}}', b'{"m":{"a":1}}'], parse_ddl("m MAP<STRING, BIGINT>"))
    assert faults == {0: "m.key: the text has half of a surrogate pair"}


def test_values_of_any_depth_are_faults_of_a_number() -> None:
    payloads = [b'{"l":' + b"[" * depth + b"]" * depth + b"}" for depth in range(600, 1000)]
    assert sorted(_read(payloads)[1]) == list(range(400))
