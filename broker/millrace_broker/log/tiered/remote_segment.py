"""A segment in the remote store, read like a local one.

It has the same look-up, over ranges fetched from the store.

Invariants:

- Objects never change, so fetched bytes stay valid. Index entries are hints, as in local segments: an entry is used
  only if its batch agrees.
- Batches are returned only with a correct checksum. A batch that fails it is fetched again, because a transfer may have
  damaged it. If it fails twice, the read fails (``CorruptBatchError``).
- A segment holds its indexes and a few ranges; ``RemoteCache`` bounds the sum over all segments.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from millrace.errors import CorruptBatchError, RemoteStorageError
from millrace.records import BatchHeader, read_entries
from millrace.records.header import NO_TIMESTAMP
from millrace.segments.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeEntry, TimeIndex
from millrace.segments.names import LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX
from millrace_broker.log.files import File, OsFiles, Part
from millrace_broker.log.index_builder import IndexBuilder
from millrace_broker.log.segment import Segment
from millrace_broker.log.tiered.cache import RemoteCache
from millrace_broker.log.tiered.names import ManifestName, object_name
from millrace_broker.log.tiered.store import RemoteFile, RemoteStore

RANGE_BYTES: Final = 64 * 2**10
"""The minimum of a fetch. With an index interval of 4 KiB, one such range contains all that a look-up needs."""
_AHEAD_BYTES_MAX: Final = 8 * 2**20
_RANGES_MAX: Final = 4
"""The ranges kept per segment; as many readers can read it in parallel without fetching a range twice."""


class _Range(NamedTuple):
    position: int
    data: bytes

    @property
    def end(self) -> int:
        return self.position + len(self.data)


class RangedFile:
    """An object read by ranges. Sequential readers get larger ranges, and so fewer round trips."""

    def __init__(self, remote: RemoteFile, size_bytes: int, uri: str) -> None:
        self._remote: Final = remote
        self._size_bytes: Final = size_bytes
        self._uri: Final = uri
        self._ranges: tuple[_Range, ...] = ()
        self._lock: Final = threading.Lock()

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read a range, if possible from fetched ranges. Raises ``RemoteStorageError``."""
        end = min(position + size_bytes, self._size_bytes)
        for held in self._ranges:
            if held.position <= position and end <= held.end:
                return held.data[position - held.position : end - held.position]
        begun = next((held for held in self._ranges if held.position < position <= held.end), None)
        ahead = min(len(begun.data) * 2, _AHEAD_BYTES_MAX) if begun is not None else RANGE_BYTES
        data = self._fetch(position, min(max(end - position, ahead), self._size_bytes - position))
        with self._lock:
            self._ranges = (_Range(position, data), *(held for held in self._ranges if held is not begun))[:_RANGES_MAX]
        return data[: end - position]

    def _fetch(self, position: int, size_bytes: int) -> bytes:
        data = self._remote.read(position, size_bytes)
        if len(data) < size_bytes:
            raise RemoteStorageError(
                f"{self._uri} ends at {position + len(data)}, but the remote store listed {self._size_bytes} bytes: "
                "check the store"
            )
        return data

    def forget(self) -> None:
        """Release the fetched ranges."""
        with self._lock:
            self._ranges = ()

    def held_bytes(self) -> int:
        """Return how many bytes are held."""
        return sum(len(held.data) for held in self._ranges)

    def is_cached(self, position: int, size_bytes: int) -> bool:
        """Return False, because a remote store may take long."""
        return False

    def size_bytes(self) -> int:
        """Return the object's size."""
        return self._size_bytes

    def write(self, position: int, parts: Sequence[Part]) -> None:
        """Raise ``RemoteStorageError``, because copies do not change."""
        raise RemoteStorageError(f"{self._uri} is a remote copy and cannot be written")

    def truncate(self, size_bytes: int) -> None:
        """Raise ``RemoteStorageError``, because copies do not change."""
        raise RemoteStorageError(f"{self._uri} is a remote copy and cannot be truncated")

    def sync(self) -> None:
        """Do nothing, because copies are not written."""

    def close(self) -> None:
        """Release the fetched ranges."""
        self.forget()


