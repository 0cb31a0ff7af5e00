"""Tests of crashes and disk failures at every operation of a cleaning.

No record is lost, and none is duplicated.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import StorageError
from millrace.records import ControlType, EndTransactionMarker, scan_headers
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.aborted_transactions import aborted_transactions
from millrace_broker.log.files import OsFile
from millrace_broker.log.segment_replacement import CleanedSegment, CleaningAbortedError

from .conftest import Pair, clean, columnar, contents, open_partition, rows, survivors


class Killed(BaseException):
    """The end of the process. Only the test may catch it."""


class DyingFiles(OsFiles):
    """Files that fail at the operation with a given number.

    After ``Killed`` each later operation fails too. Any other error is raised once.
    """

    def __init__(self, dies_at: int = 2**62, error: type[BaseException] = Killed) -> None:
        self.operations = 0
        self.dies_at = dies_at
        self.error = error

    def step(self) -> None:
        self.operations += 1
        if self.operations == self.dies_at or (self.operations > self.dies_at and self.error is Killed):
            raise self.error("here")

    def open(self, path: Path, *, create: bool = False) -> Any:
        self.step()
        return super().open(path, create=create)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self.step()
        super().sync_directory(path)

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        self.step()
        super().set_modified_ms(path, time_ms)


def fill(directory: Path) -> list[Pair]:
    """Fill a log whose segments are cleaned into fewer ones. The first segments become empty."""
    log = open_partition(directory, options={"segment.bytes": 4000})
    pairs: list[Pair] = []
    for n in range(24):
        part: list[Pair] = [(b"k%d" % (n % 5), b"a%d" % n), (b"k%d" % (n % 3), b"b%d" % n)]
        log.append((columnar if n % 2 else rows)(part))
        pairs += part
        if n % 3 == 2:
            log.roll()
    log.append(rows([(b"k0", b"active")]))
    log.close()
    return [*pairs, (b"k0", b"active")]


def reopen(directory: Path, files: OsFiles | None = None, *, was_clean: bool = False) -> PartitionLog:
    return open_partition(directory, files, was_clean=was_clean, options={"segment.bytes": 4000})


@pytest.mark.slow
@pytest.mark.parametrize("was_flushed", [True, False])
def test_a_crash_at_every_step_loses_no_record(tmp_path: Path, was_flushed: bool) -> None:
    pairs = fill(tmp_path / "filled")
    bound = len(pairs) - 1
    expected = survivors(pairs, bound)
    steps = 0
    for dies_at in range(1, 1000):
        directory = tmp_path / f"at-{dies_at}"
        shutil.copytree(tmp_path / "filled", directory)
        files = DyingFiles()
        log = reopen(directory, files)
        files.operations, files.dies_at = 0, dies_at
        try:
            clean(log, files=files)
        except Killed:
            steps += 1
        else:
            assert contents(log) == expected
            break
        finally:
            files.dies_at = 2**62
            log.release()
        again = open_partition(
            directory, recovery_point=len(pairs) if was_flushed else 0, options={"segment.bytes": 4000}
        )
        found = contents(again)
        # Each record is unchanged, or gone because a later record has its key.
        assert all(found[offset] == pairs[offset] for offset in found)
        assert expected.items() <= found.items()
        assert list(found) == sorted(found)
        assert again.log_end_offset == len(pairs)
        strays = [path.name for path in directory.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]
        assert strays == []
        clean(again)
        assert contents(again) == expected
        again.release()
    assert steps > 20


class SyncedFile(OsFile):
    """A file that records its sync."""

    def __init__(self, path: Path, descriptor: int, disk: SyncedFiles) -> None:
        super().__init__(path, descriptor)
        self._disk = disk

    def sync(self) -> None:
        super().sync()
        self._disk.synced.add(self._path.name)


class SyncedFiles(OsFiles):
    """Files that record renames.

    They also record whether each file was synced before it got its new name.
    """

    def __init__(self) -> None:
        self.synced: set[str] = set()
        self.renamed: dict[str, bool] = {}

    def open(self, path: Path, *, create: bool = False) -> SyncedFile:
        file = super().open(path, create=create)
        descriptor, file._descriptor = file._descriptor, -1
        return SyncedFile(path, descriptor, self)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.renamed[target.name] = source.name in self.synced


def test_all_files_of_a_cleaned_segment_are_on_the_disk_before_they_count(tmp_path: Path) -> None:
    fill(tmp_path / "log")
    files = SyncedFiles()
    log = reopen(tmp_path / "log", files, was_clean=True)
    clean(log, files=files)
    swapped = {name: is_synced for name, is_synced in files.renamed.items() if name.endswith(".swap")}
    assert {Path(name.removesuffix(".swap")).suffix for name in swapped} == {".log", ".index", ".timeindex"}
    assert all(swapped.values())


def test_a_disk_that_fails_leaves_the_log_readable(tmp_path: Path) -> None:
    pairs = fill(tmp_path / "filled")
    expected = survivors(pairs, len(pairs) - 1)
    for fails_at in range(1, 1000):
        directory = tmp_path / f"at-{fails_at}"
        shutil.copytree(tmp_path / "filled", directory)
        files = DyingFiles(error=StorageError)
        log = reopen(directory, files, was_clean=True)
        files.operations, files.dies_at = 0, fails_at
        try:
            clean(log, files=files)
        except StorageError:
            found = contents(log)
            assert expected.items() <= found.items()
            assert all(found[offset] == pairs[offset] for offset in found)
            log.release()
            again = reopen(directory)
            assert expected.items() <= contents(again).items()
            again.release()
        else:
            return
    raise AssertionError("the cleaning never completed")


@pytest.mark.parametrize("lost", ["index", "log"])
def test_indexes_left_alone_are_rebuilt(tmp_path: Path, lost: str) -> None:
    pairs = fill(tmp_path / "log")
    first = tmp_path / "log" / f"{0:020d}.index"
    shutil.copyfile(first, first.with_name(first.name + ".swap"))
    if lost == "index":
        first.unlink()
    log = reopen(tmp_path / "log")
    assert contents(log) == dict(enumerate(pairs))
    assert not list((tmp_path / "log").glob("*.swap"))


def test_a_read_from_before_the_swap_continues(tmp_path: Path) -> None:
    pairs = fill(tmp_path / "log")
    log = reopen(tmp_path / "log", was_clean=True)
    old = log.segments
    held = old[1].file()
    before = [segment.size_bytes for segment in old]
    clean(log)
    assert log.segments != old
    # Readers that hold a replaced segment can also read it if its files were never opened.
    for segment, size_bytes in zip(old[:-1], before, strict=False):
        data = segment.read(0, size_bytes)
        assert len(data) == size_bytes
        assert next(h.base_offset for _, h in scan_headers(data)) == segment.base_offset
    assert held.size_bytes() == before[1]
    assert contents(log) == survivors(pairs, len(pairs) - 1)


class WatchedFiles(OsFiles):
    """Files that call a function after each sync of a directory."""

    def __init__(self) -> None:
        self.call: Callable[[], object] = lambda: None

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.call()


def test_aborted_transactions_are_known_at_each_step_of_a_swap(tmp_path: Path) -> None:
    files = WatchedFiles()
    log = open_partition(tmp_path / "log", files)
    log.append(rows([(b"k", b"0")]))
    log.roll()
    in_transaction = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    log.append(rows([(b"k", b"1")], **in_transaction), in_transaction=True)
    log.append_end_marker_unsynced(7, 0, EndTransactionMarker(type=ControlType.ABORT, coordinator_epoch=0))
    log.roll()
    log.append(rows([(b"k", b"2")]))
    log.flush()
    expected = log.aborted_transactions(1, 2)
    assert [each.first_offset for each in expected] == [1]
    old, seen = log.segments, []
    files.call = lambda: seen.append(log.aborted_transactions(1, 2))
    clean(log, files=files)
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    assert len(seen) >= 3
    assert seen == [expected] * len(seen)
    # A reader that holds the replaced segments gets the same answer.
    assert aborted_transactions(old, 1, 2) == expected


def test_a_log_that_changes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    pairs = fill(tmp_path / "log")
    log = reopen(tmp_path / "log", was_clean=True)
    files = ChangingFiles(lambda: log.release())
    with pytest.raises(CleaningAbortedError):
        clean(log, files=files)
    assert not list((tmp_path / "log").glob("*.cleaned"))
    assert contents(reopen(tmp_path / "log")) == dict(enumerate(pairs))


def test_only_sealed_segments_of_the_log_are_replaced(tmp_path: Path) -> None:
    pairs = fill(tmp_path / "log")
    log = reopen(tmp_path / "log", was_clean=True)
    cleaned = CleanedSegment(base_offset=0, end_offset=1, size_bytes=0, suffixes=(".log",))
    other = open_partition(tmp_path / "other")
    for replaced in ([log.segments[-1]], [*log.segments], [other.segments[0]], [log.segments[0], other.segments[0]]):
        with pytest.raises(CleaningAbortedError, match="so no segment was replaced"):
            log.replace_segments(replaced, cleaned)
    assert contents(log) == dict(enumerate(pairs))
    log.append(rows([(b"k", b"1")]))


class ChangingFiles(OsFiles):
    """Files that call a function when the first cleaned log is complete."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        super().set_modified_ms(path, time_ms)
        call, self.call = self.call, None
        if call is not None:
            call()


