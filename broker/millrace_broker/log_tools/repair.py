"""Repair of the problems that ``verify`` finds, first as a plan.

- A log loses entries that are not sound (``salvage``). The other entries keep their offsets. The damaged file stays
  beside the log as ``.damaged``.
- Missing or wrong indexes are built from the log.
- Damaged snapshots and leader epochs, and those beyond the log's end, are removed. The broker rebuilds them.
- A recovery point beyond the log's end is lowered to that end. The broker opens no log that ends before its recovery
  point. If a log loses batches, its recovery point is raised to its end, so that the broker keeps those after the gap.

A plan is carried out only on request, and not while a broker holds the directory's lock. Each file is replaced as a
whole, the log before its indexes. Repeating an interrupted repair completes it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from millrace.errors import EnvironmentProblemError, InvalidTopicError, MillraceError, StorageError
from millrace.records.header import NO_TIMESTAMP
from millrace.segments.names import (
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    parse_partition_directory_name,
    parse_segment_file_name,
    segment_file_name,
)
from millrace.segments.transaction_index import AbortedTransaction, pack_aborted
from millrace_broker.log.checkpoints import LEADER_EPOCHS, RECOVERY_POINTS, PartitionKey, read_offsets, write_offsets
from millrace_broker.log.data_directory import CLEAN_SHUTDOWN, LOCK
from millrace_broker.log.files import OsFiles, replace_file
from millrace_broker.log.index_builder import IndexBuilder
from millrace_broker.log_tools.aborted import AbortedReplay
from millrace_broker.log_tools.batches import Entry, walk
from millrace_broker.log_tools.epochs import WrongEpoch, known_epochs, write_epoch, wrong_epoch
from millrace_broker.log_tools.findings import Problem
from millrace_broker.log_tools.salvage import Salvage, salvage
from millrace_broker.log_tools.verify import VerifyOptions, segment_bases, verify_partition

INDEX_INTERVAL_BYTES: Final = 4096
_DAMAGED: Final = ".damaged"
_REPAIRED: Final = ".tmp"
"""Suffix of a file that is written to replace another. The broker removes such files at its start."""
_COPY_BYTES: Final = 2**22


@dataclass(frozen=True, slots=True)
class Repair:
    """One step of a repair, which changes one file.

    ``action`` describes the change, and ``why`` its reason. ``lost`` names the bytes and offsets that the log loses.
    """

    path: Path
    action: str
    why: str
    lost: tuple[str, ...]
    carry_out: Callable[[], None]


@contextmanager
def no_broker(data_directory: Path, *, is_writing: bool) -> Iterator[None]:
    """Lock a data directory against brokers. Raises ``EnvironmentProblemError`` if a broker uses it."""
    path = data_directory / LOCK
    if not path.exists():
        yield
        return
    if is_writing:
        lock = OsFiles().lock(path)
        try:
            yield
        finally:
            lock.release()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise EnvironmentProblemError(
            f"{data_directory} is in use by a broker, which changes the files: stop it before repairing"
        ) from None
    finally:
        os.close(descriptor)


def plan_repair(
    directory: Path,
    *,
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[Repair]:
    """Return the steps that repair a partition, in their order; none if it is sound.

    ``on_progress`` gets the bytes of logs read since its last call.
    """
    problems: dict[Path, list[str]] = {}
    for path, finding in verify_partition(directory, VerifyOptions(), on_progress):
        if isinstance(finding, Problem):
            problems.setdefault(path, []).append(str(finding))
    bases = segment_bases(directory)
    repairs, end_offset = _plan_logs(directory, bases, index_interval_bytes)
    cut = {repair.path for repair in repairs}
    repairs += _plan_epochs(directory, bases)
    repairs += _plan_indexes(directory, bases, problems, cut, index_interval_bytes)
    repairs += _plan_transaction_indexes(directory, bases, problems, cut)
    return [
        # First, because a broker that finds damage below the recovery point cuts nothing off.
        *(_plan_raised_point(directory, bases, end_offset) if cut else ()),
        *repairs,
        *_plan_small_files(directory, set(bases), problems, end_offset),
        *_plan_lowered_point(directory, end_offset),
    ]


def _plan_logs(directory: Path, bases: list[int], index_interval_bytes: int) -> tuple[list[Repair], int]:
    """Plan the repair of logs. Return it with the partition's end offset afterwards."""
    repairs = []
    end_offset = bases[0]
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else None
        path = directory / segment_file_name(base, LOG)
        with _mapped(path) as content:
            found = salvage(content, base, following)
        end_offset = max(end_offset, found.end_offset)
        if found.lost:
            kept_bytes = sum(end - start for start, end in found.kept)
            repairs.append(
                Repair(
                    path,
                    f"keep {kept_bytes} of {path.stat().st_size} bytes, and the damaged file as {path.name}{_DAMAGED}",
                    "holds bytes that are no sound batches",
                    tuple(map(str, found.lost)),
                    _log_repair(path, base, found, index_interval_bytes),
                )
            )
    return repairs, end_offset


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield memoryview(b"")
            return
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _log_repair(path: Path, base: int, found: Salvage, index_interval_bytes: int) -> Callable[[], None]:
    def carry_out() -> None:
        repaired = path.with_name(path.name + _REPAIRED)
        with open(path, "rb") as source, open(repaired, "wb") as target:
            for start, end in found.kept:
                source.seek(start)
                for position in range(start, end, _COPY_BYTES):
                    target.write(source.read(min(_COPY_BYTES, end - position)))
            target.flush()
            os.fsync(target.fileno())
        _keep(path)
        os.replace(repaired, path)
        OsFiles().sync_directory(path.parent)
        build_indexes(path, base, index_interval_bytes)

    return carry_out


