"""Tests of the syncs of a log.

The syncs happen by time, on request, and at a clean stop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace_broker.log import PartitionLog, ProducedBatches

Open = Callable[..., PartitionLog]
Batch = Callable[..., bytes]
START = 1_700_000_000_000


def names(directory: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.endswith(suffix))


def test_release_of_the_watermark_lets_it_follow_the_end(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.hold_watermark(0)
    log.append(batch([START] * 3))
    assert log.high_watermark == 0
    log.release_watermark()
    assert log.high_watermark == 3
    log.append(batch())
    assert log.high_watermark == 4


@pytest.mark.parametrize(("waited_ms", "is_flushed"), [(1999, False), (2000, True), (2001, True)])
def test_flush_ms_counts_from_the_first_append_after_a_flush(
    open_log: Open, batch: Batch, clock: Any, waited_ms: int, is_flushed: bool
) -> None:
    log = open_log({"flush.ms": 2000})
    log.append(batch())
    log.flush()
    clock.advance_ms(5000)
    log.tick(producer_expiration_ms=10**9)
    log.append(batch())
    clock.advance_ms(1000)
    log.append(batch())
    clock.advance_ms(waited_ms - 1000)
    log.tick(producer_expiration_ms=10**9)
    assert log.recovery_point == (3 if is_flushed else 1)


def test_only_records_that_are_not_synced_wait_for_a_sync(open_log: Open, batch: Batch) -> None:
    log = open_log({"flush.before.ack": True})
    results = []
    for number in range(3):
        sent = batch([START], producer_id=9, producer_epoch=0, base_sequence=number)
        results.append(log.append_unsynced(ProducedBatches(sent, log.config)))
        if number == 0:
            log.flush()
    assert [result is not None and log.must_sync(result) for result in results] == [False, True, True]
    log.flush(2)
    assert [result is not None and log.must_sync(result) for result in results] == [False, False, False]


@pytest.mark.parametrize(("unsynced", "must_sync"), [(2, False), (3, True), (4, True)])
def test_flush_messages_counts_all_records_that_are_not_synced(
    open_log: Open, batch: Batch, unsynced: int, must_sync: bool
) -> None:
    log = open_log({"flush.messages": 3})
    log.append(batch([START] * 3))
    assert log.recovery_point == 3
    result = log.append_unsynced(ProducedBatches(batch([START] * unsynced), log.config))
    assert result is not None
    assert log.must_sync(result) is must_sync


def test_a_flush_up_to_synced_records_syncs_no_others(open_log: Open, batch: Batch) -> None:
    log = open_log()
    log.append(batch([START] * 2))
    log.flush()
    log.append(batch())
    log.flush(1)
    log.flush(2)
    assert log.recovery_point == 2
    log.flush(3)
    assert log.recovery_point == 3


def test_a_clean_stop_leaves_the_snapshots_of_the_segments_and_of_the_end(
    open_log: Open, batch: Batch, tmp_path: Path
) -> None:
    log = open_log({"segment.bytes": 2 * len(batch(producer_id=9, producer_epoch=0, base_sequence=0))})
    for number in range(5):
        log.append(batch(producer_id=9, producer_epoch=0, base_sequence=number))
    (tmp_path / f"{1:020d}.snapshot").write_bytes((tmp_path / f"{2:020d}.snapshot").read_bytes())
    log.close()
    snapshots = [f"{base:020d}.snapshot" for base in (2, 4, 5)]
    assert names(tmp_path, ".snapshot") == snapshots
    open_log(was_clean=True)
    assert names(tmp_path, ".snapshot") == snapshots
