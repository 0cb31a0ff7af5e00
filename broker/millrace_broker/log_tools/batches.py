"""Iteration over the entries of a ``.log`` of any magic.

The file is read, not mapped, because a broker may truncate its tail meanwhile.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa

from millrace.errors import MillraceError
from millrace.records import HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, NO_PRODUCER_ID, BatchEntry, BatchHeader
from millrace.records.columnar import read_columns_header
from millrace.records.message_set import MessageEntry
from millrace.records.rows import last_sequence_of
from millrace.segments.names import LOG, parse_segment_file_name
from millrace_broker.log_tools.findings import Finding, Note, Problem, Row

_PREFIX: Final = struct.Struct(">qi4xb")
"""Offset, length and magic of an entry of any format."""
_LENGTH_MIN: Final = 14
_READ_BYTES: Final = 2**20


@dataclass(frozen=True)
class Entry:
    """One entry of a log, with its position in the file."""

    position: int
    data: bytes
    magic: int

    @cached_property
    def batch(self) -> BatchEntry | MessageEntry:
        """The parsed entry; its own position is 0."""
        return (BatchEntry if self.magic == MAGIC else MessageEntry)(self.data, 0, len(self.data))

    @cached_property
    def is_valid(self) -> bool:
        """True if the checksum is correct."""
        return self.batch.crc_is_valid

    @cached_property
    def header(self) -> BatchHeader | None:
        """The header of a batch of magic 2."""
        batch = self.batch
        return batch.header if isinstance(batch, BatchEntry) else None


def walk(
    path: Path, *, max_bytes: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Iterator[Entry | Note | Problem]:
    """Read the entries of a segment. End with a note or problem if the next bytes are no entry.

    In the last segment of a partition, an incomplete last entry is left by a crash or an append in progress. In any
    other segment it is damage. ``on_progress`` gets the bytes read and the file size.
    """
    with open(path, "rb", buffering=_READ_BYTES) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        limit = size_bytes if max_bytes is None else min(max_bytes, size_bytes)
        position = 0
        while position < limit:
            entry = _read_entry(file, path, position, size_bytes)
            yield entry
            if not isinstance(entry, Entry):
                return
            position += len(entry.data)
            if on_progress is not None:
                on_progress(position, size_bytes)
        if position < size_bytes:
            yield Note(f"stopped at position {position} of {size_bytes}, as requested")


def _read_entry(file: BinaryIO, path: Path, position: int, size_bytes: int) -> Entry | Note | Problem:
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        return _incomplete(path, position, size_bytes, "an entry has at least 26")
    offset, length, magic = _PREFIX.unpack(prefix)
    if not any(prefix) and is_last_segment(path) and _is_zeros(file):
        return Note(f"only zeros from position {position} on: preallocated, or lost in a power failure")
    least = HEADER_BYTES - LOG_OVERHEAD_BYTES if magic == MAGIC else _LENGTH_MIN
    if not 0 <= magic <= MAGIC:
        return Problem(f"unknown magic {magic}, expected 0 to {MAGIC}: the rest cannot be read", position, offset)
    if length < least:
        return Problem(
            f"a length of {length} bytes, below the minimum of {least}: the rest cannot be read", position, offset
        )
    size = LOG_OVERHEAD_BYTES + length
    if position + size > size_bytes:
        return _incomplete(path, position, size_bytes, f"its entry of offset {offset} claims {size}")
    data = prefix + file.read(size - len(prefix))
    if len(data) < size:
        return _incomplete(path, position, position + len(data), f"its entry of offset {offset} claims {size}")
    return Entry(position, data, magic)


def _incomplete(path: Path, position: int, size_bytes: int, claim: str) -> Note | Problem:
    text = f"{size_bytes - position} bytes are no complete entry ({claim})"
    if is_last_segment(path):
        return Note(f"ends at position {position}: the last {text}; it is being appended, or a crash cut it short")
    return Problem(f"the last {text}, and another segment follows", position)


def _is_zeros(file: BinaryIO) -> bool:
    start = file.tell()
    while chunk := file.read(_READ_BYTES):
        if any(chunk):
            file.seek(start)
            return False
    return True


def is_last_segment(path: Path) -> bool:
    """Return whether the directory has no later segment."""
    own = parse_segment_file_name(path.name)
    others = (parse_segment_file_name(name) for name in os.listdir(path.parent))
    return own is None or not any(other is not None and other[1] == LOG and other[0] > own[0] for other in others)


# --- rows ----------------------------------------------------------------------------------------------------


def describe(entry: Entry, expected_offset: int) -> Iterator[Finding]:
    """Describe an entry in one row. Yield problems of the entry itself and of its position after the previous entry."""
    is_valid = entry.is_valid
    try:
        header = entry.header
        values = _message_values(entry.batch) if header is None else _batch_values(entry, header)
    except MillraceError as error:  # if the checksum is wrong, the fields are arbitrary
        yield Problem(error.message if is_valid else "fails its checksum", entry.position)
        return
    yield Row(
        "batch",
        {"position": entry.position, "bytes": len(entry.data), "magic": entry.magic, **values, "is_valid": is_valid},
    )
    first, last = values["first_offset"], values["last_offset"]
    if not is_valid:
        yield Problem("fails its checksum", entry.position, first)
    elif first < expected_offset or last < first:
        yield Problem(f"offsets {first}..{last} do not follow {expected_offset - 1}", entry.position, first)


def _batch_values(entry: Entry, header: BatchHeader) -> dict[str, Any]:
    has_producer = header.producer_id != NO_PRODUCER_ID
    flags = {
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete-horizon": header.has_delete_horizon,
    }
    values: dict[str, Any] = {
        "first_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.count,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": header.timestamp_type.name.lower(),
        "body": "columnar" if header.is_columnar else "rows",
        "compression": entry.batch.compression.name.lower(),
        "leader_epoch": header.partition_leader_epoch,
        "producer_id": header.producer_id if has_producer else None,
        "producer_epoch": header.producer_epoch if has_producer else None,
        "base_sequence": header.base_sequence if has_producer else None,
        "last_sequence": last_sequence_of(header) if has_producer and header.base_sequence >= 0 else None,
        "flags": [name for name, is_set in flags.items() if is_set],
        "delete_horizon": header.base_timestamp if header.has_delete_horizon else None,
        "schema_id": None,
        "crc": header.crc,
    }
    if header.is_columnar and entry.is_valid:
        values["schema_id"] = read_columns_header(pa.py_buffer(entry.data), 0, header).schema_id
    return values


def _message_values(batch: BatchEntry | MessageEntry) -> dict[str, Any]:
    kind = batch.timestamp_type
    return {
        "first_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "records": None,
        "max_timestamp": batch.max_timestamp_ms,
        "timestamp_type": None if kind is None else kind.name.lower(),
        "body": "message",
        "compression": batch.compression.name.lower(),
    }
