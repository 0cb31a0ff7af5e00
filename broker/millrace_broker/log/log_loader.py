"""The loading of a partition directory at start.

It finds the segments, repairs the leftovers of a crash, and rebuilds the state in memory. Assumptions of recovery:

- Records before the recovery point were synced. There, recovery only follows the chain of batch headers, which may have
  gaps. No crash explains a break in that chain. The partition is then not opened (``StorageError``), rather than
  truncated.
- From the recovery point on nothing is trusted. Each batch must follow the previous one and match its checksum. In a
  compacted topic it may follow after a gap. The log ends before the first batch that does not, and everything after it
  is removed. If the end of a segment was lost but the next segment was not, a gap is left, as by compaction. The
  records after the gap stay, because nothing is removed by inference.
- An incomplete last batch was never published, so the file is truncated in place. Other damaged bytes may be mapped by
  a reader. The good beginning is then copied to a new file, which replaces the old one.
- Indexes of segments that recovery checked are rebuilt; those of other segments are checked when they are used.
- After a clean shutdown recovery is not needed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.config.topic import TopicConfig
from millrace.errors import CorruptBatchError, StorageError
from millrace.records import read_entry_header
from millrace.segments.names import (
    CLEANED,
    DELETED,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    parse_segment_file_name,
    segment_file_name,
)
from millrace_broker.log.checkpoints import LEADER_EPOCHS, read_epochs, write_epochs
from millrace_broker.log.files import TEMPORARY, Files
from millrace_broker.log.index_builder import IndexBuilder
from millrace_broker.log.leader_epochs import LeaderEpochs
from millrace_broker.log.open_segments import OpenSegments
from millrace_broker.log.producer_state_rebuild import rebuild_producer_states, snapshot_offsets
from millrace_broker.log.producer_states import ProducerStates
from millrace_broker.log.segment import Segment
from millrace_broker.log.segment_recovery import SoundPart, check_segment
from millrace_broker.runtime import Clock

_LOG: Final = logging.getLogger(__name__)
_COPY_BYTES: Final = 4 * 2**20


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """The content of a partition directory. ``recovery_point`` is the offset before which all records are synced."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    producers: ProducerStates
    epochs: LeaderEpochs


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLoader:
    """The loader of one partition directory, Kafka's ``LogLoader``."""

    directory: Path
    config: TopicConfig
    files: Files
    clock: Clock
    open_segments: OpenSegments

    def load(
        self, *, recovery_point: int | None, log_start_offset: int, was_clean: bool, starts_remotely: bool = False
    ) -> LoadedLog:
        """Load the partition, and recover it unless it ``was_clean``.

        ``recovery_point`` and ``log_start_offset`` come from the checkpoints; without a recovery point it is unknown
        what was synced. A log that ``starts_remotely`` may start before its first segment. The records in between are
        in the remote store. Raises ``StorageError`` for damage before the recovery point, and the errors of the disk.
        """
        names = self._names_without_leftovers()
        segments = self._find_segments(names, log_start_offset)
        log_end_offset = self._clean_end(segments[-1], recovery_point) if was_clean else None
        recovered_from = None
        if log_end_offset is None:
            segments, recovered_from = self._recover(segments, recovery_point)
            log_end_offset = _end_offset(segments[-1])
        if log_end_offset < (recovery_point or 0):
            raise StorageError(
                f"{self.directory} ends at offset {log_end_offset}, but was synced up to offset {recovery_point}: "
                "restore its files from a copy, or delete the partition"
            )
        if not starts_remotely:
            log_start_offset = max(log_start_offset, segments[0].base_offset)
        if log_end_offset < log_start_offset:
            _LOG.error("%s ends at offset %d, before its start", self.directory, log_end_offset)
            self._remove_segments(segments)
            segments, log_end_offset = [self.create_segment(log_start_offset)], log_start_offset
        epochs = self._load_epochs(segments, log_start_offset, log_end_offset)
        producers = rebuild_producer_states(
            self.files,
            self.directory,
            snapshot_offsets(names),
            segments,
            log_end_offset,
            self.clock.now_ms(),
            recovered_from=recovered_from,
        )
        return LoadedLog(
            segments=segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            recovery_point=log_end_offset,
            producers=producers,
            epochs=epochs,
        )

    def _clean_end(self, last: Segment, recovery_point: int | None) -> int | None:
        """Return the end offset of a closed log; None if something has changed its files since."""
        try:
            end_offset = _end_offset(last)
        except CorruptBatchError as error:
            if recovery_point is None:  # it is unknown how much of the log was good
                raise
            _LOG.error("%s was closed cleanly, but is damaged: %s", self.directory, error.message)
            return None
        if recovery_point is None or end_offset == recovery_point:
            return end_offset
        _LOG.error("%s was closed at offset %d, but ends at %d", self.directory, recovery_point, end_offset)
        return None

    # --- files ---------------------------------------------------------------------------------------------

    def create_segment(self, base_offset: int) -> Segment:
        """Create an empty segment's ``.log``, durably."""
        segment = self.open_segment(base_offset, 0)
        file = self.files.open(segment.path, create=True)
        file.truncate(0)
        file.close()
        self.files.sync_directory(self.directory)
        return segment

    def open_segment(self, base_offset: int, size_bytes: int) -> Segment:
        """Return a segment whose files exist or will exist; none is opened yet."""
        return Segment(
            self.directory,
            base_offset,
            size_bytes=size_bytes,
            index_interval_bytes=self.config.index_interval_bytes,
            files=self.files,
            open_segments=self.open_segments,
        )

    def _names_without_leftovers(self) -> list[str]:
        """Remove unfinished and deleted files, finish complete replacements, and return the names of all files then.

        A ``.swap`` log replaces all segments from its base offset to its last record. If a ``.cleaned`` log of a lower
        or equal base offset exists, the replacement was not complete, and its ``.swap`` files are removed (Kafka's
        ``LogLoader.removeTempFilesAndCollectSwapFiles``).
        """
        names = self.files.names(self.directory)
        if not any(name.endswith((DELETED, CLEANED, TEMPORARY, SWAP)) for name in names):
            return names
        unfinished = [int(name[:20]) for name in names if name.endswith(CLEANED) and name[:20].isdigit()]
        for name in names:
            if name.endswith((DELETED, CLEANED, TEMPORARY)):
                self.files.remove(self.directory / name)
        swaps = [name for name in names if name.endswith(SWAP)]
        for name in swaps:
            parsed = parse_segment_file_name(name.removesuffix(SWAP))
            # An index is rebuilt if its log has already taken its final name.
            has_log = parsed is not None and segment_file_name(parsed[0], LOG) + SWAP in swaps
            if parsed is None or not has_log or parsed[0] >= min(unfinished, default=parsed[0] + 1):
                self.files.remove(self.directory / name)
            elif parsed[1] == LOG:
                self._finish_swap(parsed[0])
        return self.files.names(self.directory)

    def _finish_swap(self, base_offset: int) -> None:
        path = self.directory / segment_file_name(base_offset, LOG)
        swapped = path.with_name(path.name + SWAP)
        end_offset = base_offset
        with_content = self.files.map(swapped)
        if with_content is not None:
            position = 0
            while position < len(with_content):
                header = read_entry_header(with_content, position)
                end_offset, position = header.next_offset, position + header.size_bytes
        for name in self.files.names(self.directory):
            parsed = parse_segment_file_name(name)
            if parsed is not None and parsed[1] in SEGMENT_SUFFIXES and base_offset <= parsed[0] < end_offset:
                self.files.remove(self.directory / name)
        self.files.sync_directory(self.directory)
        for suffix in SEGMENT_SUFFIXES:
            name = segment_file_name(base_offset, suffix)
            if self.files.size_bytes(self.directory / (name + SWAP)) is not None:
                self.files.rename(self.directory / (name + SWAP), self.directory / name)
        self.files.sync_directory(self.directory)

    def _find_segments(self, names: Sequence[str], log_start_offset: int) -> list[Segment]:
        parsed = [(name, parse_segment_file_name(name)) for name in names]
        bases = {found[0] for _, found in parsed if found is not None and found[1] == LOG}
        for name, found in parsed:
            if found is not None and found[1] in SEGMENT_SUFFIXES and found[0] not in bases:
                _LOG.warning("%s/%s belongs to no segment and was removed", self.directory, name)
                self.files.remove(self.directory / name)
        segments = [
            self.open_segment(base, self.files.size_bytes(self.directory / segment_file_name(base, LOG)) or 0)
            for base in sorted(bases)
        ]
        return segments or [self.create_segment(log_start_offset)]

    def _remove_segments(self, segments: list[Segment]) -> None:
        for segment in segments:
            segment.release()
            for suffix in SEGMENT_SUFFIXES:
                self.files.remove(self.directory / segment_file_name(segment.base_offset, suffix))
        self.files.sync_directory(self.directory)

    # --- recovery ------------------------------------------------------------------------------------------

    def _recover(self, segments: list[Segment], recovery_point: int | None) -> tuple[list[Segment], int]:
        """Recover a log; returns the remaining segments and the base offset of the first checked one."""
        synced = recovery_point or 0
        # Check also a segment that ends at the recovery point. It may have been sealed after that point was reached.
        first = max((n for n, segment in enumerate(segments) if segment.base_offset < synced), default=0)
        for number in range(first, len(segments)):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            sound = self._recover_segment(segments[number], synced, following)
            if sound.problem is not None:
                self._remove_segments(segments[number + 1 :])
                return segments[: number + 1], segments[first].base_offset
            if following is not None and synced <= sound.end_offset < following and not self.config.is_compacted:
                path, lost = segments[number].path, f"{sound.end_offset}..{following - 1}"
                _LOG.warning(
                    "%s: offsets %s are missing; they were not synced, or their segment was being deleted", path, lost
                )
        return segments, segments[first].base_offset

    def _recover_segment(self, segment: Segment, recovery_point: int, following: int | None) -> SoundPart:
        """Check a segment's batches, truncate it before the first bad one, build its indexes; returns the sound
        part.
        """
        if self.config.syncs_before_ack:
            # After a failed sync the page cache holds data that the disk does not, as if it were synced. Drop it.
            self.files.forget_cached(segment.path)
        content = self.files.map(segment.path) or memoryview(b"")
        size_bytes = len(content)
        builder = IndexBuilder(segment.base_offset, segment.index_interval_bytes)
        sound = check_segment(content, builder, recovery_point, following, is_compacted=self.config.is_compacted)
        del content
        if sound.problem is not None:
            if sound.end_offset < recovery_point:
                raise StorageError(
                    f"{segment.path} is damaged at position {sound.size_bytes} (offset {sound.end_offset}: "
                    f"{sound.problem}), but was synced up to offset {recovery_point}: restore the file from a copy, "
                    "or delete the partition"
                )
            _LOG.warning(
                "%s: truncated from %d to %d bytes (%s)", segment.path, size_bytes, sound.size_bytes, sound.problem
            )
            self.cut(segment, sound.size_bytes, in_place=sound.is_incomplete)
        segment.size_bytes = sound.size_bytes
        builder.finish()
        builder.write(self.files, segment.offset_index_path, segment.time_index_path)
        self.sync(segment)
        return sound

    def cut(self, segment: Segment, size_bytes: int, *, in_place: bool) -> None:
        """Truncate a segment's file; not ``in_place`` if a reader may have mapped the rest. The caller syncs it."""
        if in_place:
            self.files.open(segment.path).truncate(size_bytes)
        else:
            self.copy_beginning(segment, size_bytes)
            self.swap_in(segment)

    def copy_beginning(self, segment: Segment, size_bytes: int) -> None:
        """Copy the beginning of a segment's file beside it, synced, for ``swap_in``. A start removes the copy.

        Raises ``StorageError``; then there is no copy.
        """
        beside = segment.path.with_name(segment.path.name + CLEANED)
        try:
            file, copy = self.files.open(segment.path), self.files.open(beside, create=True)
            copy.truncate(0)
            for position in range(0, size_bytes, _COPY_BYTES):
                copy.write(position, [file.read(position, min(_COPY_BYTES, size_bytes - position))])
            copy.sync()
            copy.close()
        except StorageError:
            self.files.remove(beside)
            raise

    def swap_in(self, segment: Segment) -> None:
        """Replace a segment's file by the copy of its beginning, durably."""
        self.files.rename(segment.path.with_name(segment.path.name + CLEANED), segment.path)
        self.files.sync_directory(self.directory)

    def sync(self, segment: Segment) -> None:
        """Make a segment's file survive a power failure."""
        file = self.files.open(segment.path)
        file.sync()
        file.close()

    # --- state in memory -----------------------------------------------------------------------------------

    def _load_epochs(self, segments: list[Segment], log_start_offset: int, log_end_offset: int) -> LeaderEpochs:
        stored = self._stored_epochs()
        # The file may be missing, or may lack the epochs of deleted records that a crash has restored.
        known_from = stored[0][1] if stored else log_end_offset
        epochs = LeaderEpochs(self._epochs_of_batches(segments, log_start_offset, known_from))
        for epoch, start_offset in stored:
            epochs.assign(epoch, start_offset)
        epochs.truncate_end(log_end_offset)
        if epochs.entries != tuple(stored):
            write_epochs(self.files, self.directory / LEADER_EPOCHS, epochs.entries)
        epochs.truncate_start(log_start_offset)  # epochs before the start may stay in the file
        return epochs

    def _stored_epochs(self) -> list[tuple[int, int]]:
        """Read the stored epochs; returns none if they are damaged, because the batches know them too."""
        try:
            return read_epochs(self.files, self.directory / LEADER_EPOCHS)
        except StorageError as error:
            _LOG.warning("%s; the leader epochs are read from the batches instead", error.message)
            return []

    def _epochs_of_batches(
        self, segments: list[Segment], start_offset: int, end_offset: int
    ) -> Iterator[tuple[int, int]]:
        """Read the epochs that begin before ``end_offset`` from the batches: (epoch, start offset)."""
        latest = -1
        for segment in segments:
            if start_offset >= end_offset or segment.base_offset >= end_offset:
                return
            for _, header in segment.batches():
                if header.base_offset < end_offset and header.partition_leader_epoch > latest:
                    latest = header.partition_leader_epoch
                    yield latest, header.base_offset


def _end_offset(segment: Segment) -> int:
    """Return the offset after the last batch."""
    if not segment.size_bytes:
        return segment.base_offset
    offset_index, _ = segment.indexes()
    start = segment.find(offset_index[len(offset_index) - 1].offset) if len(offset_index) else (0, segment.header_at(0))
    end_offset = segment.base_offset
    for _, header in segment.batches(start[0] if start else 0):
        end_offset = header.next_offset
    return end_offset
