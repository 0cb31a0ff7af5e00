"""Tests of reads and look-ups during deletions.

The tests also cover reads that find damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import CorruptBatchError, OffsetOutOfRangeError
from millrace_broker.log import OsFiles, PartitionLog
from millrace_broker.log.files import OsFile

Open = Callable[..., PartitionLog]
Batch = Callable[..., bytes]
START = 1_700_000_000_000


class VanishingFiles(OsFiles):
    """Files of which one is deleted just before its opening.

    In place of one opening they call ``instead``, and report a missing file.
    """

    def __init__(self) -> None:
        self.instead: Callable[[], object] | None = None

    def open_read_only(self, path: Path) -> OsFile | None:
        call, self.instead = self.instead, None
        if call is None:
            return super().open_read_only(path)
        call()
        return None


def test_a_read_continues_when_its_segment_is_deleted(open_log: Open, batch: Batch) -> None:
    files = VanishingFiles()
    log = open_log({"segment.bytes": 2 * len(batch())}, files=files)

    def read_while(delete: Callable[[], object] | None, read: Callable[[], Any]) -> Any:
        for segment in log.segments[:-1]:
            segment.release()
        files.instead = delete
        return read()

    for number in range(12):
        log.append(batch([START + number]))
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 0 .*2\.\.11"):
        read_while(lambda: log.delete_records(2), lambda: log.read(0, 100))
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 2 .*4\.\.11"):
        read_while(lambda: log.delete_records(4), lambda: log.locate(2, 12))
    assert read_while(lambda: log.delete_records(6), lambda: log.offset_for_time(START)) == (6, START + 6)
    # A truncation changes the segments too.
    assert read_while(lambda: log.truncate_to(10), lambda: log.offset_for_time(START)) == (6, START + 6)
    # Without a deletion the file is missing.
    for read in (lambda: log.read(6, 100), lambda: log.locate(6, 10), lambda: log.offset_for_time(START)):
        with pytest.raises(CorruptBatchError, match="is missing"):
            read_while(lambda: None, read)


@pytest.mark.parametrize("at", [-1, 35])
def test_look_up_by_time_notices_damage(open_log: Open, batch: Batch, tmp_path: Path, at: int) -> None:
    # A flipped bit in the largest timestamp of a batch would hide its records.
    log = open_log()
    for number in range(3):
        log.append(batch([START + number]))
    path = tmp_path / "00000000000000000000.log"
    damaged = bytearray(path.read_bytes())
    size = len(damaged) // 3
    damaged[(2 * size - 1) if at < 0 else size + at] ^= 1
    path.write_bytes(damaged)
    assert log.offset_for_time(START) == (0, START)
    with pytest.raises(CorruptBatchError):
        log.offset_for_time(START + 1)


@pytest.mark.parametrize(("time_ms", "expected"), [(START, None), (START + 1, (1, START + 5))])
def test_records_without_timestamps_may_be_as_new_as_their_file(
    open_log: Open, batch: Batch, time_ms: int, expected: tuple[int, int] | None
) -> None:
    log = open_log()
    log.append(batch([-1]))
    log.roll()
    log.append(batch([START + 5]))
    os.utime(log.segments[0].path, ns=(START * 10**6,) * 2)
    assert log.offset_for_time(time_ms) == expected
