"""A partition of many small segments, with several kinds of batches.

A broker leaves it so after a clean stop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from millrace.config.topic import TopicConfig
from millrace.records import Record, build_columnar_batch, build_rows_batch
from millrace.segments.names import parse_partition_directory_name
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.checkpoints import RECOVERY_POINTS, read_offsets, write_offsets
from millrace_broker.log.partition_metadata import write_topic_id
from millrace_broker.runtime.clock import SystemClock

START_MS = 1_700_000_000_000
BATCHES = 24


def batch(number: int) -> bytes:
    """Build a batch of five records, as rows or columns."""
    values = [b"%d-%d" % (number, each) + b"." * 20 for each in range(5)]
    if number % 3 == 0:
        columns = pa.record_batch({"value": pa.array(values, pa.binary())})
        return bytes(build_columnar_batch(columns, timestamps_ms=START_MS + number))
    return build_rows_batch([Record(key=b"k", value=value, timestamp_ms=START_MS + number) for value in values])


@pytest.fixture
def sound(tmp_path: Path) -> Callable[..., Path]:
    """Create a partition directory of that many batches of five records, in segments of 1,500 bytes."""

    def make(name: str = "orders-0", batches: int = BATCHES) -> Path:
        directory = tmp_path / "data" / name
        directory.mkdir(parents=True)
        write_topic_id(OsFiles(), directory, UUID(int=7))
        config = {"segment.bytes": 1500, "index.interval.bytes": 300, "retention.ms": -1}
        log = PartitionLog(
            topic="orders",
            topic_id=UUID(int=7),
            partition=0,
            directory=directory,
            config=TopicConfig.load(config),
            files=OsFiles(),
            clock=SystemClock(),
            was_clean=True,
        )
        for number in range(batches):
            log.append(batch(number), leader_epoch=number // 10)
        log.close()
        key = parse_partition_directory_name(name)
        checkpoint = directory.parent / RECOVERY_POINTS
        write_offsets(OsFiles(), checkpoint, read_offsets(OsFiles(), checkpoint) | {key: log.recovery_point})
        return directory

    return make
