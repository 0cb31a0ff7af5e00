"""A log's unfinished copy in another log directory, Kafka's future log (KIP-113).

Invariants:

- The copied bytes of a segment are its first published bytes, as long as the log has the same ``Segment``. A segment
  that was truncated or cleaned is another ``Segment``, and is copied again.
- Appends, truncations, retention and cleaning go on while ``copy_some`` copies. Only ``take_over`` takes the locks. The
  files of sealed segments are copied and synced before, so that it takes the same short time for any number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from millrace.segments.names import SEGMENT_SUFFIXES, SNAPSHOT, segment_file_name
from millrace_broker.log.checkpoints import LEADER_EPOCHS, write_epochs
from millrace_broker.log.files import File, Files
from millrace_broker.log.leader_epoch_cache import LeaderEpochFileCache
from millrace_broker.log.local_log import LocalLog
from millrace_broker.log.producer_state_manager import ProducerStateManager
from millrace_broker.log.producer_state_rebuild import snapshot_offsets, write_snapshot_file
from millrace_broker.log.segment import Segment
from millrace_broker.log.segment_replacement import hold_open

_LOG, *_INDEXES = SEGMENT_SUFFIXES
_COPY_BYTES: Final = 2**20


class _SegmentCopy:
    """The copy of one segment."""

    def __init__(self, segment: Segment, file: File) -> None:
        self.segment: Final = segment
        self.file: Final = file
        self.size_bytes = 0
        self.is_synced = False
        """True if the ``.log`` is synced and closed, because the segment is sealed."""
        self.has_small_files = False
        """True if the indexes and the producer snapshot are there, synced."""

    def sync(self) -> None:
        """Sync and close the file, to which nothing is added."""
        if not self.is_synced:
            self.file.sync()
            self.file.close()
            self.is_synced = True


class FutureLog:
    """The copy of a log. One thread uses it."""

    def __init__(
        self, local: LocalLog, epoch_cache: LeaderEpochFileCache, producers: ProducerStateManager, directory: Path
    ) -> None:
        """Copy into ``directory``, which exists and has no segments."""
        self.directory: Final = directory
        self._local: Final = local
        self._epoch_cache: Final = epoch_cache
        self._producers: Final = producers
        self._files: Final[Files] = local.files
        self._copies: Final[dict[int, _SegmentCopy]] = {}

    @property
    def size_bytes(self) -> int:
        """The copied bytes of segments."""
        return sum(copy.size_bytes for copy in list(self._copies.values()))

    @property
    def end_offset(self) -> int:
        """The offset before which all segments are copied as a whole."""
        for segment in self._local.segments.current:
            copy = self._copies.get(segment.base_offset)
            if copy is None or copy.segment is not segment or copy.size_bytes < segment.size_bytes:
                return segment.base_offset
        return self._local.offsets.end

    def copy_some(self, max_bytes: int) -> int:
        """Copy published bytes of the first incomplete segment; returns their number, 0 if nothing is left to copy.

        Raises ``StorageError``, and ``CorruptBatchError`` when a file of the log is missing.
        """
        segments = self._local.segments.current
        for base_offset in self._copies.keys() - {segment.base_offset for segment in segments}:
            self._drop(base_offset)
        for number, segment in enumerate(segments):
            copy = self._copy_of(segment)
            left = segment.size_bytes - copy.size_bytes
            if left > 0:
                content = segment.read(copy.size_bytes, min(left, max_bytes))
                copy.file.write(copy.size_bytes, [content])
                copy.size_bytes += len(content)
                return len(content)
            if number + 1 < len(segments):
                copy.sync()
        return 0

    def steps(self, max_bytes: int) -> Iterator[int]:
        """Copy all that can be copied while the log is used; yields the bytes of each step.

        Raises the errors of ``copy_some``.
        """
        while copied := self.copy_some(max_bytes):
            yield copied
        for copy in list(self._copies.values()):
            if copy.is_synced:
                yield self._copy_small_files(copy)
            else:
                copy.file.sync()

    def _copy_small_files(self, copy: _SegmentCopy) -> int:
        """Copy the small files and the time of a sealed segment; returns their bytes."""
        if copy.has_small_files:
            return 0
        base_offset, modified_ms = copy.segment.base_offset, self._files.modified_ms(copy.segment.path)
        if modified_ms is not None:
            self._files.set_modified_ms(self._path(base_offset, _LOG), modified_ms)
        size_bytes = sum(self._copy_file(segment_file_name(base_offset, suffix)) for suffix in (*_INDEXES, SNAPSHOT))
        copy.has_small_files = True
        return size_bytes

    def _copy_of(self, segment: Segment) -> _SegmentCopy:
        copy = self._copies.get(segment.base_offset)
        # A truncation may let a sealed segment grow again.
        grows_again = copy is not None and copy.is_synced and copy.size_bytes < segment.size_bytes
        if copy is not None and copy.segment is segment and not grows_again:
            return copy
        if copy is not None:
            self._drop(segment.base_offset)
        file = self._files.open(self._path(segment.base_offset, _LOG), create=True)
        file.truncate(0)
        self._copies[segment.base_offset] = copy = _SegmentCopy(segment, file)
        return copy

    def _drop(self, base_offset: int) -> None:
        self._copies.pop(base_offset).file.close()
        for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT):
            self._files.remove(self._path(base_offset, suffix))

    def take_over(self, take_place: Callable[[], Path]) -> None:
        """Finish the copy and let it be the log. ``take_place`` renames the directories and returns the new one.

        Present readers of the old segments continue with their files. Raises the errors of ``copy_some`` and of
        ``take_place``; the log then stays where it is.
        """
        local = self._local
        with local.sync_lock, local.lock:
            local.check_online()
            local.seal()  # writes the indexes of the active segment to their files
            self._finish()
            hold_open(local.segments.current)
            directory = local.directory
            try:
                directory = take_place()
            finally:
                local.reopen(directory)
            self._epoch_cache.move_to(directory)
            local.unsynced_sealed.clear()
            local.unflushed_since_s = None
            local.offsets.advance_recovery_point(local.offsets.end)

    def _finish(self) -> None:
        """Copy what is left, the states too, and sync all."""
        while self.copy_some(_COPY_BYTES):
            pass
        for copy in self._copies.values():
            copy.sync()
            self._copy_small_files(copy)
        names = self._files.names
        wanted = set(snapshot_offsets(names(self._local.directory)))
        copied = set(snapshot_offsets(names(self.directory)))
        for offset in copied - wanted:
            self._files.remove(self._path(offset, SNAPSHOT))
        for offset in wanted - copied:
            self._copy_file(segment_file_name(offset, SNAPSHOT))
        write_snapshot_file(self._files, self.directory, self._local.offsets.end, self._producers.states)
        write_epochs(self._files, self.directory / LEADER_EPOCHS, self._epoch_cache.epochs.entries)
        self._files.sync_directory(self.directory)

    def _copy_file(self, name: str) -> int:
        """Copy a small file, synced; returns its size. The caller syncs the directory."""
        content = self._files.read_bytes(self._local.directory / name)
        if content is None:
            return 0
        file = self._files.open(self.directory / name, create=True)
        file.truncate(0)
        file.write(0, [content])
        file.sync()
        file.close()
        return len(content)

    def close(self) -> None:
        """Close the files of an unfinished copy, which stay on the disk."""
        for copy in self._copies.values():
            copy.file.close()

    def abandon(self) -> None:
        """Remove the copy. Raises ``StorageError``."""
        self.close()
        self._copies.clear()
        self._files.remove_tree(self.directory)

    def _path(self, base_offset: int, suffix: str) -> Path:
        return self.directory / segment_file_name(base_offset, suffix)
