"""Tests of the deletion of damaged segments."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from millrace.config.topic import TopicConfig
from millrace.errors import CorruptBatchError
from millrace_broker.log import PartitionLog

Open = Callable[..., PartitionLog]
Batch = Callable[..., bytes]


def damaged_first_segment(open_log: Open, batch: Batch, clock: Any) -> PartitionLog:
    """Return a log of three segments with two batches each. The length of the second batch is damaged."""
    options = {"segment.bytes": 2 * len(batch()), "retention.ms": -1}
    log = open_log(options)
    for n in range(6):
        log.append(batch([clock.now_ms() + n]))
    log.roll()
    log.close()
    path = log.segments[0].path
    content = bytearray(path.read_bytes())
    content[len(batch()) + 11] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(clock.now_ms() * 10**6,) * 2)
    log = open_log(options, was_clean=True)
    with pytest.raises(CorruptBatchError):
        log.segments[0].largest_timestamp()
    return log


@pytest.mark.parametrize("limits", [{"retention.ms": 1000}, {"retention.bytes": 0}])
def test_retention_deletes_damaged_segments(
    open_log: Open, batch: Batch, clock: Any, limits: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    log = damaged_first_segment(open_log, batch, clock)
    log.config = TopicConfig.load(limits)
    if "retention.ms" in limits:
        clock.advance_ms(1000)
        assert log.apply_retention() == 0
        clock.advance_ms(1000)
    assert log.apply_retention() == 3
    assert "retention uses the time of a damaged file" in caplog.text


def test_records_of_damaged_segments_are_deleted(open_log: Open, batch: Batch, clock: Any) -> None:
    log = damaged_first_segment(open_log, batch, clock)
    assert log.delete_records(3) == 3
    assert [segment.base_offset for segment in log.segments] == [2, 4, 6]
    assert log.offset_for_time(0) == (3, clock.now_ms() + 3)
