from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError, InvalidRecordError, InvalidTimestampError
from millrace.records import (
    Compression,
    Record,
    TimestampType,
    build_rows_batch,
    decode_batch,
    last_sequence_of,
    read_header,
    read_rows,
    seal,
    sequence_of,
    verify_crc,
)
from millrace.records.rows import wrapped

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=8),
        value=st.none() | st.binary(max_size=40),
        headers=st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
        timestamp_ms=st.integers(-1, 2**63 - 1),
    ),
    min_size=1,
    max_size=20,
)


def content(record: Record) -> tuple[object, ...]:
    return record.key, record.value, record.headers, record.timestamp_ms


@given(RECORDS, st.sampled_from(Compression), st.integers(0, 2**62))
def test_reads_the_records_that_were_written(records: list[Record], compression: Compression, base: int) -> None:
    batch = build_rows_batch(records, compression=compression, base_offset=base)
    header = read_header(batch)
    verify_crc(batch, 0, header)
    read = list(read_rows(b"--" + batch, 2, header))
    assert [content(record) for record in read] == [content(record) for record in records]
    assert [record.offset for record in read] == list(range(base, base + len(records)))
    assert header.max_timestamp == max(record.timestamp_ms for record in records)
    assert header.count == len(records) == header.last_offset_delta + 1


@given(RECORDS, st.sampled_from(Compression))
def test_rows_decode_to_the_same_opaque_columns(records: list[Record], compression: Compression) -> None:
    batch = build_rows_batch(records, compression=compression)
    decoded = decode_batch(pa.py_buffer(batch), 0, read_header(batch), lambda _: pa.schema([]))
    assert decoded.columns.to_pydict() == {
        "key": [record.key for record in records],
        "value": [record.value for record in records],
    }
    assert decoded.timestamps_ms().to_pylist() == [record.timestamp_ms for record in records]
    assert decoded.offsets().to_pylist() == list(range(len(records)))
    headers = decoded.headers.to_pylist() if decoded.headers is not None else [[]] * len(records)
    assert [tuple((entry["key"], entry["value"]) for entry in row) for row in headers] == [
        record.headers for record in records
    ]


@given(st.binary(max_size=80), st.integers(-2, 5), st.sampled_from(Compression))
def test_any_body_gives_records_or_an_error(body: bytes, count: int, compression: Compression) -> None:
    header = read_header(build_rows_batch([Record()]))._replace(count=count, attributes=int(compression))
    batch = seal(header, body)
    try:
        assert len(list(read_rows(batch, 0, read_header(batch)))) == count
    except CorruptBatchError:
        return


def test_records_before_the_damage_are_handed_out() -> None:
    batch = bytearray(build_rows_batch([Record(value=b"v")] * 4))
    batch[-1] = 0x7F  # the last record now claims to have many headers
    rows = read_rows(batch, 0, read_header(batch))
    assert [next(rows).offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(CorruptBatchError, match="record 3 of 4"):
        next(rows)


@pytest.mark.parametrize(
    "body",
    ["01", "03", "00", "7f0000000101", "0a00000001010000", "0e00000001010000", "0c00000001010000", "0c00000001017f",
     "0c000000010103", "100000000101020101", "0c00000008010000", "0c0000000108ff00"],
)  # fmt: skip
def test_a_record_whose_fields_do_not_end_with_it_is_corrupt(body: str) -> None:
    header = read_header(build_rows_batch([Record()]))
    sound = seal(header, bytes.fromhex("0c000000010100"))
    assert [content(record) for record in read_rows(sound, 0, read_header(sound))] == [(None, None, (), -1)]
    batch = seal(header, bytes.fromhex(body))
    with pytest.raises(CorruptBatchError, match="record 0 of 1"):
        list(read_rows(batch, 0, read_header(batch)))


def test_timestamps_of_a_stamped_batch_are_the_brokers() -> None:
    records = [Record(timestamp_ms=5), Record(timestamp_ms=9)]
    batch = build_rows_batch(records, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert [record.timestamp_ms for record in read_rows(batch, 0, read_header(batch))] == [9, 9]


def test_a_delete_horizon_takes_the_place_of_the_base_timestamp_only() -> None:
    batch = build_rows_batch([Record(timestamp_ms=5), Record(timestamp_ms=9)], delete_horizon_ms=1_000)
    header = read_header(batch)
    assert header.has_delete_horizon
    assert header.base_timestamp == 1_000
    assert [record.timestamp_ms for record in read_rows(batch, 0, header)] == [5, 9]


def test_compacted_batches_keep_their_offsets_and_their_range() -> None:
    batch = build_rows_batch([Record(offset=12), Record(offset=15)], base_offset=None, last_offset=19)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.count) == (12, 19, 2)
    assert [record.offset for record in read_rows(batch, 0, header)] == [12, 15]


def test_a_batch_may_be_left_empty_to_remember_its_producer() -> None:
    batch = build_rows_batch(
        [], base_offset=12, last_offset=19, producer_id=7, producer_epoch=1, base_sequence=2**31 - 2
    )
    header = read_header(batch)
    assert len(batch) == 61
    assert (header.base_offset, header.last_offset, header.count) == (12, 19, 0)
    assert last_sequence_of(header) == 5
    assert list(read_rows(batch, 0, header)) == []


@pytest.mark.parametrize(
    ("total", "expected"),
    [(0, 0), (-1, -1), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64, 0), (2**63 + 5, -(2**63) + 5),
     (-(2**63), -(2**63)), (-(2**63) - 1, 2**63 - 1), (-(2**64), 0)],
)  # fmt: skip
def test_sums_beyond_64_bits_wrap_as_in_java(total: int, expected: int) -> None:
    assert wrapped(total) == expected


def test_sequences_count_from_the_batchs_own() -> None:
    batch = build_rows_batch([Record()] * 3, base_offset=50, producer_id=7, producer_epoch=0, base_sequence=2**31 - 2)
    header = read_header(batch)
    assert [sequence_of(header, record) for record in read_rows(batch, 0, header)] == [2**31 - 2, 2**31 - 1, 0]
    assert last_sequence_of(read_header(build_rows_batch([Record()]))) == -1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"producer_id": 1, "producer_epoch": 0}, "with sequence -1"),
        ({"producer_id": 1, "base_sequence": 0}, "without an epoch"),
        ({"is_transactional": True}, "needs a producer id"),
        ({"base_offset": None}, "offset 0 follows offset 0"),
        ({"base_offset": 5, "last_offset": 5}, "do not fit"),
    ],
)
def test_impossible_batches_are_not_written(options: dict[str, int], problem: str) -> None:
    with pytest.raises(InvalidRecordError, match=problem):
        build_rows_batch([Record(), Record()], **options)  # type: ignore[arg-type]


def test_nothing_is_not_a_batch_and_negative_times_are_not_timestamps() -> None:
    with pytest.raises(InvalidRecordError, match="at least one record"):
        build_rows_batch([])
    for times in ((-2,), (5, -2), (-2, 5)):
        with pytest.raises(InvalidTimestampError, match="timestamp -2"):
            build_rows_batch([Record(timestamp_ms=time) for time in times])
