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
