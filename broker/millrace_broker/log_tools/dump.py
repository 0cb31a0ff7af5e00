"""Dump of log files.

The module finds the kind of a file, and reads the findings in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from millrace.errors import InvalidTopicError, UsageError
from millrace.segments.names import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    parse_partition_directory_name,
    parse_segment_file_name,
)
from millrace_broker.log.checkpoints import HIGH_WATERMARKS, LEADER_EPOCHS, LOG_START_OFFSETS, RECOVERY_POINTS
from millrace_broker.log.partition_metadata import PARTITION_METADATA
from millrace_broker.log_tools.batches import Entry, describe, walk
from millrace_broker.log_tools.decoders import RecordDecoder, decoder_of_topic
from millrace_broker.log_tools.findings import Finding, Note, Problem
from millrace_broker.log_tools.indexes import (
    base_offset_of,
    dump_offset_index,
    dump_time_index,
    dump_transaction_index,
)
from millrace_broker.log_tools.records import RecordView, records
from millrace_broker.log_tools.small_files import dump_epochs, dump_metadata, dump_offsets, dump_snapshot
from millrace_broker.log_tools.stored_schemas import StoredSchemas

_IN_TRANSIT: Final = (DELETED, CLEANED, SWAP)
_SMALL: Final[dict[str, Callable[[Path], Iterator[Finding]]]] = {
    PARTITION_METADATA: dump_metadata,
    LEADER_EPOCHS: dump_epochs,
    RECOVERY_POINTS: dump_offsets,
    LOG_START_OFFSETS: dump_offsets,
    HIGH_WATERMARKS: dump_offsets,
}
_ORDER: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """Options of a dump.

    ``with_data`` shows the records' content, ``deep`` only their offsets, times and sizes. ``schema`` decodes typed
    batches instead of the stored schemas. ``decoder`` decodes opaque records. Records of the coordinators' topics are
    decoded by default. ``with_metadata`` shows record fields beside key and value. ``max_bytes`` limits the bytes read
    of each log. A batch above ``max_message_bytes`` is a problem. ``only_disagreements`` omits the entries of indexes.
    ``only_sanity`` also omits the comparison with the log.
    """

    with_data: bool = False
    deep: bool = False
    schema: pa.Schema | None = None
    max_bytes: int | None = None
    max_message_bytes: int | None = None
    decoder: RecordDecoder | None = None
    with_metadata: bool = True
    only_disagreements: bool = False
    only_sanity: bool = False

    @property
    def only_indexes(self) -> bool:
        """True if only indexes are read."""
        return self.only_disagreements or self.only_sanity


def files_of(path: Path, options: DumpOptions) -> list[Path]:
    """Return the files of a path: the file itself, or a partition directory's files, segment by segment.

    Raises ``UsageError`` for a missing path, an unknown kind of file, or a directory without such files.
    """
    if path.is_dir():
        found = [file for file in path.iterdir() if file.is_file() and kind_of(file) and _is_live(file)]
        if options.only_indexes:
            found = [file for file in found if kind_of(file) in (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)]
        if not found:
            raise UsageError(f"{path} holds no files of a partition: name a partition's directory, or files")
        return sorted(found, key=_place)
    if not path.exists():
        raise UsageError(f"{path}: there is no such file or directory")
    if kind_of(path) is None:
        raise UsageError(f"{path} is not a file of a partition, such as {', '.join((*_ORDER, *_SMALL))}")
    return [path]


def kind_of(path: Path) -> str | None:
    """Return the suffix of a segment file, or the name of another partition file; None for other files."""
    name = _live_name(path)
    parsed = parse_segment_file_name(name)
    kind = parsed[1] if parsed is not None else name
    return kind if kind in _ORDER or kind in _SMALL else None


def _live_name(path: Path) -> str:
    name = path.name
    for suffix in _IN_TRANSIT:
        name = name.removesuffix(suffix)
    return name


def _is_live(path: Path) -> bool:
    return not path.name.endswith(_IN_TRANSIT)


def _place(path: Path) -> tuple[int, int, str]:
    kind = kind_of(path)
    if kind in _ORDER:
        return base_offset_of(path), _ORDER.index(kind), path.name
    return -1, 0, path.name


def dump_file(path: Path, options: DumpOptions, on_progress: Progress | None = None) -> Iterator[Finding]:
    """Read one file of a kind that ``files_of`` returns.

    For logs, ``on_progress`` gets the bytes read and the file size. Raises ``OSError`` if the file cannot be read.
    """
    kind = kind_of(path)
    against_log = not options.only_sanity and _is_live(path)
    if kind == LOG:
        yield from _dump_log(path, options, on_progress)
    elif kind == OFFSET_INDEX:
        yield from dump_offset_index(
            path, _base_offset(path), entries=not options.only_indexes, against_log=against_log
        )
    elif kind == TIME_INDEX:
        yield from dump_time_index(path, _base_offset(path), entries=not options.only_indexes, against_log=against_log)
    elif kind == TRANSACTION_INDEX:
        yield from dump_transaction_index(path, entries=not options.only_indexes)
    elif kind == SNAPSHOT:
        yield from dump_snapshot(path)
    elif kind is not None:
        yield from _SMALL[kind](path)


def _base_offset(path: Path) -> int:
    return base_offset_of(path.with_name(_live_name(path)))


def _topic_of(path: Path) -> str:
    """Return the topic in the directory's name; empty if it is not a partition directory."""
    try:
        return parse_partition_directory_name(path.absolute().parent.name)[0]
    except InvalidTopicError:
        return ""


def _dump_log(path: Path, options: DumpOptions, on_progress: Progress | None) -> Iterator[Finding]:
    schemas = StoredSchemas(path.parent.parent, options.schema)
    expected_offset = _base_offset(path)
    noted: set[str] = set()
    view = RecordView(
        options.with_data, options.decoder or decoder_of_topic(_topic_of(path)), with_metadata=options.with_metadata
    )
    for entry in walk(path, max_bytes=options.max_bytes, on_progress=on_progress):
        if not isinstance(entry, Entry):
            yield entry
            return
        findings = list(describe(entry, expected_offset))
        if options.max_message_bytes is not None and len(entry.data) > options.max_message_bytes:
            findings.append(Problem(f"{len(entry.data)} bytes, more than {options.max_message_bytes}", entry.position))
        yield from findings
        if not entry.is_valid:
            continue
        if options.with_data or options.deep:
            for finding in records(entry, schemas, view):
                if not isinstance(finding, Note) or finding.text not in noted:
                    yield finding
                if isinstance(finding, Note):
                    noted.add(finding.text)
        if not any(isinstance(finding, Problem) for finding in findings):
            expected_offset = entry.batch.last_offset + 1
