"""Tests of ranges of remote objects.

Few fetches are needed, and the cached bytes are bounded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import RemoteStorageError
from millrace_broker.log import PartitionLog
from millrace_broker.log.remote_log_manager import RemoteLogManager
from millrace_broker.log.tiered.cache import RemoteCache
from millrace_broker.log.tiered.remote_segment import RANGE_BYTES, RangedFile

CONTENT = random.Random(3).randbytes(3 * 2**20)


class Counted:
    """An object in memory that counts its reads."""

    def __init__(self, data: bytes = CONTENT) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def read(self, position: int, size_bytes: int) -> bytes:
        self.reads.append((position, size_bytes))
        return self.data[position : position + size_bytes]

    def size_bytes(self) -> int:
        return len(self.data)


@given(st.lists(st.tuples(st.integers(0, len(CONTENT)), st.integers(0, 300_000)), max_size=20))
def test_ranges_that_are_read_in_any_order_have_their_bytes(ranges: list[tuple[int, int]]) -> None:
    file = RangedFile(Counted(), len(CONTENT), "here")
    for position, size_bytes in ranges:
        assert file.read(position, size_bytes) == CONTENT[position : position + size_bytes]


def test_reading_on_fetches_more_at_once() -> None:
    remote = Counted()
    file = RangedFile(remote, len(CONTENT), "here")
    for position in range(0, len(CONTENT), 4096):
        assert file.read(position, 61) == CONTENT[position : position + 61]
    assert len(remote.reads) < 8
    assert remote.reads[0] == (0, RANGE_BYTES)


def test_an_object_shorter_than_listed_is_reported() -> None:
    file = RangedFile(Counted(b"123"), 10, "s3://there")
    with pytest.raises(RemoteStorageError, match="s3://there ends at 3"):
        file.read(0, 10)


class Holder:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_busy = False

    def held_bytes(self) -> int:
        return self.size_bytes

    def try_release(self) -> bool:
        if not self.is_busy:
            self.size_bytes = 0
        return not self.is_busy


def test_the_cache_lets_go_of_what_was_used_longest_ago() -> None:
    cache = RemoteCache(bytes_max=100)
    first, second, third = Holder(40), Holder(40), Holder(40)
    for holder in (first, second, first, third):
        cache.opened(holder)
    assert (first.size_bytes, second.size_bytes, third.size_bytes) == (40, 0, 40)
    assert cache.held_bytes == 80
    cache.closed(first)
    assert cache.held_bytes == 40


def test_an_entry_in_use_is_evicted_later() -> None:
    cache = RemoteCache(bytes_max=50)
    busy, other = Holder(40), Holder(40)
    busy.is_busy = True
    cache.opened(busy)
    cache.opened(other)
    assert (busy.size_bytes, cache.held_bytes) == (40, 80)
    busy.is_busy = False
    cache.opened(other)
    cache.opened(other)
    assert cache.held_bytes <= 80


def test_a_fetch_is_one_round_trip_once_the_index_is_there(
    tiered_log: Callable[..., PartitionLog],
    manager: RemoteLogManager,
    settle: Callable[[RemoteLogManager], None],
    store: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = tiered_log(segments=1, local_retention_bytes="1")
    settle(manager)
    log.apply_retention()
    log.read(0, 10)
    assert log.remote is not None
    (segment,) = log.remote.segments
    file = segment.file()
    assert isinstance(file, RangedFile)
    file.forget()
    fetched: list[int] = []
    fetch = file._fetch
    monkeypatch.setattr(file, "_fetch", lambda position, size: fetched.append(position) or fetch(position, size))
    assert log.read(3, 1000)
    assert fetched == [0]
    assert manager.statistics().cached_bytes > 0


def test_memory_stays_within_the_bound(
    tiered_log: Callable[..., PartitionLog],
    make_manager: Callable[..., RemoteLogManager],
    settle: Callable[[RemoteLogManager], None],
    remote_directory: Path,
) -> None:
    log = tiered_log(segments=20, is_attached=False, local_retention_bytes="1")
    manager = make_manager(cache_bytes_max=1500)
    manager.attach(log)
    settle(manager)
    log.apply_retention()
    for offset in range(0, 120, 3):
        assert log.read(offset, 1000)
        assert manager.statistics().cached_bytes <= 1500 + 1000
    assert log.remote is not None
    assert sum(segment.held_bytes() for segment in log.remote.segments) <= 2500
