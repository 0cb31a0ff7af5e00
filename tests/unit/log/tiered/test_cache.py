"""Tests of the bound on the memory for remote segments."""

from __future__ import annotations

from millrace_broker.log.tiered.cache import RemoteCache


class Segment:
    """A segment that holds 10 bytes, until it is released. A reader may use it."""

    def __init__(self) -> None:
        self.is_used = self.is_released = False

    def held_bytes(self) -> int:
        return 10

    def try_release(self) -> bool:
        self.is_released = not self.is_used
        return self.is_released


def test_a_smaller_cache_releases_what_was_used_least_recently() -> None:
    cache, segments = RemoteCache(100), [Segment() for _ in range(6)]
    for segment in segments:
        cache.opened(segment)
    segments[1].is_used = True
    cache.resize(30)
    assert [segment.is_released for segment in segments] == [True, False, True, False, False, False]
    assert cache.held_bytes == 40, "a reader uses one"
    cache.resize(100)
    for segment in segments:
        cache.opened(segment)
    assert cache.held_bytes == 60
