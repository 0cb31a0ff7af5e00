from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    MillraceError,
    SchemaMismatchError,
)
from millrace.records import (
    Compression,
    Record,
    build_columnar_batch,
    build_rows_batch,
    checksum,
    headers_array,
    read_header,
    seal,
    validate_batch,
)
from millrace.records.varint import write_varint

ROWS = 40
TYPED = pa.record_batch(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "text": pa.array([f"é{row}" if row % 7 else None for row in range(ROWS)]),
        "flag": pa.array([row % 3 == 0 for row in range(ROWS)]),
        "list": pa.array([[row] * (row % 4) for row in range(ROWS)], pa.list_(pa.int32())),
        "struct": pa.array([{"x": row, "y": "q" * (row % 5)} for row in range(ROWS)]),
        "large": pa.array([["a" * (row % 9)] for row in range(ROWS)], pa.large_list(pa.large_string())),
        "fixed": pa.array([bytes(4)] * ROWS, pa.binary(4)),
        "decimal": pa.array(range(ROWS), pa.int32()).cast(pa.decimal128(12, 2)),
    }
)
OPAQUE = pa.record_batch({"key": pa.array([b"k"] * ROWS), "value": pa.array([b"v" * row for row in range(ROWS)])})
HEADERS = headers_array([[("h", b"v")] * (row % 3) for row in range(ROWS)])


def seeds() -> list[bytes]:
    found = []
    for compression in (Compression.NONE, Compression.LZ4, Compression.ZSTD):
        found.append(
            build_columnar_batch(OPAQUE, timestamps_ms=pa.array(range(ROWS)), headers=HEADERS, compression=compression)
        )
        found.append(
            build_columnar_batch(
                TYPED,
                schema_id=1,
                timestamps_ms=7,
                tombstones=pa.array([False] * ROWS),
                offsets=pa.array(range(0, 2 * ROWS, 2)),
                compression=compression,
            )
        )
    records = [Record(key=b"k", value=b"v" * row, headers=(("h", None),), timestamp_ms=row) for row in range(9)]
    return found + [build_rows_batch(records, compression=compression) for compression in Compression]


SEEDS = seeds()


def schemas(_: int) -> pa.Schema:
    return TYPED.schema


def validate(batch: bytes) -> None:
    validate_batch(batch, 0, read_header(batch), schemas)


def sealed(batch: bytearray) -> bytes:
    """Make the checksum valid again, as a malicious client would."""
    batch[17:21] = checksum(batch[21:]).to_bytes(4, "big")
    return bytes(batch)


@pytest.mark.parametrize("batch", SEEDS)
def test_sound_batches_pass_and_come_back_decoded(batch: bytes) -> None:
    decoded = validate_batch(batch, 0, read_header(batch), schemas)
    assert decoded.num_rows == read_header(batch).count


@given(st.integers(0, 2**32))
def test_a_damaged_batch_with_a_right_checksum_is_refused_or_reads_safely(seed: int) -> None:
    choose = random.Random(seed)
    batch = bytearray(choose.choice(SEEDS))
    for _ in range(choose.choice((1, 1, 2, 4))):
        end = choose.choice((128, 900, len(batch)))
        position = choose.randrange(21, min(end, len(batch)) - 8)
        if choose.random() < 0.6:
            batch[position] = choose.randrange(256)
        else:
            wild = choose.choice((0, -1, 1, 8, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63), len(batch)))
            batch[position : position + 8] = struct.pack(choose.choice("<>") + "q", wild)
    damaged = sealed(batch)
    try:
        decoded = validate_batch(damaged, 0, read_header(damaged), schemas, max_bytes=1_000_000)
    except MillraceError:
        return
    decoded.columns.to_pydict()  # touches every value
    assert decoded.headers is None or len(decoded.headers.to_pylist()) == decoded.num_rows
    assert len(decoded.offsets()) == len(decoded.timestamps_ms()) == decoded.num_rows


def test_offsets_of_values_that_lead_outside_are_refused() -> None:
    plain = bytearray(build_columnar_batch(pa.record_batch({"value": pa.array([b"aaaa", b"bbbb", b"cccc"])})))
    at = bytes(plain).index(struct.pack("<4i", 0, 4, 8, 12))
    plain[at + 4 : at + 8] = struct.pack("<i", 2**30)
    with pytest.raises(CorruptBatchError, match="base offset 0"):
        validate(sealed(plain))


def test_text_that_is_not_utf8_is_refused() -> None:
    batch = bytearray(build_columnar_batch(TYPED, schema_id=1))
    at = bytes(batch).index("é".encode())
    batch[at] = 0xFF
    with pytest.raises(CorruptBatchError, match=r"(?i)utf.?8"):
        validate(sealed(batch))


def test_a_null_where_the_schema_has_none_names_column_and_row() -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
    rows = pa.record_batch({"id": pa.array([1, None, 3]), "note": pa.array([None, "x", None])})
    batch = build_columnar_batch(rows, schema_id=1)
    with pytest.raises(SchemaMismatchError, match="row 1, column id"):
        validate_batch(batch, 0, read_header(batch), lambda _: strict)
    deletion = build_columnar_batch(rows, schema_id=1, tombstones=pa.array([False, True, False]))
    validate_batch(deletion, 0, read_header(deletion), lambda _: strict)


def test_offsets_outside_the_batchs_range_are_refused() -> None:
    sound = build_rows_batch([Record(), Record(), Record()])
    body = sound[61:]
    with pytest.raises(InvalidRecordError, match="do not ascend within that range"):
        validate(seal(read_header(sound)._replace(last_offset_delta=1), body))
    twice = body[: len(body) // 3] * 2
    with pytest.raises(InvalidRecordError, match=r"0\.\.0 do not ascend"):
        validate(seal(read_header(sound)._replace(count=2), twice))


@pytest.mark.parametrize(
    ("deltas", "is_valid"),
    [((5,), True), ((0, 2, 5), True), ((0, 5, 2), False), ((2, 0, 5), False), ((0, 2, 2), False),
     ((0, 2, 6), False), ((-1, 2, 5), False)],
)  # fmt: skip
def test_offsets_ascend_within_the_range_of_the_batch(deltas: tuple[int, ...], is_valid: bool) -> None:
    header = read_header(build_rows_batch([Record()] * 3))
    body = b"".join(b"\x0c\0\0" + write_varint(delta) + b"\x01\x01\0" for delta in deltas)
    batch = seal(header._replace(last_offset_delta=5, count=len(deltas)), body)
    if is_valid:
        validate(batch)
        return
    with pytest.raises(InvalidRecordError, match="do not ascend"):
        validate(batch)


def test_a_maximum_timestamp_that_is_not_the_records_is_refused() -> None:
    sound = build_rows_batch([Record(timestamp_ms=5)])
    with pytest.raises(InvalidTimestampError, match="maximum timestamp 6, but the records have 5"):
        validate(seal(read_header(sound)._replace(max_timestamp=6), sound[61:]))
    with pytest.raises(InvalidTimestampError, match="timestamp -7"):
        validate(seal(read_header(sound)._replace(base_timestamp=-7), sound[61:]))
