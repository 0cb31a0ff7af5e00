"""Tests of the choice of reads for the event loop."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.errors import CorruptBatchError
from millrace.records import Record
from millrace.records.message_set import build_entries
from millrace_broker.log import PartitionLog
from millrace_broker.log.files import OsFile, OsFiles

MEBIBYTE = 1024 * 1024


def _can_tell(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError as error:
        return error.errno != errno.EOPNOTSUPP
    finally:
        os.close(descriptor)
    return True


def test_a_file_is_cached_until_its_pages_are_dropped(tmp_path: Path) -> None:
    files = OsFiles()
    path = tmp_path / "00000000000000000000.log"
    file = files.open(path, create=True)
    file.write(0, [bytes(MEBIBYTE)])
    if not _can_tell(path):
        pytest.skip("this file system cannot tell whether pages are cached")
    assert file.is_cached(0, MEBIBYTE)
    assert file.is_cached(MEBIBYTE - 1, 1)
    assert file.is_cached(MEBIBYTE // 2, MEBIBYTE), "a read that goes beyond the end"
    file.sync()
    files.forget_cached(path)
    assert not file.is_cached(0, MEBIBYTE)
    file.read(0, 1)
    assert not file.is_cached(0, MEBIBYTE), "the end is not cached"
    file.close()


def test_a_file_system_that_cannot_tell_counts_as_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFiles().open(tmp_path / "00000000000000000000.log", create=True)
    file.write(0, [bytes(100)])

    def refuse(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", refuse)
    assert not file.is_cached(0, 100)
    file.close()


def test_the_event_loop_reads_no_batch_that_is_larger_than_the_limit(
    open_log: Callable[..., PartitionLog], batch: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OsFile, "is_cached", lambda file, position, size_bytes: True)
    log = open_log()
    records = batch([1, 2, 3])
    log.append(records)
    log.append(records)
    for offset in (0, 2, 3, 5):
        assert log.segment_of(offset).is_cached(offset, len(records))
        assert not log.segment_of(offset).is_cached(offset, len(records) - 1), "a read returns the first batch whole"
    assert not log.segment_of(6).is_cached(6, len(records)), "no record"
    log.close()


@pytest.mark.parametrize("magic", [0, 1])
def test_the_event_loop_converts_no_messages_of_old_formats(
    tmp_path: Path, open_log: Callable[..., PartitionLog], monkeypatch: pytest.MonkeyPatch, magic: int
) -> None:
    monkeypatch.setattr(OsFile, "is_cached", lambda file, position, size_bytes: True)
    data = build_entries([Record(value=b"v", timestamp_ms=5, offset=number) for number in range(3)], magic=magic)
    (tmp_path / "00000000000000000000.log").write_bytes(data)
    log = open_log()
    assert log.read(0, len(data)), "the log has records"
    assert not log.segment_of(0).is_cached(0, len(data))
    log.close()


def test_a_damaged_batch_is_left_to_the_read(
    tmp_path: Path, open_log: Callable[..., PartitionLog], batch: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OsFile, "is_cached", lambda file, position, size_bytes: True)
    log = open_log()
    log.append(batch([1, 2, 3]))
    log.append(batch([1, 2, 3]))
    path = tmp_path / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[16] = 99  # the magic of the first batch
    path.write_bytes(content)
    assert not log.segment_of(0).is_cached(0, len(content))
    with pytest.raises(CorruptBatchError):
        log.read(0, len(content))
    log.close()