def _keep(path: Path) -> None:
    """Keep a damaged file under another name, without a moment in which its own name is missing."""
    kept = path.with_name(path.name + _DAMAGED)
    kept.unlink(missing_ok=True)
    try:
        os.link(path, kept)
    except OSError:  # a file system without links
        shutil.copyfile(path, kept)


@dataclass(frozen=True, slots=True)
class _Indexed:
    """Index data of an entry of any format."""

    size_bytes: int
    last_offset: int
    max_timestamp: int


def build_indexes(path: Path, base: int, index_interval_bytes: int) -> None:
    """Build both indexes of a sound log of any format, and replace the old ones."""
    builder = IndexBuilder(base, index_interval_bytes)
    for entry in walk(path):
        if isinstance(entry, Entry):
            max_timestamp = NO_TIMESTAMP if entry.magic == 0 else entry.batch.max_timestamp_ms
            indexed = _Indexed(len(entry.data), entry.batch.last_offset, max_timestamp)
            builder.take(builder.growth(entry.position, (indexed,)))
    builder.finish()
    directory = path.parent
    builder.write(
        OsFiles(), directory / segment_file_name(base, OFFSET_INDEX), directory / segment_file_name(base, TIME_INDEX)
    )


def _plan_epochs(directory: Path, bases: list[int]) -> list[Repair]:
    """Plan the repair of wrong leader epochs in batches. If most batches disagree, the checkpoint is wrong."""
    epochs = known_epochs(directory)
    wrong: dict[Path, list[WrongEpoch]] = {}
    right = 0
    for base, entries in _kept_entries(directory, bases):
        path = directory / segment_file_name(base, LOG)
        for entry in entries:
            if entry.header is not None:
                found = wrong_epoch(epochs, entry.position, entry.header)
                if found is None:
                    right += 1
                else:
                    wrong.setdefault(path, []).append(found)
    if sum(map(len, wrong.values())) > right:
        path = directory / LEADER_EPOCHS
        return [Repair(path, "remove it: the broker rebuilds it", "disagrees with most batches", (), path.unlink)]
    return [
        Repair(
            path,
            f"write the leader epoch of {len(found)} batches: {found[0].expected} at offset {found[0].offset}, ...",
            str(found[0]),
            (),
            _epoch_repair(path, base_offsets={each.offset: each for each in found}),
        )
        for path, found in wrong.items()
    ]


def _epoch_repair(path: Path, base_offsets: dict[int, WrongEpoch]) -> Callable[[], None]:
    def carry_out() -> None:
        for entry in walk(path):  # positions after the log's repair
            if isinstance(entry, Entry) and (wrong := base_offsets.get(entry.batch.base_offset)) is not None:
                write_epoch(path, replace(wrong, position=entry.position))

    return carry_out


def _plan_indexes(
    directory: Path, bases: list[int], problems: dict[Path, list[str]], cut: set[Path], index_interval_bytes: int
) -> list[Repair]:
    repairs = []
    for base in bases:
        log = directory / segment_file_name(base, LOG)
        paths = [directory / segment_file_name(base, suffix) for suffix in (OFFSET_INDEX, TIME_INDEX)]
        why = [text for path in paths for text in problems.get(path, ())]
        if why and log not in cut:  # otherwise the log's repair builds them

            def carry_out(log: Path = log, base: int = base) -> None:
                build_indexes(log, base, index_interval_bytes)

            named = next(path for path in paths if path in problems)
            repairs.append(Repair(named, "build both indexes of the segment from its log", why[0], (), carry_out))
    return repairs


def _plan_transaction_indexes(
    directory: Path, bases: list[int], problems: dict[Path, list[str]], cut: set[Path]
) -> list[Repair]:
    damaged = {
        base
        for base in bases
        if (path := directory / segment_file_name(base, TRANSACTION_INDEX)) in problems
        or (directory / segment_file_name(base, LOG) in cut and path.exists())
    }
    if not damaged:
        return []
    repairs = []
    for base, aborted in _aborted(directory, bases).items():
        if base in damaged:
            path = directory / segment_file_name(base, TRANSACTION_INDEX)

            def carry_out(path: Path = path, aborted: tuple[AbortedTransaction, ...] = aborted) -> None:
                replace_file(OsFiles(), path, b"".join(map(pack_aborted, aborted)))

            why = problems.get(path, ["its log loses batches"])[0]
            action = f"write the {len(aborted)} transactions that the log aborts"
            repairs.append(Repair(path, action, why, (), carry_out))
    return repairs


