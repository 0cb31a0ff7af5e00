"""Tests of limited backlogs and of lost tombstones.

A backlog is limited to records and bytes.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence

import pytest

from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.admission import first_bytes
from pyspark_millrace.planning.backlog import Backlog
from pyspark_millrace.planning.data_loss import LossReport
from pyspark_millrace.planning.offsets import OffsetRange
from pyspark_millrace.planning.splits import Extent
from pyspark_millrace.planning.tombstones import late_for_tombstones

A, B, C = (PartitionKey("t", partition) for partition in range(3))
IDS = {"t": uuid.UUID(int=1)}


def backlog(**ends: int) -> Backlog:
    """Create partitions that were read up to 10."""
    keys = {"a": A, "b": B, "c": C}
    return Backlog({A: 10, B: 10, C: 10}, {keys[name]: end for name, end in ends.items()}, IDS)


def test_a_backlog_is_the_range_between_two_offsets() -> None:
    found = backlog(a=30, b=9)
    assert found.counts == {A: 20, B: 0, C: 0}
    assert found.records == 20
    assert found.nothing().records == 0
    assert backlog(a=10, b=11).counts == {A: 0, B: 1, C: 0}


@pytest.mark.parametrize(
    ("limit", "ends"),
    [(100, {A: 30, B: 50}), (60, {A: 30, B: 50}), (59, {A: 29, B: 50}), (6, {A: 12, B: 14}), (1, {A: 11})],
)
def test_records_are_limited_in_proportion(limit: int, ends: dict[PartitionKey, int]) -> None:
    assert backlog(a=30, b=50).limited_to_records(limit).end == ends


def test_a_limit_below_the_number_of_partitions_lets_them_take_turns() -> None:
    first = Backlog({A: 10, B: 10}, {A: 30, B: 30}, IDS)
    second = Backlog({A: 11, B: 10}, {A: 30, B: 30}, IDS)
    assert first.limited_to_records(1).end == {A: 11}
    assert second.limited_to_records(1).end == {B: 11}


class Log:
    """A log of one segment whose records have ten bytes each. It is cut at any requested offset."""

    def __init__(self) -> None:
        self.asked: list[tuple[OffsetRange, int]] = []

    def locate(
        self, ranges: Sequence[tuple[OffsetRange, int]], report: LossReport
    ) -> list[tuple[OffsetRange, tuple[Extent, ...]]]:
        assert not report.fail
        self.asked += ranges
        found = []
        for wanted, size_bytes in ranges:
            step = max(1, size_bytes // 10) if size_bytes else wanted.count
            edges = [*range(wanted.start, wanted.end, step), wanted.end]
            extents = [Extent(start, end, start * 10, end * 10, "/t") for start, end in itertools.pairwise(edges)]
            found.append((wanted, tuple(extents)))
        return found


def test_bytes_are_those_of_the_extents() -> None:
    assert backlog(a=30, b=15).measure(Log()) == 250
    assert backlog(a=10).measure(Log()) == 0


@pytest.mark.parametrize(
    ("limit", "ends"),
    [(600, {A: 30, B: 50}), (599, {A: 26, B: 50}), (300, {A: 20, B: 30}), (9, {A: 11, B: 11})],
)
def test_bytes_are_limited_to_pieces_that_fit(limit: int, ends: dict[PartitionKey, int]) -> None:
    log = Log()
    assert backlog(a=30, b=50).limited_to_bytes(limit, log).end == ends
    cuts = [(wanted.start, wanted.end, size) for wanted, size in log.asked if size]
    for start, end, size in cuts:
        assert start == 10
        # Four times the room, and pieces of a quarter of it.
        assert end - start <= max(1, 4 * (4 * size + 3) // 10)
        assert size >= 1


def test_a_log_that_cannot_be_cut_is_cut_by_offsets() -> None:
    class Uncut(Log):
        def locate(
            self, ranges: Sequence[tuple[OffsetRange, int]], report: LossReport
        ) -> list[tuple[OffsetRange, tuple[Extent, ...]]]:
            found = super().locate(ranges, report)
            return [
                (wanted, extents if not size else ())
                for (wanted, extents), (_, size) in zip(found, ranges, strict=True)
            ]

    assert backlog(a=30).limited_to_bytes(50, Uncut()).end == {A: 30}
    assert Backlog({A: 0}, {A: 100}, IDS).limited_to_bytes(50, Uncut()).end == {A: 20}


@pytest.mark.parametrize(("room", "fit", "crossing"), [(9, 0, 0), (10, 1, 1), (29, 1, 1), (30, 2, 2), (60, 3, None)])
def test_extents_are_taken_while_they_fit_into_the_room(room: int, fit: int, crossing: int | None) -> None:
    extents = [Extent(0, 1, 0, 10, ""), Extent(1, 2, 10, 30, ""), Extent(2, 3, 30, 60, "")]
    assert first_bytes(extents, room) == (extents[:fit], None if crossing is None else extents[crossing])


class Topics:
    """Brokers with equal topics.

    All topics have one configuration, and all times have one offset.
    """

    def __init__(self, policy: str, first: int | None) -> None:
        self.asked: dict[PartitionKey, int] = {}
        self._policy, self._first = policy, first

    def settings(self, topic: str) -> Mapping[str, str]:
        return {"cleanup.policy": self._policy, "delete.retention.ms": "500"}

    def first_offsets_from(self, times_ms: Mapping[PartitionKey, int]) -> dict[PartitionKey, int | None]:
        self.asked = dict(times_ms)
        return dict.fromkeys(times_ms, self._first)


@pytest.mark.parametrize(("first", "is_late"), [(9, False), (10, False), (11, True), (None, True)])
def test_unread_records_older_than_the_tombstone_retention_are_reported(first: int | None, is_late: bool) -> None:
    topics = Topics("compact,delete", first)
    found = late_for_tombstones(topics, backlog(a=30), 2000)
    assert topics.asked == {A: 1500}
    assert len(found) == is_late
    assert all("t-0 is compacted and was not read from offset 10 on for longer than" in each for each in found)
    assert late_for_tombstones(Topics("compact", first), backlog(a=30), 400) == found
    assert late_for_tombstones(Topics("delete", None), backlog(a=30), 2000) == []
    never_read = Backlog({A: 0}, {A: 5}, IDS)
    assert late_for_tombstones(Topics("compact", None), never_read, 2000) == []
    early = Topics("compact", None)
    late_for_tombstones(early, backlog(a=30), 499)
    assert early.asked == {A: 0}
