"""Tests of the fast reader against the reference.

Both give the same rows or the same error. Each test runs with the compiled loop and with numpy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError, MillraceError
from millrace.records import (
    Compression,
    Record,
    TimestampType,
    build_rows_batch,
    read_header,
    read_rows,
    row_columns,
    row_fields,
    seal,
    usual_times,
    validate_batch,
)
from millrace.records.row_columns import RowColumns, read_one_by_one, read_regular, rows_to_columns, run_to_columns
from millrace.records.rows import body_of

NAMES = ("key", "value")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
SIZES = st.sampled_from([0, 1, 2, 63, 64, 65, 127, 128, 200])
BYTES = st.none() | SIZES.flatmap(lambda size: st.binary(min_size=size, max_size=size))
TIMESTAMPS = st.integers(-1, 2**63 - 1) | st.integers(0, 300)
RECORDS = st.lists(
    st.builds(
        Record,
        key=BYTES,
        value=BYTES,
        headers=st.just(()) | st.lists(st.tuples(TEXT, BYTES), max_size=3).map(tuple),
        timestamp_ms=TIMESTAMPS,
    ),
    min_size=1,
    max_size=30,
)


@pytest.fixture(autouse=True, scope="module", params=["compiled", "numpy"])
def _reader(request: pytest.FixtureRequest) -> Iterator[None]:
    """Read with the compiled loop, and as before it is loaded."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            for module in (row_columns, row_fields):
                patch.setattr(module, "loops_if_loaded", lambda: None)
            patch.setattr(row_fields, "begin_to_load_loops", lambda: None)
        yield


REPEATED = st.builds(lambda records, times: records * times, RECORDS, st.integers(1, 12))


def outcome(read: Callable[[], RowColumns]) -> RowColumns | str:
    try:
        return read()
    except MillraceError as error:
        return str(error)


@given(REPEATED, st.sampled_from(Compression), st.sampled_from(TimestampType), st.none() | st.integers(0, 2**63 - 1))
def test_sound_batches_read_as_by_the_reference(
    records: list[Record], compression: Compression, type_: TimestampType, horizon: int | None
) -> None:
    batch = build_rows_batch(records, compression=compression, timestamp_type=type_, delete_horizon_ms=horizon)
    header = read_header(batch)
    body, damage = body_of(batch, 0, header, 2**30)
    assert damage is None
    assert read_regular([body], [header], NAMES) == read_one_by_one(body, None, header, NAMES)
    fast = rows_to_columns(batch, 0, header)
    reference = list(read_rows(batch, 0, header))
    assert fast.columns["key"].to_pylist() == [record.key for record in reference]
    assert fast.columns["value"].to_pylist() == [record.value for record in reference]
    assert fast.timestamps_ms.to_pylist() == [record.timestamp_ms for record in reference]
    for array in (*fast.columns.values(), fast.timestamps_ms, fast.headers):
        if array is not None:
            array.validate(full=True)


@given(REPEATED, st.data())
def test_damaged_batches_get_the_verdict_of_the_reference(records: list[Record], data: st.DataObject) -> None:
    batch = build_rows_batch(records, base_offset=2**63 - 400)
    header = read_header(batch)
    body = bytearray(batch[61:])
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(body) - 1))
        change = data.draw(st.sampled_from(["flip", "cut", "grow", "set"]))
        if change == "flip":
            body[position] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "set":
            body[position] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
        elif change == "grow":
            body[position:position] = data.draw(st.binary(min_size=1, max_size=10))
        elif position:
            del body[position:]
    header = header._replace(count=header.count + data.draw(st.sampled_from([0, 0, 0, 1, -1])))
    expected = outcome(lambda: read_one_by_one(bytes(body), None, header, NAMES))
    with contextlib.suppress(CorruptBatchError):  # the fast reader may give up, and the reference then decides
        assert read_regular([bytes(body)], [header], NAMES) == expected
    whole = seal(header, bytes(body))
    assert outcome(lambda: rows_to_columns(whole, 0, read_header(whole))) == expected
    _check_usual_times(whole)


def _check_usual_times(batch: bytes) -> None:
    """Assert that the cheap check accepts no batch that the complete one refuses, and finds the same times."""
    header = read_header(batch)
    times_ms = usual_times(batch, 0, header)
    if times_ms is not None:
        found = validate_batch(batch, 0, header, lambda schema_id: pa.schema([]))
        assert not found.has_gaps
        assert times_ms == tuple(pc.min_max(found.timestamps_ms()).as_py().values())


@given(REPEATED, st.sampled_from(Compression), st.sampled_from(TimestampType), st.integers(-1, 1))
def test_the_cheap_check_of_rows_never_contradicts_the_complete_one(
    records: list[Record], compression: Compression, type_: TimestampType, more_records: int
) -> None:
    batch = build_rows_batch(records, compression=compression, timestamp_type=type_)
    header = read_header(batch)
    _check_usual_times(batch)
    _check_usual_times(seal(header._replace(max_timestamp=header.max_timestamp ^ 1), batch[61:]))
    _check_usual_times(seal(header._replace(last_offset_delta=header.last_offset_delta + more_records), batch[61:]))


@pytest.mark.parametrize("count", [1, 23, 24, 5_000])
@pytest.mark.parametrize("compression", list(Compression))
def test_batches_of_producers_pass_the_cheap_check(count: int, compression: Compression) -> None:
    records = [
        Record(
            key=b"k" * (row % 100), value=bytes(row % 200), headers=(("h", b"v"),) * (row % 2), timestamp_ms=row % 300
        )
        for row in range(count)
    ]
    batch = build_rows_batch(records, compression=compression)
    assert usual_times(batch, 0, read_header(batch)) == (0, min(count - 1, 299))
    assert usual_times(batch, 0, read_header(batch), max_bytes=5) is None
    assert usual_times(batch, 0, read_header(batch), need_keys=True) is not None


