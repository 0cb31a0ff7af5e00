"""Columnar batches as rows, for Kafka's consumers, which know no other batches.

One conversion runs at a time, in an I/O thread. Two conversions at the same time would take the interpreter's lock from
each other. They would take as long as one after the other, and more CPU time. The most recent results are kept, because
consumers of different groups read the same batches.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

import pyarrow as pa

from millrace.records import read_header, rows_of_opaque, scan_headers, verify_crc
from millrace_broker.runtime import Executors

_CACHED_BYTES_MAX: Final = 32 * 2**20


class RowConversion(NamedTuple):
    """Conversion of a columnar batch to rows. ``form`` differs for conversions with different results."""

    form: Hashable
    rows_of: Callable[[memoryview], bytes]


OPAQUE_ROWS: Final = RowConversion((), rows_of_opaque)
"""Conversion of the batches of opaque topics, whose rows have their keys and values."""


class _Key(NamedTuple):
    """A batch of a log. The checksum differs if the log was truncated and written again."""

    topic_id: bytes
    partition: int
    base_offset: int
    crc: int
    form: Hashable


class RowBatches:
    """Cache of converted batches, bounded by their bytes. It belongs to the event loop."""

    def __init__(self, bytes_max: int = _CACHED_BYTES_MAX) -> None:
        self._bytes_max: Final = bytes_max
        self._cached: Final[OrderedDict[_Key, bytes]] = OrderedDict()
        self.held_bytes = 0
        self._turn: Final = asyncio.Lock()

    async def as_rows(
        self,
        executors: Executors,
        topic_id: bytes,
        partition: int,
        records: bytes,
        conversion: RowConversion = OPAQUE_ROWS,
    ) -> list[memoryview]:
        """Return whole batches as rows, in pieces. Batches of rows are not copied.

        Raises ``CorruptBatchError`` for a wrong checksum, and the errors of the conversion. One of these is
        ``UnsupportedForFormatError`` for batches of a typed topic that has no format for Kafka clients.
        """
        view, pieces, kept = memoryview(records), list[memoryview](), 0
        for position, header in scan_headers(records):
            if not header.is_columnar:
                continue
            if position > kept:
                pieces.append(view[kept:position])
            kept = position + header.size_bytes
            key = _Key(topic_id, partition, header.base_offset, header.crc, conversion.form)
            pieces.append(memoryview(await self._converted(executors, key, view[position:kept], conversion)))
        if kept < len(view):
            pieces.append(view[kept:])
        return pieces

    async def _converted(self, executors: Executors, key: _Key, batch: memoryview, conversion: RowConversion) -> bytes:
        found = self._cached.get(key)
        if found is not None:
            self._cached.move_to_end(key)
            return found
        async with self._turn:
            rows = self._cached.get(key)  # another request may have converted the batch meanwhile
            if rows is None:
                rows = await executors.run_io(_checked_rows, batch, conversion)
        if key not in self._cached:
            self._cached[key] = rows
            self.held_bytes += len(rows)
        while self.held_bytes > self._bytes_max:
            _, dropped = self._cached.popitem(last=False)
            self.held_bytes -= len(dropped)
        return rows


def _checked_rows(batch: memoryview, conversion: RowConversion) -> bytes:
    """Convert a batch after a check of its checksum, because the rows get a new one."""
    buffer = pa.py_buffer(batch)
    verify_crc(buffer, 0, read_header(buffer))
    return conversion.rows_of(batch)
