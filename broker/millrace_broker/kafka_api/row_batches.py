"""Columnar batches as rows, for Kafka's consumers, which know no other batches.

A columnar batch becomes one batch of rows, or several if its rows are large. They are converted from the wanted offset
on, until the response is full.

One conversion runs at a time, in an I/O thread. Two conversions at the same time would take the interpreter's lock from
each other. They would take as long as one after the other, and more CPU time. The most recent results are kept, because
consumers of different groups read the same batches.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from millrace.errors import MillraceError
from millrace.records import ROWS_BYTES_MAX, BatchHeader, read_header, rows_of_opaque, scan_headers, verify_crc
from millrace_broker.quotas import Lease
from millrace_broker.runtime import Executors

_CACHED_BYTES_MAX: Final = 32 * 2**20
_CONVERTED_BYTES_MAX: Final = 4 * 2**20
"""Rows of one conversion. The last batch of rows may exceed it."""


class RowConversion(NamedTuple):
    """Conversion of a columnar batch to rows. ``form`` differs for conversions with different results.

    ``rows_of`` yields batches of rows from the one with the given offset on. Together they cover the offsets of the
    columnar batch without gaps.
    """

    form: Hashable
    rows_of: Callable[[memoryview, int], Iterator[bytes]]


OPAQUE_ROWS: Final = RowConversion((), rows_of_opaque)
"""Conversion of the batches of opaque topics, whose rows have their keys and values."""


class WantedOffsets(NamedTuple):
    """First and last offset that a reader wants, inclusive."""

    first: int = 0
    last: int = 2**63 - 1


EVERY_OFFSET: Final = WantedOffsets()


class ResponseRoom:
    """Bytes that a response and its present partition may still get (KIP-74).

    The first batch of a response always has room, so that its reader makes progress.
    """

    def __init__(self, lease: Lease, max_bytes: int) -> None:
        """``lease`` has the memory of the batches that were read."""
        self._lease: Final = lease
        self._held_bytes = lease.held_bytes
        self._left_bytes = self._partition_left_bytes = max_bytes
        self._is_empty = True

    def begin_partition(self, max_bytes: int) -> None:
        """Begin a partition with its own limit."""
        self._partition_left_bytes = max_bytes

    def takes_stored(self, size_bytes: int) -> bool:
        """Return whether a stored batch of rows has room. If so, the response has it from now on.

        The last one may exceed the limit, because the batches were read within the limits.
        """
        if self._is_full:
            return False
        self._add(size_bytes)
        return True

    def takes_rows(self, size_bytes: int) -> bool:
        """Return whether converted rows have room and memory. If so, the response has them from now on.

        The last ones of a partition may exceed its limit, but not that of the response.
        """
        has_room = self._is_empty or (self._partition_left_bytes > 0 and size_bytes <= self._left_bytes)
        if not has_room or not self._reserve(size_bytes):
            self._settle()
            return False
        self._held_bytes += size_bytes
        self._settle()
        self._add(size_bytes)
        return True

    def begin_conversion(self) -> int | None:
        """Book the memory of a conversion. Return how many bytes it may have; None without room or memory."""
        if self._is_full:
            return None
        bytes_max = max(ROWS_BYTES_MAX, min(self._left_bytes_now, _CONVERTED_BYTES_MAX))
        return bytes_max if self._reserve(bytes_max) else None

    @property
    def _left_bytes_now(self) -> int:
        return min(self._left_bytes, self._partition_left_bytes)

    @property
    def _is_full(self) -> bool:
        return self._left_bytes_now <= 0 and not self._is_empty

    def _add(self, size_bytes: int) -> None:
        self._is_empty = False
        self._left_bytes -= size_bytes
        self._partition_left_bytes -= size_bytes

    def _reserve(self, size_bytes: int) -> bool:
        """Book memory. A response with records is sent without more, because it must not wait while it holds memory."""
        self._settle()
        if self._lease.take_now(size_bytes):
            return True
        if self._is_empty:
            self._lease.settle(self._held_bytes + size_bytes)
        return self._is_empty

    def _settle(self) -> None:
        self._lease.settle(self._held_bytes)


class _Key(NamedTuple):
    """Identity of rows: their batch and first offset.

    The checksum differs if the log was truncated and written again.
    """

    topic_id: bytes
    partition: int
    base_offset: int
    crc: int
    form: Hashable
    start_offset: int


class _Columnar(NamedTuple):
    """A columnar batch, and its conversion."""

    key: _Key
    header: BatchHeader
    batch: memoryview
    conversion: RowConversion


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
        *,
        room: ResponseRoom,
        wanted: WantedOffsets = EVERY_OFFSET,
    ) -> list[memoryview]:
        """Return whole batches as rows, in pieces, as many as have room. Batches of rows are not copied.

        Rows of columnar batches that do not have wanted offsets are left out. A faulty batch ends the result.

        If the first batch is faulty, raises ``CorruptBatchError`` for a wrong checksum, and the errors of the
        conversion. One of these is ``UnsupportedForFormatError``, for a typed topic that has no format for Kafka
        clients.
        """
        view, pieces, kept, end = memoryview(records), list[memoryview](), 0, 0
        for position, header in scan_headers(records):
            if not header.is_columnar:
                if not room.takes_stored(header.size_bytes):
                    break
                end = position + header.size_bytes
                continue
            if position > kept:
                pieces.append(view[kept:position])
            kept = end = position + header.size_bytes
            key = _Key(topic_id, partition, header.base_offset, header.crc, conversion.form, header.base_offset)
            source = _Columnar(key, header, view[position:kept], conversion)
            try:
                if not await self._add_rows(pieces, executors, source, room, wanted):
                    break
            except MillraceError:
                if not pieces:
                    raise
                break  # the reader gets the batches before the faulty one, and the error with its next request
        if kept < end:
            pieces.append(view[kept:end])
        return pieces

    async def _add_rows(
        self,
        pieces: list[memoryview],
        executors: Executors,
        source: _Columnar,
        room: ResponseRoom,
        wanted: WantedOffsets,
    ) -> bool:
        """Add the rows of a columnar batch to ``pieces``. Return whether all that are wanted had room."""
        offset = max(source.header.base_offset, wanted.first)
        while offset <= min(source.header.last_offset, wanted.last):
            rows = self._found(source.key, offset)
            if rows is None:
                bytes_max = room.begin_conversion()
                if bytes_max is None:
                    return False
                rows = await self._converted(executors, source, offset, bytes_max)
            if not room.takes_rows(len(rows)):
                return False
            pieces.append(memoryview(rows))
            offset = read_header(rows).next_offset
        return True

    def _found(self, key: _Key, offset: int) -> bytes | None:
        """Return the cached rows with an offset. Most readers continue where some rows begin."""
        start = key if offset == key.start_offset else key._replace(start_offset=offset)
        rows = self._cached.get(start)
        if rows is None and start is not key:
            start = key
            while (rows := self._cached.get(start)) is not None and read_header(rows).last_offset < offset:
                start = key._replace(start_offset=read_header(rows).next_offset)
        if rows is not None:
            self._cached.move_to_end(start)
        return rows

    async def _converted(self, executors: Executors, source: _Columnar, offset: int, bytes_max: int) -> bytes:
        """Return the rows with an offset. The rows that follow are converted too, up to ``bytes_max``."""
        async with self._turn:
            found = self._found(source.key, offset)  # another request may have converted the batch meanwhile
            if found is not None:
                return found
            converted = await executors.run_io(_checked_rows, source.batch, source.conversion, offset, bytes_max)
            for rows in converted:
                self._keep(source.key._replace(start_offset=read_header(rows).base_offset), rows)
        return converted[0]

    def _keep(self, key: _Key, rows: bytes) -> None:
        if key not in self._cached:
            self._cached[key] = rows
            self.held_bytes += len(rows)
        while self.held_bytes > self._bytes_max:
            _, dropped = self._cached.popitem(last=False)
            self.held_bytes -= len(dropped)


def _checked_rows(batch: memoryview, conversion: RowConversion, offset: int, bytes_max: int) -> list[bytes]:
    """Convert a batch after a check of its checksum, because the rows get a new one."""
    buffer = pa.py_buffer(batch)
    verify_crc(buffer, 0, read_header(buffer))
    converted: list[bytes] = []
    size_bytes = 0
    for rows in conversion.rows_of(batch, offset):
        converted.append(rows)
        size_bytes += len(rows)
        if size_bytes >= bytes_max:
            break
    return converted
