"""Tests of durability.

The tests cover the disk's content at an acknowledgement, and failing or full disks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import MillraceError, StorageError
from millrace.records import scan_headers
from millrace_broker.log import OsFiles, PartitionLog, ProducedBatches
from millrace_broker.log.files import OsFile, Part

from ...integration.waiting import STALL_S, eventually

Open = Callable[..., PartitionLog]
Batch = Callable[..., bytes]
START = 1_700_000_000_000
SYNCED = {"flush.before.ack": True}


class WatchedFile(OsFile):
    """A file that records its writes and syncs."""

    def __init__(self, path: Path, descriptor: int, disk: WatchedFiles) -> None:
        super().__init__(path, descriptor)
        self._disk = disk

    def write(self, position: int, parts: Sequence[Part]) -> None:
        super().write(position, parts)
        self._disk.unsynced.add(self._path.name)

    def sync(self) -> None:
        covered = self._path.name in self._disk.unsynced
        self._disk.unsynced.discard(self._path.name)
        self._disk.syncs.append(self._path.name)
        self._disk.began.set()
        assert self._disk.gate.wait(STALL_S)
        if self._disk.is_broken:
            if covered:
                self._disk.unsynced.add(self._path.name)
            raise StorageError("input/output error")
        super().sync()


class WatchedFiles(OsFiles):
    """Files that record which changes a power failure would lose.

    The changes are bytes of files and names in directories.
    """

    def __init__(self) -> None:
        self.unsynced: set[str] = set()
        self.unsynced_names: set[str] = set()
        self.syncs: list[str] = []
        self.forgotten: list[str] = []
        self.is_broken = False
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()

    def open(self, path: Path, *, create: bool = False) -> WatchedFile:
        if create and not path.exists():
            self.unsynced_names.add(path.name)
        file = super().open(path, create=create)
        descriptor, file._descriptor = file._descriptor, -1
        return WatchedFile(path, descriptor, self)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.unsynced_names.clear()

    def forget_cached(self, path: Path) -> None:
        super().forget_cached(path)
        self.forgotten.append(path.name)

    @property
    def at_risk(self) -> set[str]:
        return {name for name in self.unsynced | self.unsynced_names if name.endswith(".log")}


@pytest.fixture
def watched() -> WatchedFiles:
    return WatchedFiles()


@pytest.mark.parametrize("options", [SYNCED, {"flush.messages": 1}])
def test_acknowledged_records_and_their_file_names_are_on_the_disk(
    open_log: Open, batch: Batch, watched: WatchedFiles, options: dict[str, Any]
) -> None:
    log = open_log({"segment.bytes": 3 * len(batch()), **options}, files=watched)
    for number in range(10):
        log.append(batch())
        assert watched.at_risk == set()
        assert log.recovery_point == log.high_watermark == number + 1
    assert len(log.segments) == 4
    sealed = {f"{base:020}.{suffix}" for base in (0, 3, 6) for suffix in ("log", "index", "timeindex")}
    assert sealed <= set(watched.syncs)


def test_without_the_option_no_append_waits_for_the_disk(open_log: Open, batch: Batch, watched: WatchedFiles) -> None:
    log = open_log(files=watched)
    watched.syncs.clear()
    log.append(batch())
    assert watched.syncs == ["leader-epoch-checkpoint.crc32c.tmp", "leader-epoch-checkpoint.tmp"]
    assert (log.recovery_point, log.high_watermark) == (0, 1)


def test_appends_that_wait_for_a_sync_share_the_next_one(open_log: Open, batch: Batch, watched: WatchedFiles) -> None:
    log = open_log(SYNCED, files=watched)
    log.append(batch())
    watched.syncs.clear()
    watched.gate.clear()
    watched.began.clear()
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(log.append, batch())
        assert watched.began.wait(STALL_S)
        rest = [threads.submit(log.append, batch()) for _ in range(8)]
        eventually(lambda: log.log_end_offset >= 10, "the appends")
        assert not any(each.done() for each in (first, *rest))
        watched.gate.set()
        assert sorted(each.result(STALL_S).base_offset for each in (first, *rest)) == list(range(1, 10))
    assert len(watched.syncs) == 2


def test_consumers_see_only_what_is_synced(open_log: Open, batch: Batch) -> None:
    log = open_log(SYNCED)
    result = log.append_unsynced(ProducedBatches(batch([START]), log.config))
    assert result is not None
    assert log.must_sync(result)
    assert (log.high_watermark, log.last_stable_offset, log.log_end_offset) == (0, 0, 1)
    assert log.read(0, 1000) == b""
    log.flush()
    assert not log.must_sync(result)
    assert [header.base_offset for _, header in scan_headers(log.read(0, 1000))] == [0]


def test_a_batch_sent_again_waits_for_the_disk_too(open_log: Open, batch: Batch) -> None:
    log = open_log(SYNCED)
    sent = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    log.append_unsynced(ProducedBatches(sent, log.config))
    again = log.append_unsynced(ProducedBatches(sent, log.config))
    assert again is not None
    assert again.is_duplicate
    assert log.must_sync(again)
    assert log.append(sent).is_duplicate
    assert log.recovery_point == 1
    assert not log.must_sync(again)


def test_the_option_can_be_changed_and_what_was_seen_stays_seen(open_log: Open, batch: Batch) -> None:
    log = open_log()
    synced = open_log(SYNCED).config
    plain = log.config
    log.append(batch())
    log.config = synced
    log.append_unsynced(ProducedBatches(batch(), log.config))
    assert (log.high_watermark, log.log_end_offset) == (1, 2)
    log.config = plain
    assert log.high_watermark == 2


def test_a_failed_sync_is_never_tried_again(open_log: Open, batch: Batch, watched: WatchedFiles) -> None:
    log = open_log(SYNCED, files=watched)
    log.append(batch())
    watched.is_broken = True
    with pytest.raises(StorageError, match="input/output error"):
        log.append(batch())
    watched.is_broken = False
    tried = len(watched.syncs)
    for attempt in (log.flush, lambda: log.append(batch()), log.close):
        with pytest.raises(StorageError, match="accepts no appends because its disk failed"):
            attempt()
    log.tick(producer_expiration_ms=10**9)
    assert len(watched.syncs) == tried
    assert (log.high_watermark, log.recovery_point) == (1, 1)
    assert log.read(1, 1000) == b""


def test_an_append_whose_sync_failed_is_not_acknowledged(open_log: Open, batch: Batch, watched: WatchedFiles) -> None:
    log = open_log(SYNCED, files=watched)
    log.append(batch())
    watched.gate.clear()
    watched.began.clear()
    with ThreadPoolExecutor(4) as threads:
        appends = [threads.submit(log.append, batch()) for _ in range(4)]
        assert watched.began.wait(STALL_S)
        watched.is_broken = True
        watched.gate.set()
        assert all(isinstance(each.exception(STALL_S), StorageError) for each in appends)
    assert log.high_watermark == 1


@pytest.mark.parametrize(("options", "is_forgotten"), [({}, False), (SYNCED, True)])
def test_recovery_reads_from_the_disk_what_was_to_be_on_it(
    open_log: Open, batch: Batch, watched: WatchedFiles, options: dict[str, Any], is_forgotten: bool
) -> None:
    log = open_log(options)
    log.append_unsynced(ProducedBatches(batch(), log.config))
    log.release()
    log = open_log(options, files=watched)
    assert watched.forgotten == ["00000000000000000000.log"] * is_forgotten
    assert log.log_end_offset == 1


def test_a_truncation_is_on_the_disk_when_it_ends(open_log: Open, batch: Batch, watched: WatchedFiles) -> None:
    log = open_log(files=watched)
    log.hold_watermark(0)
    for _ in range(3):
        log.append(batch())
    watched.syncs.clear()
    log.truncate_to(2)
    assert f"{0:020}.log" in watched.syncs


def test_an_epoch_that_could_not_be_written_down_is_not_believed(
    open_log: Open, batch: Batch, disk: Any, tmp_path: Path
) -> None:
    log = open_log(files=disk)
    log.append(batch(), leader_epoch=1)
    disk.bytes_left = 3
    with pytest.raises(StorageError):
        log.append(batch(), leader_epoch=2)
    assert log.epochs.entries == ((1, 0),)
    disk.bytes_left = 10**6
    log.append(batch(), leader_epoch=2)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n2 1\n"


def append_until_full(log: PartitionLog, batch: Batch, epoch: int) -> int:
    """Append batches of one record until the disk is full. Return the number of acknowledged ones."""
    for number in range(100):
        try:
            log.append(batch([START + number]), leader_epoch=epoch)
        except StorageError:
            return number
    raise AssertionError("the disk was never full")


@pytest.mark.parametrize("options", [{}, SYNCED])
@pytest.mark.parametrize("was_clean", [True, False])
def test_a_disk_full_at_any_byte_loses_nothing_and_continues_once_there_is_space(
    open_log: Open, batch: Batch, disk: Any, tmp_path: Path, options: dict[str, Any], was_clean: bool
) -> None:
    # The last byte that fits may be one of a batch, an index entry, a snapshot or an epoch.
    size = len(batch())
    acknowledged = 0
    log = open_log({"segment.bytes": 3 * size, "index.interval.bytes": 0, **options}, files=disk)
    for bytes_left in range(0, 6 * size, 11):
        epoch = bytes_left // size
        disk.bytes_left = bytes_left
        acknowledged += append_until_full(log, batch, epoch)
        assert log.log_end_offset == log.high_watermark == acknowledged
        disk.bytes_left = 2**40
        log.append(batch([START]), leader_epoch=epoch)
        acknowledged += 1
    if was_clean:
        log.close()
    else:
        log.release()
    log = open_log({"segment.bytes": 3 * size}, was_clean=was_clean)
    found = []
    while len(found) < acknowledged:
        found += [header.base_offset for _, header in scan_headers(log.read(len(found), 2**20))]
    assert found == list(range(acknowledged))
    assert log.log_end_offset == acknowledged


def test_deleting_records_moves_the_start_and_frees_whole_segments(
    open_log: Open, batch: Batch, tmp_path: Path
) -> None:
    log = open_log({"segment.bytes": 2 * len(batch())})
    for _ in range(7):
        log.append(batch())
    assert log.delete_records(3) == 3
    assert (log.log_start_offset, log.first_base_offset, log.epochs.entries) == (3, 2, ((0, 3),))
    assert log.delete_records(1) == 3
    with pytest.raises(MillraceError, match=r"offset 2 of orders-3 is not in the log"):
        log.read(2, 1000)
    assert log.delete_records(7) == 7
    assert len(log.segments) == 1  # the active segment stays, whatever it contains
    assert log.append(batch()).base_offset == 7
    assert sorted(path.name[:20].lstrip("0") or "0" for path in tmp_path.glob("*.log.deleted")) == ["0", "2", "4"]


@pytest.mark.parametrize("offset", [-1, 4])
def test_records_are_deleted_only_up_to_the_high_watermark(open_log: Open, batch: Batch, offset: int) -> None:
    log = open_log(SYNCED)
    log.append(batch([START] * 3))
    log.append_unsynced(ProducedBatches(batch(), log.config))
    with pytest.raises(MillraceError, match=f"high watermark 3, not up to offset {offset}"):
        log.delete_records(offset)


@pytest.mark.parametrize(
    ("policy", "is_refused"), [("compact", True), ("compact,delete", False), ("delete", False), ("", False)]
)
def test_records_of_topics_that_are_only_compacted_stay(
    open_log: Open, batch: Batch, policy: str, is_refused: bool
) -> None:
    log = open_log({"cleanup.policy": policy})
    log.append(batch())
    if is_refused:
        with pytest.raises(MillraceError, match=r"cleanup.policy is compact: write tombstones"):
            log.delete_records(1)
    else:
        assert log.delete_records(1) == 1