def test_a_missing_key_is_left_to_the_complete_check_where_keys_are_needed() -> None:
    batch = build_rows_batch([Record(key=b"k"), Record(key=b""), Record(key=None, value=b"v")])
    assert usual_times(batch, 0, read_header(batch)) == (-1, -1)
    assert usual_times(batch, 0, read_header(batch), need_keys=True) is None


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_any_deltas_are_read(offset_delta: int, timestamp_delta: int) -> None:
    record = b"\0" + long_varint(timestamp_delta, 10) + long_varint(offset_delta, 5) + b"\1\1\0"
    body = (long_varint(len(record), 5) + record) * 3
    header = read_header(build_rows_batch([Record()]))._replace(count=3, base_timestamp=2**62)
    columns = read_regular([body], [header], NAMES)
    assert columns == read_one_by_one(body, None, header, NAMES)
    assert columns.offset_deltas is not None
    assert columns.offset_deltas.to_pylist() == [offset_delta] * 3


def long_varint(value: int, size: int) -> bytes:
    """Encode an integer in more bytes than it needs."""
    raw = ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    if size == 5:
        raw &= 2**32 - 1
    return bytes(raw >> 7 * index & 0x7F | (0x80 if index < size - 1 else 0) for index in range(size))


@pytest.mark.parametrize("count", [24, 5_000])
def test_regular_batches_are_not_read_one_by_one(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.records.row_columns.read_one_by_one", None)
    records = [Record(key=b"k", value=bytes(row % 200), headers=(("é", None),) * (row % 3)) for row in range(count)]
    batch = build_rows_batch(records)
    columns = rows_to_columns(batch, 0, read_header(batch), ["value"])
    assert list(columns.columns) == ["value"]
    assert columns.columns["value"].to_pylist() == [record.value for record in records]
    assert columns.headers is not None
    assert columns.headers.to_pylist()[:3] == [[], [{"key": "é", "value": None}], [{"key": "é", "value": None}] * 2]


@pytest.mark.parametrize("headers", [(("k", b"v"),) * 65, (("kk", b"v"),)], ids=["many", "not UTF-8"])
def test_odd_batches_are_read_all_the_same(headers: tuple[tuple[str, bytes]]) -> None:
    batch = build_rows_batch([Record(headers=headers)] * 30)
    if headers[0][0] == "kk":
        batch = batch.replace(b"kk", b"k\xff")
        batch = seal(read_header(batch), batch[61:])
    decoded = rows_to_columns(batch, 0, read_header(batch))
    assert decoded.headers is not None
    assert [entry["key"] for entry in decoded.headers.to_pylist()[29]][:1] == [headers[0][0].replace("kk", "k�")]
    assert isinstance(decoded.columns["key"], pa.BinaryArray)


@pytest.mark.parametrize("field", range(2, 6))
def test_a_count_or_size_of_more_than_31_bits_is_corrupt(field: int) -> None:
    # Without the highest bit the number would be 0, with which the record would be a valid one.
    fields = [b"\0", b"\0", b"\0", b"\0", b"\0", b"\0"]
    fields[field] = bytes.fromhex("8080808008")
    record = b"".join(fields)
    body = (bytes([2 * len(record)]) + record) * 30
    batch = seal(read_header(build_rows_batch([Record()] * 30)), body)
    if field == 2:
        decoded = rows_to_columns(batch, 0, read_header(batch))
        assert decoded.offset_deltas is not None
        assert decoded.offset_deltas.to_pylist() == [2**30] * 30
        return
    with pytest.raises(CorruptBatchError):
        rows_to_columns(batch, 0, read_header(batch))


def test_a_header_without_a_key_is_corrupt() -> None:
    record = b"\0\0\0\x01\x01\x02" + b"\x01\x01"  # one header, whose key and value are null
    body = (bytes([2 * len(record)]) + record) * 30
    batch = seal(read_header(build_rows_batch([Record()] * 30)), body)
    with pytest.raises(CorruptBatchError, match="a header without a key"):
        rows_to_columns(batch, 0, read_header(batch))
    assert usual_times(batch, 0, read_header(batch)) is None


@pytest.mark.parametrize("is_small", [True, False])
def test_a_batch_that_is_not_usual_is_left_to_the_complete_check(is_small: bool) -> None:
    records = [Record(timestamp_ms=5)] * (2 if is_small else 30)
    usual = build_rows_batch(records)
    empty = build_rows_batch([], base_offset=3, last_offset=8)
    stamped = build_rows_batch(records, timestamp_type=TimestampType.LOG_APPEND_TIME)
    gap = build_rows_batch([*records, Record(timestamp_ms=5)], base_offset=0)
    gap = seal(read_header(gap)._replace(last_offset_delta=len(records) - 1), gap[61:])
    assert usual_times(usual, 0, read_header(usual)) == (5, 5)
    for odd in (empty, stamped, gap):
        assert usual_times(odd, 0, read_header(odd)) is None


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_batches_read_together_are_limited_together(codec: Compression) -> None:
    batch = build_rows_batch([Record(value=bytes(100))] * 3, compression=codec)
    header = read_header(batch)
    size = len(body_of(batch, 0, header, 2**30)[0])
    run = [(0, header), (len(batch), header._replace(base_offset=3))]
    assert len(run_to_columns(batch * 2, run, NAMES, max_bytes=2 * size).timestamps_ms) == 6
    with pytest.raises(CorruptBatchError, match="larger than"):
        run_to_columns(batch * 2, run, NAMES, max_bytes=2 * size - 1)
