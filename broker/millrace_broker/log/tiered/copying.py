"""Copy one sealed segment to the remote store: first all it is made of, then proof that it arrived, then the manifest.

1. The objects are written under an id of their own. Whatever ends the copying here leaves orphans, which the next
   load of the partition removes: without a manifest nothing counts.
2. Every object is read back and its checksum compared with that of the bytes that were read from the disk. On the way
   to the store the checksum of every batch is verified too, so that damage on the disk is found while there is, as a
   rule, a replica or a backup to repair it from, and is not taken for the only copy.
3. The manifest is published. From now on the segment's local files may go.
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
"""Read and written at once: what a copy holds in memory, whatever the segment's size. A larger batch is held whole."""

_SIZE_MAX: Final = 2**31 - 1

UseIo = Callable[[int], None]
"""Told of bytes before they are sent or fetched. May wait, and raise to break the copying off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """A sealed segment to copy, and what goes with it: epochs up to its end as (epoch, start offset)."""

    topic: str
    topic_id: UUID
    partition: int
    segment: Segment
    end_offset: int
    largest_ms: int
    leader_epochs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SegmentCopier:
    """Copies segments. ``use_io`` limits and interrupts it."""

    store: RemoteStore
    files: Files
    use_io: UseIo

    def copy(self, source: SourceSegment, folder: str, copy_id: UUID, now_ms: int) -> Manifest:
        """Copy a segment; when this returns, the copy is complete, verified and published.

        Raises ``RemoteStorageError`` when the store fails, ``CorruptBatchError`` or ``StorageError`` when the local
        segment cannot be read as it should be, and what ``use_io`` raises.
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
        """Read the whole ``.log`` in chunks of whole batches, whose checksums are right."""
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
                f"{self.store.uri(folder, name)} is not what was written ({size_bytes} of {written.size_bytes} bytes, "
                f"checksum {crc} for {written.crc32c}): it is copied again"
            )


def _verified_bytes(segment: Segment, chunk: bytes, position: int) -> int:
    """How many bytes of ``chunk`` are whole entries. Raises ``CorruptBatchError`` when one fails its checksum."""
    at = 0
    try:
        for entry in read_entries(chunk):
            entry.check()
            at = entry.position + entry.size_bytes
    except CorruptBatchError as error:
        raise CorruptBatchError(
            f"{segment.path}, position {position + at}: {error.message}. It is not copied, and the local file is "
            "kept: restore it from a copy"
        ) from error
    return at


def _first_bytes(chunk: bytes) -> int:
    """The size that the first entry claims, which is larger than the chunk."""
    if len(chunk) < LOG_OVERHEAD_BYTES:
        return _SIZE_MAX  # of less than its length: nothing so short is complete
    return LOG_OVERHEAD_BYTES + int.from_bytes(chunk[LOG_OVERHEAD_BYTES - 4 : LOG_OVERHEAD_BYTES], "big")
