"""Read a partition directory at start: find its segments, repair what a crash left, and rebuild what is kept in memory.

What recovery may assume, and what it does about the rest:

- Below the recovery point everything was synced. There, only the chain of batch headers is walked; a break in it is
  damage that no crash explains, so the partition is not opened (``StorageError``) rather than cut.
- From the recovery point on nothing is trusted: each batch must follow the one before it and have its checksum. The log
  ends before the first that does not, and everything after it goes.
- A last batch that is incomplete was never published, so the file is shortened. Anything else that has to go may
  lie under a reader's mapping: the good beginning is copied to a new file that takes the old one's name.
- Indexes of segments that recovery looked at are built anew; those of others are checked when they are used.
- After a clean shutdown nothing of this is needed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millrace.config.topic import TopicConfig
from millrace.errors import StorageError
from millrace.records import read_header
from millrace.segments.names import (
    CLEANED,
    DELETED,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    parse_segment_file_name,
    segment_file_name,
)
from millrace_broker.environment import Clock
from millrace_broker.log.checkpoints import LEADER_EPOCHS, read_epochs, write_epochs
from millrace_broker.log.files import Files
from millrace_broker.log.index_building import IndexBuilder
from millrace_broker.log.leader_epochs import LeaderEpochs
from millrace_broker.log.open_segments import OpenSegments
from millrace_broker.log.producer_loading import load_producers
from millrace_broker.log.producers import ProducerStates
from millrace_broker.log.recovery import check_segment
from millrace_broker.log.segment import Segment

_LOG: Final = logging.getLogger(__name__)
_TEMPORARY: Final = ".tmp"
_COPY_BYTES: Final = 4 * 2**20


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """What a partition directory holds. ``recovery_point`` is the offset before which everything is synced."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    producers: ProducerStates
    epochs: LeaderEpochs


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectory:
    """A partition directory to be loaded, and how."""

    directory: Path
    config: TopicConfig
    files: Files
    clock: Clock
    open_segments: OpenSegments

    def load(self, *, recovery_point: int, log_start_offset: int, was_clean: bool) -> LoadedLog:
        """Load the partition, recovering it unless it ``was_clean``.

        ``recovery_point`` and ``log_start_offset`` come from the checkpoints, 0 where those say nothing. Raises
        ``StorageError`` for damage below the recovery point, and whatever the disk raises.
        """
        self._remove_leftovers()
        segments = self._find_segments(log_start_offset)
        if not was_clean:
            segments = self._recover(segments, recovery_point)
        log_end_offset = _end_offset(segments[-1])
        log_start_offset = max(log_start_offset, segments[0].base_offset)
        if log_end_offset < log_start_offset:
            _LOG.error("%s ends at offset %d, before its start", self.directory, log_end_offset)
            self._remove_segments(segments)
            segments, log_end_offset = [self.create_segment(log_start_offset)], log_start_offset
        epochs = self._load_epochs(segments, log_start_offset, log_end_offset)
        producers = load_producers(self.files, self.directory, segments, log_end_offset, self.clock.now_ms())
        return LoadedLog(
            segments=segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            recovery_point=log_end_offset,
            producers=producers,
            epochs=epochs,
        )

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
        """A segment whose files are there, or will be; none is opened yet."""
        return Segment(
            self.directory,
            base_offset,
            size_bytes=size_bytes,
            index_interval_bytes=self.config.index_interval_bytes,
            files=self.files,
            open_segments=self.open_segments,
        )

    def _remove_leftovers(self) -> None:
        """Remove what was being written or deleted, and finish replacements that were complete.

        A ``.swap`` log replaces every segment from its base offset to its last record; while a ``.cleaned`` one of a
        lower or equal base is left, the replacement had not been finished as a whole and nothing of it counts (Kafka's
        ``LogLoader.removeTempFilesAndCollectSwapFiles``).
        """
        names = self.files.names(self.directory)
        unfinished = [int(name[:20]) for name in names if name.endswith(CLEANED) and name[:20].isdigit()]
        for name in names:
            if name.endswith((DELETED, CLEANED, _TEMPORARY)):
                self.files.remove(self.directory / name)
        swaps = [name for name in names if name.endswith(SWAP)]
        for name in swaps:
            parsed = parse_segment_file_name(name.removesuffix(SWAP))
            # An index whose log has taken its place already is built anew.
            has_log = parsed is not None and segment_file_name(parsed[0], LOG) + SWAP in swaps
            if parsed is None or not has_log or parsed[0] >= min(unfinished, default=parsed[0] + 1):
                self.files.remove(self.directory / name)
            elif parsed[1] == LOG:
                self._finish_swap(parsed[0])

    def _finish_swap(self, base_offset: int) -> None:
        path = self.directory / segment_file_name(base_offset, LOG)
        swapped = path.with_name(path.name + SWAP)
        end_offset = base_offset
        with_content = self.files.map(swapped)
        if with_content is not None:
            position = 0
            while position < len(with_content):
                header = read_header(with_content, position)
                end_offset, position = header.next_offset, position + header.size_bytes
        for name in self.files.names(self.directory):
            parsed = parse_segment_file_name(name)
            if parsed is not None and parsed[1] in SEGMENT_SUFFIXES and base_offset <= parsed[0] < end_offset:
                self.files.remove(self.directory / name)
        for suffix in SEGMENT_SUFFIXES:
            name = segment_file_name(base_offset, suffix)
            if self.files.size_bytes(self.directory / (name + SWAP)) is not None:
                self.files.rename(self.directory / (name + SWAP), self.directory / name)
        self.files.sync_directory(self.directory)

    def _find_segments(self, log_start_offset: int) -> list[Segment]:
        parsed = [(name, parse_segment_file_name(name)) for name in self.files.names(self.directory)]
        bases = {found[0] for _, found in parsed if found is not None and found[1] == LOG}
        for name, found in parsed:
            if found is not None and found[1] in SEGMENT_SUFFIXES and found[0] not in bases:
                _LOG.warning("%s/%s belongs to no segment: removed", self.directory, name)
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

    def _recover(self, segments: list[Segment], recovery_point: int) -> list[Segment]:
        first = max((n for n, segment in enumerate(segments) if segment.base_offset <= recovery_point), default=0)
        for number in range(first, len(segments)):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else None
            cut_off = self._recover_segment(segments[number], recovery_point, following)
            if cut_off:
                self._remove_segments(segments[number + 1 :])
                return segments[: number + 1]
        return segments

    def _recover_segment(self, segment: Segment, recovery_point: int, following: int | None) -> bool:
        """Check a segment's batches, cut it before the first bad one, build its indexes; returns whether it was cut."""
        content = self.files.map(segment.path) or memoryview(b"")
        size_bytes = len(content)
        builder = IndexBuilder(segment.base_offset, segment.index_interval_bytes)
        sound = check_segment(content, builder, recovery_point, following)
        del content
        if sound.problem is not None:
            if sound.end_offset < recovery_point:
                raise StorageError(
                    f"{segment.path} is damaged at position {sound.size_bytes}, offset {sound.end_offset}, which had "
                    f"been synced up to offset {recovery_point} ({sound.problem}): restore the file from a copy, or "
                    "delete the partition"
                )
            _LOG.warning("%s: cut from %d to %d bytes (%s)", segment.path, size_bytes, sound.size_bytes, sound.problem)
            self._cut(segment, sound.size_bytes, in_place=sound.is_incomplete)
        segment.size_bytes = sound.size_bytes
        builder.finish()
        builder.write(self.files, segment.offset_index_path, segment.time_index_path)
        self._sync(segment)
        return sound.problem is not None

    def _cut(self, segment: Segment, size_bytes: int, *, in_place: bool) -> None:
        file = self.files.open(segment.path)
        if in_place:
            file.truncate(size_bytes)
            return
        beside = segment.path.with_name(segment.path.name + CLEANED)
        copy = self.files.open(beside, create=True)
        copy.truncate(0)
        for position in range(0, size_bytes, _COPY_BYTES):
            copy.write(position, [file.read(position, min(_COPY_BYTES, size_bytes - position))])
        copy.sync()
        copy.close()
        self.files.rename(beside, segment.path)
        self.files.sync_directory(self.directory)

    def _sync(self, segment: Segment) -> None:
        file = self.files.open(segment.path)
        file.sync()
        file.close()

    # --- memory --------------------------------------------------------------------------------------------

    def _load_epochs(self, segments: list[Segment], log_start_offset: int, log_end_offset: int) -> LeaderEpochs:
        epochs = LeaderEpochs(read_epochs(self.files, self.directory / LEADER_EPOCHS))
        if not epochs.entries:  # no file, or nothing was ever appended: the batches say it as well
            for segment in segments:
                for _, header in segment.batches():
                    if header.partition_leader_epoch > (-1 if epochs.latest is None else epochs.latest):
                        epochs.assign(header.partition_leader_epoch, header.base_offset)
        was_cut = epochs.truncate_end(log_end_offset)
        if epochs.truncate_start(log_start_offset) or was_cut:
            write_epochs(self.files, self.directory / LEADER_EPOCHS, epochs.entries)
        return epochs


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
