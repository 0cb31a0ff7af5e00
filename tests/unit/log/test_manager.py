from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import (
    EnvironmentProblemError,
    InconsistentTopicIdError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.log import LogManager, read_meta_properties
from millrace_broker.log.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from millrace_broker.log.files import OsFiles

from .conftest import crash

Batch = Callable[..., bytes]
TOPIC_ID = UUID("52e46c13-8679-4c34-b236-e151f67f4bc9")


def test_partitions_are_there_after_a_restart(open_manager: Callable[..., LogManager], batch: Batch) -> None:
    manager = open_manager()
    log = manager.create_log("orders", TOPIC_ID, 3)
    log.append(batch([1, 2]))
    manager.close()
    loaded: list[Any] = []
    manager = open_manager(on_progress=lambda *progress: loaded.append(progress))
    assert loaded == [(1, 1, "orders-3")]
    log = manager.logs()[0]
    assert (log.topic, log.topic_id, log.partition, log.log_end_offset) == ("orders", TOPIC_ID, 3, 2)
    assert manager.get("orders", 3) is log
    assert manager.get("orders", 4) is None


def test_files_of_a_log_directory_have_kafkas_content(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    manager = open_manager()
    manager.create_log("orders", TOPIC_ID, 0).append(batch([1, 2]))
    assert (data / "orders-0" / "partition.metadata").read_text() == "version: 0\ntopic_id: UuRsE4Z5TDSyNuFR9n9LyQ\n"
    assert read_meta_properties(OsFiles(), data) == {"version": "0", "broker.id": "1", "cluster.id": "rivers"}
    assert not (data / ".kafka_cleanshutdown").exists()
    manager.close()
    assert json.loads((data / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": -1}
    assert (data / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 2\n"
    assert (data / "replication-offset-checkpoint").read_text() == "0\n1\norders 0 2\n"
    assert (data / "log-start-offset-checkpoint").read_text() == "0\n0\n"
    open_manager()
    assert not (data / ".kafka_cleanshutdown").exists()


def test_a_torn_batch_is_cut_off_after_a_crash(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    manager = open_manager()
    manager.create_log("orders", TOPIC_ID, 0).append(batch([1, 2]))
    crash(manager)
    with (tmp_path / "data" / "orders-0" / "00000000000000000000.log").open("ab") as file:
        file.write(b"torn")
    log = open_manager().get("orders", 0)
    assert log is not None
    assert log.log_end_offset == 2


def test_create_is_idempotent_but_not_for_another_topic(open_manager: Callable[..., LogManager]) -> None:
    manager = open_manager()
    log = manager.create_log("orders", TOPIC_ID, 0)
    assert manager.create_log("orders", TOPIC_ID, 0) is log
    with pytest.raises(InconsistentTopicIdError, match="orders-0"):
        manager.create_log("orders", uuid4(), 0)


def test_delete_frees_the_name_at_once_and_leaves_nothing_in_the_end(
    open_manager: Callable[..., LogManager], batch: Batch, clock: Any, tmp_path: Path
) -> None:
    manager = open_manager(options={"file.delete.delay.ms": 5000})
    manager.create_log("orders", TOPIC_ID, 0).append(batch([1]))
    manager.delete_log("orders", 0)
    assert manager.logs() == []
    manager.tick()
    (left,) = [path for path in (tmp_path / "data").iterdir() if path.is_dir()]
    assert left.name.startswith("orders-0.")
    assert left.name.endswith("-delete")
    clock.advance_ms(5000)
    manager.tick()
    assert [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()] == []
    with pytest.raises(UnknownTopicOrPartitionError, match="orders-0"):
        manager.delete_log("orders", 0)
    assert manager.create_log("orders", uuid4(), 0).log_end_offset == 0


CHECKPOINTS = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS)


class CountedFiles(OsFiles):
    """Files that record which checkpoints are replaced."""

    def __init__(self) -> None:
        self.replaced: list[str] = []

    def rename(self, source: Path, target: Path) -> None:
        if target.name in CHECKPOINTS:
            self.replaced.append(target.name)
        super().rename(source, target)


def test_a_deletion_writes_no_checkpoint_and_another_partition_of_the_name_one(
    open_manager: Callable[..., LogManager], batch: Batch
) -> None:
    files = CountedFiles()
    manager = open_manager(files=files)
    for number in range(20):
        manager.create_log("orders", TOPIC_ID, number).append(batch([number, number + 1]))
        manager.delete_records("orders", number, 1)
    manager.checkpoint()
    files.replaced.clear()
    for number in range(10):
        manager.delete_log("orders", number)
    manager.create_log("other", TOPIC_ID, 0)
    assert files.replaced == []
    manager.create_log("orders", uuid4(), 3)
    assert sorted(files.replaced) == sorted(CHECKPOINTS)
    manager.create_log("orders", uuid4(), 4)
    assert len(files.replaced) == len(CHECKPOINTS)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_crash_gives_a_new_partition_nothing_of_the_one_of_its_name_that_was_deleted(
    open_manager: Callable[..., LogManager], batch: Batch, is_restarted: bool
) -> None:
    manager = open_manager()
    log = manager.create_log("orders", TOPIC_ID, 0)
    log.append(batch([1, 2, 3]))
    manager.delete_records("orders", 0, 2)
    manager.checkpoint()
    manager.delete_log("orders", 0)
    if is_restarted:
        crash(manager)
        manager = open_manager()
    new = manager.create_log("orders", uuid4(), 0)
    new.append(batch([4, 5, 6, 7]))
    crash(manager)
    found = open_manager().get("orders", 0)
    assert found is not None
    assert (found.log_start_offset, found.log_end_offset) == (0, 4)


def test_only_checkpoints_whose_offsets_changed_are_written(
    open_manager: Callable[..., LogManager], batch: Batch
) -> None:
    files = CountedFiles()
    manager = open_manager(files=files)
    manager.create_log("orders", TOPIC_ID, 0).append(batch([1, 2, 3]))
    manager.checkpoint()
    files.replaced.clear()
    manager.checkpoint()
    assert files.replaced == []
    manager.delete_records("orders", 0, 1)
    assert files.replaced == [LOG_START_OFFSETS]


def test_interrupted_creation_and_deletion_are_cleared_away(
    open_manager: Callable[..., LogManager], tmp_path: Path
) -> None:
    unfinished = tmp_path / "data" / f"orders-0.{uuid4().hex}-delete"
    unfinished.mkdir(parents=True)
    (unfinished / "partition.metadata").write_text("half")
    manager = open_manager()
    assert not unfinished.exists()
    assert manager.logs() == []


class RecordingFiles(OsFiles):
    """Files that record removals.

    They also record which removals a power failure could undo.
    """

    def __init__(self) -> None:
        self.steps: list[str] = []

    def names(self, directory: Path) -> list[str]:
        self.steps.append(f"names {directory.name}")
        return super().names(directory)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.steps.append(f"sync {path.name}")

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.steps.append(f"remove {path.name}")

    def remove_tree(self, path: Path) -> None:
        super().remove_tree(path)
        self.steps.append("remove")


def test_a_power_failure_does_not_bring_the_marker_of_a_clean_stop_back(
    open_manager: Callable[..., LogManager],
) -> None:
    open_manager().close()
    files = RecordingFiles()
    open_manager(files=files)
    at = files.steps.index("remove .kafka_cleanshutdown")
    assert files.steps[at + 1] == "sync data"


def test_a_start_syncs_the_name_of_a_deleted_partition_before_it_removes_the_files(
    open_manager: Callable[..., LogManager], tmp_path: Path
) -> None:
    (tmp_path / "data" / f"orders-0.{uuid4().hex}-delete").mkdir(parents=True)
    files = RecordingFiles()
    open_manager(files=files)
    at = files.steps.index("remove")
    assert files.steps[at - 2 : at] == ["sync data", "names data"]


def test_checkpoints_of_a_partition_that_is_gone_count_for_no_later_one_of_its_name(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    manager = open_manager()
    manager.create_log("orders", TOPIC_ID, 0).append(batch([1, 2]))
    manager.close()
    shutil.rmtree(tmp_path / "data" / "orders-0")
    manager = open_manager()
    manager.create_log("orders", uuid4(), 0)
    crash(manager)
    manager = open_manager()
    assert manager.offline() == {}
    assert manager.logs()[0].log_end_offset == 0


def test_a_partition_whose_first_segment_was_not_created_is_empty(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    manager = open_manager()
    manager.create_log("orders", TOPIC_ID, 0)
    crash(manager)
    (tmp_path / "data" / "orders-0" / f"{0:020}.log").unlink()
    log = open_manager().logs()[0]
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert log.append(batch([1])).base_offset == 0


def test_new_partitions_go_where_there_are_fewest(open_manager: Callable[..., LogManager], tmp_path: Path) -> None:
    manager = open_manager("a", "b")
    for partition in range(5):
        manager.create_log("orders", TOPIC_ID, partition)
    assert len(list((tmp_path / "a").glob("orders-*"))) == 3
    assert len(list((tmp_path / "b").glob("orders-*"))) == 2
    manager.close()
    assert [log.partition for log in open_manager("b", "a").logs()] == [0, 1, 2, 3, 4]


def test_all_partitions_of_a_topic_have_its_configuration(open_manager: Callable[..., LogManager]) -> None:
    manager = open_manager(options={"segment.bytes": 5000})
    log = manager.create_log("orders", TOPIC_ID, 0)
    assert log.config.segment_bytes == 5000
    manager.set_config("orders", TopicConfig.load({"segment.bytes": 7000}))
    assert log.config.segment_bytes == 7000
    assert manager.create_log("orders", TOPIC_ID, 1).config.segment_bytes == 7000
    assert manager.create_log("parcels", uuid4(), 0).config.segment_bytes == 5000


def test_a_directory_in_use_is_refused_with_the_process_of_its_broker(
    open_manager: Callable[..., LogManager], tmp_path: Path
) -> None:
    open_manager()
    with pytest.raises(EnvironmentProblemError, match=rf"data is in use by another broker \(process {os.getpid()}\)"):
        open_manager()
    script = (
        "import sys; from pathlib import Path; from millrace.config.topic import TopicConfig\n"
        "from millrace_broker.log import LogManager\n"
        f"LogManager.open([Path({str(tmp_path / 'data')!r})], broker_id=1, cluster_id='rivers', defaults=TopicConfig())"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "EnvironmentProblemError" in result.stderr


@pytest.mark.parametrize(
    ("other", "message"),
    [({"broker_id": 2}, "belongs to broker 1"), ({"cluster_id": "lakes"}, "belongs to cluster rivers")],
)
def test_a_directory_of_another_broker_or_cluster_is_refused(
    open_manager: Callable[..., LogManager], other: dict[str, Any], message: str
) -> None:
    open_manager().close()
    with pytest.raises(EnvironmentProblemError, match=message):
        open_manager(**other)
    open_manager()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_directory_that_cannot_be_written_is_refused(open_manager: Callable[..., LogManager], tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="Permission denied"):
        open_manager()


def test_a_directory_whose_path_is_a_file_is_refused(open_manager: Callable[..., LogManager], tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(StorageError, match="cannot make directory"):
        open_manager()


def test_damaged_partition_is_offline_and_others_serve(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    manager = open_manager()
    for partition in range(2):
        manager.create_log("orders", TOPIC_ID, partition).append(batch([1]))
    manager.close()
    (tmp_path / "data" / "orders-0" / "partition.metadata").unlink()
    manager = open_manager()
    assert list(manager.offline()) == [("orders", 0)]
    with pytest.raises(StorageError, match=r"orders-0 is offline: .*partition\.metadata is missing"):
        manager.get("orders", 0)
    with pytest.raises(StorageError, match="offline"):
        manager.create_log("orders", TOPIC_ID, 0)
    assert [log.partition for log in manager.logs()] == [1]


def test_damage_is_not_forgotten_by_the_next_start(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    # Synced batches are not truncated, also not by the start after the one that found the damage.
    manager = open_manager()
    for partition in range(2):
        log = manager.create_log("orders", TOPIC_ID, partition)
        for _ in range(4):
            log.append(batch([1]))
        log.flush()
    manager.checkpoint()
    crash(manager)
    path = tmp_path / "data" / "orders-0" / f"{0:020d}.log"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 4 + 16] = 9
    path.write_bytes(damaged)
    for _ in range(3):
        manager = open_manager()
        assert list(manager.offline()) == [("orders", 0)]
        manager.close()
        assert path.read_bytes() == damaged


def test_other_directories_are_left_alone(open_manager: Callable[..., LogManager], tmp_path: Path) -> None:
    (tmp_path / "data" / "lost+found").mkdir(parents=True)
    assert open_manager().logs() == []
    assert (tmp_path / "data" / "lost+found").is_dir()


def test_checkpoints_are_due_from_time_to_time(
    open_manager: Callable[..., LogManager], batch: Batch, clock: Any, tmp_path: Path
) -> None:
    manager = open_manager(options={"flush.ms": 1000}, checkpoint_interval_ms=5000)
    manager.create_log("orders", TOPIC_ID, 0).append(batch([1, 2]))
    path = tmp_path / "data" / "recovery-point-offset-checkpoint"
    clock.advance_ms(4999)
    manager.tick()
    assert path.read_text() == "0\n0\n"
    clock.advance_ms(1)
    manager.tick()
    assert path.read_text() == "0\n1\norders 0 2\n"


def test_retention_waits_for_the_initial_task_delay(
    open_manager: Callable[..., LogManager], batch: Batch, clock: Any
) -> None:
    manager = open_manager(options={"retention.ms": 100}, initial_task_delay_ms=30_000)
    log = manager.create_log("orders", TOPIC_ID, 0)
    log.append(batch([clock.now_ms() - 1000]))
    manager.tick()
    clock.advance_ms(29_999)
    manager.tick()
    assert log.log_start_offset == 0
    clock.advance_ms(1)
    manager.tick()
    assert log.log_start_offset == 1


def test_retention_is_due_from_time_to_time(open_manager: Callable[..., LogManager], batch: Batch, clock: Any) -> None:
    manager = open_manager(options={"retention.ms": 100}, retention_check_interval_ms=5000)
    manager.tick()
    log = manager.create_log("orders", TOPIC_ID, 0)
    log.append(batch([clock.now_ms()]))
    clock.advance_ms(4999)
    manager.tick()
    assert log.log_start_offset == 0
    clock.advance_ms(1)
    manager.tick()
    assert log.log_start_offset == 1


def test_log_start_inside_a_segment_survives(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    manager = open_manager()
    for _ in range(3):
        manager.create_log("orders", TOPIC_ID, 0).append(batch([1]))
    manager.close()
    (tmp_path / "data" / "log-start-offset-checkpoint").write_text("0\n1\norders 0 2\n")
    with pytest.raises(StorageError, match=r"log-start-offset-checkpoint is damaged: its checksum"):
        open_manager()
    # an administrator wrote it by hand, so it is kept
    (tmp_path / "data" / "log-start-offset-checkpoint.crc32c").unlink()
    manager = open_manager()
    assert manager.logs()[0].log_start_offset == 2
    manager.close()
    assert (tmp_path / "data" / "log-start-offset-checkpoint").read_text() == "0\n1\norders 0 2\n"


def test_deleted_records_stay_deleted_after_a_crash(
    open_manager: Callable[..., LogManager], batch: Batch, tmp_path: Path
) -> None:
    manager = open_manager(options={"segment.bytes": 2 * len(batch([1]))})
    log = manager.create_log("orders", TOPIC_ID, 0)
    for _ in range(5):
        log.append(batch([1]))
    assert manager.delete_records("orders", 0, 3) == 3
    assert manager.delete_records("orders", 0, 1) == 3
    assert (tmp_path / "data" / "log-start-offset-checkpoint").read_text() == "0\n1\norders 0 3\n"
    with pytest.raises(UnknownTopicOrPartitionError, match="orders-1"):
        manager.delete_records("orders", 1, 0)
    crash(manager)
    log = open_manager().get("orders", 0)
    assert log is not None
    assert (log.log_start_offset, log.first_base_offset, log.log_end_offset) == (3, 2, 5)
