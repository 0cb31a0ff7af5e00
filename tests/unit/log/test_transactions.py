"""Tests of transactions in a log.

The tests cover open and aborted transactions, also after a stop or a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.errors import (
    CorruptBatchError,
    InvalidProducerEpochError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    StorageError,
    TransactionCoordinatorFencedError,
)
from millrace.records import ControlType, EndTransactionMarker, scan_headers
from millrace.segments.transaction_index import AbortedTransaction
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.log_offsets import LogOffsets

from .conftest import FailingFiles, ManualClock

Open = Callable[..., PartitionLog]
Batch = Callable[..., bytes]
NOW_MS = 1_700_000_000_000
FIRST = "00000000000000000000"
COMMIT = EndTransactionMarker(type=ControlType.COMMIT, coordinator_epoch=0)
ABORT = EndTransactionMarker(type=ControlType.ABORT, coordinator_epoch=0)


class Producer:
    def __init__(self, log: PartitionLog, batch: Batch, producer_id: int) -> None:
        self.log, self.batch, self.id, self.sequence = log, batch, producer_id, 0

    def send(self, count: int = 1) -> int:
        records = self.batch(
            range(NOW_MS, NOW_MS + count),
            producer_id=self.id,
            producer_epoch=0,
            base_sequence=self.sequence,
            is_transactional=True,
        )
        self.sequence += count
        return self.log.append(records, in_transaction=True).base_offset

    def end(self, marker: EndTransactionMarker) -> int:
        result = self.log.append_end_marker_unsynced(self.id, 0, marker)
        assert result is not None
        return result.base_offset


def aborted(producer_id: int, first: int, last: int, stable: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id=producer_id, first_offset=first, last_offset=last, last_stable_offset=stable)


def test_the_last_stable_offset_waits_for_the_first_open_transaction(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch([1]))
    one, two = Producer(log, batch, 1), Producer(log, batch, 2)
    assert log.last_stable_offset == 1
    one.send()
    two.send(2)
    log.append(batch([1]))
    assert (log.last_stable_offset, log.log_end_offset) == (1, 5)
    one.end(COMMIT)
    assert log.last_stable_offset == 2
    two.end(ABORT)
    assert log.last_stable_offset == log.log_end_offset == 7
    assert log.aborted_transactions(0, 7) == [aborted(2, 2, 6, 7)]
    assert log.aborted_transactions(0, 2) == []


def test_the_last_stable_offset_is_not_below_the_log_start(open_log: Open, batch: Batch) -> None:
    log = open_log()
    Producer(log, batch, 1).send(3)
    log.delete_records(2)
    assert (log.log_start_offset, log.last_stable_offset) == (2, 2)
    assert log.read(2, 1000, end_offset=log.last_stable_offset) == b""


def test_aborted_transactions_are_those_of_the_batches_that_were_read(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch([NOW_MS] * 2))
    one, two = Producer(log, batch, 1), Producer(log, batch, 2)
    one.send()
    one.end(ABORT)
    two.send()
    two.end(ABORT)
    first, second = aborted(1, 2, 3, 4), aborted(2, 4, 5, 6)
    whole = log.read(0, 10_000)
    ends = [*[at for at, _ in scan_headers(whole)][1:], len(whole)]
    found = [log.aborted_within(0, whole[:end]) for end in ends]
    assert found == [[], [first], [first], [first, second], [first, second]]
    assert log.aborted_within(4, whole[ends[2] :]) == [second]
    assert log.aborted_within(0, b"") == []
    assert log.aborted_within(3, b"") == []


@pytest.mark.parametrize("removal", ["retention", "delete_records"])
def test_aborted_transactions_of_deleted_batches_are_refused(
    open_log: Open, batch: Batch, clock: ManualClock, removal: str
) -> None:
    log = open_log({"retention.ms": 1000})
    producer = Producer(log, batch, 1)
    producer.send()
    producer.end(ABORT)
    log.roll()
    log.append(batch([clock.now_ms() + 100_000]))
    records = log.read(0, 10_000)
    assert log.aborted_within(0, records) == [aborted(1, 0, 1, 2)]
    if removal == "retention":
        clock.advance_ms(100_000)
        assert log.apply_retention() == 1
    else:
        log.delete_records(2)
    with pytest.raises(OffsetOutOfRangeError):
        log.aborted_within(0, records)
    assert log.aborted_transactions(2, 3) == []


def test_transactions_stay_undecided_until_their_own_marker_is_readable(open_log: Open, batch: Batch) -> None:
    log = open_log()
    one, two = Producer(log, batch, 1), Producer(log, batch, 2)
    log.hold_watermark(0)
    one.send()
    one.end(COMMIT)
    two.send()
    two.end(COMMIT)
    stable = []
    for watermark in range(5):
        log.raise_watermark(watermark)
        stable.append(log.last_stable_offset)
    assert stable == [0, 0, 2, 2, 4]


def test_a_watermark_that_goes_back_over_no_marker_leaves_no_transaction_undecided(
    open_log: Open, batch: Batch
) -> None:
    log = open_log()
    log.append(batch([NOW_MS], producer_id=5, producer_epoch=0, base_sequence=0))
    log.hold_watermark(0)
    producer = Producer(log, batch, 1)
    producer.send()
    producer.end(COMMIT)
    assert log.last_stable_offset == 0
    log.raise_watermark(2)
    assert log.last_stable_offset == 1
    log.raise_watermark(3)
    assert log.last_stable_offset == 3


def test_truncation_of_a_transaction_decides_what_comes_after_it(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch([1]))
    producer = Producer(log, batch, 1)
    producer.send()
    log.truncate_to(1)
    log.append(batch([1, 1]))
    assert (log.last_stable_offset, log.log_end_offset) == (3, 3)
    producer.sequence = 0
    producer.send()
    log.begin_at(10)
    log.append(batch([1]))
    assert (log.last_stable_offset, log.log_end_offset) == (11, 11)


def test_truncation_forgets_a_transaction_that_only_waited_for_its_marker_to_be_readable(
    open_log: Open, batch: Batch
) -> None:
    log = open_log()
    log.append(batch([NOW_MS]))
    log.hold_watermark(1)
    producer = Producer(log, batch, 1)
    producer.send()
    producer.end(COMMIT)
    log.truncate_to(1)
    log.append(batch([NOW_MS]))
    log.raise_watermark(2)
    assert log.last_stable_offset == 2


def test_truncation_of_a_marker_opens_its_transaction_again(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch([1]))
    producer = Producer(log, batch, 1)
    producer.send()
    marker = producer.end(ABORT)
    log.append(batch([1]))
    assert log.last_stable_offset == 4
    log.truncate_to(marker)
    assert (log.last_stable_offset, log.aborted_transactions(0, 10)) == (1, [])
    assert producer.end(COMMIT) == marker
    assert (log.last_stable_offset, log.aborted_transactions(0, 10)) == (3, [])


def test_a_log_that_is_opened_again_knows_what_is_decided_behind_its_watermark(open_log: Open, batch: Batch) -> None:
    small = {"segment.bytes": 400}
    log = open_log(small)
    producers = [Producer(log, batch, number) for number in (1, 2, 3)]
    began: dict[int, int] = {}
    ended: list[tuple[int, int]] = []
    for step in range(40):
        who = step * 7 % 3
        if step % 5 == 4 and who in began:
            ended.append((began.pop(who), log.log_end_offset))
            producers[who].end(COMMIT if step % 2 else ABORT)
        else:
            began.setdefault(who, log.log_end_offset)
            producers[who].send()
    assert len(log.segments) > 3
    assert len(ended) > 3
    log.close()
    for watermark in range(log.log_end_offset + 1):
        again = open_log(small)
        again.hold_watermark(watermark)
        undecided = [first for first, marker in ended if marker >= watermark]
        assert again.last_stable_offset == min(watermark, *undecided, *began.values()), watermark
        again.close()


def test_that_segments_have_no_aborted_transactions_is_looked_up_once(
    open_log: Open, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    for _ in range(5):
        log.append(batch([1]))
        log.roll()
    read: list[str] = []
    read_bytes = OsFiles.read_bytes

    def counted(files: OsFiles, path: Path) -> bytes | None:
        read.append(path.suffix)
        return read_bytes(files, path)

    monkeypatch.setattr(OsFiles, "read_bytes", counted)
    assert log.aborted_transactions(0, 1) == []
    assert read.count(".txnindex") == len(log.segments)
    read.clear()
    producer = Producer(log, batch, 1)
    producer.send()
    producer.end(ABORT)
    assert log.aborted_transactions(0, 7) == [aborted(1, 5, 6, 7)]
    assert read.count(".txnindex") == 1, "only the active segment"
    log.roll()
    assert log.aborted_transactions(0, 7) == [aborted(1, 5, 6, 7)]


def test_a_batch_of_a_transaction_that_overtook_the_first_one_is_refused(open_log: Open, batch: Batch) -> None:
    log = open_log()
    ahead = Producer(log, batch, 1)
    ahead.sequence = 3
    log.expect(1, 0, 3)
    log.expect(1, 0, 0)
    with pytest.raises(OutOfOrderSequenceError, match="sequence number 3 arrived before sequence number 0"):
        ahead.send()
    first = Producer(log, batch, 1)
    first.send(3)
    first.send()
    first.end(COMMIT)


def _is_open(log: PartitionLog, epoch: int) -> bool:
    entry = log.find_producer(1)
    return entry is not None and entry.has_open_transaction(epoch)


def test_a_late_marker_does_not_end_the_next_transaction(open_log: Open, batch: Batch) -> None:
    log = open_log()
    producer = Producer(log, batch, 1)
    producer.send()
    log.append_end_marker_unsynced(1, 1, COMMIT, is_epoch_raised=True)
    assert not _is_open(log, 0)
    log.append_end_marker_unsynced(1, 1, COMMIT, is_epoch_raised=True)  # a second call does no harm
    records = batch([NOW_MS], producer_id=1, producer_epoch=1, base_sequence=0, is_transactional=True)
    log.append(records, in_transaction=True)
    assert _is_open(log, 1)
    with pytest.raises(InvalidProducerEpochError, match="comes late"):
        log.append_end_marker_unsynced(1, 1, COMMIT, is_epoch_raised=True)
    assert _is_open(log, 1)
    log.append_end_marker_unsynced(1, 2, ABORT, is_epoch_raised=True)
    assert log.last_stable_offset == log.log_end_offset


def test_a_transaction_is_undecided_until_its_marker_may_be_read(open_log: Open, batch: Batch) -> None:
    log = open_log({"flush.before.ack": True})
    producer = Producer(log, batch, 1)
    producer.send()
    log.append_end_marker_unsynced(1, 0, ABORT)
    assert (log.high_watermark, log.log_end_offset, log.last_stable_offset) == (1, 2, 0)
    log.flush()
    assert log.last_stable_offset == 2


@pytest.mark.parametrize("was_clean", [True, False])
def test_open_and_aborted_transactions_are_known_after_a_restart(
    open_log: Open, batch: Batch, tmp_path: Path, was_clean: bool
) -> None:
    options = {"segment.bytes": 700}
    log = open_log(options)
    producers = [Producer(log, batch, n) for n in range(3)]
    for n in range(12):
        producer = producers[n % 3]
        producer.send(2)
        producer.end(ABORT if n % 2 else COMMIT)
    still_open = producers[0].send()
    producers[1].send()
    expected = log.aborted_transactions(0, log.log_end_offset)
    assert len(expected) == 6
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.txnindex")}
    assert len(files) > 1
    if was_clean:
        log.close()
    else:
        log.release()
        for number, path in enumerate(sorted(tmp_path.glob("*.txnindex"))):
            path.unlink() if number % 2 else path.write_bytes(b"noise")
    log = open_log(options, was_clean=was_clean)
    assert log.last_stable_offset == still_open
    assert log.aborted_transactions(0, log.log_end_offset) == expected
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.txnindex")} == files


def test_markers_of_the_past_are_refused(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append_end_marker_unsynced(1, 3, EndTransactionMarker(type=ControlType.COMMIT, coordinator_epoch=5))
    with pytest.raises(InvalidProducerEpochError):
        log.append_end_marker_unsynced(1, 2, COMMIT)
    with pytest.raises(TransactionCoordinatorFencedError):
        log.append_end_marker_unsynced(1, 3, EndTransactionMarker(type=ControlType.ABORT, coordinator_epoch=4))
    assert log.log_end_offset == 1
    with pytest.raises(InvalidRequestError, match="transactional"):
        log.append(batch([1], producer_id=1, producer_epoch=3, base_sequence=0, is_transactional=True))


def test_a_transaction_is_undecided_as_soon_as_its_first_batch_is_readable(
    open_log: Open, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    log.append(batch([NOW_MS]))
    published, advance_end = [], LogOffsets.advance_end

    def watched(offsets: LogOffsets, end: int) -> None:
        advance_end(offsets, end)
        published.append((log.high_watermark, log.last_stable_offset))

    monkeypatch.setattr(LogOffsets, "advance_end", watched)
    Producer(log, batch, 1).send()
    Producer(log, batch, 2).send()
    assert published == [(2, 1), (3, 1)]


def test_a_first_batch_that_could_not_be_written_opens_no_transaction(
    open_log: Open, batch: Batch, disk: FailingFiles
) -> None:
    log = open_log(files=disk)
    log.append(batch([NOW_MS]))
    disk.bytes_left = 10
    with pytest.raises(StorageError):
        Producer(log, batch, 1).send()
    disk.bytes_left = 2**40
    log.append(batch([NOW_MS]))
    assert (log.log_end_offset, log.last_stable_offset) == (2, 2)


def test_a_marker_that_could_not_be_written_leaves_no_trace(open_log: Open, batch: Batch, disk: object) -> None:
    log = open_log(files=disk)
    one, two = Producer(log, batch, 1), Producer(log, batch, 2)
    one.send()
    two.send()
    one.end(ABORT)
    before = log.aborted_transactions(0, 10)
    for bytes_left in (10, 80, 100):  # for a part of the marker, all of it, and a part of the index entry
        disk.bytes_left = bytes_left  # type: ignore[attr-defined]
        with pytest.raises(StorageError):
            two.end(ABORT)
        assert (log.log_end_offset, log.last_stable_offset) == (3, 1)
        assert log.aborted_transactions(0, 10) == before
    disk.bytes_left = 2**40  # type: ignore[attr-defined]
    two.end(ABORT)
    assert log.aborted_transactions(0, 10) == [*before, aborted(2, 1, 3, 4)]
    assert [header.base_offset for _, header in scan_headers(log.read(0, 10_000))] == [0, 1, 2, 3]


def test_any_bit_that_flips_in_an_index_is_noticed(open_log: Open, batch: Batch, tmp_path: Path) -> None:
    log = open_log()
    for producer_id in (1, 2):
        producer = Producer(log, batch, producer_id)
        producer.send(2)
        producer.end(ABORT)
    expected = log.aborted_transactions(0, 6)
    log.close()
    path = tmp_path / f"{FIRST}.txnindex"
    sound = path.read_bytes()
    for bit in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        again = open_log(was_clean=True)
        try:
            found = again.aborted_transactions(0, 6)
        except CorruptBatchError:
            continue
        # An entry's last stable offset only says where the search stops, and is after the entry's transaction.
        assert [(t.producer_id, t.first_offset, t.last_offset) for t in found] == [
            (t.producer_id, t.first_offset, t.last_offset) for t in expected
        ]


steps = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["send", "commit", "abort", "plain", "roll", "restart", "crash"])),
    max_size=40,
)


@settings(suppress_health_check=list(HealthCheck), max_examples=60, deadline=None)
@given(steps=steps)
def test_any_steps_leave_the_transactions_of_a_plain_list(
    open_log: Open, batch: Batch, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    directory = tmp_path_factory.mktemp("log")
    options = {"segment.bytes": 500}
    log = open_log(options, directory=directory)
    producers = [Producer(log, batch, n) for n in range(4)]
    began: dict[int, int] = {}
    over: list[tuple[int, int, int]] = []
    for number, what in steps:
        producer = producers[number]
        match what:
            case "send":
                began.setdefault(number, producer.send())
            case "commit" | "abort":
                offset = producer.end(COMMIT if what == "commit" else ABORT)
                first = began.pop(number, None)
                if what == "abort" and first is not None:
                    over.append((number, first, offset))
            case "plain":
                log.append(batch([NOW_MS]))
            case "roll":
                log.roll()
            case _:
                log.close() if what == "restart" else log.release()
                log = open_log(options, directory=directory, was_clean=what == "restart")
                for each in producers:
                    each.log = log
        assert log.last_stable_offset == min(began.values(), default=log.log_end_offset)
        found = log.aborted_transactions(0, log.log_end_offset)
        assert [(t.producer_id, t.first_offset, t.last_offset) for t in found] == over
