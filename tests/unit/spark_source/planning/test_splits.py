"""Tests of splits.

The splits cover the range exactly, with about equal bytes.
"""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import OffsetRange
from pyspark_millrace.planning.splits import (
    BATCH_SIZING,
    MIB,
    STREAM_SIZING,
    Extent,
    even_bytes,
    plan_splits,
    split_bytes,
    total_bytes,
    whole_partitions,
)


@st.composite
def located(draw):
    """Draw ranges with extents that cover them, of random numbers of offsets and bytes."""
    found = []
    for partition in range(draw(st.integers(1, 4))):
        offset = start = draw(st.integers(0, 100))
        extents, position = [], 0
        for _ in range(draw(st.integers(0, 8))):
            records, size = draw(st.integers(1, 50)), draw(st.integers(1, 1000))
            extents.append(Extent(offset, offset + records, position, position + size, f"/log/{partition}"))
            offset, position = offset + records, position + size
        found.append((OffsetRange(PartitionKey("t", partition), uuid.UUID(int=1), start, offset), tuple(extents)))
    return found


def offsets_of(splits):
    return [
        (split.range.key, offset)
        for split in splits
        for extent in split.extents
        for offset in range(extent.start_offset, extent.end_offset)
    ]


def asked(found):
    return [(wanted.key, offset) for wanted, _ in found for offset in range(wanted.start, wanted.end)]


@given(located(), st.integers(1, 3000), st.integers(1, 40), st.none() | st.integers(1, 60))
def test_splits_tile_the_ranges_in_order(found, size, min_splits, max_records):
    splits = plan_splits(found, [size] * len(found), min_splits=min_splits, max_records=max_records)
    assert offsets_of(splits) == asked(found)
    assert all(split.range.start == split.extents[0].start_offset for split in splits)
    assert all(split.range.end == split.extents[-1].end_offset for split in splits)


@given(located(), st.integers(1, 3000), st.integers(1, 60))
def test_no_split_has_more_records_than_allowed(found, size, max_records):
    assert all(
        split.range.count <= max_records for split in plan_splits(found, [size] * len(found), max_records=max_records)
    )


@given(located(), st.integers(1, 3000), st.integers(1, 40))
def test_as_many_splits_as_asked_for_while_there_are_records(found, size, min_splits):
    splits = plan_splits(found, [size] * len(found), min_splits=min_splits)
    assert len(splits) >= min(min_splits, len(asked(found)))


@given(located(), st.integers(1, 3000))
def test_splits_keep_to_the_size_where_extents_allow(found, size):
    for split in plan_splits(found, [size] * len(found)):
        assert len(split.extents) == 1 or split.bytes <= size + size // 4 + 1


@given(st.integers(1, 10**12), st.integers(1, 10**9))
def test_pieces_are_even_and_at_most_a_quarter_over(range_bytes, size):
    piece = even_bytes(range_bytes, size)
    assert piece <= size * 5 // 4 + 1
    pieces = -(-range_bytes // piece)
    assert pieces == 1 or range_bytes > (pieces - 1) * size


@given(located(), st.integers(1, 3000))
def test_whole_partitions_have_one_split_each_with_all_records_in_order(found, size):
    splits = whole_partitions(plan_splits(found, [size] * len(found)))
    assert offsets_of(splits) == asked(found)
    assert [split.range for split in splits] == [wanted for wanted, extents in found if extents]


def test_every_partition_with_records_has_a_split_of_its_own():
    found = [
        (OffsetRange(PartitionKey("t", n), uuid.UUID(int=1), 0, 5), (Extent(0, 5, 0, 100, "/x"),)) for n in range(4)
    ]
    assert [split.range.key.partition for split in plan_splits(found, [10**6] * len(found))] == [0, 1, 2, 3]


def test_small_segments_share_a_split():
    extents = tuple(Extent(n, n + 1, 0, 100, f"/{n}") for n in range(10))
    found = [(OffsetRange(PartitionKey("t", 0), uuid.UUID(int=1), 0, 10), extents)]
    assert [len(split.extents) for split in plan_splits(found, [500])] == [5, 5]


def test_the_rest_of_a_segment_is_no_split_of_its_own():
    sizes = (100, 100, 92, 13)
    extents = tuple(Extent(n, n + 1, 0, size, f"/{n}") for n, size in enumerate(sizes))
    found = [(OffsetRange(PartitionKey("t", 0), uuid.UUID(int=1), 0, 4), extents)]
    assert [split.bytes for split in plan_splits(found, [100])] == [100, 100, 105]


def test_splits_have_the_size_of_cores_limits_and_requests():
    assert split_bytes(10 * MIB, cores=2, sizing=BATCH_SIZING) == 8 * MIB
    assert split_bytes(240 * MIB, cores=2, sizing=BATCH_SIZING) == 40 * MIB
    assert split_bytes(10**12, cores=2, sizing=BATCH_SIZING) == 256 * MIB
    assert split_bytes(160 * MIB, cores=2, sizing=BATCH_SIZING, min_splits=40) == 4 * MIB
    assert split_bytes(160 * MIB, cores=2, sizing=BATCH_SIZING, asked=MIB) == MIB
    assert split_bytes(0, cores=2, sizing=BATCH_SIZING) == 1
    assert split_bytes(1600 * MIB, cores=2, sizing=STREAM_SIZING) == 400 * MIB
    assert split_bytes(10**12, cores=2, sizing=STREAM_SIZING) == 512 * MIB
    assert total_bytes([]) == 0
