"""The replacement of a log's segments by a cleaned one (Kafka's ``LocalLog.replaceSegments``).

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

from millrace.errors import MillraceError, StorageError
from millrace.segments.names import CLEANED, DELETED, SEGMENT_SUFFIXES, SNAPSHOT, SWAP, segment_file_name
from millrace_broker.log.files import Files
from millrace_broker.log.local_log import LocalLog
from millrace_broker.log.segment import Segment


class CleaningAbortedError(MillraceError):
    """An interrupted cleaning, Kafka's ``LogCleaningAbortedException``.

    The log was changed, deleted or closed, or the cleaner stops. The log is intact.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedSegment:
    """A segment whose ``.cleaned`` files are complete and synced. ``end_offset`` follows its last batch."""

    base_offset: int
    end_offset: int
    size_bytes: int
    suffixes: tuple[str, ...]


def replace_segments(local: LocalLog, replaced: Sequence[Segment], cleaned: CleanedSegment) -> None:
    """Replace consecutive sealed segments by a cleaned one, with steps 2 and 3."""
    with local.lock:
        if local.failure is not None or not set(replaced) <= set(local.segments.current[:-1]):
            raise CleaningAbortedError(f"{local.name} was changed during its cleaning, so no segment was replaced")
        hold_open(replaced)
        try:
            promote(local.files, local.directory, cleaned)
            old_bases = [segment.base_offset for segment in replaced]
            deleted = take_place(local.files, local.directory, cleaned, old_bases)
        except StorageError as error:
            local.failure = error
            raise
        successor = local.loader().open_segment(cleaned.base_offset, cleaned.size_bytes)
        local.segments.replace(replaced, successor)
        local.deleted_files.add(deleted, local.config.file_delete_delay_ms)


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
