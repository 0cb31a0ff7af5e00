"""Columnar batches as rows, for Kafka's consumers, which know no other batches.

A conversion runs in a thread, and those of several partitions run at the same time. The most recent results are kept,
because consumers of different groups read the same batches.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from millrace.processors import processor_count
from millrace.records import RecordFormat, convert, scan_headers
from millrace_broker.runtime import Executors

_CACHED_BYTES_MAX: Final = 32 * 2**20
_AT_ONCE: Final = processor_count()
"""Conversions at a time. More would only keep threads from reads of the disk."""


class RowConversion(NamedTuple):
    """Conversion of a columnar batch to rows. ``form`` differs for conversions with different results."""

    form: Hashable
    rows_of: Callable[[memoryview], bytes]


def _rows_of_opaque(batch: memoryview) -> bytes:
    return b"".join(convert(batch, RecordFormat.ROWS))


OPAQUE_ROWS: Final = RowConversion((), _rows_of_opaque)
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
        self._turns: Final = asyncio.Semaphore(_AT_ONCE)

    async def as_rows(
        self,
        executors: Executors,
        topic_id: bytes,
        partition: int,
        records: bytes,
        conversion: RowConversion = OPAQUE_ROWS,
    ) -> list[memoryview]:
        """Return whole batches as rows, in pieces. Batches of rows are not copied.

        Raises the errors of the conversion, such as ``UnsupportedForFormatError`` for batches of a typed topic that has
        no format for Kafka clients.
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
        async with self._turns:
            rows = self._cached.get(key)  # another request may have converted the batch meanwhile
            if rows is None:
                rows = await executors.run_io(conversion.rows_of, batch)
        if key not in self._cached:
            self._cached[key] = rows
            self.held_bytes += len(rows)
        while self.held_bytes > self._bytes_max:
            _, dropped = self._cached.popitem(last=False)
            self.held_bytes -= len(dropped)
        return rows
