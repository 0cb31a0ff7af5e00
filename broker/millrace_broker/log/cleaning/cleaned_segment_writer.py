"""The writer of a cleaned segment's files, step 1 of ``segment_replacement``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from millrace.segments.names import CLEANED, LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, segment_file_name
from millrace.segments.transaction_index import AbortedTransaction, pack_aborted
from millrace_broker.log.cleaning.batch_filter import Kept
from millrace_broker.log.files import File, Files, Part
from millrace_broker.log.index_builder import IndexBuilder
from millrace_broker.log.segment_replacement import CleanedSegment

_PENDING_BYTES: Final = 2**20
"""The size of one write."""
_ORDER: Final = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, LOG)


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
