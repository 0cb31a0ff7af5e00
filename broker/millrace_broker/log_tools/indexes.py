"""Entries of index files, each compared with the log.

An index is read before its log. With a running broker, no entry is then beyond the log's end.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Final, NamedTuple

from millrace.errors import CorruptBatchError, MillraceError
from millrace.records import MAGIC, BatchEntry
from millrace.records.message_set import MessageEntry
from millrace.segments.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from millrace.segments.names import LOG, OFFSET_INDEX, parse_segment_file_name, segment_file_name
from millrace.segments.transaction_index import read_aborted
from millrace_broker.log_tools.findings import Finding, Note, Problem, Row

_PREFIX: Final = struct.Struct(">qi4xb")
_HEADER_BYTES: Final = 61


class _Batch(NamedTuple):
    """Batch as the index checks need it. ``next_position`` is the position of the following batch."""

    last_offset: int
    max_timestamp_ms: int
    next_position: int


def dump_offset_index(path: Path, base_offset: int, *, entries: bool, against_log: bool) -> Iterator[Finding]:
    """Read an offset index. Yield its entries if requested, and its problems."""
    content = path.read_bytes()
    index = OffsetIndex.of_file(content, base_offset)
    yield from _sanity(content, len(index), OFFSET_ENTRY_BYTES, index.problem())
    with _Log(path.with_name(segment_file_name(base_offset, LOG)), against_log) as log:
        yield from log.notes()
        for number, entry in enumerate(index):
            if entries:
                yield Row("offset entry", {"offset": entry.offset, "position": entry.position})
            batch = log.batch_at(entry.position)
            if log.is_open and (batch is None or batch.last_offset != entry.offset):
                found = "no batch" if batch is None else f"one that ends at offset {batch.last_offset}"
                yield Problem(f"the log has {found} at {entry.position}", number * OFFSET_ENTRY_BYTES, entry.offset)


def dump_time_index(path: Path, base_offset: int, *, entries: bool, against_log: bool) -> Iterator[Finding]:
    """Read a time index. Yield its entries if requested, and its problems."""
    content = path.read_bytes()
    index = TimeIndex.of_file(content, base_offset)
    yield from _sanity(content, len(index), TIME_ENTRY_BYTES, index.problem())
    offset_index_path = path.with_name(segment_file_name(base_offset, OFFSET_INDEX))
    offset_index = OffsetIndex.of_file(
        offset_index_path.read_bytes() if offset_index_path.exists() else b"", base_offset
    )
    with _Log(path.with_name(segment_file_name(base_offset, LOG)), against_log) as log:
        yield from log.notes()
        for number, entry in enumerate(index):
            if entries:
                yield Row("time entry", {"timestamp": entry.timestamp_ms, "offset": entry.offset})
            batch = log.batch_of(entry.offset, offset_index)
            if log.is_open and (batch is None or batch.max_timestamp_ms != entry.timestamp_ms):
                found = "no batch" if batch is None else f"a batch of largest timestamp {batch.max_timestamp_ms}"
                text = f"the log has {found} there, not {entry.timestamp_ms}"
                yield Problem(text, number * TIME_ENTRY_BYTES, entry.offset)


def dump_transaction_index(path: Path, *, entries: bool) -> Iterator[Finding]:
    """Read a transaction index. Yield its entries if requested, and its problems."""
    previous = -1
    try:
        for number, aborted in enumerate(read_aborted(path.read_bytes())):
            if entries:
                yield Row(
                    "aborted transaction",
                    {
                        "producer_id": aborted.producer_id,
                        "first_offset": aborted.first_offset,
                        "last_offset": aborted.last_offset,
                        "last_stable_offset": aborted.last_stable_offset,
                    },
                )
            if aborted.last_offset <= previous:
                yield Problem(f"entry {number} ends at {aborted.last_offset}, but the one before it ends at {previous}")
            previous = aborted.last_offset
    except CorruptBatchError as error:
        yield Problem(error.message)


def _sanity(content: bytes, count: int, entry_bytes: int, problem: str | None) -> Iterator[Finding]:
    if len(content) % entry_bytes:
        yield Problem(f"{len(content)} bytes are no multiple of the entry size {entry_bytes}", count * entry_bytes)
    if problem is not None:
        yield Problem(problem)
    if len(content) >= (count + 1) * entry_bytes:
        yield Note(f"{count} entries, and room for {len(content) // entry_bytes - count} more (preallocated)")


class _Log:
    """The log beside an index, for batch look-ups.

    ``is_open`` is False if the log is missing or not requested.
    """

    def __init__(self, path: Path, is_wanted: bool) -> None:
        self._path = path
        self._is_wanted = is_wanted
        self._file: BufferedReader | None = None
        self._size_bytes = 0
        self._cursor = 0

    def __enter__(self) -> _Log:
        if self._is_wanted and self._path.exists():
            self._file = open(self._path, "rb")
            self._size_bytes = os.fstat(self._file.fileno()).st_size
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def is_open(self) -> bool:
        """True if entries can be compared with the log."""
        return self._file is not None

    def notes(self) -> Iterator[Note]:
        """Yield a note if the log is missing."""
        if self._is_wanted and not self.is_open:
            yield Note(f"{self._path.name} is missing: the entries were not compared with the log")

    def batch_at(self, position: int) -> _Batch | None:
        """Read the header of the batch at ``position``; None if no batch can be there."""
        if self._file is None or not 0 <= position <= self._size_bytes - _PREFIX.size:
            return None
        self._file.seek(position)
        data = self._file.read(_HEADER_BYTES)
        _, length, magic = _PREFIX.unpack_from(data)
        if not 0 <= magic <= MAGIC or length <= 0:
            return None
        try:
            entry = (BatchEntry if magic == MAGIC else MessageEntry)(data, 0, len(data))
            return _Batch(entry.last_offset, entry.max_timestamp_ms, position + 12 + length)
        except MillraceError:
            return None

    def batch_of(self, offset: int, index: OffsetIndex) -> _Batch | None:
        """Find the batch that holds ``offset``. Call it with ascending offsets."""
        entry = index.lookup(offset)
        named = self.batch_at(entry.position)
        if entry.position > self._cursor and named is not None and named.last_offset == entry.offset:
            self._cursor = entry.position
        position = self._cursor
        while (batch := self.batch_at(position)) is not None:
            if batch.last_offset >= offset:
                self._cursor = position
                return batch
            position = batch.next_position
        return None


def base_offset_of(path: Path) -> int:
    """Return the base offset in a segment file's name; 0 for another name."""
    parsed = parse_segment_file_name(path.name)
    return parsed[0] if parsed is not None else 0
