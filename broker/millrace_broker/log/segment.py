"""One segment of a partition, Kafka's ``LogSegment``.

It is a ``.log`` of batches with two sparse indexes.

Invariants:

- Bytes below ``size_bytes`` are *published*: whole batches, which never change. Only ``LogTruncation`` truncates them.
  Another ``Segment`` then represents the file. Readers map and read only published bytes. The bytes of a failed append
  after them are truncated in place. Damage below them is removed by a new file in place of the old one
  (``segment_recovery``), so that no reader's mapping loses pages.
- ``size_bytes`` only grows, and only after the bytes are written.
- An index entry is a hint: it is used only if its batch agrees with it. If it does not, the indexes are rebuilt from
  the log, or not used while the segment grows.
- The position of the last appended batch is such a hint too; reads of new records begin there.
- Only the last segment of a partition *grows*. It has an appender, and is read through the appender's open files and
  entries in memory. The files of a sealed segment do not change, except for rebuilt indexes. A segment that is *gone*
  from the log serves its present readers and writes nothing.

Reads are safe from any thread beside one writer, which holds the partition's lock. ``lock`` is held while files are
opened, closed and rebuilt, never during a read.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from millrace.errors import CorruptBatchError, StorageError
from millrace.records import BatchHeader, message_bytes, read_entry_header, read_header, verify_crc
from millrace.records.header import HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, NO_TIMESTAMP
from millrace.segments.indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetEntry,
    OffsetIndex,
    TimeEntry,
    TimeIndex,
)
from millrace.segments.names import LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, segment_file_name
from millrace_broker.log.files import File, Files
from millrace_broker.log.index_builder import IndexBuilder
from millrace_broker.log.open_segments import OpenSegments

_LOG: Final = logging.getLogger(__name__)
_WINDOW_BYTES: Final = 4096
"""The size of one read in a walk over batches. A read holds many small batches, or the header of a large one."""
PLACE: Final = struct.Struct(">qi4xb6xi")
"""The fields of a header that locate its batch: base offset, batch length, magic, last offset delta."""


class Segment:
    """One segment. ``size_bytes`` is the published size of its ``.log``."""

    uri: str = ""
    """The URI of the ``.log`` in the remote store; empty for a file."""

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        *,
        size_bytes: int,
        index_interval_bytes: int,
        files: Files,
        open_segments: OpenSegments,
    ) -> None:
        self.base_offset: Final = base_offset
        self.path: Final = directory / segment_file_name(base_offset, LOG)
        self.offset_index_path: Final = directory / segment_file_name(base_offset, OFFSET_INDEX)
        self.time_index_path: Final = directory / segment_file_name(base_offset, TIME_INDEX)
        self.size_bytes = size_bytes
        self.index_interval_bytes = index_interval_bytes
        self.lock: Final = threading.RLock()
        self._files: Final = files
        self._open_segments: Final = open_segments
        self._file: File | None = None
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        self._grows = False
        self._is_gone = False
        self._has_no_aborted = False
        self._held_transaction_index: bytes | None = None
        self._newest: tuple[int, BatchHeader] | None = None
        """The position and the header of the last appended batch, which the index may not have."""
        self._following: tuple[int, BatchHeader] | None = None
        """Position and header of the batch after the last read, where the next read usually begins."""

    # --- files, opened on demand ---------------------------------------------------------------------------

    def file(self) -> File:
        """Return the open ``.log``. Raises ``CorruptBatchError`` when it is missing."""
        file = self._file
        if file is None:
            with self.lock:
                file = self._file = self._open() if self._file is None else self._file
            self._note_open()
        return file

    def _open(self) -> File:
        file = self._files.open_read_only(self.path)
        if file is None:
            raise CorruptBatchError(f"{self.path} is missing: restore it from a copy or delete the partition")
        return file

    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return both indexes, mapped; rebuild them if they are missing or have an incomplete entry."""
        indexes = self._indexes
        if indexes is None:
            with self.lock:
                indexes = self._indexes
                if indexes is None and not self.size_bytes:  # no files exist before the first append
                    return OffsetIndex(b"", self.base_offset), TimeIndex(b"", self.base_offset)
                if indexes is None:
                    indexes = self._map_indexes() or self.rebuild_indexes("missing, empty or cut short")
                    self._indexes = indexes
            self._note_open()
        return indexes

    def _note_open(self) -> None:
        """Register the open files, without holding the lock, because another segment may have to release its files."""
        if not self._grows:
            self._open_segments.opened(self)

    def grow(self, file: File, offset_index: OffsetIndex, time_index: TimeIndex) -> None:
        """Read through the appender's open file and its growing indexes from now on."""
        with self.lock:
            self._file, self._indexes, self._grows = file, (offset_index, time_index), True
        self._open_segments.closed(self)

    def publish(self, size_bytes: int, newest: BatchHeader) -> None:
        """Publish the batches up to ``size_bytes``; ``newest`` is the header of the last one."""
        self.size_bytes = size_bytes
        self._newest = (size_bytes - newest.size_bytes, newest)

    def release(self) -> None:
        """Release open files; they close after the last reader, and open again on demand."""
        with self.lock:
            self._file, self._indexes, self._grows = None, None, False
        self._open_segments.closed(self)

    def try_release(self) -> bool:
        """Release open files except the appender's; returns False if some are just being opened."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if not self._grows and not self._is_gone:  # the files of a gone segment may belong to another one by now
                self._file = self._indexes = None
        finally:
            self.lock.release()
        return True

    def leave(self) -> None:
        """Mark the segment as gone from the log; present readers may continue, and its files stay untouched."""
        with self.lock:
            self._is_gone = True
        self._open_segments.closed(self)

    def _map_indexes(self) -> tuple[OffsetIndex, TimeIndex] | None:
        offsets, times = self._files.map(self.offset_index_path), self._files.map(self.time_index_path)
        if offsets is None or times is None:
            return None
        if len(offsets) % OFFSET_ENTRY_BYTES or len(times) % TIME_ENTRY_BYTES or (self.size_bytes and not times):
            return None
        return OffsetIndex.of_file(offsets, self.base_offset), TimeIndex.of_file(times, self.base_offset)

    def rebuild_indexes(self, why: str) -> tuple[OffsetIndex, TimeIndex]:
        """Rebuild both indexes of a sealed segment from the log, and replace the old files.

        Raises ``CorruptBatchError`` when the log itself is damaged.
        """
        with self.lock:
            if self._grows and self._indexes is not None:  # the segment was reopened for appends meanwhile
                return self._indexes
            builder = IndexBuilder(self.base_offset, self.index_interval_bytes)
            for position, header in self.batches():
                builder.add(position, header)
            builder.finish()
            if not self._is_gone:
                _LOG.warning("%s: rebuilt the indexes (%s)", self.path, why)
                builder.write(self._files, self.offset_index_path, self.time_index_path)
            self._indexes = (builder.offset_index, builder.time_index)
            return self._indexes

    # --- iteration -----------------------------------------------------------------------------------------

    def batches(self, position: int = 0, limit: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over the published batches from the one at ``position`` on: (position, header) of each.

        Ends at ``limit``, by default the published size. Raises ``CorruptBatchError`` where no batch is possible, and
        where offsets do not ascend. Offsets are outside the checksum, so only their order shows damage to them.
        """
        end = self.size_bytes if limit is None else limit
        least_offset = self.base_offset
        file = self.file()
        window, window_position = b"", position
        while position < end:
            if position + HEADER_BYTES > window_position + len(window):
                window, window_position = file.read(position, min(_WINDOW_BYTES, end - position)), position
            header = self._header(window, position - window_position, position)
            if position + header.size_bytes > end:
                raise CorruptBatchError(
                    f"{self.path}: the batch at position {position} has a length of {header.size_bytes} bytes, but "
                    f"only {end - position} bytes follow"
                )
            if header.base_offset < least_offset:
                wrong = f"offset {header.base_offset} at position {position} does not follow {least_offset - 1}"
                raise CorruptBatchError(f"{self.path}: {wrong}")
            yield position, header
            position, least_offset = position + header.size_bytes, header.next_offset

    def _header(self, window: bytes, at: int, position: int) -> BatchHeader:
        try:
            size = message_bytes(window, at)
            if size is None:
                return read_header(window, at)
            return read_entry_header(self.file().read(position, size))
        except CorruptBatchError as error:
            raise CorruptBatchError(f"{self.path} has no batch at position {position} ({error.message})") from error

    def header_at(self, position: int) -> BatchHeader:
        """Read the header of the batch that begins at ``position``."""
        return self._header(self.file().read(position, HEADER_BYTES), 0, position)

    # --- look-up -------------------------------------------------------------------------------------------

    def find(self, offset: int, limit: int | None = None) -> tuple[int, BatchHeader] | None:
        """Find the first batch that ends at ``offset`` or later: (position, header); None if all end before."""
        end = self.size_bytes if limit is None else limit
        newest = self._newest
        if newest is not None and newest[0] < end and newest[1].base_offset <= offset:
            return newest if offset <= newest[1].last_offset else None
        following = self._following
        if following is not None and following[0] < end and following[1].base_offset == offset:
            return following
        found = self._find_from(self.indexes()[0].lookup(offset), offset, end)
        if found is None:
            near = self._batches_near(offset, end)
            found = next(((position, header) for position, header in near if header.last_offset >= offset), None)
        return found

    def _find_from(self, entry: OffsetEntry, offset: int, end: int) -> tuple[int, BatchHeader] | None:
        """Find a batch the fast way of nearly every look-up; returns None if the entry or a batch is irregular.

        It reads only the header fields that tell where a batch ends, in the file and in offsets.
        """
        file, position = self.file(), entry.position
        window, begins = b"", position
        while 0 <= position < end:
            at = position - begins
            if at + HEADER_BYTES > len(window):
                window, begins, at = file.read(position, min(_WINDOW_BYTES, end - position)), position, 0
                if len(window) < HEADER_BYTES:
                    return None
            base_offset, batch_length, magic, last_offset_delta = PLACE.unpack_from(window, at)
            last_offset = base_offset + last_offset_delta
            if position == entry.position and position and last_offset != entry.offset:
                return None
            following = position + LOG_OVERHEAD_BYTES + batch_length
            if magic != MAGIC or batch_length < HEADER_BYTES - LOG_OVERHEAD_BYTES or following > end:
                return None
            if last_offset >= offset:
                return position, read_header(window, at)
            position = following
        return None

    def remember(self, position: int, header: BatchHeader) -> None:
        """Remember where a batch begins that will probably be read next. Batches of a segment never move."""
        self._following = (position, header)

    def verify_near(self, offset: int, limit: int) -> None:
        """Verify the batches before ``limit`` that may hide a batch with ``offset``.

        Raises ``CorruptBatchError``.
        """
        for position, header in self._batches_near(offset, limit):
            if header.magic == MAGIC:
                verify_crc(self.read(position, header.size_bytes), 0, header)

    def _batches_near(self, offset: int, limit: int) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over the batches before ``limit``, from one shortly before ``offset`` on."""
        return self.batches(self._position(lambda index: index.lookup(offset)), limit)

    def _position(self, look: Callable[[OffsetIndex], OffsetEntry | None]) -> int:
        """Return the position of an entry that agrees with its batch, or 0, where a batch always begins.

        ``look`` selects the entry, None for none.
        """
        entry = look(self.indexes()[0])
        if entry is not None and not self._agrees(entry) and not self._grows:
            entry = look(self.rebuild_indexes(f"entry {tuple(entry)} does not point to a batch")[0])
        return entry.position if entry is not None and self._agrees(entry) else 0

    def _agrees(self, entry: OffsetEntry) -> bool:
        if entry.position == 0:  # it means the start of the file and is not in the index
            return True
        if not 0 < entry.position < self.size_bytes:
            return False
        try:
            return self.header_at(entry.position).last_offset == entry.offset
        except CorruptBatchError:
            return False

    def offset_at(self, position: int) -> int:
        """Return the offset of the batch that begins at ``position``.

        Raises ``CorruptBatchError`` when the previous batch claims to reach beyond that position.
        """
        begins = self._position(lambda index: index.lookup_position(position - 1))
        for found, header in self.batches(begins):
            if found == position:
                return header.base_offset
            if found > position:
                break
        raise CorruptBatchError(f"{self.path}: no batch begins at position {position}")

    def end_before(self, position: int) -> int:
        """Return the offset after the batch that ends at ``position``; the base offset at the start of the segment."""
        end_offset = self.base_offset
        for _, header in self.batches(self._position(lambda index: index.lookup_position(position - 1)), position):
            end_offset = header.next_offset
        return end_offset

    def boundary(self, start: int, target: int, limit: int) -> int:
        """Find the last position in ``start..target`` where a batch begins or the published bytes end.

        A batch begins at ``start``. The readable bytes end at ``limit``.
        """
        if target >= limit:
            return limit
        position = max(start, self._position(lambda index: index.lookup_position(target)))
        batches = self.batches(position, limit)
        return next((begins for begins, header in batches if begins + header.size_bytes > target), limit)

    def batches_from_time(self, timestamp_ms: int, start_offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over the batches from ``start_offset`` on; the time index skips most batches before the time."""
        entry = self._checked_time_entry(timestamp_ms)
        for position, header in self._batches_near(max(entry.offset, start_offset), self.size_bytes):
            if header.last_offset >= start_offset:
                yield position, header

    def _checked_time_entry(self, timestamp_ms: int) -> TimeEntry:
        entry = self.indexes()[1].lookup(timestamp_ms)
        if entry == (NO_TIMESTAMP, self.base_offset) or self._has_time(entry):
            return entry
        if self._grows:
            return TimeEntry(NO_TIMESTAMP, self.base_offset)
        return self.rebuild_indexes(f"entry {tuple(entry)} does not point to a batch")[1].lookup(timestamp_ms)

    def _has_time(self, entry: TimeEntry) -> bool:
        found = self.find(entry.offset)
        return found is not None and (found[1].max_timestamp, found[1].last_offset) == entry

    def largest_timestamp(self) -> TimeEntry:
        """Return the largest timestamp of a sealed segment and the last offset of its batch; (-1, base) if none."""
        entry = self.indexes()[1].last()
        if entry != (NO_TIMESTAMP, self.base_offset) and not self._has_time(entry):
            entry = self.rebuild_indexes(f"entry {tuple(entry)} does not point to a batch")[1].last()
        return entry

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read published bytes."""
        return self.file().read(position, size_bytes)

    def is_cached(self, offset: int, size_bytes: int) -> bool:
        """Return whether a read from an offset on is short and would not wait for a disk.

        Samples of the page cache tell about the disk. A read is not short in three cases. The files must be opened. The
        first batch is larger than ``size_bytes``, and a read returns it nevertheless. Or the segment has messages of
        magic 0 and 1, which a read converts.
        """
        file, indexes = self._file, self._indexes
        if file is None or indexes is None:
            return False
        position = indexes[0].lookup(offset).position
        if not file.is_cached(position, min(size_bytes, self.size_bytes - position)):
            return False
        try:
            first = self.find(offset)
        except (CorruptBatchError, StorageError):  # the read reports it
            return False
        if first is None:
            return False
        header = first[1]
        return header.base_offset <= offset and header.magic >= MAGIC and header.size_bytes <= size_bytes

    def transaction_index(self, *, is_sealed: bool = False) -> bytes:
        """Return the content of the transaction index; no bytes if there is none.

        A sealed segment gets no more entries, so the absence of an index is remembered. Most segments have none, and
        readers of committed records ask for the indexes of all following segments.
        """
        if self._has_no_aborted:
            return b""
        path = self.path.with_name(segment_file_name(self.base_offset, TRANSACTION_INDEX))
        content = self._files.read_bytes(path) or b""
        if self._held_transaction_index is not None:  # by now the file may be gone, or another segment's
            return self._held_transaction_index
        self._has_no_aborted = is_sealed and not content and not self._is_gone
        return content

    def hold_transaction_index(self) -> None:
        """Keep the transaction index in memory, because its file is about to be removed or replaced."""
        self._held_transaction_index = self.transaction_index()

    def modified_ms(self) -> int:
        """Return when the ``.log`` was last written, in ms since 1970."""
        return self._files.modified_ms(self.path) or 0
