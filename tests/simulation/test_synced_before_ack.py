"""Tests of power failures of a log that syncs before acknowledgements.

The power fails at every step. No acknowledged record is lost. No record returns that was deleted before the answer to
``delete_records``.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.config.topic import TopicConfig
from millrace.records import Record, build_rows_batch, read_rows, scan_headers
from millrace_broker.log import LogManager, PartitionLog

from .disk import SimulatedDisk
from .world import WorldClock

DATA = Path("/data")
APPENDS = 14
DELETED_BEFORE = 5


def open_manager(disk: SimulatedDisk, options: dict[str, Any]) -> LogManager:
    config = TopicConfig.load({"segment.bytes": 260, "segment.index.bytes": 96, "retention.ms": -1, **options})
    return LogManager.open(
        [DATA], broker_id=1, cluster_id="rivers", defaults=config, files=disk, clock=WorldClock(), recovery_threads=1
    )


def batch(number: int) -> bytes:
    value = b"%04d" % number
    return build_rows_batch([Record(key=None, value=value, timestamp_ms=1)])


def numbers(log: PartitionLog) -> dict[int, int]:
    """Return the numbers in a log by offset."""
    found: dict[int, int] = {}
    offset = log.log_start_offset
    while offset < log.high_watermark:
        records = log.read(offset, 10_000)
        for position, header in scan_headers(records):
            found[header.base_offset] = int(next(iter(read_rows(records, position, header))).value or b"")
            offset = header.next_offset
    return found


@pytest.mark.parametrize("options", [{"flush.before.ack": True}, {"flush.messages": 1}])
@pytest.mark.parametrize("run", range(8))
def test_no_acknowledged_record_is_lost_at_any_power_failure(run: int, seed: int, options: dict[str, Any]) -> None:
    choose = random.Random(seed)
    disk = SimulatedDisk(seed=seed)
    promised = {"acknowledged": 0, "start": 0, "seen": 0}
    left: list[tuple[SimulatedDisk, dict[str, int]]] = []
    manager = open_manager(disk, options)
    log = manager.create_log("orders", UUID(int=1), 0)

    def fail_here() -> None:
        promised["seen"] = max(promised["seen"], log.high_watermark)
        left.append((disk.after_power_loss(choose), dict(promised)))

    disk.on_step = fail_here
    for number in range(APPENDS):
        assert log.append(batch(number)).base_offset == number
        promised["acknowledged"] = number + 1
        if number == 9:
            promised["start"] = manager.delete_records("orders", 0, DELETED_BEFORE)
    assert promised["start"] == DELETED_BEFORE
    manager.tick()
    disk.on_step = lambda: None
    manager.close()
    assert len(left) > 50
    for after, was_promised in left:
        recovered = open_manager(after, options)
        found = recovered.get("orders", 0)
        assert found is not None
        assert found.log_start_offset >= was_promised["start"]
        assert found.high_watermark >= max(was_promised["acknowledged"], was_promised["seen"])
        assert numbers(found) == {number: number for number in range(found.log_start_offset, found.high_watermark)}
        recovered.close()