def _aborted(directory: Path, bases: list[int]) -> dict[int, tuple[AbortedTransaction, ...]]:
    """Return the transactions that the sound batches of each segment abort."""
    replay = AbortedReplay()
    found: dict[int, tuple[AbortedTransaction, ...]] = {}
    for base, entries in _kept_entries(directory, bases):
        ends = (replay.add(entry.header, entry.data) for entry in entries if entry.header is not None)
        found[base] = tuple(ended for ended in ends if ended is not None)
    return found


def _kept_entries(directory: Path, bases: list[int]) -> Iterator[tuple[int, Iterator[Entry]]]:
    """Yield each segment's base offset, and the entries that its log has after its repair."""
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        with _mapped(directory / segment_file_name(base, LOG)) as content:
            yield base, _entries_within(content, salvage(content, base, following).kept)


def _entries_within(content: memoryview, ranges: Iterable[tuple[int, int]]) -> Iterator[Entry]:
    for position, end in ranges:
        while position < end:
            entry = _entry_at(content, position)
            yield entry
            position += len(entry.data)


def _entry_at(content: memoryview, position: int) -> Entry:
    length = int.from_bytes(content[position + 8 : position + 12], "big", signed=True)
    data = bytes(content[position : position + 12 + length])
    return Entry(position, data, data[16])


def _plan_small_files(
    directory: Path, bases: set[int], problems: dict[Path, list[str]], end_offset: int
) -> list[Repair]:
    repairs = []
    for path in sorted(directory.iterdir()):
        parsed = parse_segment_file_name(path.name)
        is_late = parsed is not None and parsed[1] == SNAPSHOT and parsed[0] > end_offset
        is_stray = parsed is not None and parsed[1] in SEGMENT_SUFFIXES and parsed[0] not in bases
        is_made_anew = path.name == LEADER_EPOCHS or (parsed is not None and parsed[1] == SNAPSHOT)
        if is_late or is_stray or (is_made_anew and path in problems):
            why = problems.get(path, [f"is of an offset beyond the log's end, {end_offset}"])[0]
            action = "remove it" if is_stray else "remove it: the broker rebuilds it when it starts"
            repairs.append(Repair(path, action, why, (), path.unlink))
    return repairs


def _plan_raised_point(directory: Path, bases: list[int], end_offset: int) -> list[Repair]:
    """Plan a higher recovery point for a log that loses batches.

    After a crash the broker checks the log from its recovery point on, and would cut off what follows the last gap.
    """
    path, key, points = _recovery_points(directory)
    is_clean = (path.parent / CLEAN_SHUTDOWN).exists() and not points  # the broker does not check the log then
    if points is None or is_clean or points.get(key, 0) >= end_offset:
        return []

    def carry_out() -> None:
        for base in bases:  # nothing below the recovery point may be lost any more
            log = OsFiles().open(directory / segment_file_name(base, LOG))
            log.sync()
            log.close()
        OsFiles().sync_directory(directory)
        write_offsets(OsFiles(), path, read_offsets(OsFiles(), path) | {key: end_offset})

    action = f"raise the recovery point of {directory.name} from {points.get(key, 0)} to {end_offset}"
    return [Repair(path, action, "the broker would not keep the batches after a gap", (), carry_out)]


def _plan_lowered_point(directory: Path, end_offset: int) -> list[Repair]:
    """Plan the repair of the recovery point, which must not exceed the log's end."""
    path, key, points = _recovery_points(directory)
    if points is None or points.get(key, 0) <= end_offset:
        return []

    def carry_out() -> None:
        write_offsets(OsFiles(), path, read_offsets(OsFiles(), path) | {key: end_offset})

    action = f"lower the recovery point of {directory.name} from {points[key]} to {end_offset}"
    return [Repair(path, action, f"the log ends at offset {end_offset}", (), carry_out)]


def _recovery_points(directory: Path) -> tuple[Path, PartitionKey, dict[PartitionKey, int] | None]:
    """Return the checkpoint of recovery points, the key of a partition, and the points; None if they are unknown."""
    path = directory.absolute().parent / RECOVERY_POINTS
    try:
        return path, parse_partition_directory_name(directory.absolute().name), read_offsets(OsFiles(), path)
    except (InvalidTopicError, StorageError):  # no partition of a broker, or a broker that does not use the directory
        return path, ("", 0), None


def carry_out(repairs: list[Repair], directory: Path, on_done: Callable[[Repair], None] = lambda _: None) -> None:
    """Carry out a plan. ``on_done`` gets each step. Raises ``EnvironmentProblemError`` if a step fails."""
    for repair in repairs:
        try:
            repair.carry_out()
        except (OSError, MillraceError) as error:
            why = error.message if isinstance(error, MillraceError) else str(error)
            raise EnvironmentProblemError(
                f"{repair.path} could not be repaired ({why}): correct the cause, and repair again"
            ) from error
        on_done(repair)
    OsFiles().sync_directory(directory)
