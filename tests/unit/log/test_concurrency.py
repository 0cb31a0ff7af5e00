"""Tests of reads concurrent with appends, rolls and retention.

Readers get whole batches, and errors only for offsets that are gone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from millrace.errors import OffsetOutOfRangeError
from millrace.records import scan_headers
from millrace.segments import map_extent
from millrace_broker.log import PartitionLog

APPENDS = 1500


def test_readers_beside_a_writer_and_retention_get_the_appended_records(
    open_log: Callable[..., PartitionLog], batch: Callable[..., bytes]
) -> None:
    options = {
        "segment.bytes": 4000,
        "index.interval.bytes": 100,
        "retention.bytes": 60_000,
        "retention.ms": -1,
        "file.delete.delay.ms": 0,
    }
    log = open_log(options)
    log.append(batch([0, 1]))
    done = threading.Event()

    def write() -> None:
        try:
            for n in range(1, APPENDS):
                log.append(batch([2 * n, 2 * n + 1]))
                if n % 100 == 0:
                    log.flush()
                    log.apply_retention()
                    log.tick(producer_expiration_ms=10**9)
        finally:
            done.set()

    def until_done(look: Callable[[], None]) -> int:
        looks = 0
        while not done.is_set():
            with contextlib.suppress(OffsetOutOfRangeError):  # retention deleted the offset before the read
                look()
            looks += 1
        return looks

    def read_newest() -> None:
        end = log.high_watermark
        data = log.read(max(end - 5, log.log_start_offset), 10_000, end_offset=end)
        assert [header.base_offset % 2 for _, header in scan_headers(data)] == [0] * len(list(scan_headers(data)))
        assert data

    def look_up() -> None:
        end = log.high_watermark
        found = log.offset_for_time(end - 1)
        assert found == (end - 1, end - 1)
        assert log.max_timestamp_offset() is not None

    def locate() -> None:
        end = log.high_watermark
        for extent in log.locate(max(end - 50, log.log_start_offset), end, 500):
            data = map_extent(extent.path, extent.start_position, extent.end_position).to_pybytes()
            offsets = [offset for _, h in scan_headers(data) for offset in range(h.base_offset, h.next_offset)]
            assert offsets[0] <= extent.start_offset
            assert offsets[-1] >= extent.end_offset - 1

    with ThreadPoolExecutor() as pool:
        writer = pool.submit(write)
        readers = [pool.submit(until_done, look) for look in (read_newest, look_up, locate)]
        writer.result()
        assert all(reader.result() > 0 for reader in readers)
    assert log.log_end_offset == 2 * APPENDS
