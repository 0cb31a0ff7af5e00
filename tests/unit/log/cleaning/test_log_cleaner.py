"""Tests of the log cleaner.

The tests cover threads, checkpoints, pauses and uncleanable partitions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.config.topic import TopicConfig
from millrace_broker.log import LogManager, PartitionLog
from millrace_broker.log.checkpoints import read_offsets
from millrace_broker.log.cleaning.checkpoints import CLEANER_OFFSETS
from millrace_broker.log.cleaning.log_cleaner import CleanerSettings, LogCleaner
from millrace_broker.log.files import OsFiles

from ....integration.waiting import eventually
from .conftest import OPAQUE_KEYS, contents, rows

COMPACT = TopicConfig.load({"cleanup.policy": "compact", "segment.bytes": 2000})
Open = Callable[..., LogManager]


@pytest.fixture
def open_manager(tmp_path: Path) -> Iterator[Open]:
    opened: list[LogManager] = []

    def _open(**settings: Any) -> LogManager:
        manager = LogManager.open(
            [tmp_path / "a", tmp_path / "b"],
            broker_id=1,
            cluster_id="rivers",
            defaults=TopicConfig.load({}),
            configs={"orders": COMPACT, "other": COMPACT},
        )
        opened.append(manager)
        manager.start_cleaner(CleanerSettings(**({"backoff_ms": 20} | settings)), lambda topic: OPAQUE_KEYS)
        return manager

    yield _open
    for manager in opened:
        manager.close()


def fill(manager: LogManager, log: PartitionLog, count: int = 40) -> None:
    """Fill a log before its first cleaning."""
    with cleaner_of(manager).paused((log.topic, log.partition)):
        for n in range(count):
            log.append(rows([(b"a", b"%d" % n), (b"b%d" % (n % 4), b"%d" % n)]))
        log.roll()


def cleaner_of(manager: LogManager) -> LogCleaner:
    assert manager.cleaner is not None
    return manager.cleaner


def test_compacted_partitions_are_cleaned_and_the_rest_left_alone(open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager(threads=2)
    orders = [manager.create_log("orders", UUID(int=1), number, COMPACT) for number in range(3)]
    kept = manager.create_log("kept", UUID(int=2), 0, TopicConfig.load({}))
    for log in [*orders, kept]:
        fill(manager, log)
    eventually(lambda: len(cleaner_of(manager).statistics().latest) >= 3)
    for log in orders:
        assert list(contents(log)) == [73, 75, 77, 78, 79]
    assert len(contents(kept)) == 80
    statistics = cleaner_of(manager).statistics()
    assert {done.partition for done in statistics.latest} == {log.name for log in orders}
    assert all(done.end_offset == 80 and done.records_written == 5 for done in statistics.latest)
    manager.close()
    checkpoints = [read_offsets(OsFiles(), tmp_path / name / CLEANER_OFFSETS) for name in "ab"]
    assert checkpoints[0] | checkpoints[1] == {("orders", number): 80 for number in range(3)}


def test_checkpoints_outlive_the_broker(open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager()
    fill(manager, manager.create_log("orders", UUID(int=1), 0, COMPACT))
    eventually(lambda: len(cleaner_of(manager).statistics().latest) == 1)
    manager.close()
    again = open_manager()
    log = again.get("orders", 0)
    assert log is not None
    fill(again, log, 60)
    eventually(lambda: len(cleaner_of(again).statistics().latest) == 1)
    assert cleaner_of(again).statistics().latest[0].start_offset == 80


def test_a_partition_is_not_cleaned_while_it_is_paused(open_manager: Open) -> None:
    manager = open_manager()
    log = manager.create_log("orders", UUID(int=1), 0, COMPACT)
    cleaner = cleaner_of(manager)
    with cleaner.paused(("orders", 0)), cleaner.paused(("orders", 0)):
        fill(manager, log)
        fill(manager, manager.create_log("other", UUID(int=2), 0, COMPACT))
        eventually(lambda: len(cleaner.statistics().latest) == 1)
        assert cleaner.statistics().latest[0].partition == "other-0"
        assert cleaner.clean_dirtiest() is None
    eventually(lambda: len(cleaner.statistics().latest) == 2)


def test_pausing_breaks_off_what_is_being_cleaned(open_manager: Open) -> None:
    manager = open_manager(io_bytes_per_second_max=1000, io_buffer_bytes=200)
    log = manager.create_log("orders", UUID(int=1), 0, COMPACT)
    fill(manager, log)
    cleaner = cleaner_of(manager)
    eventually(lambda: cleaner.statistics().in_progress == (("orders", 0),))
    before = contents(log)
    with cleaner.paused(("orders", 0)):
        assert cleaner.statistics().in_progress == ()
        assert contents(log) == before
        assert not list(log.directory.glob("*.cleaned"))


def test_a_deleted_partition_is_forgotten(open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager(io_bytes_per_second_max=2000, io_buffer_bytes=200)
    log = manager.create_log("orders", UUID(int=1), 0, COMPACT)
    fill(manager, log)
    cleaner = cleaner_of(manager)
    eventually(lambda: cleaner.statistics().in_progress == (("orders", 0),))
    cleaner._checkpoints.put(log.directory.parent, ("orders", 0), 7)
    manager.delete_log("orders", 0)
    assert cleaner._checkpoints.get(log.directory.parent, ("orders", 0)) is None
    assert cleaner.statistics().in_progress == ()
    fill(manager, manager.create_log("orders", UUID(int=3), 0, COMPACT), 5)
    assert cleaner.statistics().uncleanable == {}


@pytest.mark.parametrize("is_reconfigured", [False, True])
def test_a_damaged_partition_is_named_and_tried_again(open_manager: Open, is_reconfigured: bool) -> None:
    manager = open_manager(retry_ms=3_600_000 if is_reconfigured else 20)
    cleaner = cleaner_of(manager)
    with cleaner.paused(("orders", 0)):
        log = manager.create_log("orders", UUID(int=1), 0, COMPACT)
        fill(manager, log)
        path = log.segments[0].path
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
    eventually(lambda: bool(cleaner.statistics().uncleanable))
    assert "checksum" in cleaner.statistics().uncleanable["orders", 0]
    data[100] ^= 1
    path.write_bytes(data)
    if is_reconfigured:
        assert cleaner.clean_dirtiest() is None
        cleaner.reconfigure(CleanerSettings(backoff_ms=21))
    eventually(lambda: len(cleaner.statistics().latest) == 1)
    assert cleaner.statistics().uncleanable == {}


def test_closing_breaks_off_a_long_cleaning(open_manager: Open) -> None:
    manager = open_manager(io_bytes_per_second_max=100, io_buffer_bytes=100)
    log = manager.create_log("orders", UUID(int=1), 0, COMPACT)
    fill(manager, log)
    eventually(lambda: bool(cleaner_of(manager).statistics().in_progress))
    before = {path.name: path.stat().st_size for path in log.directory.glob("*.log")}
    manager.close()
    assert {path.name: path.stat().st_size for path in log.directory.glob("*.log")} == before
    assert not list(log.directory.glob("*.cleaned"))


def test_other_settings_hold_for_what_is_being_cleaned_too(open_manager: Open) -> None:
    before = set(threading.enumerate())
    manager = open_manager(io_bytes_per_second_max=100, io_buffer_bytes=100)
    log = manager.create_log("orders", UUID(int=1), 0, COMPACT)
    fill(manager, log)
    cleaner = cleaner_of(manager)
    eventually(lambda: bool(cleaner.statistics().in_progress))
    cleaner.reconfigure(CleanerSettings(backoff_ms=20, threads=2))
    eventually(lambda: len(cleaner.statistics().latest) == 1)
    assert list(contents(log)) == [73, 75, 77, 78, 79]
    manager.close()
    cleaner.reconfigure(CleanerSettings(threads=1))
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("millrace-cleaner")]


def test_compact_and_delete_do_both(open_manager: Open) -> None:
    manager = open_manager()
    both = COMPACT.model_copy(update={"cleanup_policy": "compact,delete", "retention_bytes": 0, "retention_ms": -1})
    deleting, compacting = (
        manager.create_log(name, UUID(int=n), 0, config)
        for n, (name, config) in enumerate([("orders", both), ("other", COMPACT)])
    )
    for log in (deleting, compacting):
        fill(manager, log)
    eventually(lambda: len(cleaner_of(manager).statistics().latest) >= 2)
    assert deleting.apply_retention() > 0
    assert contents(deleting) == {}
    assert compacting.apply_retention() == 0
    assert len(contents(compacting)) == 5


def test_truncation_lowers_the_offset_up_to_which_a_partition_is_clean(open_manager: Open) -> None:
    manager = open_manager()
    log = manager.create_log("orders", UUID(int=1), 0, COMPACT)
    fill(manager, log)
    cleaner, key = cleaner_of(manager), ("orders", 0)
    directory = log.directory.parent
    eventually(lambda: cleaner._checkpoints.get(directory, key) == 80)
    assert manager.truncate({key: 78}) == {}
    assert cleaner._checkpoints.get(directory, key) == log.log_end_offset == 78
    manager.begin_at("orders", 0, 100)
    assert cleaner._checkpoints.get(directory, key) == 0
