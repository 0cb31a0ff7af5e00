from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest

from millrace.errors import OffsetsLostError, StorageError
from millrace.segments import map_extent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(random.Random(1).randbytes(20_000))
    return path


@pytest.mark.parametrize(("start", "end"), [(0, 20_000), (1, 2), (4095, 4097), (4096, 8192), (8000, 20_000), (7, 7)])
def test_maps_exactly_the_extent(path: Path, start: int, end: int) -> None:
    assert map_extent(path, start, end).to_pybytes() == path.read_bytes()[start:end]


def test_bytes_stay_after_the_file_is_deleted(path: Path) -> None:
    expected = path.read_bytes()[5000:6000]
    buffer = map_extent(path, 4000, 20_000).slice(1000, 1000)
    path.unlink()
    gc.collect()
    assert buffer.to_pybytes() == expected


def test_buffer_is_read_only(path: Path) -> None:
    assert not map_extent(path, 0, 100).is_mutable


def test_never_maps_beyond_the_end(path: Path) -> None:
    with pytest.raises(StorageError, match="has 20000 bytes, wanted those up to 20001"):
        map_extent(path, 0, 20_001)


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OffsetsLostError, match=r"was removed .* ask the broker"):
        map_extent(tmp_path / "nothing.log", 0, 1)


def test_a_directory_cannot_be_mapped(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot map .*: Is a directory"):
        map_extent(tmp_path, 0, 1)


@pytest.mark.parametrize(("start", "end"), [(5, 4), (-1, 4), (-1, -1)])
def test_an_impossible_extent_is_refused(path: Path, start: int, end: int) -> None:
    with pytest.raises(StorageError, match="no extent"):
        map_extent(path, start, end)
