from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.records import Compression
from millrace.records.ipc_message import inspect_message

COLUMNS = pa.record_batch({"a": pa.array([1, 2, 3]), "b": pa.array(["x", None, "z" * 100])})


def message(codec: str | None = None) -> pa.Buffer:
    """Return the second message of a stream. The first one is the schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, COLUMNS.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(COLUMNS)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()
    return messages.read_next_message().serialize()


def root_and_vtable(data: bytes | bytearray) -> tuple[int, int]:
    """Return the positions of a message's root table and of its vtable."""
    (distance,) = struct.unpack_from("<I", data, 8)
    (distance_back,) = struct.unpack_from("<i", data, 8 + distance)
    return 8 + distance, 8 + distance - distance_back


@pytest.mark.parametrize(
    ("codec", "compression"), [(None, Compression.NONE), ("lz4", Compression.LZ4), ("zstd", Compression.ZSTD)]
)
def test_reads_rows_compression_and_sizes(codec: str | None, compression: Compression) -> None:
    summary = inspect_message(message(codec))
    assert (summary.row_count, summary.compression) == (3, compression)
    parts = [part for column in COLUMNS.columns for part in column.buffers() if part is not None]
    assert summary.decompressed_bytes == sum(part.size for part in parts)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_summary_or_an_error(data: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        inspect_message(pa.py_buffer(b"\xff\xff\xff\xff" + data))


@given(st.integers(4, 250), st.integers(0, 255), st.sampled_from([None, "lz4"]))
def test_damaged_metadata_gives_a_summary_or_an_error(position: int, value: int, codec: str | None) -> None:
    damaged = bytearray(message(codec).to_pybytes())
    damaged[position] = value
    try:
        inspect_message(pa.py_buffer(bytes(damaged)))
    except CorruptBatchError:
        return


def test_a_schema_message_is_not_a_record_batch() -> None:
    with pytest.raises(CorruptBatchError, match="type 1, expected a record batch"):
        inspect_message(COLUMNS.schema.serialize())


def test_a_message_whose_record_batch_is_absent_is_refused() -> None:
    data = bytearray(message().to_pybytes())
    _, vtable = root_and_vtable(data)
    struct.pack_into("<H", data, vtable + 8, 0)  # the third field of a message is its record batch
    with pytest.raises(CorruptBatchError, match="without a record batch"):
        inspect_message(pa.py_buffer(bytes(data)))


def test_a_vtable_that_lies_before_the_metadata_is_refused() -> None:
    data = bytearray(message().to_pybytes())
    (metadata_bytes,) = struct.unpack_from("<i", data, 4)
    root, vtable = root_and_vtable(data)
    (vtable_bytes,) = struct.unpack_from("<H", data, vtable)
    # The same vtable also lies at the end of the metadata, where a negative position in Python would find it.
    more = data[vtable : vtable + vtable_bytes].rjust(-(-vtable_bytes // 8) * 8, b"\0")
    struct.pack_into("<i", data, root, root - 8 + vtable_bytes)
    struct.pack_into("<i", data, 4, metadata_bytes + len(more))
    data[8 + metadata_bytes : 8 + metadata_bytes] = more
    with pytest.raises(CorruptBatchError, match="a table outside it"):
        inspect_message(pa.py_buffer(bytes(data)))


def test_a_buffer_that_is_left_uncompressed_counts_with_its_size_in_the_message() -> None:
    whole = message("lz4")
    summary = inspect_message(whole)
    values = COLUMNS.column("a").buffers()[1]
    data = bytearray(whole.to_pybytes())
    assert struct.unpack_from("<q", data, summary.body_position) == (values.size,)
    struct.pack_into("<q", data, summary.body_position, -1)
    stored_bytes = len(pa.compress(values, "lz4", asbytes=True))
    found = inspect_message(pa.py_buffer(bytes(data)))
    assert found.decompressed_bytes == summary.decompressed_bytes - values.size + stored_bytes


def test_a_body_that_is_cut_off_is_noticed() -> None:
    whole = message()
    with pytest.raises(CorruptBatchError, match="declares a body of"):
        inspect_message(whole.slice(0, whole.size - 8))


@pytest.mark.parametrize("more", [1, 2**40, -1000])
def test_a_buffer_must_lie_within_the_body(more: int) -> None:
    data = message().to_pybytes()
    offset, last = max(
        (offset, struct.pack("<qq", offset, size))
        for offset in range(0, 512, 8)
        for size in (100, 101)
        if struct.pack("<qq", offset, size) in data
    )
    body_bytes = len(data) - inspect_message(pa.py_buffer(data)).body_position
    fits = data.replace(last, struct.pack("<qq", offset, body_bytes - offset))
    assert inspect_message(pa.py_buffer(fits)).row_count == 3
    with pytest.raises(CorruptBatchError, match="Arrow buffer of"):
        inspect_message(pa.py_buffer(data.replace(last, struct.pack("<qq", offset, body_bytes - offset + more))))


def with_first_values(data: bytes, length: int, offset: int, new_length: int) -> pa.Buffer:
    """Return the message with another position and size for the first column's values, which have ``length`` bytes."""
    pair = struct.pack("<qq", 0, length)
    assert data.count(pair) == 1
    return pa.py_buffer(data.replace(pair, struct.pack("<qq", offset, new_length)))


@pytest.mark.parametrize(("offset", "length"), [(-1, 24), (0, -1), (0, -(2**63))])
def test_a_buffer_has_neither_a_negative_position_nor_a_negative_size(offset: int, length: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"Arrow buffer of {length} bytes at {offset} in"):
        inspect_message(with_first_values(message().to_pybytes(), 24, offset, length))


def test_a_compressed_buffer_holds_at_least_its_size() -> None:
    data = message("zstd").to_pybytes()
    length = 8 + len(pa.compress(COLUMNS.column("a").buffers()[1], "zstd", asbytes=True))
    assert inspect_message(with_first_values(data, length, 0, 8)).row_count == 3
    with pytest.raises(CorruptBatchError, match="of 7 bytes has no room for its size"):
        inspect_message(with_first_values(data, length, 0, 7))
