"""Conversion of a partition directory between record formats, from Kafka and back.

The target gets its name only after it is complete and verified. Offsets, leader epochs, producers and transactions are
kept. Data that the format cannot hold is refused, or dropped if allowed (``millrace.records.convert``). Segments are
kept, except that a segment is split if positions or relative offsets would overflow, as in Kafka's
``UnifiedLog.splitOverflowedSegment``.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from uuid import UUID, uuid4

from millrace.errors import CorruptBatchError, InvalidTopicError, MillraceError, StorageError, UsageError
from millrace.records import HEADER_BYTES, NO_PRODUCER_ID, BatchEntry, Compression, RecordFormat, read_entries
from millrace.records import convert as convert_records
from millrace.records.header import NO_PRODUCER_EPOCH, NO_SEQUENCE, seal
from millrace.segments.names import (
    LOG,
    SNAPSHOT,
    SWAP,
    TRANSACTION_INDEX,
    parse_partition_directory_name,
    parse_segment_file_name,
    segment_file_name,
)
from millrace.segments.transaction_index import AbortedTransaction, pack_aborted, read_aborted
from millrace_broker.log.checkpoints import LEADER_EPOCHS, LOG_START_OFFSETS, read_epochs, read_offsets
from millrace_broker.log.files import OsFiles
from millrace_broker.log.partition_metadata import PARTITION_METADATA, read_topic_id, write_topic_id
from millrace_broker.log.producer_snapshots import read_snapshot
from millrace_broker.log_tools.findings import Problem, Row
from millrace_broker.log_tools.repair import INDEX_INTERVAL_BYTES, build_indexes
from millrace_broker.log_tools.verify import VerifyOptions, segment_bases, verify_partition

SEGMENT_BYTES_MAX: Final = 2**31 - 1
_RELATIVE_OFFSET_MAX: Final = 2**31 - 1
_UNFINISHED: Final = ".converting"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """Options of a conversion.

    ``compression`` None keeps the compression of each batch. ``topic_id`` None keeps the source's topic id.
    ``allow_loss`` drops data that the format cannot hold, instead of refusing it. ``forgets_producers`` removes
    producer ids from the batches. Another cluster assigns the same ids to other producers, whose batches would then be
    out of order.
    """

    record_format: RecordFormat = RecordFormat.ROWS
    compression: Compression | None = None
    topic_id: UUID | None = None
    allow_loss: bool = False
    forgets_producers: bool = False
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    segment_bytes_max: int = SEGMENT_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Result of a conversion. ``notes`` are facts about the source that the operator should know."""

    segments: int
    start_offset: int
    end_offset: int
    source_bytes: int
    target_bytes: int
    topic_id: UUID
    notes: tuple[str, ...]


