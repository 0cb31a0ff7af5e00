"""The copy of one sealed segment to the remote store.

1. The objects are written under a new copy id. If the copy is interrupted, they are orphans, which the next load of the
   partition removes. Objects without a manifest do not count.
2. Every object is read back, and its checksum is compared with that of the bytes from the disk. The checksum of every
   batch is verified too. So damage on the disk is found while, as a rule, a replica or a backup can repair it. A
   damaged segment never becomes the only copy.
3. The manifest is published. From now on the segment's local files may be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from millrace.errors import CorruptBatchError, RemoteStorageError
from millrace.records import LOG_OVERHEAD_BYTES, read_entries
from millrace.records.header import extend_checksum
from millrace.segments.names import LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, segment_file_name
from millrace_broker.log.files import Files
from millrace_broker.log.segment import Segment
from millrace_broker.log.tiered.manifest import CopiedObject, Manifest
from millrace_broker.log.tiered.names import LEADER_EPOCHS, CopyName, ManifestName, manifest_name, object_name
from millrace_broker.log.tiered.store import RemoteStore

CHUNK_BYTES: Final = 4 * 2**20
"""The size of one read and write, and so of a copy in memory. A larger batch is held whole."""

_SIZE_MAX: Final = 2**31 - 1

UseIo = Callable[[int], None]
"""Called with the number of bytes before they are sent or fetched. May wait, and raise to interrupt the copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """A sealed segment to copy.

    ``leader_epochs`` are the epochs up to the end of the segment as (epoch, start offset).
    """

    topic: str
    topic_id: UUID
    partition: int
    segment: Segment
    end_offset: int
    largest_ms: int
    leader_epochs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SegmentCopier:
    """The copier of segments. ``use_io`` limits and interrupts copies."""

    store: RemoteStore
    files: Files
    use_io: UseIo

    def copy(self, source: SourceSegment, folder: str, copy_id: UUID, now_ms: int) -> Manifest:
        """Copy a segment; on return the copy is complete, verified and published.

        Raises ``RemoteStorageError`` when the store fails, ``CorruptBatchError`` or ``StorageError`` when the local
        segment is not readable or damaged, and the errors of ``use_io``.
        """
        name = ManifestName(CopyName(source.segment.base_offset, copy_id), source.end_offset, source.largest_ms)
        objects = {LOG: self._write(folder, object_name(name.copy, LOG), self._batches(source.segment))}
        for suffix, data in self._small_files(source).items():
            objects[suffix] = self._write(folder, object_name(name.copy, suffix), [data])
        for suffix, written in objects.items():
            self._verify(folder, object_name(name.copy, suffix), written)
        manifest = Manifest(
            topic=source.topic,
            topic_id=source.topic_id,
            partition=source.partition,
            name=name,
            copied_ms=now_ms,
            leader_epochs=source.leader_epochs,
            objects=objects,
        )
        self.store.publish(folder, manifest_name(name), manifest.encode())
        return manifest

    def _small_files(self, source: SourceSegment) -> dict[str, bytes]:
        segment = source.segment
        offsets, times = segment.indexes()
        found = {OFFSET_INDEX: bytes(offsets.buffer), TIME_INDEX: bytes(times.buffer)}
        directory: Path = segment.path.parent
        for suffix, base in ((TRANSACTION_INDEX, segment.base_offset), (SNAPSHOT, source.end_offset)):
            data = self.files.read_bytes(directory / segment_file_name(base, suffix))
            if data is not None:
                found[suffix] = data
        lines = ["0", str(len(source.leader_epochs)), *(f"{epoch} {start}" for epoch, start in source.leader_epochs)]
        found[LEADER_EPOCHS] = "".join(f"{line}\n" for line in lines).encode()
        return found

    def _batches(self, segment: Segment) -> Iterator[bytes]:
        """Read the whole ``.log`` in chunks of whole batches with correct checksums."""
        position, end = 0, segment.size_bytes
        while position < end:
            chunk = segment.read(position, min(CHUNK_BYTES, end - position))
            whole_bytes = _verified_bytes(segment, chunk, position)
            if not whole_bytes:
                size_bytes = _first_bytes(chunk)
                if position + size_bytes > end:
                    raise CorruptBatchError(f"{segment.path}: the batch at position {position} is incomplete")
                chunk = segment.read(position, size_bytes)
                whole_bytes = _verified_bytes(segment, chunk, position)
            yield chunk[:whole_bytes]
            position += whole_bytes

    def _write(self, folder: str, name: str, parts: Iterator[bytes] | Sequence[bytes]) -> CopiedObject:
        size_bytes = crc = 0

        def counted() -> Iterator[bytes]:
            nonlocal size_bytes, crc
            for part in parts:
                self.use_io(len(part))
                crc = extend_checksum(crc, part)
                size_bytes += len(part)
                yield part

        self.store.write(folder, name, counted())
        return CopiedObject(size_bytes, crc)

    def _verify(self, folder: str, name: str, written: CopiedObject) -> None:
        file = self.store.open(folder, name)
        size_bytes = crc = 0
        while file is not None:
            self.use_io(CHUNK_BYTES)
            data = file.read(size_bytes, CHUNK_BYTES)
            size_bytes += len(data)
            crc = extend_checksum(crc, data)
            if len(data) < CHUNK_BYTES:
                break
        if file is None or (size_bytes, crc) != (written.size_bytes, written.crc32c):
            raise RemoteStorageError(
                f"{self.store.uri(folder, name)} differs from the written file ({size_bytes} instead of "
                f"{written.size_bytes} bytes, checksum {crc} instead of {written.crc32c}): the broker copies it again"
            )


def _verified_bytes(segment: Segment, chunk: bytes, position: int) -> int:
    """Return how many bytes of ``chunk`` are whole entries. Raises ``CorruptBatchError`` when one fails its
    checksum.
    """
    at = 0
    try:
        for entry in read_entries(chunk):
            entry.check()
            at = entry.position + entry.size_bytes
    except CorruptBatchError as error:
        raise CorruptBatchError(
            f"{segment.path}, position {position + at}: {error.message}. The segment is not copied, and the local "
            "file is kept: restore it from a copy"
        ) from error
    return at


def _first_bytes(chunk: bytes) -> int:
    """Return the size that the first entry claims, which is larger than the chunk."""
    if len(chunk) < LOG_OVERHEAD_BYTES:
        return _SIZE_MAX  # less than an entry's length; no entry is so short
    return LOG_OVERHEAD_BYTES + int.from_bytes(chunk[LOG_OVERHEAD_BYTES - 4 : LOG_OVERHEAD_BYTES], "big")