class RemoteSegment(Segment):
    """One copied segment. ``end_offset`` is the offset after it, ``largest_ms`` its largest timestamp or -1."""

    def __init__(
        self,
        store: RemoteStore,
        folder: str,
        name: ManifestName,
        *,
        size_bytes: int,
        copied_ms: int,
        index_interval_bytes: int,
        cache: RemoteCache,
    ) -> None:
        super().__init__(
            Path(folder),
            name.copy.base_offset,
            size_bytes=size_bytes,
            index_interval_bytes=index_interval_bytes,
            files=OsFiles(),
            open_segments=cache,
        )
        self.name: Final = name
        self.end_offset: Final = name.end_offset
        self.largest_ms: Final = name.largest_ms
        self.copied_ms: Final = copied_ms
        self.uri = store.uri(folder, object_name(name.copy, LOG))
        self._store: Final = store
        self._folder: Final = folder

    # --- files, from the store -----------------------------------------------------------------------------

    def _open(self) -> File:
        remote = self._store.open(self._folder, object_name(self.name.copy, LOG))
        if remote is None:
            uri = self._store.uri(self._folder, object_name(self.name.copy, LOG))
            raise CorruptBatchError(
                f"{uri} is missing in the remote store: restore it, or delete records up to its end"
            )
        return RangedFile(remote, self.size_bytes, self.uri)

    def _map_indexes(self) -> tuple[OffsetIndex, TimeIndex] | None:
        offsets, times = self._read_small(OFFSET_INDEX), self._read_small(TIME_INDEX)
        if offsets is None or times is None or len(offsets) % OFFSET_ENTRY_BYTES or len(times) % TIME_ENTRY_BYTES:
            return None
        return OffsetIndex.of_file(offsets, self.base_offset), TimeIndex.of_file(times, self.base_offset)

    def _read_small(self, suffix: str) -> bytes | None:
        file = self._store.open(self._folder, object_name(self.name.copy, suffix))
        return None if file is None else file.read(0, file.size_bytes())

    def rebuild_indexes(self, why: str) -> tuple[OffsetIndex, TimeIndex]:
        """Rebuild both indexes from the log, in memory only; the copy does not change."""
        with self.lock:
            builder = IndexBuilder(self.base_offset, self.index_interval_bytes)
            for position, header in self.batches():
                builder.add(position, header)
            builder.finish()
            self._indexes = (builder.offset_index, builder.time_index)
            return self._indexes

    def _header(self, window: bytes, at: int, position: int) -> BatchHeader:
        try:
            return super()._header(window, at, position)
        except CorruptBatchError:
            self.file().close()  # after a damaged transfer the next read fetches again
            raise

    def _note_open(self) -> None:
        self._open_segments.opened(self)

    def held_bytes(self) -> int:
        """Return how many bytes of the segment are in memory."""
        file, indexes = self._file, self._indexes
        held = file.held_bytes() if isinstance(file, RangedFile) else 0
        return held + (sum(len(index.buffer) for index in indexes) if indexes is not None else 0)

    # --- reads ---------------------------------------------------------------------------------------------

    def prepare(self, start_offset: int, max_bytes: int) -> None:
        """Fetch the range of a read from an offset on at once, instead of a range for each step of its look-up."""
        entry = self.indexes()[0].lookup(start_offset)
        if 0 <= entry.position < self.size_bytes:
            size_bytes = min(max_bytes, _AHEAD_BYTES_MAX) + RANGE_BYTES
            self.file().read(entry.position, min(size_bytes, self.size_bytes - entry.position))
            self._note_open()

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read whole batches and verify them. Raises ``CorruptBatchError``, ``RemoteStorageError``."""
        file = self.file()
        data = file.read(position, size_bytes)
        try:
            self._verify(data, position)
        except CorruptBatchError:
            file.close()
            data = file.read(position, size_bytes)
            self._verify(data, position)
        self._note_open()
        return data

    def _verify(self, data: bytes, position: int) -> None:
        at = 0
        try:
            for entry in read_entries(data):
                entry.check()
                at = entry.position + entry.size_bytes
            if at < len(data):
                raise CorruptBatchError("the remaining bytes are not a complete batch")
        except CorruptBatchError as error:
            raise CorruptBatchError(f"{self.uri}, position {position + at}: {error.message}") from error

    def largest_timestamp(self) -> TimeEntry:
        """Return the largest timestamp without a fetch; its offset is only the segment's end."""
        if self.largest_ms == NO_TIMESTAMP:
            return TimeEntry(NO_TIMESTAMP, self.base_offset)
        return TimeEntry(self.largest_ms, self.end_offset - 1)

    def transaction_index(self, *, is_sealed: bool = True) -> bytes:
        """Return the fetched transaction index; no bytes if there is none, which is remembered."""
        if self._has_no_aborted:
            return b""
        content = self._read_small(TRANSACTION_INDEX) or b""
        self._has_no_aborted = is_sealed and not content
        return content

    def modified_ms(self) -> int:
        """Return the time of the copy."""
        return self.copied_ms
