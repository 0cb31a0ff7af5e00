from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.segments import OffsetIndex, TimeIndex
from millrace.segments.indexes import pack_offset_entry, pack_time_entry

rising = st.lists(st.integers(1, 1000), max_size=40).map(lambda steps: [sum(steps[: n + 1]) for n in range(len(steps))])
BASE = 5_000


@st.composite
def offset_entries(draw: st.DrawFn) -> list[tuple[int, int]]:
    offsets, positions = draw(rising), draw(rising)
    return list(zip(offsets, positions, strict=False))


@given(entries=offset_entries(), target=st.integers(BASE - 10, BASE + 45_000), zeros=st.integers(0, 50))
def test_an_offset_lookup_finds_the_last_entry_at_or_before_the_offset(
    entries: list[tuple[int, int]], target: int, zeros: int
) -> None:
    data = b"".join(pack_offset_entry(*entry) for entry in entries) + bytes(zeros)
    index = OffsetIndex.of_file(data, BASE)
    absolute = [(BASE + offset, position) for offset, position in entries]
    assert [tuple(entry) for entry in index] == absolute
    assert index.problem() is None
    before = bisect_right([offset for offset, _ in absolute], target)
    assert index.lookup(target) == (absolute[before - 1] if before else (BASE, 0))
    position = target - BASE
    before = bisect_right([at for _, at in absolute], position)
    assert index.lookup_position(position) == (absolute[before - 1] if before else None)


@given(entries=offset_entries(), target=st.integers(-10, 45_000), zeros=st.integers(0, 50))
def test_a_time_lookup_finds_the_last_entry_at_or_before_the_time(
    entries: list[tuple[int, int]], target: int, zeros: int
) -> None:
    data = b"".join(pack_time_entry(*entry) for entry in entries) + bytes(0 if zeros // 12 == 1 else zeros)
    index = TimeIndex.of_file(data, BASE)
    absolute = [(timestamp, BASE + offset) for timestamp, offset in entries]
    assert [tuple(entry) for entry in index] == absolute
    assert index.problem() is None
    before = bisect_right([timestamp for timestamp, _ in absolute], target)
    assert index.lookup(target) == (absolute[before - 1] if before else (-1, BASE))
    assert index.last() == (absolute[-1] if absolute else (-1, BASE))


def test_problems_are_named() -> None:
    offsets = OffsetIndex(pack_offset_entry(5, 100) + pack_offset_entry(5, 200), BASE)
    assert offsets.problem() == "entry 1 (5005, 200) does not follow (5005, 100)"
    times = TimeIndex(pack_time_entry(7, 5) + pack_time_entry(6, 9), BASE)
    assert times.problem() == "entry 1 (6, 5009) does not follow (7, 5005)"


@pytest.mark.parametrize(
    ("offset", "other", "is_sound"),
    [(5, 101, False), (6, 100, False), (6, 99, False), (4, 101, False), (6, 101, True)],
)
def test_both_fields_of_an_entry_are_larger_than_those_before(offset: int, other: int, is_sound: bool) -> None:
    offsets = OffsetIndex(pack_offset_entry(5, 100) + pack_offset_entry(offset, other), BASE)
    assert (offsets.problem() is None) is is_sound
    times = TimeIndex(pack_time_entry(100, 5) + pack_time_entry(other, offset), BASE)
    assert (times.problem() is None) is is_sound


@pytest.mark.parametrize(
    ("relative", "position", "is_sound"), [(-1, 1, False), (0, 1, True), (0, 0, False), (1, 1, True)]
)
def test_the_first_entry_is_of_a_batch_behind_the_beginning(relative: int, position: int, is_sound: bool) -> None:
    assert (OffsetIndex(pack_offset_entry(relative, position), BASE).problem() is None) is is_sound


@pytest.mark.parametrize(
    ("time_ms", "relative", "is_sound"), [(-1, 0, False), (0, 0, True), (0, -1, False), (1, 1, True)]
)
def test_the_first_time_is_not_negative(time_ms: int, relative: int, is_sound: bool) -> None:
    assert (TimeIndex(pack_time_entry(time_ms, relative), BASE).problem() is None) is is_sound


@pytest.mark.parametrize("relative", [-(2**31), -(2**31) + 1, 2**31 - 1, 2**31])
def test_no_entry_is_further_from_the_base_offset_than_a_segment_reaches(relative: int) -> None:
    if abs(relative) < 2**31:
        assert OffsetIndex(pack_offset_entry(relative, 7), BASE)[0].offset == BASE + relative
        assert TimeIndex(pack_time_entry(7, relative), BASE)[0].offset == BASE + relative
        return
    with pytest.raises(CorruptBatchError, match="cannot be"):
        pack_offset_entry(relative, 7)
    with pytest.raises(CorruptBatchError, match="cannot be"):
        pack_time_entry(7, relative)


def test_one_entry_of_zeros_is_an_entry() -> None:
    assert [tuple(entry) for entry in TimeIndex.of_file(pack_time_entry(0, 0), BASE)] == [(0, BASE)]
    assert list(TimeIndex.of_file(bytes(24), BASE)) == []


def test_index_follows_a_growing_buffer() -> None:
    buffer = bytearray()
    index = OffsetIndex(buffer, BASE)
    assert index.lookup(BASE + 100) == (BASE, 0)
    buffer += pack_offset_entry(10, 4096)
    assert index.lookup(BASE + 100) == (BASE + 10, 4096)
