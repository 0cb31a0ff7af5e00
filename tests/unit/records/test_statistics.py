"""Tests of batch statistics.

They hold for every value of a batch, survive the broker's changes of batches, and are refused when wrong.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError, InvalidRecordError
from millrace.records import (
    Compression,
    TimestampType,
    build_columnar_batch,
    read_columns_header,
    read_header,
    recompress_batch,
    stamp_append_time,
    validate_batch,
    verify_crc,
)
from millrace.records import statistics as module
from millrace.records.statistics import (
    STATISTICS_ROWS_MIN,
    BatchStatistics,
    ColumnStatistics,
    column_statistics,
    covers,
    entries_of,
    gather_entries,
    read_statistics,
)

ROWS = STATISTICS_ROWS_MIN
DAY = datetime.date(2024, 5, 17)
ASCENDING = pa.record_batch(
    {
        "id": pa.array(range(100, 100 + ROWS), pa.int32()),
        "word": pa.array([f"w{number:04}" for number in range(ROWS)]),
        "price": pa.array([Decimal(number).scaleb(-2) for number in range(-3, ROWS - 3)], pa.decimal128(30, 2)),
        "ratio": pa.array([number / 4 for number in range(ROWS)], pa.float32()),
        "day": pa.array([None, *([DAY] * (ROWS - 1))], pa.date32()),
        "flag": pa.array([True] * ROWS),
        "tags": pa.array([["a"]] * ROWS, pa.list_(pa.string())),
        "nothing": pa.nulls(ROWS, pa.string()),
    }
)
DAYS = (DAY - datetime.date(1970, 1, 1)).days


def build(columns: pa.RecordBatch = ASCENDING, **how: Any) -> bytes:
    return build_columnar_batch(columns, schema_id=3, **how)


def read(batch: bytes | bytearray) -> BatchStatistics | None:
    return read_statistics(batch, 0, read_header(batch))


def validate(batch: bytes, schema: pa.Schema = ASCENDING.schema) -> None:
    header = read_header(batch)
    verify_crc(batch, 0, header)
    validate_batch(batch, 0, header, lambda _: schema)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4, Compression.ZSTD])
def test_a_batch_says_what_its_columns_hold(compression: Compression) -> None:
    batch = build(timestamps_ms=pa.array(range(ROWS, 0, -1)), compression=compression)
    found = read(batch)
    assert found == BatchStatistics(
        schema_id=3,
        columns={
            0: ColumnStatistics(0, bounds=(100, 99 + ROWS)),
            1: ColumnStatistics(0, bounds=(b"w0000", f"w{ROWS - 1:04}".encode())),
            2: ColumnStatistics(0, bounds=(-3, ROWS - 4)),
            3: ColumnStatistics(0, bounds=(0.0, (ROWS - 1) / 4)),
            4: ColumnStatistics(1, bounds=(DAYS, DAYS)),
            5: ColumnStatistics(0, bounds=(1, 1)),
            6: ColumnStatistics(0),
            7: ColumnStatistics(ROWS, only_nulls=True),
        },
        timestamps_ms=(1, ROWS),
    )
    validate(batch)


def test_an_opaque_batch_has_statistics_of_its_keys_and_none_of_payload() -> None:
    keys, values = pa.array([b"k%06d" % number for number in range(ROWS)]), pa.array([b"v" * 100] * ROWS)
    found = read(build_columnar_batch(pa.record_batch({"key": keys, "value": values}), timestamps_ms=7))
    assert found is not None
    assert found.columns[0].bounds == (b"k000000", b"k%06d" % (ROWS - 1))
    assert found.columns[1] == ColumnStatistics(0)
    assert found.timestamps_ms == (7, 7)
    without_keys = read(build_columnar_batch(pa.record_batch({"value": values})))
    assert without_keys is not None
    assert set(without_keys.columns) == {1}


def test_small_batches_and_spread_texts_have_none() -> None:
    assert read(build(ASCENDING.slice(0, ROWS - 1))) is None
    words = pa.array([f"w{number * 7919 % 1000}" for number in range(ROWS)])
    assert column_statistics(words) == ColumnStatistics(0)
    assert column_statistics(pa.array([float("nan"), 1.0])) == ColumnStatistics(0)


def test_only_the_first_32_columns_have_statistics() -> None:
    numbers = pa.array(range(ROWS))
    found = read(build(pa.record_batch({f"c{number}": numbers for number in range(33)})))
    assert found is not None
    assert set(found.columns) == set(range(32))


def test_long_texts_are_cut_and_still_cover_their_values() -> None:
    long = pa.array(["a" * 90] * 40 + ["é" * 50] * 2 + ["b"] * 200)
    found = column_statistics(long)
    assert found.bounds == (b"a" * 64, ("é" * 50).encode()[:64])
    assert found.is_prefix
    assert covers(found, long)
    assert not covers(ColumnStatistics(0, bounds=found.bounds), long)


@pytest.mark.parametrize(
    ("texts", "have_bounds"),
    [
        ("dcba" * 4, True), ("edcba" * 3 + "e", False),  # few values, or too many
        ("bcdefghijklmna@?", True), ("bcdefghijklmaA@?", False),  # twelve ascents, or eleven
    ],
)  # fmt: skip
def test_texts_have_bounds_if_they_are_few_or_ascend(texts: str, have_bounds: bool) -> None:
    bounds = (min(texts).encode(), max(texts).encode()) if have_bounds else None
    assert column_statistics(pa.array(list(texts))).bounds == bounds


@pytest.mark.parametrize(("size", "have_bounds"), [(60, True), (61, False)])
def test_texts_of_more_than_64_bytes_on_average_have_no_bounds(size: int, have_bounds: bool) -> None:
    column = pa.array(["x" * size] * 1_000)  # and an offset of four bytes each
    assert (column_statistics(column.slice(0, 999)).bounds is not None) == have_bounds


@pytest.mark.parametrize(("size", "is_prefix"), [(63, False), (64, False), (65, True)])
def test_texts_are_cut_beyond_64_bytes(size: int, is_prefix: bool) -> None:
    found = column_statistics(pa.array(["a", "b" * size] * 2))
    assert found == ColumnStatistics(0, bounds=(b"a", b"b" * min(size, 64)), is_prefix=is_prefix)


def test_entries_are_written_as_the_format_says() -> None:
    numbers = pa.array([None, *range(-129, ROWS - 130)], pa.int32())
    entries = gather_entries([numbers, None, pa.nulls(ROWS)], None)
    assert (
        entries.hex()
        == "0002" + "0000" + "01" + "01" + "00000001" + "02ff7f" + "017d" + "0002" + "02" + "00" + "00000100"
    )


def test_a_column_lies_within_statistics_or_not() -> None:
    numbers, gaps, nulls = pa.array([3, 5]), pa.array([3, None, 5]), pa.nulls(2, pa.int64())
    within = ColumnStatistics(1, bounds=(3, 5))
    assert covers(within, numbers)
    assert covers(within, gaps)
    assert not covers(ColumnStatistics(0, bounds=(3, 5)), gaps)
    assert not covers(ColumnStatistics(1, bounds=(3, 5)), nulls)
    assert covers(ColumnStatistics(2, bounds=(30, 50)), nulls), "no value contradicts the bounds"
    assert covers(ColumnStatistics(2, only_nulls=True), nulls)
    assert not covers(ColumnStatistics(2, only_nulls=True), gaps)
    assert not covers(ColumnStatistics(2, only_nulls=True), numbers)
    assert covers(ColumnStatistics(0), numbers)
    for bounds, covered in [((2, 5), True), ((3, 6), True), ((4, 5), False), ((3, 4), False), ((3.0, 5.0), False)]:
        assert covers(ColumnStatistics(0, bounds=bounds), numbers) is covered
    assert not covers(ColumnStatistics(0, bounds=(b"a", b"z")), numbers)
    words = pa.array(["b", "cd"])
    for texts, is_prefix, covered in [
        ((b"b", b"cd"), False, True), ((b"c", b"cd"), False, False), ((b"b", b"cc"), False, False),
        ((b"b", b"c"), False, False), ((b"b", b"c"), True, True), ((b"b", b"b"), True, False),
    ]:  # fmt: skip
        assert covers(ColumnStatistics(0, bounds=texts, is_prefix=is_prefix), words) is covered
    assert not covers(ColumnStatistics(0, bounds=(1, 9)), words)


values = st.one_of(
    st.tuples(st.just(pa.int64()), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1)),
    st.tuples(st.just(pa.int8()), st.lists(st.none() | st.integers(-128, 127), min_size=1)),
    st.tuples(st.just(pa.float64()), st.lists(st.none() | st.floats(), min_size=1)),
    st.tuples(st.just(pa.string()), st.lists(st.none() | st.text(max_size=3), min_size=1)),
    st.tuples(st.just(pa.binary()), st.lists(st.none() | st.binary(max_size=80), min_size=1)),
    st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans(), min_size=1)),
    st.tuples(
        st.just(pa.decimal128(38, 4)),
        st.lists(
            st.none()
            | st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -4))),
            min_size=1,
        ),
    ),
)


@given(drawn=values, start=st.integers(0, 3))
def test_statistics_cover_the_column_and_each_part_of_it(drawn: Any, start: int) -> None:
    type_, items = drawn
    column = pa.array(items, type_)
    found = column_statistics(column)
    assert covers(found, column)
    assert covers(found, column.slice(start))
    assert found.only_nulls == (column.null_count == len(column))
    repeated = pa.concat_arrays([column] * ROWS)
    entries = gather_entries([repeated], None)
    assert dict(module._read_entries(bytes(4) + entries))[0].bounds == column_statistics(repeated).bounds


def test_untrue_statistics_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    others = ASCENDING.set_column(0, "id", pa.array(range(101, 101 + ROWS), pa.int32()))
    untrue = gather_entries(others.columns, None)
    monkeypatch.setattr("millrace.records.columnar_writing.gather_entries", lambda *_: untrue)
    with pytest.raises(InvalidRecordError, match="statistics of column id do not match"):
        validate(build())
    times = gather_entries(ASCENDING.columns, pa.array(range(10, 10 + ROWS)))
    monkeypatch.setattr("millrace.records.columnar_writing.gather_entries", lambda *_: times)
    with pytest.raises(InvalidRecordError, match="timestamps do not match"):
        validate(build(timestamps_ms=pa.array(range(ROWS))))
    monkeypatch.setattr("millrace.records.columnar_writing.gather_entries", lambda *_: times[:-3])
    with pytest.raises(InvalidRecordError, match="damaged"):
        validate(build())


def test_statistics_of_a_column_that_the_batch_does_not_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = gather_entries([*ASCENDING.columns, pa.nulls(ROWS)], None)
    monkeypatch.setattr("millrace.records.columnar_writing.gather_entries", lambda *_: entries)
    with pytest.raises(InvalidRecordError, match="statistics of column 8 do not match"):
        validate(build())


def test_a_batch_may_have_no_statistics_of_its_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = gather_entries(ASCENDING.columns, None)
    monkeypatch.setattr("millrace.records.columnar_writing.gather_entries", lambda *_: entries)
    batch = build(timestamps_ms=pa.array(range(ROWS)))
    found = read(batch)
    assert found is not None
    assert found.timestamps_ms is None
    validate(batch)


def test_entries_that_are_cut_off_are_no_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = gather_entries(ASCENDING.columns[:2], None)
    for size in range(1, len(entries) + 1):
        monkeypatch.setattr("millrace.records.columnar_writing.gather_entries", lambda *_: entries[:size])  # noqa: B023
        assert (read(build()) is None) == (size < len(entries))


def test_the_entries_of_a_batch_are_passed_on_to_one_that_is_derived_from_it() -> None:
    batch, small = build(), build(ASCENDING.slice(0, ROWS - 1))
    assert entries_of(b"--" + batch, 2, read_header(batch)) == gather_entries(ASCENDING.columns, None)
    assert entries_of(small, 0, read_header(small)) == b""


@given(place=st.integers(0), bit=st.integers(0, 7))
def test_a_flipped_bit_never_gives_wrong_statistics(place: int, bit: int) -> None:
    batch = build(timestamps_ms=pa.array(range(ROWS)))
    layout = read_columns_header(batch, 0, read_header(batch))
    sound = read(batch)
    # First the header fields that a reader relies on when it skips the batch, then all bytes before the message.
    relied_on = [*range(8, 12), *range(21, 43), *range(57, 84), *range(128, 128 + layout.statistics_length)]
    damaged = bytearray(batch)
    damaged[relied_on[place % len(relied_on)]] ^= 1 << bit
    try:
        header = read_header(damaged)
        if not header.is_columnar:
            return
        found = read(damaged)
    except CorruptBatchError:
        return
    is_transactional_bit = damaged[22] != batch[22] and damaged[22] ^ batch[22] == 0x10
    assert found is None or (is_transactional_bit and found == sound)


def test_statistics_stay_true_when_the_broker_sets_the_time() -> None:
    stamped = bytearray(build(timestamps_ms=pa.array(range(ROWS))))
    stamp_append_time(stamped, 0, 5_000)
    found = read(stamped)
    assert found is not None
    assert found.timestamps_ms == (5_000, 5_000)
    assert found.columns[0].bounds == (100, 99 + ROWS)
    validate(bytes(stamped))


def test_statistics_stay_when_a_batch_is_recompressed() -> None:
    batch = build(timestamps_ms=pa.array(range(ROWS)), timestamp_type=TimestampType.CREATE_TIME)
    again = recompress_batch(batch, 0, read_header(batch), lambda _: ASCENDING.schema, Compression.ZSTD)
    assert read(again) == read(batch)


def test_numbers_of_a_slice_are_those_of_its_rows() -> None:
    column = pa.array(np.arange(1_000, dtype=np.int64)).slice(300, 20)
    assert column_statistics(column).bounds == (300, 319)
