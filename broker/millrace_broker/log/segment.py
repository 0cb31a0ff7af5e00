"""One segment of a partition: a ``.log`` of batches and its two sparse indexes.

Invariants:

- Bytes below ``size_bytes`` are *published*: whole batches, which never change and are never cut off the file again.
  Readers map and read only those. What a failed append left behind them is cut off in place; damage below them is
  cut by putting a new file in the old one's place (``recovery``), so that no mapping loses pages under its reader.
- ``size_bytes`` only grows, and only after the bytes are written.
- An index entry is a hint: it is used only if the batch that it points at agrees with it. If it does not, the indexes
  are built anew from the log.
- Only the last segment of a partition has an appender. A sealed segment's files no longer change, except for indexes
  that are rebuilt.

Reading is safe from any thread beside one writer, which the partition's lock sees to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from millrace.errors import CorruptBatchError
from millrace.records import BatchHeader, read_header
from millrace.records.header import HEADER_BYTES
from millrace.segments.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeEntry, TimeIndex
from millrace.segments.names import LOG, OFFSET_INDEX, TIME_INDEX, segment_file_name
from millrace_broker.log.files import File, Files
from millrace_broker.log.index_building import IndexBuilder
from millrace_broker.log.open_segments import OpenSegments

_LOG: Final = logging.getLogger(__name__)
_WINDOW_BYTES: Final = 4096
"""Read at once when walking batches: small ones come many to a read, of large ones only the header is wanted."""


class Segment:
    """One segment. ``size_bytes`` is the published size of its ``.log``."""

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
        self._files: Final = files
        self._open_segments: Final = open_segments
        self._file: File | None = None
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        self._grows = False

    # --- files, opened when first needed -------------------------------------------------------------------

    def file(self) -> File:
        """Return the open ``.log``. Raises ``CorruptBatchError`` when it is missing."""
        file = self._file
        if file is None:
            file = self._files.open_read_only(self.path)
            if file is None:
                raise CorruptBatchError(f"{self.path} is missing: restore it from a copy or delete the partition")
            self._file = file
            self._open_segments.opened(self)
        return file

    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return both indexes, mapped; built from the log if they are missing or no whole number of entries."""
        indexes = self._indexes
        if indexes is None:
            indexes = self._map_indexes() or self.rebuild_indexes("missing or cut short")
            self._indexes = indexes
            self._open_segments.opened(self)
        return indexes

    def use(self, file: File, offset_index: OffsetIndex, time_index: TimeIndex) -> None:
        """Read through the appender's open file and its growing indexes from now on."""
        self._file = file
        self._indexes = (offset_index, time_index)
        self._grows = True
        self._open_segments.closed(self)

    def release(self) -> None:
        """Let go of open files; they close when the last reader is done with them, and open again when needed."""
        self._file = None
        self._indexes = None
        self._grows = False
        self._open_segments.closed(self)

    def _map_indexes(self) -> tuple[OffsetIndex, TimeIndex] | None:
        offsets, times = self._files.map(self.offset_index_path), self._files.map(self.time_index_path)
        if offsets is None or times is None:
            return None
        if len(offsets) % OFFSET_ENTRY_BYTES or len(times) % TIME_ENTRY_BYTES or (self.size_bytes and not times):
            return None
        return OffsetIndex.of_file(offsets, self.base_offset), TimeIndex.of_file(times, self.base_offset)

    def rebuild_indexes(self, why: str) -> tuple[OffsetIndex, TimeIndex]:
        """Build both indexes anew from the log and put them in the place of the old files.

        Raises ``CorruptBatchError`` when the log itself is damaged, which it is if the appender's own entries do not
        agree with it.
        """
        if self._grows:
            raise CorruptBatchError(f"{self.path} is damaged ({why}): restore it from a copy")
        _LOG.warning("%s: building the indexes anew (%s)", self.path, why)
        builder = IndexBuilder(self.base_offset, self.index_interval_bytes)
        for position, header in self.batches():
            builder.add(position, header)
        builder.finish()
        builder.write(self._files, self.offset_index_path, self.time_index_path)
        self._indexes = (builder.offset_index, builder.time_index)
        return self._indexes

    # --- walking -------------------------------------------------------------------------------------------

    def batches(self, position: int = 0, limit: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Walk the published batches from the one at ``position`` on: (position, header) of each.

        Ends at ``limit``, by default the published size. Raises ``CorruptBatchError`` where no batch can be.
        """
        end = self.size_bytes if limit is None else limit
        file = self.file()
        window, window_position = b"", position
        while position < end:
            if position + HEADER_BYTES > window_position + len(window):
                window, window_position = file.read(position, min(_WINDOW_BYTES, end - position)), position
            header = self._header(window, position - window_position, position)
            if position + header.size_bytes > end:
                raise CorruptBatchError(
                    f"{self.path}: the batch at position {position} claims {header.size_bytes} bytes, "
                    f"{end - position} are there"
                )
            yield position, header
            position += header.size_bytes

    def _header(self, window: bytes, at: int, position: int) -> BatchHeader:
        try:
            return read_header(window, at)
        except CorruptBatchError as error:
            raise CorruptBatchError(f"{self.path}: position {position} holds no batch ({error.message})") from error

    def header_at(self, position: int) -> BatchHeader:
        """Read the header of the batch that begins at ``position``."""
        return self._header(self.file().read(position, HEADER_BYTES), 0, position)

    # --- look-up -------------------------------------------------------------------------------------------

    def find(self, offset: int, limit: int | None = None) -> tuple[int, BatchHeader] | None:
        """Find the first batch that ends at ``offset`` or later: (position, header); None when all end before."""
        start = self._checked_position(offset)
        return next(
            ((position, header) for position, header in self.batches(start, limit) if header.last_offset >= offset),
            None,
        )

    def _checked_position(self, offset: int) -> int:
        """Return where a batch begins that lies at or before the one that holds ``offset``."""
        entry = self.indexes()[0].lookup(offset)
        if entry.position == 0:
            return 0
        if self._agrees(entry.offset, entry.position):
            return entry.position
        offset_index, _ = self.rebuild_indexes(f"entry {tuple(entry)} names no batch")
        return offset_index.lookup(offset).position

    def _agrees(self, last_offset: int, position: int) -> bool:
        if not 0 < position < self.size_bytes:
            return False
        try:
            return self.header_at(position).last_offset == last_offset
        except CorruptBatchError:
            return False

    def boundary(self, start: int, target: int, limit: int) -> int:
        """Find the last position in ``start..target`` where a batch begins or the published bytes end.

        ``start`` is the beginning of a batch. ``limit`` is where the readable bytes end.
        """
        if target >= limit:
            return limit
        entry = self.indexes()[0].lookup_position(target)
        position = start
        if entry is not None and entry.position > start:
            if self._agrees(entry.offset, entry.position):
                position = entry.position
            else:
                self.rebuild_indexes(f"entry {tuple(entry)} names no batch")
        for begins, header in self.batches(position, limit):
            if begins + header.size_bytes > target:
                return begins
        return limit

    def find_time(self, timestamp_ms: int, start_offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Walk the batches that may hold the first record at or after a time, from ``start_offset`` on.

        Yields those whose largest timestamp is at least ``timestamp_ms``.
        """
        entry = self._checked_time_entry(timestamp_ms)
        start = self._checked_position(max(entry.offset, start_offset))
        for position, header in self.batches(start):
            if header.max_timestamp >= timestamp_ms and header.last_offset >= start_offset:
                yield position, header

    def _checked_time_entry(self, timestamp_ms: int) -> TimeEntry:
        entry = self.indexes()[1].lookup(timestamp_ms)
        if entry.offset == self.base_offset or self._has_time(entry):
            return entry
        return self.rebuild_indexes(f"entry {tuple(entry)} names no batch")[1].lookup(timestamp_ms)

    def _has_time(self, entry: TimeEntry) -> bool:
        found = self.find(entry.offset)
        return found is not None and (found[1].max_timestamp, found[1].last_offset) == entry

    def largest_timestamp(self) -> TimeEntry:
        """Return the largest timestamp of a sealed segment and the last offset of its batch; (-1, base) if none."""
        entry = self.indexes()[1].last()
        if entry != (-1, self.base_offset) and not self._has_time(entry):
            entry = self.rebuild_indexes(f"entry {tuple(entry)} names no batch")[1].last()
        return entry

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read published bytes."""
        return self.file().read(position, size_bytes)

    def modified_ms(self) -> int:
        """Return when the ``.log`` was last written, in ms since 1970."""
        return self._files.modified_ms(self.path) or 0
