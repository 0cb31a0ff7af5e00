"""Verification of a partition's files, each by itself and against the others.

Logs: checksums, offsets that rise within and across segments, and bodies on request. Indexes: entries rise and name
batches of the log, and the time index ends with the largest timestamp. The transaction index has the transactions that
the log aborts, and no others. Snapshots, leader epochs and topic id are readable and end with the log.

Verification only reads. With a running broker, the end of the last segment may be incomplete, which is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from millrace.errors import MillraceError, StorageError, UnknownSchemaError, UsageError
from millrace.records import validate_batch
from millrace.records.header import NO_TIMESTAMP
from millrace.segments.indexes import TimeIndex
from millrace.segments.names import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    parse_segment_file_name,
    segment_file_name,
)
from millrace.segments.transaction_index import AbortedTransaction, read_aborted
from millrace_broker.log.checkpoints import LEADER_EPOCHS, read_epochs
from millrace_broker.log.files import OsFiles
from millrace_broker.log.leader_epochs import LeaderEpochs
from millrace_broker.log.partition_metadata import PARTITION_METADATA
from millrace_broker.log.producer_snapshots import read_snapshot
from millrace_broker.log_tools.aborted import AbortedReplay
from millrace_broker.log_tools.batches import Entry, describe, walk
from millrace_broker.log_tools.epochs import known_epochs, wrong_epoch
from millrace_broker.log_tools.findings import Finding, Note, Problem, Row
from millrace_broker.log_tools.indexes import dump_offset_index, dump_time_index
from millrace_broker.log_tools.small_files import dump_metadata
from millrace_broker.log_tools.stored_schemas import StoredSchemas

Located = tuple[Path, Finding]
"""Finding with its file."""

_LEFTOVERS: Final = (CLEANED, SWAP, DELETED)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """Options of a verification.

    ``deep`` decodes every body and checks every value. Typed bodies are decoded by ``schema``, or by the stored
    schemas.
    """

    deep: bool = False
    schema: pa.Schema | None = None


@dataclass(slots=True)
class _Walked:
    """Result of reading a segment."""

    end_offset: int
    batches: int = 0
    records: int = 0
    largest_ms: int = NO_TIMESTAMP
    has_problem: bool = False
    aborted: list[AbortedTransaction] = field(default_factory=list)
    markers: set[tuple[int, int]] = field(default_factory=set)
    """Producer and offset of each transaction marker."""


@dataclass(frozen=True, slots=True)
class _Context:
    """State carried from segment to segment."""

    replay: AbortedReplay
    epochs: LeaderEpochs
    schemas: StoredSchemas | None
    on_progress: Callable[[int], None]


def partitions_of(path: Path) -> list[Path]:
    """Return the partition directories of a path: itself, or those in a data directory.

    Raises ``UsageError`` if there are none.
    """
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such directory")
    if segment_bases(path):
        return [path]
    found = sorted(each for each in path.iterdir() if each.is_dir() and segment_bases(each))
    if not found:
        raise UsageError(f"{path} is not a partition directory and holds none: there is no .log in it")
    return found


def segment_bases(directory: Path) -> list[int]:
    """Return the base offsets of the segments in a directory, sorted."""
    parsed = (parse_segment_file_name(each.name) for each in directory.iterdir())
    return sorted(found[0] for found in parsed if found is not None and found[1] == LOG)


def log_bytes(directory: Path) -> int:
    """Return the size of all logs of a partition, the measure of progress."""
    return sum((directory / segment_file_name(base, LOG)).stat().st_size for base in segment_bases(directory))


def verify_partition(
    directory: Path, options: VerifyOptions, on_progress: Callable[[int], None] = lambda _: None
) -> Iterator[Located]:
    """Verify all files of a partition. ``on_progress`` gets the bytes of logs read since its last call.

    Yields a row for each segment, and problems and notes as they are found. Raises ``OSError``.
    """
    bases = segment_bases(directory)
    schemas = StoredSchemas(directory.parent, options.schema)
    context = _Context(AbortedReplay(), known_epochs(directory), schemas if options.deep else None, on_progress)
    walked = _Walked(bases[0])
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else None
        path = directory / segment_file_name(base, LOG)
        if base < walked.end_offset:
            yield path, Problem(f"begins at offset {base}, but the segment before ends at {walked.end_offset - 1}")
        walked = _Walked(base)
        for finding in _walk(path, walked, following, context):
            yield path, finding
        yield from _verify_indexes(directory, base, walked, is_sealed=following is not None)
        yield (
            path,
            Row(
                "segment",
                {
                    "base_offset": base,
                    "end_offset": walked.end_offset,
                    "batches": walked.batches,
                    "records": walked.records,
                    "bytes": path.stat().st_size,
                    "max_timestamp": walked.largest_ms,
                },
            ),
        )
    yield from _verify_small_files(directory, set(bases), walked.end_offset)


def _walk(
    path: Path,
    walked: _Walked,
    following: int | None,
    context: _Context,
) -> Iterator[Finding]:
    for entry in walk(path):
        if not isinstance(entry, Entry):
            walked.has_problem |= isinstance(entry, Problem)
            yield entry
            return
        context.on_progress(len(entry.data))
        problems = [each for each in describe(entry, walked.end_offset) if isinstance(each, Problem)]
        yield from problems
        walked.has_problem |= bool(problems)
        walked.batches += 1
        if problems:
            continue
        batch, header = entry.batch, entry.header
        if following is not None and batch.last_offset >= following:
            walked.has_problem = True
            yield Problem(f"offset {batch.last_offset} belongs to the next segment", entry.position, batch.base_offset)
            continue
        walked.end_offset = batch.last_offset + 1
        walked.largest_ms = max(walked.largest_ms, batch.max_timestamp_ms)
        walked.records += 1 if header is None else header.count
        if header is not None:
            if header.is_control:
                walked.markers.add((header.producer_id, header.base_offset))
            aborted = context.replay.add(header, entry.data)
            walked.aborted += [aborted] if aborted is not None else []
            wrong = wrong_epoch(context.epochs, entry.position, header)
            if wrong is not None:
                yield Problem(str(wrong), entry.position, wrong.offset)
        if context.schemas is not None:
            yield from _verify_body(entry, context.schemas)


def _verify_body(entry: Entry, schemas: StoredSchemas) -> Iterator[Finding]:
    header = entry.header
    try:
        if header is None:
            for _ in entry.batch.records():
                pass
        elif not header.is_control:
            validate_batch(entry.data, 0, header, schemas)
    except UnknownSchemaError as error:
        yield Note(error.message)
    except MillraceError as error:
        yield Problem(error.message, entry.position, entry.batch.base_offset)


def _verify_indexes(directory: Path, base: int, walked: _Walked, *, is_sealed: bool) -> Iterator[Located]:
    offset_path = directory / segment_file_name(base, OFFSET_INDEX)
    time_path = directory / segment_file_name(base, TIME_INDEX)
    for path, dump in ((offset_path, dump_offset_index), (time_path, dump_time_index)):
        if path.exists():
            yield from ((path, each) for each in dump(path, base, entries=False, against_log=True))
        elif walked.batches:
            yield path, Problem("is missing")
    if is_sealed and time_path.exists() and not walked.has_problem:
        last = TimeIndex.of_file(time_path.read_bytes(), base).last()
        if last.timestamp_ms != walked.largest_ms:
            yield (
                time_path,
                Problem(f"ends with timestamp {last.timestamp_ms}, but the log's largest is {walked.largest_ms}"),
            )
    yield from _verify_aborted(directory / segment_file_name(base, TRANSACTION_INDEX), walked)


def _verify_aborted(path: Path, walked: _Walked) -> Iterator[Located]:
    try:
        found = list(read_aborted(path.read_bytes())) if path.exists() else []
    except MillraceError as error:
        yield path, Problem(error.message)
        return
    expected = {(each.producer_id, each.last_offset): each.first_offset for each in walked.aborted}
    listed = {(each.producer_id, each.last_offset) for each in found}
    for producer_id, last_offset in sorted(expected.keys() - listed):
        why = f"the log aborts a transaction of producer {producer_id}, which is not in the index"
        yield path, Problem(why, offset=last_offset)
    stable_offset = 0
    for each in found:
        text = _wrong_entry(path.parent, each, expected.get((each.producer_id, each.last_offset)), walked)
        if text is None and not stable_offset <= each.last_stable_offset <= each.last_offset + 1:
            text = f"last stable offset {each.last_stable_offset} is below {stable_offset} or after the marker"
        if text is not None and not walked.has_problem:
            yield path, Problem(text, offset=each.last_offset)
        stable_offset = max(stable_offset, each.last_stable_offset)


def _wrong_entry(directory: Path, entry: AbortedTransaction, first_offset: int | None, walked: _Walked) -> str | None:
    """Return the reason why an entry does not agree with the log.

    ``first_offset`` is that of the first remaining batch; None if there is none. Retention and compaction may have
    removed batches before it.
    """
    of_producer = f"a transaction of producer {entry.producer_id}"
    if (entry.producer_id, entry.last_offset) not in walked.markers:
        return f"the log has no marker for {of_producer}"
    is_late = first_offset is not None and entry.first_offset > first_offset
    if is_late or (entry.first_offset != first_offset and _has_batch(directory, entry.first_offset)):
        begins = "earlier" if first_offset is None else f"at {first_offset}"
        return f"{of_producer} begins {begins}, not at {entry.first_offset}"
    return None


def _has_batch(directory: Path, offset: int) -> bool:
    """Return whether a sound batch of a log holds an offset."""
    base = max((base for base in segment_bases(directory) if base <= offset), default=None)
    if base is None:
        return False
    for entry in walk(directory / segment_file_name(base, LOG)):
        if isinstance(entry, Entry) and entry.batch.last_offset >= offset:
            return entry.batch.base_offset <= offset
    return False


def _verify_small_files(directory: Path, bases: set[int], end_offset: int) -> Iterator[Located]:
    leftovers = sum(path.name.endswith(_LEFTOVERS) for path in directory.iterdir())
    if leftovers:
        text = (
            f"{leftovers} files of a deletion or compaction are left: the broker removes or finishes them at its start"
        )
        yield directory, Note(text)
    for path in sorted(directory.iterdir()):
        parsed = parse_segment_file_name(path.name)
        if path.name.endswith(_LEFTOVERS):
            continue
        if parsed is not None and parsed[1] == SNAPSHOT:
            yield from ((path, each) for each in _verify_snapshot(path, parsed[0], end_offset))
        elif parsed is not None and parsed[0] not in bases:
            yield path, Problem("belongs to no segment")
        elif path.name == PARTITION_METADATA:
            yield from ((path, each) for each in dump_metadata(path) if not isinstance(each, Row))
        elif path.name == LEADER_EPOCHS:
            yield from ((path, each) for each in _verify_epochs(path, end_offset))


def _verify_snapshot(path: Path, offset: int, end_offset: int) -> Iterator[Finding]:
    try:
        read_snapshot(path.read_bytes())
    except StorageError as error:
        yield Problem(error.message)
    if offset > end_offset:
        yield Problem(f"has offset {offset}, but the log ends at {end_offset}")


def _verify_epochs(path: Path, end_offset: int) -> Iterator[Finding]:
    try:
        entries = read_epochs(OsFiles(), path)
    except StorageError as error:
        yield Problem(error.message)
        return
    previous = (-1, -1)
    for epoch, start_offset in entries:
        if epoch <= previous[0] or start_offset <= previous[1]:
            yield Problem(f"epoch {epoch} from offset {start_offset} does not follow {previous[0]} from {previous[1]}")
        if start_offset > end_offset:
            yield Problem(f"epoch {epoch} begins at offset {start_offset}, but the log ends at {end_offset}")
        previous = (epoch, start_offset)
