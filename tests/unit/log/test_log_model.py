"""Model test of a log against a list of its records."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.config.topic import TopicConfig
from millrace.errors import OffsetOutOfRangeError
from millrace.records import Record, build_rows_batch, read_rows, scan_headers
from millrace.segments import map_extent
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.runtime.clock import SystemClock

OPTIONS = {"segment.bytes": 1500, "index.interval.bytes": 150, "segment.index.bytes": 64, "file.delete.delay.ms": 0}
times = st.integers(min_value=0, max_value=60)
positions = st.integers(min_value=0, max_value=10_000)


class LogModel(RuleBasedStateMachine):
    """A log. ``records`` maps each offset to its (timestamp, value); ``batches`` lists (first, last) offset."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.records: dict[int, tuple[int, bytes]] = {}
        self.batches: list[tuple[int, int]] = []
        self.start = 0
        self.end = 0
        self.sequence = 0
        self.recent: list[tuple[bytes, int]] = []
        self.config: dict[str, Any] = dict(OPTIONS)

    @initialize()
    def open_first(self) -> None:
        self.log = self.open(was_clean=True)

    def open(self, *, was_clean: bool) -> PartitionLog:
        return PartitionLog(
            topic="t",
            topic_id=UUID(int=1),
            partition=0,
            directory=self.directory,
            config=TopicConfig.load(self.config),
            files=OsFiles(),
            clock=SystemClock(),
            was_clean=was_clean,
            recovery_point=0 if was_clean else self.flushed,
            log_start_offset=self.start,
        )

    flushed = 0

    # --- changes ---------------------------------------------------------------------------------------------

    @rule(batches=st.lists(st.lists(times, min_size=1, max_size=4), min_size=1, max_size=3))
    def append(self, batches: list[list[int]]) -> None:
        built = []
        for batch in batches:
            records = [Record(key=None, value=b"%d" % (self.end + n), timestamp_ms=t) for n, t in enumerate(batch)]
            built.append(build_rows_batch(records))
            self.note(records)
        result = self.log.append(b"".join(built))
        assert result.last_offset == self.end - 1

    def note(self, records: list[Record]) -> None:
        self.batches.append((self.end, self.end + len(records) - 1))
        for record in records:
            assert record.value is not None
            self.records[self.end] = (record.timestamp_ms, record.value)
            self.end += 1

    @rule(count=st.integers(min_value=1, max_value=3), time_ms=times)
    def append_idempotent(self, count: int, time_ms: int) -> None:
        records = [Record(key=None, value=b"i%d" % n, timestamp_ms=time_ms) for n in range(count)]
        batch = build_rows_batch(records, producer_id=7, producer_epoch=1, base_sequence=self.sequence)
        result = self.log.append(batch)
        assert (result.base_offset, result.is_duplicate) == (self.end, False)
        self.recent = [*self.recent, (batch, self.end)][-5:]
        self.sequence += count
        self.note(records)

    @precondition(lambda self: self.recent)
    @rule(data=st.data())
    def append_again(self, data: st.DataObject) -> None:
        # Any of five remembered batches may be sent again at any time. After restarts and retention only the last one
        # is sure to be known.
        batch, offset = self.recent[-1]
        if self.start <= offset:
            result = self.log.append(batch)
            assert (result.base_offset, result.is_duplicate) == (offset, True)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.end

    @rule(retained=st.integers(min_value=0, max_value=4000))
    def retain(self, retained: int) -> None:
        self.log.config = TopicConfig.load(self.config | {"retention.bytes": retained})
        self.log.apply_retention()
        self.log.tick(producer_expiration_ms=10**9)
        self.flushed = max(self.flushed, self.log.recovery_point)
        assert self.log.log_start_offset >= self.start
        if retained >= 1500:
            assert self.log.size_bytes >= min(retained, sum(1 for _ in self.records)) - 1500
        self.start = self.log.log_start_offset
        self.records = {offset: record for offset, record in self.records.items() if offset >= self.start}
        self.batches = [batch for batch in self.batches if batch[1] >= self.start]

    @rule(position=positions)
    def delete_records(self, position: int) -> None:
        offset = self.start + position % (self.end - self.start + 1)
        assert self.log.delete_records(offset) == offset
        self.start = offset
        self.records = {offset: record for offset, record in self.records.items() if offset >= self.start}
        self.batches = [batch for batch in self.batches if batch[1] >= self.start]
        self.flushed = max(self.flushed, self.log.recovery_point)

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        self.log = self.open(was_clean=True)
        self.flushed = self.end

    @rule(torn=st.integers(min_value=0, max_value=200), zeros=st.integers(min_value=0, max_value=100))
    def crash_and_open(self, torn: int, zeros: int) -> None:
        """Kill the process during a write, so that part of a batch or preallocated space follows the last batch."""
        self.log.release()
        last = max(self.directory.glob("*.log"))
        unacknowledged = build_rows_batch([Record(key=None, value=b"lost" * 50, timestamp_ms=1)], base_offset=self.end)
        with last.open("ab") as file:
            file.write(unacknowledged[:torn] + bytes(zeros))
        for index in self.directory.glob("*.index"):
            if int(index.name[:20]) >= self.flushed:
                index.write_bytes(b"\xff" * 24)
        self.log = self.open(was_clean=False)
        self.flushed = self.log.recovery_point

    # --- questions -------------------------------------------------------------------------------------------

    @rule(position=positions, max_bytes=st.integers(min_value=0, max_value=600))
    def read(self, position: int, max_bytes: int) -> None:
        offset = position % (self.end + 2)
        if not self.start <= offset <= self.end:
            with pytest.raises(OffsetOutOfRangeError):
                self.log.read(offset, max_bytes)
            return
        data = self.log.read(offset, max_bytes)
        found = [(header.base_offset, header.last_offset) for _, header in scan_headers(data)]
        expected = [batch for batch in self.batches if batch[1] >= offset]
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        assert len(found) <= 1 or len(data) <= max_bytes
        self.compare(data)

    def compare(self, data: bytes) -> None:
        for position, header in scan_headers(data):
            for offset, record in enumerate(read_rows(data, position, header), start=header.base_offset):
                if offset >= self.start:
                    assert (record.timestamp_ms, record.value) == self.records[offset]

    @rule(time_ms=times)
    def look_up_time(self, time_ms: int) -> None:
        expected = next(((offset, t) for offset, (t, _) in sorted(self.records.items()) if t >= time_ms), None)
        assert self.log.offset_for_time(time_ms) == expected

    @rule()
    def look_up_largest_time(self) -> None:
        largest = max((time_ms for time_ms, _ in self.records.values()), default=None)
        found = self.log.max_timestamp_offset()
        if largest is None or (found is None and self.log.first_base_offset < self.start):
            assert found is None  # or the timestamp is of a deleted record of the first segment, as in Kafka
        else:
            assert found is not None
            assert found[1] == largest == self.records[found[0]][0]

    @rule(first=positions, second=positions, split_bytes=st.integers(min_value=0, max_value=800))
    def locate(self, first: int, second: int, split_bytes: int) -> None:
        span = self.end - self.start + 1
        start, end = sorted((self.start + first % span, self.start + second % span))
        extents = self.log.locate(start, end, split_bytes)
        assert [extent.start_offset for extent in extents] + [end] == [start] * bool(extents) + [
            extent.end_offset for extent in extents
        ] + [end] * (not extents)
        for extent in extents:
            data = map_extent(extent.path, extent.start_position, extent.end_position).to_pybytes()
            found = [(header.base_offset, header.last_offset) for _, header in scan_headers(data)]
            assert found == [b for b in self.batches if b[1] >= extent.start_offset and b[0] < extent.end_offset]
            self.compare(data)

    @invariant()
    def ends_agree(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)

    def teardown(self) -> None:
        shutil.rmtree(self.directory)


LogModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLogModel = LogModel.TestCase
