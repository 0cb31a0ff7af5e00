"""Tests of segments that are copied, deleted, read remotely and expired."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import CorruptBatchError, OffsetOutOfRangeError, RemoteStorageError
from millrace.records import scan_headers
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.remote_log_manager import RemoteLogManager
from millrace_broker.log.tiered.manifest import Manifest
from millrace_broker.log.tiered.settings import TieringSettings
from millrace_broker.log.validation import ReplicatedBatches

from ....integration.waiting import eventually

NOW_MS = 1_700_000_000_000
Settle = Callable[[RemoteLogManager], None]
MakeLog = Callable[..., PartitionLog]
KEEP_NOTHING = {"local_retention_bytes": "1"}
"""With 0, sealed segments leave the disk as soon as they are copied, and the active one would be rolled for that."""


def offsets_of(log: PartitionLog, start: int = 0) -> list[int]:
    """Return every offset of the log from one on, as a consumer gets them."""
    offsets = []
    while start < log.high_watermark:
        headers = [header for _, header in scan_headers(log.read(start, 100))]
        offsets += [offset for header in headers for offset in range(header.base_offset, header.next_offset)]
        start = headers[-1].next_offset
    return offsets


def remote_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_sealed_segments_are_copied_and_the_open_one_is_not(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle, remote_directory: Path
) -> None:
    log = tiered_log(segments=3)
    settle(manager)
    assert log.remote is not None
    assert [(each.base_offset, each.end_offset) for each in log.remote.segments] == [(0, 6), (6, 12), (12, 18)]
    names = remote_names(remote_directory)
    assert sum(name.endswith(".log") for name in names) == 3
    assert sum(name.endswith(".manifest") for name in names) == 3
    (folder,) = remote_directory.iterdir()
    for local in list(log.segments)[:3]:
        (copy,) = folder.glob(f"{local.base_offset:020d}-*.log")
        assert copy.read_bytes() == local.path.read_bytes()
    assert manager.statistics().failures == 0


def test_a_manifest_says_what_a_copy_is_made_of(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle, remote_directory: Path
) -> None:
    log = tiered_log(segments=1)
    settle(manager)
    (path,) = remote_directory.rglob("*.manifest")
    manifest = Manifest.decode(path.read_bytes())
    assert (manifest.topic, manifest.partition, manifest.topic_id) == ("orders", 3, log.topic_id)
    assert (manifest.name.copy.base_offset, manifest.name.end_offset) == (0, 6)
    assert manifest.name.largest_ms == NOW_MS + 2
    assert manifest.leader_epochs == ((0, 0),)
    assert set(manifest.objects) == {".log", ".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"}


def test_local_retention_is_not_total_retention(tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle) -> None:
    log = tiered_log(segments=3, **KEEP_NOTHING)
    assert log.apply_retention() == 0, "no segment leaves the disk before its copy is complete"
    settle(manager)
    assert log.apply_retention() == 3
    assert (log.first_base_offset, log.log_start_offset) == (18, 0)
    assert offsets_of(log) == list(range(24))
    assert offsets_of(log, 7)[0] == 6


def test_local_retention_applies_with_the_empty_cleanup_policy(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle
) -> None:
    log = tiered_log(segments=3, cleanup_policy="", **KEEP_NOTHING)
    settle(manager)
    assert log.apply_retention() == 3
    assert (log.first_base_offset, log.log_start_offset) == (18, 0)


@pytest.mark.parametrize("option", ["local_retention_bytes", "local_retention_ms"])
def test_local_retention_deletes_nothing_from_a_log_that_is_not_attached(
    tiered_log: MakeLog, clock: Any, option: str
) -> None:
    log = tiered_log(segments=3, is_attached=False, **{option: "1"})
    clock.advance_ms(60_000)
    assert (log.apply_retention(), log.log_start_offset) == (0, 0)
    log.config = TopicConfig.load(log.config.options() | {"retention.bytes": "2"})
    assert (log.apply_retention(), log.log_start_offset) == (3, 18), "total retention applies"


def test_reads_and_lookups_continue_from_the_store(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle
) -> None:
    log = tiered_log(segments=3, **KEEP_NOTHING)
    before = {
        "times": [log.offset_for_time(NOW_MS + at) for at in (0, 1, 999, 1002, 2500, 3002, 9000)],
        "largest": log.max_timestamp_offset(),
        "reads": [log.read(offset, 150) for offset in range(24)],
        "ranges": [(each.start_offset, each.end_offset, each.end_position) for each in log.locate(1, 23, 150)],
    }
    settle(manager)
    log.apply_retention()
    assert before == {
        "times": [log.offset_for_time(NOW_MS + at) for at in (0, 1, 999, 1002, 2500, 3002, 9000)],
        "largest": log.max_timestamp_offset(),
        "reads": [log.read(offset, 150) for offset in range(24)],
        "ranges": [(each.start_offset, each.end_offset, each.end_position) for each in log.locate(1, 23, 150)],
    }
    extents = log.locate(0, 24)
    assert [bool(extent.uri) for extent in extents] == [True, True, True, False]


def test_copies_of_another_replica_may_overlap_local_segments(
    tiered_log: MakeLog, make_manager: Callable[..., RemoteLogManager], settle: Settle, tmp_path: Path, clock: Any
) -> None:
    leader = tiered_log(segments=3, is_attached=False)
    (tmp_path / "follower" / "orders-3").mkdir(parents=True)
    follower = PartitionLog(
        topic="orders",
        topic_id=leader.topic_id,
        partition=3,
        directory=tmp_path / "follower" / "orders-3",
        config=TopicConfig.load(leader.config.options() | {"local.retention.bytes": "1"}),
        files=OsFiles(),
        clock=clock,
    )
    for offset in range(0, 24, 3):
        follower.append_replicated(ReplicatedBatches(leader.read(offset, 1)))
        if offset in (6, 12):
            follower.roll()
    follower.flush()
    for log in (leader, follower):
        log.is_led_here = log is leader
        manager = make_manager()
        manager.attach(log)
        settle(manager)
    assert follower.apply_retention() == 2
    assert follower.remote is not None
    assert [(each.base_offset, each.end_offset) for each in follower.remote.segments] == [(0, 6), (6, 12), (12, 18)]
    assert follower.first_base_offset == 15, "in the middle of the last copy"
    assert [offsets_of(follower, start) for start in range(0, 24, 3)] == [
        list(range(start, 24)) for start in range(0, 24, 3)
    ]
    assert [header.base_offset for _, header in scan_headers(follower.read(12, 1000, end_offset=15))] == [12]
    assert [(each.start_offset, each.end_offset, bool(each.uri)) for each in follower.locate(1, 24)] == [
        (1, 6, True),
        (6, 12, True),
        (12, 18, True),
        (18, 24, False),
    ]


def test_a_replica_that_no_longer_leads_ends_its_copy_and_expires_nothing(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tiered_log(segments=2)

    def write(folder: str, name: str, parts: Iterable[Any]) -> None:
        log.is_led_here = False
        original(folder, name, parts)

    original = store.write
    monkeypatch.setattr(store, "write", write)
    settle(manager)
    log.config = TopicConfig.load(log.config.options() | {"retention.bytes": "1"})
    settle(manager)
    assert log.remote is not None
    assert (log.remote.end_offset, log.log_start_offset) == (0, 0)
    assert not [call for call in store.calls if call.startswith("publish")]
    assert manager.statistics().failures == 0


def test_unsynced_segments_are_not_copied(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle, batch: Callable[..., bytes]
) -> None:
    log = tiered_log(segments=1)
    log.append(batch([NOW_MS]))
    log.roll()
    assert log.recovery_point < log.segments[-1].base_offset
    settle(manager)
    assert log.remote is not None
    assert log.remote.end_offset == 6
    log.flush()
    settle(manager)
    assert log.remote.end_offset == 13


def test_total_retention_empties_the_store_too(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle, clock: Any, remote_directory: Path
) -> None:
    log = tiered_log(segments=3, **KEEP_NOTHING)
    settle(manager)
    log.apply_retention()
    log.config = TopicConfig.load(log.config.options() | {"retention.ms": "1000", "local.retention.ms": "0"})
    settle(manager)
    assert log.log_start_offset == 18
    assert remote_names(remote_directory) == []
    with pytest.raises(OffsetOutOfRangeError):
        log.read(17, 100)
    assert offsets_of(log, 18) == list(range(18, 24))


def test_a_topic_that_is_no_longer_copied_loses_its_oldest_records_by_total_retention(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle
) -> None:
    log = tiered_log(segments=3)
    settle(manager)
    log.config = TopicConfig.load(log.config.options() | {"remote.log.copy.disable": "true", "retention.bytes": "1"})
    assert log.apply_retention() == 3
    assert (log.first_base_offset, log.log_start_offset) == (18, 18)


def test_total_size_counts_what_is_in_the_store(tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle) -> None:
    log = tiered_log(segments=5, **KEEP_NOTHING)
    segment_bytes = log.segments[0].size_bytes
    settle(manager)
    log.apply_retention()
    log.config = TopicConfig.load(log.config.options() | {"retention.bytes": str(segment_bytes * 3)})
    settle(manager)
    assert log.log_start_offset == 18, "three segments of six are left"
    assert log.remote is not None
    assert [each.base_offset for each in log.remote.segments] == [18, 24]


def test_deleted_records_leave_the_store(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle, remote_directory: Path
) -> None:
    log = tiered_log(segments=3, **KEEP_NOTHING)
    settle(manager)
    log.apply_retention()
    assert log.delete_records(8) == 8
    settle(manager)
    assert log.remote is not None
    assert [each.base_offset for each in log.remote.segments] == [6, 12]
    assert offsets_of(log, 8)[0] == 6
    with pytest.raises(OffsetOutOfRangeError):
        log.read(7, 100)
    assert log.delete_records(20) == 20
    settle(manager)
    assert remote_names(remote_directory) == []


def test_without_the_store_nothing_is_lost_and_reads_say_why(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle, store: Any, clock: Any
) -> None:
    log = tiered_log(segments=3, **KEEP_NOTHING)
    store.is_away = True
    settle(manager)
    assert log.apply_retention() == 0
    assert log.remote is not None
    assert log.remote.problem == "the store is away"
    store.is_away = False
    settle(manager)
    assert log.apply_retention() == 3
    assert log.remote.problem is None

    store.is_away = True
    with pytest.raises(RemoteStorageError) as failed:
        log.read(3, 100)
    assert failed.value.retriable
    assert len(log.read(18, 1000)) > 0, "segments on the disk are read without the store"
    store.is_away = False
    assert offsets_of(log) == list(range(24))


def test_pauses_between_attempts_double(
    tiered_log: MakeLog, make_manager: Callable[..., RemoteLogManager], store: Any, clock: Any
) -> None:
    log = tiered_log(segments=1, is_attached=False)
    manager = make_manager(backoff_ms=100, backoff_max_ms=1000, jitter=0.0)
    manager.attach(log)
    while manager.work_once():
        pass
    store.is_away, log.remote.must_list = True, True  # type: ignore[union-attr]
    clock.advance_ms(30_000)
    while manager.work_once():
        pass
    pauses = []
    for _ in range(6):
        waited_ms, failures = 0, manager.statistics().failures
        while manager.statistics().failures == failures:
            clock.advance_ms(50)
            waited_ms += 50
            manager.work_once()
        pauses.append(waited_ms)
    assert pauses == [pytest.approx(pause, abs=50) for pause in (100, 200, 400, 800, 1000, 1000)]


def test_damage_on_the_disk_is_not_copied(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle, remote_directory: Path
) -> None:
    log = tiered_log(segments=2, **KEEP_NOTHING)
    damaged = log.segments[1]
    content = bytearray(damaged.path.read_bytes())
    content[-1] ^= 1
    damaged.path.write_bytes(content)
    settle(manager)
    assert log.remote is not None
    assert log.remote.end_offset == 6
    assert "checksum" in (log.remote.problem or "")
    assert log.apply_retention() == 1, "the damaged segment stays"


def test_damage_in_the_store_is_not_served(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle, remote_directory: Path
) -> None:
    log = tiered_log(segments=1, **KEEP_NOTHING)
    settle(manager)
    log.apply_retention()
    (path,) = remote_directory.rglob("*.log")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert len(log.read(0, 10)) > 0, "the first batch is intact"
    with pytest.raises(CorruptBatchError, match="checksum"):
        log.read(3, 10)


def test_damaged_or_missing_indexes_cost_time_only(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle, remote_directory: Path
) -> None:
    log = tiered_log(segments=2, index_interval_bytes="0", **KEEP_NOTHING)
    settle(manager)
    log.apply_retention()
    first, second = sorted(remote_directory.rglob("*.index"))
    first.write_bytes(b"\x7f" * 16)
    second.unlink()
    assert offsets_of(log) == list(range(18))
    assert log.offset_for_time(NOW_MS + 1001) == (7, NOW_MS + 1001)


def test_a_missing_copy_is_reported(
    tiered_log: MakeLog, manager: RemoteLogManager, settle: Settle, remote_directory: Path
) -> None:
    log = tiered_log(segments=3, **KEEP_NOTHING)
    settle(manager)
    log.apply_retention()
    for path in remote_directory.rglob("00000000000000000006-*"):
        path.unlink()
    with pytest.raises(CorruptBatchError, match="missing in the remote store"):
        log.read(6, 100)
    assert log.remote is not None
    log.remote.load(log.log_end_offset)
    with pytest.raises(CorruptBatchError, match=r"offsets 7\.\.11 .* neither on the disk nor in the remote store"):
        log.read(7, 100)
    with pytest.raises(CorruptBatchError, match=r"offsets 6\.\.11"):
        log.locate(2, 20)
    assert offsets_of(log, 12) == list(range(12, 24))


def test_another_number_of_threads_copies_what_is_left(
    tiered_log: MakeLog, manager: RemoteLogManager, remote_directory: Path
) -> None:
    def threads() -> int:
        return sum(thread.name.startswith("millrace-tiering") for thread in threading.enumerate())

    before = threads()
    manager.start()
    for count in (3, 1):
        manager.reconfigure(TieringSettings(threads=count))
        assert threads() - before == count
    tiered_log(segments=3)
    manager.wake()
    eventually(lambda: sum(name.endswith(".manifest") for name in remote_names(remote_directory)) == 3)
    manager.stop()
    manager.reconfigure(TieringSettings(threads=2))
    assert threads() == before, "a stopped manager stays stopped"


def test_another_rate_holds_for_a_copy_in_progress(
    tiered_log: MakeLog, make_manager: Callable[..., RemoteLogManager], store: Any
) -> None:
    """The first rate would take an hour for a segment."""
    log = tiered_log(segments=1, is_attached=False)
    manager = make_manager(bytes_per_second_max=0.1)
    manager.start()
    try:
        manager.attach(log)
        throttle = manager._throttle
        eventually(lambda: throttle._free_from > throttle._monotonic(), "a copy that waits")
        assert not [call for call in store.calls if call.startswith("publish")]
        manager.reconfigure(TieringSettings())
        eventually(lambda: log.remote is not None and len(log.remote.segments) == 1, "the copy")
    finally:
        manager.stop()
