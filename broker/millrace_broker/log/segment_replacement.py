"""The replacement of a log's segments by a cleaned one (Kafka's ``LocalLog.replaceSegments``).

``cleaning.swap`` has the steps on the disk, which are safe in a crash.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.errors import StorageError
from millrace_broker.log.cleaning.swap import CleanedSegment, CleaningAbortedError, hold_open, promote, take_place
from millrace_broker.log.local_log import LocalLog
from millrace_broker.log.segment import Segment


def replace_segments(local: LocalLog, replaced: Sequence[Segment], cleaned: CleanedSegment) -> None:
    """Replace consecutive sealed segments by a cleaned one, as ``PartitionLog.replace_segments`` does."""
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