def convert_partition(
    source: Path, target: Path, options: ConvertOptions, on_progress: Callable[[int], None] = lambda _: None
) -> Converted:
    """Convert a partition directory. ``on_progress`` gets the source bytes processed since its last call.

    Raises ``UsageError`` for unsuitable names. Raises ``UnsupportedForFormatError`` and ``UnsupportedCompressionError``
    for data that the format cannot hold. Raises ``CorruptBatchError`` if the source is damaged.
    """
    _check(source, target)
    unfinished = target.with_name(target.name + _UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        bases = segment_bases(source)
        source_bytes = 0
        for base in bases:
            source_bytes += _convert_segment(source, unfinished, base, options, on_progress)
        topic_id = _copy_rest(source, unfinished, options)
        end_offset = _verify(unfinished)
        for path in unfinished.iterdir():
            _sync(path)
        _sync(unfinished)
        unfinished.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    made = segment_bases(target)
    return Converted(
        segments=len(made),
        start_offset=made[0],
        end_offset=end_offset,
        source_bytes=source_bytes,
        target_bytes=sum((target / segment_file_name(base, LOG)).stat().st_size for base in made),
        topic_id=topic_id,
        notes=tuple(_notes(source, bases[0])),
    )


def _check(source: Path, target: Path) -> None:
    if not source.is_dir() or not segment_bases(source):
        raise UsageError(f"{source} is not a partition directory: there is no .log in it")
    try:
        parse_partition_directory_name(target.name)
    except InvalidTopicError as error:
        raise UsageError(error.message) from None
    if target.exists():
        raise UsageError(f"{target} already exists: name a new directory")
    swaps = [path.name for path in source.iterdir() if path.name.endswith(SWAP)]
    if swaps:
        raise UsageError(
            f"{source} has an unfinished compaction ({swaps[0]}): start its broker once, and stop it cleanly"
        )


def _convert_segment(
    source: Path, target: Path, base: int, options: ConvertOptions, on_progress: Callable[[int], None]
) -> int:
    """Convert one segment. Return the number of bytes read."""
    path = source / segment_file_name(base, LOG)
    size_bytes = path.stat().st_size
    try:
        with _Segments(target, base, options) as segments:
            for piece in _pieces(path, options):
                segments.add(piece)
    except CorruptBatchError as error:
        raise _damaged(path, source, error) from error
    on_progress(size_bytes)
    return size_bytes


def _damaged(path: Path, source: Path, error: CorruptBatchError) -> CorruptBatchError:
    return CorruptBatchError(f"{path}: {error.message}. Repair it first: millrace log repair {source}")


def _pieces(path: Path, options: ConvertOptions) -> Iterator[bytes]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            pieces = convert_records(
                content, options.record_format, compression=options.compression, allow_loss=options.allow_loss
            )
            yield from map(_without_producer, pieces) if options.forgets_producers else pieces


def _without_producer(piece: bytes) -> bytes:
    """Remove the producer from a piece of whole entries. Raises ``UsageError`` for transactional batches."""
    parts = []
    for entry in read_entries(piece):
        data = piece[entry.position : entry.position + entry.size_bytes]
        if isinstance(entry, BatchEntry) and entry.header.producer_id != NO_PRODUCER_ID:
            if entry.header.is_transactional:
                raise UsageError(
                    f"the batch of offset {entry.base_offset} is in a transaction, which needs its "
                    "producer: convert without --forget-producers, or copy what is committed with a client"
                )
            without = entry.header._replace(
                producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH, base_sequence=NO_SEQUENCE
            )
            data = seal(without, data[HEADER_BYTES:])
        parts.append(data)
    return b"".join(parts)


class _Segments:
    """Writer of converted pieces, which rolls full segments and builds their indexes."""

    def __init__(self, directory: Path, base: int, options: ConvertOptions) -> None:
        self._directory: Final = directory
        self._options: Final = options
        self._base = base
        self._file: BinaryIO = self._create(base)
        self._size_bytes = 0

    def __enter__(self) -> _Segments:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(is_whole=kind is None)

    def _create(self, base: int) -> BinaryIO:
        return open(self._directory / segment_file_name(base, LOG), "xb")

    def _close(self, *, is_whole: bool) -> None:
        self._file.close()
        if is_whole:
            path = self._directory / segment_file_name(self._base, LOG)
            build_indexes(path, self._base, self._options.index_interval_bytes)

    def add(self, piece: bytes) -> None:
        """Write a piece of whole entries, which stays within one segment."""
        is_full = self._size_bytes > 0 and self._size_bytes + len(piece) > self._options.segment_bytes_max
        *_, last = read_entries(piece)
        if is_full or last.last_offset - self._base > _RELATIVE_OFFSET_MAX:
            # Roll to a new segment.
            self._close(is_whole=True)
            self._base = next(read_entries(piece)).base_offset
            self._file = self._create(self._base)
            self._size_bytes = 0
        self._file.write(piece)
        self._size_bytes += len(piece)


def _copy_rest(source: Path, target: Path, options: ConvertOptions) -> UUID:
    """Copy the partition's other files. Return the topic id."""
    files = OsFiles()
    if not options.record_format.has_messages:
        keeps_producers = not options.forgets_producers
        _write_aborted(target, _read_aborted(source))
        for path in source.iterdir():
            parsed = parse_segment_file_name(path.name)
            is_snapshot = parsed is not None and parsed[1] == SNAPSHOT
            if is_snapshot and keeps_producers and _is_sound_snapshot(path):
                shutil.copyfile(path, target / path.name)
        epochs = source / LEADER_EPOCHS
        if epochs.exists() and read_epochs(files, epochs):
            shutil.copyfile(epochs, target / LEADER_EPOCHS)
    topic_id = options.topic_id
    if topic_id is None:
        topic_id = read_topic_id(files, source) if (source / PARTITION_METADATA).exists() else uuid4()
    write_topic_id(files, target, topic_id)
    return topic_id


def _read_aborted(source: Path) -> Iterator[AbortedTransaction]:
    for base in segment_bases(source):
        path = source / segment_file_name(base, TRANSACTION_INDEX)
        if path.exists():
            try:
                for aborted in read_aborted(path.read_bytes()):
                    if aborted.last_offset < base:
                        raise CorruptBatchError(f"the marker at offset {aborted.last_offset} is in an earlier segment")
                    yield aborted
            except CorruptBatchError as error:
                raise _damaged(path, source, error) from error


def _write_aborted(target: Path, transactions: Iterator[AbortedTransaction]) -> None:
    """Write transaction indexes. An entry goes to the segment that has its marker."""
    bases = segment_bases(target)
    for aborted in transactions:
        base = max(base for base in bases if base <= aborted.last_offset)
        with open(target / segment_file_name(base, TRANSACTION_INDEX), "ab") as file:
            file.write(pack_aborted(aborted))


def _is_sound_snapshot(path: Path) -> bool:
    try:
        read_snapshot(path.read_bytes())
    except StorageError:
        return False  # the broker rebuilds it
    return True


def _verify(directory: Path) -> int:
    """Verify the converted partition. Return its end offset."""
    end_offset = 0
    for path, finding in verify_partition(directory, VerifyOptions()):
        if isinstance(finding, Problem) and not path.name.endswith(SNAPSHOT):
            raise CorruptBatchError(f"the converted {path.name} is damaged: {finding}. Nothing was kept")
        if isinstance(finding, Row):
            end_offset = finding.values["end_offset"]
    return end_offset


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _notes(source: Path, first_base: int) -> Iterator[str]:
    try:
        key = parse_partition_directory_name(source.absolute().name)
        start = read_offsets(OsFiles(), source.absolute().parent / LOG_START_OFFSETS).get(key, first_base)
    except MillraceError:
        return
    if start < first_base:
        yield f"offsets {start}..{first_base - 1} are in the remote store only and were not converted"
    if start > first_base:
        yield f"records before offset {start} had been deleted ({LOG_START_OFFSETS}): delete them in the new one too"
