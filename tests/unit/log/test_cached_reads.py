"""Tests of the question whether a read would wait for a disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from millrace_broker.log.files import OsFiles

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
