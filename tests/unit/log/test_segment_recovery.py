"""Tests of the check of a segment's batches after a crash."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.records import Compression, Record, build_entries, read_entries
from millrace_broker.log.index_builder import IndexBuilder
from millrace_broker.log.segment_appender import RELATIVE_OFFSET_MAX
from millrace_broker.log.segment_recovery import SoundPart, check_segment

Batch = Callable[..., bytes]
BASE = 100


@pytest.fixture
def at(batch: Batch) -> Callable[..., bytes]:
    """Build a batch of ``count`` records at an offset."""
    return lambda offset, count=1: batch([1000 + offset] * count, base_offset=offset)


def check(
    *batches: bytes,
    recovery_point: int = 0,
    following: int | None = None,
    builder: IndexBuilder | None = None,
    is_compacted: bool = False,
) -> SoundPart:
    builder = builder or IndexBuilder(BASE, 0)
    content = memoryview(b"".join(batches))
    return check_segment(content, builder, recovery_point, following, is_compacted=is_compacted)


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def test_sound_batches_are_indexed(at: Callable[..., bytes]) -> None:
    builder = IndexBuilder(BASE, 0)
    parts = [at(100), at(101, 3), at(104)]
    sound = check(*parts, builder=builder)
    assert sound == SoundPart(size_bytes=sum(map(len, parts)), end_offset=105)
    # The first batch of a segment has no entry.
    positions = [len(parts[0]), len(parts[0]) + len(parts[1])]
    assert [(entry.offset, entry.position) for entry in builder.offset_index] == list(
        zip((103, 104), positions, strict=True)
    )
    assert builder.largest == (1104, 104)
    assert check() == SoundPart(size_bytes=0, end_offset=BASE)


@pytest.mark.parametrize(("recovery_point", "is_noticed"), [(100, True), (102, True), (103, False), (104, False)])
def test_checksums_are_verified_from_the_recovery_point_on(
    at: Callable[..., bytes], recovery_point: int, is_noticed: bool
) -> None:
    parts = [at(100), damaged(at(101, 2)), at(103)]
    sound = check(*parts, recovery_point=recovery_point)
    if is_noticed:
        assert (sound.size_bytes, sound.end_offset) == (len(parts[0]), 101)
        assert sound.problem == "the batch of offset 101 fails its checksum"
        assert not sound.is_incomplete
    else:
        assert sound == SoundPart(size_bytes=sum(map(len, parts)), end_offset=104)


@pytest.mark.parametrize(("following", "is_sound"), [(None, True), (103, True), (102, False), (101, False)])
def test_offsets_of_the_next_segment_are_a_problem(
    at: Callable[..., bytes], following: int | None, is_sound: bool
) -> None:
    sound = check(at(100), at(101, 2), following=following)
    assert (sound.problem is None, sound.end_offset) == (is_sound, 103 if is_sound else 101)


@pytest.mark.parametrize(("offset", "is_sound"), [(99, False), (100, True), (101, False)])
def test_offsets_of_the_last_segment_follow_each_other(at: Callable[..., bytes], offset: int, is_sound: bool) -> None:
    # A gap in the last segment may hide lost batches, so its rest is not kept.
    sound = check(at(offset))
    assert (sound.problem is None, sound.end_offset) == (is_sound, 101 if is_sound else BASE)
    assert not sound.is_incomplete


@pytest.mark.parametrize("offset", [101, 102])
def test_overlapping_offsets_end_the_sound_part(at: Callable[..., bytes], offset: int) -> None:
    sound = check(at(100, 2), at(offset), following=200)
    assert (sound.problem is None, sound.end_offset) == (offset == 102, 103 if offset == 102 else 102)


@pytest.mark.parametrize(("too_far", "is_sound"), [(0, True), (1, False)])
def test_offsets_are_near_the_base_offset(at: Callable[..., bytes], too_far: int, is_sound: bool) -> None:
    sound = check(at(BASE + RELATIVE_OFFSET_MAX + too_far), following=2**40)
    assert (sound.problem is None) is is_sound


def test_compaction_leaves_gaps_before_another_segment(at: Callable[..., bytes]) -> None:
    parts = [at(102), at(105), at(106)]
    sound = check(*parts, following=200)
    assert sound == SoundPart(size_bytes=sum(map(len, parts)), end_offset=107)


@pytest.mark.parametrize(("recovery_point", "is_sound"), [(107, False), (108, True)])
def test_gaps_before_the_recovery_point_are_sound(
    at: Callable[..., bytes], recovery_point: int, is_sound: bool
) -> None:
    sound = check(at(102), at(107), recovery_point=recovery_point)
    assert (sound.problem is None, sound.end_offset) == (is_sound, 108 if is_sound else 103)


@pytest.mark.parametrize("tail", [b"", b"\xff" * 70])
def test_gaps_of_a_compacted_topic_are_sound(at: Callable[..., bytes], tail: bytes) -> None:
    sound = check(at(102), at(107), tail, is_compacted=True)
    assert (sound.end_offset, sound.problem is None) == (108, not tail)
    assert check(at(102), damaged(at(107)), is_compacted=True).end_offset == 103


@pytest.mark.parametrize("rest", ["damage", "incomplete", "noise"])
def test_a_gap_directly_before_damage_is_part_of_it(at: Callable[..., bytes], rest: str) -> None:
    tail = {"damage": damaged(at(106)), "incomplete": at(106)[:-1], "noise": b"\xff" * 70}[rest]
    builder = IndexBuilder(BASE, 0)
    parts = [at(102), at(103)]
    sound = check(*parts, at(105), tail, following=200, builder=builder)
    assert (sound.size_bytes, sound.end_offset) == (len(parts[0]) + len(parts[1]), 104)
    assert "offset 105 does not follow 103" in str(sound.problem)
    assert not sound.is_incomplete
    assert (len(builder.offset_index), builder.largest) == (1, (1103, 103))
    # A batch without a gap before it shows that the log is whole up to there.
    sound = check(*parts, at(105), at(106), damaged(at(107)), following=200)
    assert (sound.end_offset, sound.problem) == (107, "the batch of offset 107 fails its checksum")


@pytest.mark.parametrize("size_bytes", [1, 16, 60, 61, 70, -1])
def test_the_beginning_of_the_next_batch_is_incomplete(at: Callable[..., bytes], size_bytes: int) -> None:
    whole = at(100)
    sound = check(whole, at(101)[:size_bytes])
    assert (sound.size_bytes, sound.end_offset, sound.is_incomplete) == (len(whole), 101, True)
    assert sound.problem is not None


@pytest.mark.parametrize("tail", [b"\xff" * 61, b"\xff" * 500])
def test_other_bytes_are_not_the_beginning_of_a_batch(at: Callable[..., bytes], tail: bytes) -> None:
    sound = check(at(100), tail)
    assert (sound.end_offset, sound.is_incomplete) == (101, False)
    assert not check(at(100), at(102)[:-1]).is_incomplete


RECORDS = [Record(key=b"k", value=bytes([index]) * index, timestamp_ms=index, offset=index) for index in range(6)]
MIXED = (
    build_entries(RECORDS[:2], magic=0)
    + build_entries(RECORDS[2:4], magic=1, compression=Compression.LZ4)
    + build_entries(RECORDS[4:], magic=2, compression=Compression.ZSTD)
)
"""A log of all formats, as a partition directory from Kafka may hold it."""


def kept_bytes(content: bytes) -> int:
    return check_segment(memoryview(content), IndexBuilder(0, 0), 0, None, is_compacted=False).size_bytes


@given(st.integers(0, len(MIXED)))
def test_the_whole_entries_of_any_format_are_kept(end: int) -> None:
    ends = [0, *(entry.position + entry.size_bytes for entry in read_entries(MIXED))]
    assert kept_bytes(MIXED[:end]) == max(whole for whole in ends if whole <= end)


@given(st.data())
def test_a_log_of_any_format_is_cut_at_its_first_damaged_entry(data: st.DataObject) -> None:
    hit = data.draw(st.sampled_from(list(read_entries(MIXED))))
    checked_from = 21 if hit.magic == 2 else 17
    position = data.draw(st.integers(hit.position + checked_from, hit.position + hit.size_bytes - 1))
    damaged = bytearray(MIXED)
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    assert kept_bytes(bytes(damaged)) == hit.position
