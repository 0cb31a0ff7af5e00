"""Columnar batches as rows, for Kafka's consumers, which know no other batches.

A columnar batch becomes one batch of rows, or several if its rows are large. They are converted from the wanted offset
on, until the response is full.

One conversion runs at a time, in an I/O thread. Two conversions at the same time would take the interpreter's lock from
each other. They would take as long as one after the other, and more CPU time. The batches of a response are converted
together, because a second conversion in the same thread finds the processor's caches filled. The most recent results
are kept, because consumers of different groups read the same batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from millrace.errors import MillraceError
from millrace.records import (
    ROWS_BYTES_MAX,
    BatchHeader,
    end_of_rows,
    read_header,
    rows_of_opaque,
    scan_headers,
    verify_crc,
)
from millrace_broker.quotas import Lease
from millrace_broker.runtime import Executors

_logger = logging.getLogger(__name__)

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


class ReadBatches(NamedTuple):
    """Whole batches of a partition, and the offsets that their reader wants."""

    topic_id: bytes
    partition: int
    records: bytes
    conversion: RowConversion = OPAQUE_ROWS
    wanted: WantedOffsets = EVERY_OFFSET


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

    def takes_all_stored(self, size_bytes: int) -> bool:
        """Return whether several stored batches of rows have room within the limits. If so, the response has them."""
        if size_bytes > self._left_bytes_now:
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
        """Book the memory of conversions. Return how many bytes they may have; None without room or memory."""
        if self._is_full:
            return None
        bytes_max = max(ROWS_BYTES_MAX, min(self._left_bytes_now, _CONVERTED_BYTES_MAX))
        return bytes_max if self._reserve(bytes_max) else None

    def end_conversion(self) -> None:
        """Give back the memory that conversions booked, because the rows are in the cache."""
        self._settle()

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


class _Missing(NamedTuple):
    """A columnar batch whose rows from an offset on are not cached."""

    source: _Columnar
    offset: int


class RowBatches:
    """Cache of converted batches, bounded by their bytes. It belongs to the event loop."""

    def __init__(self, bytes_max: int = _CACHED_BYTES_MAX) -> None:
        self._bytes_max: Final = bytes_max
        self._cached: Final[OrderedDict[_Key, bytes]] = OrderedDict()
        self.held_bytes = 0
        self._unread: Final[dict[_Key, int]] = {}
        """Bytes of rows that were converted ahead, until they are read."""
        self._turn: Final = asyncio.Lock()

    async def as_rows(self, executors: Executors, read: ReadBatches, *, room: ResponseRoom) -> list[memoryview]:
        """Return whole batches as rows, as many as have room. Batches of rows are not copied.

        Rows of columnar batches that do not have wanted offsets are left out. A faulty batch ends the result.

        If the first batch is faulty, raises ``CorruptBatchError`` for a wrong checksum, and the errors of the
        conversion. One of these is ``UnsupportedForFormatError``, for a typed topic that has no format for Kafka
        clients.
        """
        if end_of_rows(read.records) is not None and room.takes_all_stored(len(read.records)):
            return [memoryview(read.records)]
        view, pieces, kept, end = memoryview(read.records), list[memoryview](), 0, 0
        for position, header in scan_headers(read.records):
            if not header.is_columnar:
                if not room.takes_stored(header.size_bytes):
                    break
                end = position + header.size_bytes
                continue
            if position > kept:
                pieces.append(view[kept:position])
            kept = end = position + header.size_bytes
            try:
                if not await self._add_rows(pieces, executors, _columnar(read, position, header), room, read.wanted):
                    break
            except MillraceError:
                if not pieces:
                    raise
                break  # the reader gets the batches before the faulty one, and the error with its next request
        if kept < end:
            pieces.append(view[kept:end])
        return pieces

    async def convert(
        self, executors: Executors, reads: Sequence[ReadBatches], bytes_max: int, *, is_ahead: bool = False
    ) -> None:
        """Convert columnar batches for the calls of ``as_rows`` that follow, up to ``bytes_max`` of rows.

        The last rows may exceed it. Faulty batches are left out: ``as_rows`` reports them.
        """
        async with self._turn:
            missing = [
                _Missing(source, offset)
                for read in reads
                for source in _columnar_batches(read)
                if self._found(source.key, offset := max(source.header.base_offset, read.wanted.first)) is None
            ]
            if not missing:
                return
            for key, rows in await executors.run_io(_converted_in_turn, missing, bytes_max):
                if is_ahead:
                    self._unread[key] = len(rows)
                self._keep(key, rows)

    async def convert_ahead(self, executors: Executors, reads: Sequence[ReadBatches]) -> None:
        """Convert columnar batches that will probably be fetched next.

        Nothing is converted if rows that nobody has read yet fill half of the cache. More of them would drop each
        other.
        """
        if 2 * sum(self._unread.values()) <= self._bytes_max:
            await self.convert(executors, reads, _CONVERTED_BYTES_MAX, is_ahead=True)

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
            self._unread.pop(start, None)
        return rows

    async def _converted(self, executors: Executors, source: _Columnar, offset: int, bytes_max: int) -> bytes:
        """Return the rows with an offset. The rows that follow are converted too, up to ``bytes_max``."""
        async with self._turn:
            found = self._found(source.key, offset)  # another request may have converted the batch meanwhile
            if found is not None:
                return found
            converted = await executors.run_io(_checked_rows, source.batch, source.conversion, offset, bytes_max)
            for rows in converted:
                self._keep(_key_of(source, rows), rows)
        return converted[0]

    def _keep(self, key: _Key, rows: bytes) -> None:
        if key not in self._cached:
            self._cached[key] = rows
            self.held_bytes += len(rows)
        while self.held_bytes > self._bytes_max:
            dropped_key, dropped = self._cached.popitem(last=False)
            self._unread.pop(dropped_key, None)
            self.held_bytes -= len(dropped)


def _columnar(read: ReadBatches, position: int, header: BatchHeader) -> _Columnar:
    key = _Key(read.topic_id, read.partition, header.base_offset, header.crc, read.conversion.form, header.base_offset)
    batch = memoryview(read.records)[position : position + header.size_bytes]
    return _Columnar(key, header, batch, read.conversion)


def _columnar_batches(read: ReadBatches) -> Iterator[_Columnar]:
    """Yield the columnar batches with wanted offsets. A partition that begins with rows is taken to have no others."""
    for position, header in scan_headers(read.records):
        if not header.is_columnar:
            return
        if header.last_offset >= read.wanted.first and header.base_offset <= read.wanted.last:
            yield _columnar(read, position, header)


def _key_of(source: _Columnar, rows: bytes) -> _Key:
    return source.key._replace(start_offset=read_header(rows).base_offset)


def _converted_in_turn(missing: Sequence[_Missing], bytes_max: int) -> list[tuple[_Key, bytes]]:
    """Convert batches one after the other. A faulty one has no rows."""
    converted: list[tuple[_Key, bytes]] = []
    for source, offset in missing:
        try:
            found = _checked_rows(source.batch, source.conversion, offset, bytes_max)
        except Exception as error:  # noqa: BLE001 - whoever reads the batch gets the error
            _logger.debug("batch at offset %d has no rows: %s", source.header.base_offset, error)
            continue
        converted += ((_key_of(source, rows), rows) for rows in found)
        bytes_max -= sum(map(len, found))
        if bytes_max <= 0:
            break
    return converted


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
