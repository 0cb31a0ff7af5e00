"""The replacement of segments by a cleaned one (Kafka's ``UnifiedLog.replaceSegments``).

No crash loses or duplicates a segment:

1. The new files are written as ``<base>.log.cleaned``, ``.index.cleaned`` and so on, and synced. Before all of them are
   renamed, a start removes them, and nothing has happened.
2. They are renamed to ``.swap``, the log last, and the directory is synced. From here on a start completes the next
   steps.
3. The other segments' files are renamed to ``.deleted``, in ascending order, and the directory is synced. Then each
   ``.swap`` file gets its final name, which atomically replaces the old file. A reader that opens the log by its path
   always finds one. Without that sync a power failure might leave the new segment beside those that it replaces.

A start removes the segments that begin within the offsets of a ``.swap``. A segment without remaining records may begin
after them. Its name must be removed durably before that of the next segment, which may hold the tombstones of its
records. ``log_loader`` handles each of these states at the next start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.errors import MillraceError
from millrace.segments.names import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    segment_file_name,
)
from millrace.segments.transaction_index import AbortedTransaction, pack_aborted
from millrace_broker.log.cleaning.batch_filter import Kept
from millrace_broker.log.files import File, Files, Part
from millrace_broker.log.index_builder import IndexBuilder
from millrace_broker.log.segment import Segment


class CleaningAbortedError(MillraceError):
    """An interrupted cleaning: the log was changed, deleted or closed, or the cleaner stops. The log is intact."""


_PENDING_BYTES: Final = 2**20
"""The size of one write."""
_ORDER: Final = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedSegment:
    """A segment whose ``.cleaned`` files are complete and synced. ``end_offset`` follows its last batch."""

    base_offset: int
    end_offset: int
    size_bytes: int
    suffixes: tuple[str, ...]


class CleanedSegmentWriter:
    """The writer of one segment's ``.cleaned`` files. Call ``abandon`` unless ``finish`` returned."""

    def __init__(self, files: Files, directory: Path, base_offset: int, index_interval_bytes: int) -> None:
        self._files: Final = files
        self._directory: Final = directory
        self._base_offset: Final = base_offset
        self._indexes: Final = IndexBuilder(base_offset, index_interval_bytes)
        self._pending: list[Part] = []
        self._pending_bytes = 0
        self._size_bytes = 0
        self._end_offset = base_offset
        self._log: Final = self._create(LOG)

    def append(self, batches: Iterable[Kept]) -> int:
        """Write batches that stay; returns their bytes."""
        before = self._size_bytes + self._pending_bytes
        for batch in batches:
            self._indexes.take(self._indexes.growth(self._size_bytes + self._pending_bytes, (batch,)))
            self._pending.append(batch.data)
            self._end_offset = batch.last_offset + 1
            self._pending_bytes += batch.size_bytes
            if self._pending_bytes >= _PENDING_BYTES:
                self._flush()
        self._flush()  # the next batches come from another buffer, and this one should not be kept
        return self._size_bytes - before

    def _flush(self) -> None:
        if self._pending:
            self._log.write(self._size_bytes, self._pending)
        self._size_bytes += self._pending_bytes
        self._pending, self._pending_bytes = [], 0

    def finish(self, aborted: Sequence[AbortedTransaction], modified_ms: int) -> CleanedSegment:
        """Complete and sync the files; the log gets the modification time of the last replaced segment."""
        self._indexes.finish()
        contents = {OFFSET_INDEX: bytes(self._indexes.offset_bytes), TIME_INDEX: bytes(self._indexes.time_bytes)}
        if aborted:
            contents[TRANSACTION_INDEX] = b"".join(pack_aborted(transaction) for transaction in aborted)
        for suffix, content in contents.items():
            file = self._create(suffix)
            file.write(0, [content])
            file.sync()
            file.close()
        self._log.sync()
        self._log.close()
        self._files.set_modified_ms(self._path(LOG), modified_ms)
        return CleanedSegment(
            base_offset=self._base_offset,
            end_offset=self._end_offset,
            size_bytes=self._size_bytes,
            suffixes=tuple(suffix for suffix in _ORDER if suffix == LOG or suffix in contents),
        )

    def abandon(self) -> None:
        """Remove the written files."""
        self._log.close()
        for suffix in _ORDER:
            self._files.remove(self._path(suffix))

    def _create(self, suffix: str) -> File:
        file = self._files.open(self._path(suffix), create=True)
        file.truncate(0)
        return file

    def _path(self, suffix: str) -> Path:
        return self._directory / (segment_file_name(self._base_offset, suffix) + CLEANED)


def hold_open(segments: Iterable[Segment]) -> None:
    """Open the files of segments before their replacement, for present readers and those about to read."""
    for segment in segments:
        with segment.lock:
            segment.leave()
            segment.file()
            segment.indexes()
            segment.hold_transaction_index()
        segment.leave()


def promote(files: Files, directory: Path, cleaned: CleanedSegment) -> None:
    """Do step 2, which decides that the cleaned segment replaces the others."""
    for suffix in cleaned.suffixes:
        name = segment_file_name(cleaned.base_offset, suffix)
        files.rename(directory / (name + CLEANED), directory / (name + SWAP))
    files.sync_directory(directory)


def take_place(files: Files, directory: Path, cleaned: CleanedSegment, replaced: Sequence[int]) -> list[Path]:
    """Do step 3: remove the names of the ``replaced`` segments (base offsets), and rename the new files to the first.

    Returns the files to remove later.
    """
    deleted = []
    for base_offset in replaced:
        is_kept = base_offset == cleaned.base_offset
        for suffix in SEGMENT_SUFFIXES if is_kept else (*SEGMENT_SUFFIXES, SNAPSHOT):
            path = directory / segment_file_name(base_offset, suffix)
            if not (is_kept and suffix in cleaned.suffixes) and files.size_bytes(path) is not None:
                deleted.append(path.with_name(path.name + DELETED))
                files.rename(path, deleted[-1])
        if base_offset >= cleaned.end_offset:
            files.sync_directory(directory)
    files.sync_directory(directory)
    for suffix in cleaned.suffixes:
        path = directory / segment_file_name(cleaned.base_offset, suffix)
        files.rename(path.with_name(path.name + SWAP), path)
    files.sync_directory(directory)
    return deleted
