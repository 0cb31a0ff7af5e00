"""Tests of moves between log directories, which lose no record."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import InvalidTopicError, LogDirNotFoundError, ReplicaNotAvailableError, StorageError
from millrace.records import Record, build_rows_batch, scan_headers
from millrace.segments.names import FUTURE_DIRECTORY, MOVED_DIRECTORY, directory_name_under_way
from millrace_broker.log import Files, LogManager, OsFiles, PartitionLog
from millrace_broker.log.cleaning.log_cleaner import CleanerSettings
from millrace_broker.log.data_directory import DataDirectory
from millrace_broker.log.files import OsFile
from millrace_broker.log.log_directories import PREFERRED_MAX
from millrace_broker.log.partition_metadata import write_topic_id

from ...integration.waiting import eventually
from .cleaning.conftest import OPAQUE_KEYS
from .conftest import RefusingFiles

TOPIC_ID = UUID(int=1)
KEY = ("orders", 0)
SMALL = {"segment.bytes": 16384, "file.delete.delay.ms": 0}
PRODUCER_ID = 7


def open_manager(root: Path, clock: Any, files: Files | None = None) -> LogManager:
    return LogManager.open(
        [root / "a", root / "b"],
        broker_id=1,
        cluster_id="rivers",
        defaults=TopicConfig.load(SMALL),
        clock=clock,
        files=files,
    )


def crash(manager: LogManager) -> None:
    """Leave all files as a killed process does."""
    for log in manager.logs():
        log.release()
    manager._directories.release()
    manager._is_closed = True


def produced(sequence: int, size_bytes: int = 600) -> bytes:
    """Build a batch of an idempotent producer."""
    record = Record(key=None, value=sequence.to_bytes(4, "big") * (size_bytes // 4), timestamp_ms=1_700_000_000_000)
    return build_rows_batch([record], producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence)


def fill(log: PartitionLog, count: int, first: int = 0) -> None:
    for sequence in range(first, first + count):
        log.append(produced(sequence))


def content(log: PartitionLog) -> tuple[Any, ...]:
    """Return the content that a move must not change."""
    records, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read_to_end(offset, 2**20)
        records += read
        offset = list(scan_headers(read))[-1][1].next_offset
    return records, log.log_start_offset, log.log_end_offset, log.epochs.entries, log.producers


def directory_of(manager: LogManager, name: str) -> DataDirectory:
    return next(each for each in manager._directories if each.path.name == name)


def names_in(root: Path) -> list[str]:
    return sorted(f"{path.parent.name}/{path.name}" for path in root.glob("?/*") if path.is_dir())


@pytest.fixture
def manager(tmp_path: Path, clock: Any) -> Iterator[LogManager]:
    opened = open_manager(tmp_path, clock)
    yield opened
    opened.close()


def moved(manager: LogManager, name: str) -> bool:
    return manager._hosted.homes[KEY].path.name == name


def test_a_partition_moves_while_it_is_used(manager: LogManager, tmp_path: Path, clock: Any) -> None:
    log = manager.create_log("orders", TOPIC_ID, 0)
    fill(log, 100)
    reading = log.segments[0].file()
    manager.moves.request(KEY, tmp_path / "b")
    appended = itertools.count(100)
    while not moved(manager, "b"):
        fill(log, 1, next(appended))
    fill(log, 50, next(appended))
    assert manager.get(*KEY) is log
    assert log.directory == tmp_path / "b" / "orders-0"
    assert reading.read(0, 61)
    manager.tick()
    assert names_in(tmp_path) == ["b/orders-0"]
    before = content(log)
    manager.close()
    again = open_manager(tmp_path, clock)
    assert content(again.logs()[0]) == before
    assert again.by_directory()[tmp_path / "b"].keys() == {KEY}
    again.close()


def test_all_moves_share_a_thread_for_each_directory(manager: LogManager, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    fill(manager.create_log("orders", TOPIC_ID, 0), 1)
    for name in ("b", "a"):
        manager.moves.request(KEY, tmp_path / name)
        eventually(lambda name=name: moved(manager, name) and not manager.moves._targets, "the move")
    assert sum("log-directory-moves" in thread.name for thread in set(threading.enumerate()) - before) == 2


def test_a_copy_of_a_log_that_changes_is_the_log(tmp_path: Path, clock: Any, seed: int) -> None:
    chance = random.Random(seed)
    manager = open_manager(tmp_path, clock)
    log = manager.create_log("orders", TOPIC_ID, 0)
    target = directory_of(manager, "b")
    name = target.path / directory_name_under_way(*KEY, uuid4().hex, FUTURE_DIRECTORY)
    OsFiles().make_directory(name)
    write_topic_id(OsFiles(), name, TOPIC_ID)
    future, epoch = log.future(name), 0
    for _ in range(200):
        match chance.randrange(8):
            case 0:
                epoch += 1
                log.begin_epoch(epoch)
            case 1:
                log.roll()
            case 2 if log.log_end_offset > log.log_start_offset and chance.random() < 0.3:
                manager.truncate({KEY: chance.randint(log.log_start_offset, log.log_end_offset)})
            case 3 if chance.random() < 0.3:
                manager.delete_records(*KEY, chance.randint(log.log_start_offset, log.high_watermark))
            case 4:
                future.copy_some(chance.choice((100, 5000, 2**20)))
            case 5:
                for _ in itertools.islice(future.steps(2**20), chance.randrange(20)):
                    pass
            case _:
                record = Record(key=None, value=chance.randbytes(chance.randrange(3000)), timestamp_ms=1)
                log.append(build_rows_batch([record]), leader_epoch=epoch)
    # A log that is opened after a crash knows no epoch without records.
    log.append(build_rows_batch([Record(key=None, value=b"last", timestamp_ms=1)]), leader_epoch=epoch)
    manager.moves._targets[KEY] = target
    manager.moves._switch(KEY, log, future, target)
    before = content(log)
    assert log.directory.parent == target.path
    crash(manager)
    again = open_manager(tmp_path, clock)
    assert content(again.logs()[0]) == before
    again.close()


def test_appends_wait_for_the_same_few_syncs_whatever_the_number_of_segments(
    tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[Path] = []
    sync, sync_directory = OsFile.sync, OsFiles.sync_directory
    monkeypatch.setattr(OsFile, "sync", lambda file: (syncs.append(file._path), sync(file)))
    monkeypatch.setattr(
        OsFiles, "sync_directory", lambda files, path: (syncs.append(path), sync_directory(files, path))
    )
    while_stopped = []
    for segments in (3, 12):
        manager = open_manager(tmp_path / str(segments), clock)
        log = manager.create_log("orders", TOPIC_ID, 0)
        for sequence in range(segments):
            log.append(produced(sequence))
            log.roll()
        log.append(produced(segments))
        target = directory_of(manager, "b")
        name = target.path / directory_name_under_way(*KEY, uuid4().hex, FUTURE_DIRECTORY)
        OsFiles().make_directory(name)
        write_topic_id(OsFiles(), name, TOPIC_ID)
        future = log.future(name)
        assert sum(future.steps(2**20)) > log.size_bytes
        log.append(produced(segments + 1))
        manager.moves._targets[KEY] = target
        syncs.clear()
        manager.moves._switch(KEY, log, future, target)
        while_stopped.append(len(syncs))
        manager.close()
    assert while_stopped[0] == while_stopped[1] < 30


def test_a_cancelled_move_leaves_nothing(manager: LogManager, tmp_path: Path) -> None:
    log = manager.create_log("orders", TOPIC_ID, 0)
    fill(log, 200)
    manager.moves.set_rate(1.0)
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: bool(manager.moves.in_progress(tmp_path / "b")), "a copy")
    (copy,) = manager.moves.in_progress(tmp_path / "b").values()
    assert copy.size_bytes > 0
    assert 0 < copy.offset_lag <= 200
    manager.moves.request(KEY, tmp_path / "a")
    assert names_in(tmp_path) == ["a/orders-0"]
    assert not manager.moves.in_progress(tmp_path / "b")
    fill(log, 10, 200)


def test_another_rate_holds_for_a_copy_in_progress(manager: LogManager, tmp_path: Path) -> None:
    fill(manager.create_log("orders", TOPIC_ID, 0), 200)
    manager.moves.set_rate(1.0)
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: bool(manager.moves.in_progress(tmp_path / "b")), "a copy")
    manager.moves.set_rate(1e9)
    eventually(lambda: moved(manager, "b"), "the move")


def test_a_deleted_partition_is_not_copied_any_more(manager: LogManager, tmp_path: Path) -> None:
    fill(manager.create_log("orders", TOPIC_ID, 0), 200)
    manager.moves.set_rate(1.0)
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: bool(manager.moves.in_progress(tmp_path / "b")), "a copy")
    manager.delete_log(*KEY)
    manager.tick()
    assert names_in(tmp_path) == []


def test_the_next_process_begins_an_unfinished_move_again(tmp_path: Path, clock: Any) -> None:
    manager = open_manager(tmp_path, clock)
    fill(manager.create_log("orders", TOPIC_ID, 0), 200)
    manager.moves.set_rate(1.0)
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: bool(manager.moves.in_progress(tmp_path / "b")), "a copy")
    manager.close()
    assert len(names_in(tmp_path)) == 2
    again = open_manager(tmp_path, clock)
    again.moves.resume()
    eventually(lambda: moved(again, "b"), "the move")
    assert again.logs()[0].log_end_offset == 200
    again.close()


def test_a_log_directory_is_chosen_before_the_partition_comes(manager: LogManager, tmp_path: Path) -> None:
    with pytest.raises(ReplicaNotAvailableError, match=r"orders-0 is not on this broker"):
        manager.moves.request(KEY, tmp_path / "b")
    assert manager.create_log("orders", TOPIC_ID, 0).directory.parent == tmp_path / "b"


def test_choices_for_partitions_that_never_come_are_bounded(manager: LogManager, tmp_path: Path) -> None:
    for number in range(PREFERRED_MAX + 1):
        with pytest.raises(ReplicaNotAvailableError):
            manager.moves.request(("orders", number), tmp_path / "b")
    homes = [manager.create_log("orders", TOPIC_ID, number).directory.parent.name for number in (0, PREFERRED_MAX)]
    assert homes == ["a", "b"]


def test_the_cleaner_forgets_the_old_place_of_a_partition(manager: LogManager, tmp_path: Path) -> None:
    fill(manager.create_log("orders", TOPIC_ID, 0), 10)
    cleaner = manager.start_cleaner(CleanerSettings(), lambda _: OPAQUE_KEYS)
    cleaner._checkpoints.put(tmp_path / "a", KEY, 5)
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: moved(manager, "b") and not manager.moves._targets, "the move")
    assert cleaner._checkpoints.get(tmp_path / "a", KEY) is None


def test_requests_that_cannot_be_met_say_why(manager: LogManager, tmp_path: Path) -> None:
    manager.create_log("orders", TOPIC_ID, 0)
    with pytest.raises(LogDirNotFoundError, match=r"no log directory .*/c: it has .*/a, .*/b"):
        manager.moves.request(KEY, tmp_path / "c")
    long = "x" * 249
    manager.create_log(long, uuid4(), 0)
    with pytest.raises(InvalidTopicError, match=r"x-0 cannot be moved .* 36 characters too long"):
        manager.moves.request((long, 0), tmp_path / "a")
    directory_of(manager, "b").fail(StorageError("input/output error"))
    with pytest.raises(StorageError, match=r"/b is offline: repair it"):
        manager.moves.request(KEY, tmp_path / "b")


@pytest.mark.parametrize("is_source_there", [True, False])
def test_the_next_start_completes_a_decided_move(tmp_path: Path, clock: Any, is_source_there: bool) -> None:
    manager = open_manager(tmp_path, clock)
    fill(manager.create_log("orders", TOPIC_ID, 0), 10)
    manager.close()
    source, moved_name = tmp_path / "a" / "orders-0", directory_name_under_way(*KEY, uuid4().hex, MOVED_DIRECTORY)
    shutil.copytree(source, tmp_path / "b" / moved_name)
    if not is_source_there:
        shutil.rmtree(source)
    again = open_manager(tmp_path, clock)
    assert names_in(tmp_path) == ["b/orders-0"]
    assert again.by_directory()[tmp_path / "b"].keys() == {KEY}
    assert again.logs()[0].log_end_offset == 10
    if is_source_there:  # then the checkpoints of its directory count for no later partition of the name
        again.delete_log(*KEY)
        assert again.create_log("orders", uuid4(), 0).directory == source
        crash(again)
        again = open_manager(tmp_path, clock)
        assert (again.logs()[0].log_end_offset, again.offline()) == (0, {})
    again.close()


def test_a_start_removes_copies_that_an_earlier_process_did_not_finish(tmp_path: Path, clock: Any) -> None:
    manager = open_manager(tmp_path, clock)
    manager.create_log("orders", TOPIC_ID, 0)
    manager.close()
    (tmp_path / "b" / directory_name_under_way("payments", 0, uuid4().hex, FUTURE_DIRECTORY)).mkdir()
    open_manager(tmp_path, clock).close()
    assert names_in(tmp_path) == ["a/orders-0"]


def test_the_old_directory_keeps_no_offsets_for_a_later_partition_of_the_name(
    manager: LogManager, tmp_path: Path, clock: Any
) -> None:
    log = manager.create_log("orders", TOPIC_ID, 0)
    fill(log, 10)
    log.flush()
    manager.checkpoint()
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: moved(manager, "b") and not manager.moves._targets, "the move")
    manager.delete_log(*KEY)
    assert manager.create_log("orders", uuid4(), 0).directory == tmp_path / "a" / "orders-0"
    crash(manager)
    again = open_manager(tmp_path, clock)
    assert (again.logs()[0].log_end_offset, again.offline()) == (0, {})
    again.close()


def test_each_step_of_a_decided_move_is_durable_before_the_next(tmp_path: Path, clock: Any) -> None:
    manager = open_manager(tmp_path, clock)
    fill(manager.create_log("orders", TOPIC_ID, 0), 10)
    manager.close()
    name = directory_name_under_way(*KEY, uuid4().hex, MOVED_DIRECTORY)
    shutil.copytree(tmp_path / "a" / "orders-0", tmp_path / "b" / name)
    files, seen = RefusingFiles(), []
    files.refuses = lambda operation, path: seen.append(f"{operation} {path.relative_to(tmp_path)}") or 0  # type: ignore[func-returns-value]
    open_manager(tmp_path, clock, files).close()
    first, second = seen.index("rename a/orders-0"), seen.index(f"rename b/{name}")
    assert seen[first + 1 : second] == ["sync_directory a"]
    assert seen[second + 1] == "sync_directory b"


def test_a_move_that_cannot_begin_is_given_up_until_it_is_requested_again(tmp_path: Path, clock: Any) -> None:
    files = RefusingFiles()
    manager = open_manager(tmp_path, clock, files)
    log = manager.create_log("orders", TOPIC_ID, 0)
    fill(log, 10)
    files.refuses = lambda operation, path: errno.EACCES * (operation == "make_directory" and "/b/" in str(path))
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: not manager.moves._targets, "the end of the attempt")
    assert log.directory.parent == tmp_path / "a"
    files.refuses = lambda operation, path: 0
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: moved(manager, "b"), "the move")
    manager.close()


@pytest.mark.parametrize("refused", [FUTURE_DIRECTORY, "orders-0"])
def test_a_move_whose_rename_fails_leaves_the_log_where_it_is(tmp_path: Path, clock: Any, refused: str) -> None:
    files = RefusingFiles()
    manager = open_manager(tmp_path, clock, files)
    log = manager.create_log("orders", TOPIC_ID, 0)
    fill(log, 10)
    before = content(log)
    files.refuses = lambda operation, path: errno.EACCES * (operation == "rename" and path.name.endswith(refused))
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: not manager.moves._targets, "the end of the attempt")
    files.refuses = lambda operation, path: 0
    assert (log.directory, content(log)) == (tmp_path / "a" / "orders-0", before)
    assert manager.by_directory()[tmp_path / "a"].keys() == {KEY}
    eventually(lambda: names_in(tmp_path) == ["a/orders-0"], "the end of the copy")
    fill(log, 10, 10)
    before = content(log)
    crash(manager)
    again = open_manager(tmp_path, clock)
    assert content(again.logs()[0]) == before
    again.close()


def test_a_decided_move_that_cannot_be_completed_is_completed_by_the_next_start(tmp_path: Path, clock: Any) -> None:
    files = RefusingFiles()
    manager = open_manager(tmp_path, clock, files)
    log = manager.create_log("orders", TOPIC_ID, 0)
    fill(log, 10)
    before = content(log)
    files.refuses = lambda operation, path: (
        errno.EACCES * (operation == "rename" and path.name.endswith(MOVED_DIRECTORY))
    )
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: bool(manager.failed_directories()), "the failure")
    assert list(manager.failed_directories()) == [tmp_path / "b"]
    eventually(lambda: not manager.moves._targets, "the end of the attempt")
    manager.close()
    again = open_manager(tmp_path, clock)
    assert names_in(tmp_path) == ["b/orders-0"]
    assert content(again.logs()[0]) == before
    again.close()


def test_a_move_to_where_the_partition_is_going_is_not_begun_again(manager: LogManager, tmp_path: Path) -> None:
    fill(manager.create_log("orders", TOPIC_ID, 0), 200)
    manager.moves.set_rate(1.0)
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: bool(manager.moves.in_progress(tmp_path / "b")), "a copy")
    before = names_in(tmp_path)
    manager.moves.request(KEY, tmp_path / "b")
    assert names_in(tmp_path) == before
    assert manager.moves.in_progress(tmp_path / "a") == {}


def test_an_offline_partition_is_not_moved(tmp_path: Path, clock: Any) -> None:
    manager = open_manager(tmp_path, clock)
    manager.create_log("orders", TOPIC_ID, 0)
    manager.close()
    (tmp_path / "a" / "orders-0" / "partition.metadata").unlink()
    manager = open_manager(tmp_path, clock)
    with pytest.raises(StorageError, match=r"orders-0 is offline: .*partition.metadata is missing"):
        manager.moves.request(KEY, tmp_path / "b")
    manager.close()


def test_a_copy_follows_the_segments_of_its_log(manager: LogManager, tmp_path: Path) -> None:
    log = manager.create_log("orders", TOPIC_ID, 0)
    fill(log, 60)
    bases, sizes = [each.base_offset for each in log.segments], [each.size_bytes for each in log.segments]
    assert len(bases) > 2
    name = tmp_path / "b" / directory_name_under_way(*KEY, uuid4().hex, FUTURE_DIRECTORY)
    name.mkdir()
    future = log.future(name)
    assert (future.size_bytes, future.end_offset) == (0, 0)
    assert [future.copy_some(100), future.size_bytes, future.end_offset] == [100, 100, 0]
    assert [future.copy_some(sizes[0] - 101), future.end_offset] == [sizes[0] - 101, 0]
    assert [future.copy_some(10**6), future.size_bytes, future.end_offset] == [1, sizes[0], bases[1]]
    assert [future.copy_some(10**6), future.size_bytes, future.end_offset] == [sizes[1], sizes[0] + sizes[1], bases[2]]
    manager.delete_records(*KEY, bases[1])
    assert future.size_bytes == sizes[0] + sizes[1]
    copied = [future.copy_some(10**6) for _ in sizes[2:]]
    assert copied == sizes[2:]
    assert (future.size_bytes, future.end_offset, future.copy_some(10**6)) == (sum(sizes[1:]), 60, 0)
    assert sorted(path.name for path in name.iterdir()) == [f"{base:020d}.log" for base in bases[1:]]
    assert [(name / f"{base:020d}.log").stat().st_size for base in bases[1:]] == sizes[1:]
    fill(log, 1, 60)
    assert future.end_offset == bases[-1], "the last segment has grown"
    assert future.copy_some(10**6) > 0
    assert future.end_offset == 61
    manager.truncate({KEY: bases[-1] + 1})
    assert future.copy_some(10**6) == log.segments[-1].size_bytes, "a truncated segment is copied again"
    assert (future.end_offset, (name / f"{bases[-1]:020d}.log").stat().st_size) == (
        bases[-1] + 1,
        log.segments[-1].size_bytes,
    )
    future.abandon()
    assert not name.exists()
    assert future.size_bytes == 0


def test_a_moved_log_has_its_times_indexes_and_snapshots(manager: LogManager, tmp_path: Path) -> None:
    log = manager.create_log("orders", TOPIC_ID, 0)
    fill(log, 60)
    log.begin_epoch(3)
    log.flush()
    for number, segment in enumerate(log.segments[:-1]):
        os.utime(segment.path, (1_000_000 + number, 1_000_000 + number))
    before = {
        path.name: path.read_bytes()
        for path in log.directory.iterdir()
        if path.name[:20] != f"{log.segments[-1].base_offset:020d}" and path.name != "leader-epoch-checkpoint.crc32c"
    }
    times = [segment.modified_ms() for segment in log.segments[:-1]]
    manager.moves.request(KEY, tmp_path / "b")
    eventually(lambda: moved(manager, "b") and not manager.moves._targets, "the move")
    assert [segment.modified_ms() for segment in log.segments[:-1]] == times
    after = {path.name: path.read_bytes() for path in log.directory.iterdir() if path.name in before}
    assert after.keys() == before.keys()
    assert [name for name in before if after[name] != before[name] and name != "leader-epoch-checkpoint"] == []
    assert (log.recovery_point, log.epochs.entries) == (60, ((0, 0), (3, 60)))
    assert [(entry.producer_id, entry.last_sequence) for entry in log.producers] == [(PRODUCER_ID, 59)]
    assert (log.directory / f"{60:020d}.snapshot").exists()
    log.append(produced(60), leader_epoch=3)
    assert log.read(60, 1000)