def test_appends_and_reads_during_cleaning_see_the_last_value_of_each_key(tmp_path: Path) -> None:
    log = open_partition(tmp_path, options={"segment.bytes": 3000, "file.delete.delay.ms": 0})
    done = threading.Event()
    appended: list[Pair] = []

    def write() -> None:
        try:
            for n in range(400):
                part: list[Pair] = [(b"k%d" % (n % 7), b"%d" % n), (b"q%d" % (n % 30), b"%d" % n)]
                log.append((columnar if n % 2 else rows)(part))
                appended.extend(part)
        finally:
            done.set()

    def read() -> int:
        looks = 0
        while not done.is_set():
            end = log.log_end_offset
            found = contents(log)
            assert list(found) == sorted(found)
            newest: dict[bytes | None, int] = {}
            for offset, (key, value) in found.items():
                assert value == b"%d" % (offset // 2)
                newest[key] = offset
            # Each key has the last record of the time at which we began, or a later one.
            assert all(newest[key] >= at for key, at in last_offsets(end).items())
            with contextlib.suppress(IndexError):
                log.offset_for_time(0)
            looks += 1
        return looks

    def last_offsets(end: int) -> dict[bytes, int]:
        last: dict[bytes, int] = {}
        for offset in range(max(0, end - 60), end):
            n = offset // 2
            last[b"k%d" % (n % 7) if offset % 2 == 0 else b"q%d" % (n % 30)] = offset
        return last

    def clean_on() -> int:
        rounds = 0
        while not done.is_set():
            log.flush()
            clean(log)
            log.tick(producer_expiration_ms=10**9)
            rounds += 1
        return rounds

    with ThreadPoolExecutor() as pool:
        writer = pool.submit(write)
        others = [pool.submit(read), pool.submit(clean_on)]
        writer.result()
        assert all(other.result() > 0 for other in others)
    log.roll()
    clean(log)
    assert contents(log) == survivors(appended, len(appended))
