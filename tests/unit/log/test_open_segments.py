from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace_broker.log import PartitionLog
from millrace_broker.log.open_segments import OpenSegments


class Segment:
    def __init__(self, is_busy: bool = False) -> None:
        self.released = 0
        self.is_busy = is_busy

    def try_release(self) -> bool:
        self.released += not self.is_busy
        return not self.is_busy


def test_the_first_opened_segment_is_closed_first() -> None:
    segments = [Segment() for _ in range(4)]
    bound = OpenSegments(2)
    for segment in segments:
        bound.opened(segment)
        bound.opened(segment)
    assert [segment.released for segment in segments] == [1, 1, 0, 0]
    bound.closed(segments[3])
    assert len(bound) == 1


def test_a_busy_segment_is_counted_until_it_can_be_released() -> None:
    busy, *others = [Segment(is_busy=True), Segment(), Segment()]
    bound = OpenSegments(1)
    for segment in (busy, *others):
        bound.opened(segment)
    assert (busy.released, len(bound)) == (0, 2)
    busy.is_busy = False
    bound.opened(Segment())
    assert busy.released == 1


def test_a_log_of_many_segments_is_read_with_few_files(
    open_log: Callable[..., PartitionLog], batch: Callable[..., bytes]
) -> None:
    bound = OpenSegments(3)
    log = open_log({"segment.bytes": 200}, open_segments=bound)
    for n in range(30):
        log.append(batch([n]))
    assert len(log.segments) == 15
    read: list[Any] = [log.read(offset, 1) for offset in range(30) for _ in range(2)]
    assert len(set(read)) == 30
    assert len(bound) == 3


def test_a_segment_no_longer_counts_when_it_is_appended_to(
    open_log: Callable[..., PartitionLog], batch: Callable[..., bytes]
) -> None:
    bound = OpenSegments(3)
    log = open_log()
    log.append(batch([1]))
    log.close()
    log = open_log(was_clean=True, open_segments=bound)
    assert len(bound) == 1
    log.append(batch([2]))
    assert len(bound) == 0
