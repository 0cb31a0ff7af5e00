"""Arrow message in the body of a columnar batch. Columns are decoded on demand."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from millrace.errors import CorruptBatchError
from millrace.records.arrays import without_columns
from millrace.records.columnar import HEADERS_COLUMN, ColumnsHeader
from millrace.records.header import BatchHeader
from millrace.records.ipc_message import inspect_message

_BUFFER_ALIGNMENT: Final = 8


class ColumnarMessage:
    """Arrow message of one columnar batch, which decodes columns on demand."""

    def __init__(
        self,
        buffer: pa.Buffer,
        position: int,
        header: BatchHeader,
        layout: ColumnsHeader,
        schema: pa.Schema,
        max_bytes: int,
    ) -> None:
        """Inspect the message of the batch at ``position``, which may grow to ``max_bytes``.

        Raises ``CorruptBatchError`` if it contradicts ``header``, or would grow to more.
        """
        self._header = header
        self._schema = schema
        message = buffer.slice(position + layout.message_position, layout.message_length)
        if message.address % _BUFFER_ALIGNMENT:  # follows a rows batch, which has no padding
            message = pa.py_buffer(message.to_pybytes())
        self._message = message
        summary = inspect_message(message)
        if summary.row_count != header.count:
            raise self._corrupt(f"{summary.row_count} rows, but the header counts {header.count}")
        if summary.compression != header.compression:
            raise self._corrupt(f"compression is {summary.compression.name}, but the header says {header.compression}")
        if summary.decompressed_bytes > max_bytes:
            raise self._corrupt(f"{summary.decompressed_bytes} bytes decompressed, but {max_bytes} are allowed")
        self._is_plain = not header.compression
        self._whole: pa.RecordBatch | None = None

    def read(self, selected: list[int]) -> pa.RecordBatch:
        """Decode the columns with these indices."""
        try:
            if self._is_plain or len(selected) == len(self._schema):
                if self._whole is None:
                    self._whole = self._checked(pa.ipc.read_record_batch(self._message, self._schema))
                return self._whole if len(selected) == len(self._schema) else self._whole.select(selected)
            return self._checked(self._read_some(selected))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._corrupt(str(error)) from error

    def read_reserved(self, name: str) -> pa.Array:
        """Decode one reserved column."""
        (array,) = self.read([self._schema.get_field_index(name)]).columns
        if array.null_count and name != HEADERS_COLUMN:
            raise self._corrupt(f"nulls in {name}")
        return array

    def _read_some(self, selected: list[int]) -> pa.RecordBatch:
        if not selected:
            return without_columns(self._header.count)
        options = pa.ipc.IpcReadOptions(included_fields=selected)
        source = pa.PythonFile(_TwoMessages(self._schema.serialize(), self._message), "r")
        return pa.ipc.open_stream(source, options=options).read_next_batch()

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        batch.validate()
        return batch

    def _corrupt(self, problem: str) -> CorruptBatchError:
        return CorruptBatchError(f"columnar batch with base offset {self._header.base_offset}: {problem}")


class _TwoMessages:
    """Stream of a schema message and a record batch message. The second is not copied."""

    closed = False

    def __init__(self, first: pa.Buffer, second: pa.Buffer) -> None:
        self._parts = [first, second]
        self._position = 0

    def read_buffer(self, size: int) -> pa.Buffer:
        """Take the next ``size`` bytes; Arrow never asks for a piece of both messages at once."""
        while self._parts and self._position == self._parts[0].size:
            del self._parts[0]
            self._position = 0
        if not self._parts:
            return pa.py_buffer(b"")
        piece = self._parts[0].slice(self._position, min(size, self._parts[0].size - self._position))
        self._position += piece.size
        return piece

    def read(self, size: int) -> bytes:
        """Take the next ``size`` bytes, as bytes."""
        data: bytes = self.read_buffer(size).to_pybytes()
        return data

    def close(self) -> None:
        """Do nothing: the stream has no open resource."""
