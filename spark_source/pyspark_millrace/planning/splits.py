"""Division of offset ranges into splits; one task reads one split.

The broker returns the extents of segment files that hold a range, cut at index positions to about the requested size. A
split is a run of extents of one partition. Splits are sized by bytes, not by partition or record count. So one huge
partition uses every core, and a skewed topic starves no partition. Every partition with records has at least one split,
as with Spark's Kafka connector. If a sink must keep the order of a partition's records, the partition is one split
(``whole_partitions``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final

from pyspark_millrace.planning.offsets import OffsetRange

if TYPE_CHECKING:
    from millrace.records import AbortedTransaction

MIB: Final = 2**20
SPLIT_BYTES_MIN: Final = 8 * MIB
"""A smaller split costs more to start than to read."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """Default number and size of splits.

    There are ``per_core`` splits per core, of up to ``bytes_max`` each.
    """

    per_core: int
    bytes_max: int


BATCH_SIZING: Final = Sizing(per_core=3, bytes_max=256 * MIB)
"""Tasks end at different times. With several per core the last ones are short, and a retried one costs little."""
STREAM_SIZING: Final = Sizing(per_core=2, bytes_max=512 * MIB)
"""A stream's task usually writes one file, and few large files are cheaper to write and to read."""


LATE_SPLITS_LARGER: Final = 8
"""Factor for splits in which almost all batches will be skipped by the times in their statistics."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of whole batches in one segment file. The first and last batch may reach beyond its offsets.

    ``end_offset`` and ``end_position`` are exclusive. ``path`` is the file on the broker's host, empty if the broker
    does not name it. ``uri`` is the segment's copy in the remote store, if the segment is only there. ``aborted`` are
    the aborted transactions with records in the extent, which are not read.
    """

    start_offset: int
    end_offset: int
    start_position: int
    end_position: int
    path: str
    uri: str = ""
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def bytes(self) -> int:
        """Size in the log, in bytes."""
        return self.end_position - self.start_position


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """Work of one task: contiguous extents of one partition, in order."""

    range: OffsetRange
    extents: tuple[Extent, ...]

    @property
    def bytes(self) -> int:
        """Size in the log, in bytes."""
        return total_bytes(self.extents)


def split_bytes(total_bytes: int, *, cores: int, sizing: Sizing, min_splits: int = 1, asked: int | None = None) -> int:
    """Return the split size for a read of ``total_bytes``: the requested one, or one by the number of cores."""
    size = asked or min(max(total_bytes // (sizing.per_core * cores), SPLIT_BYTES_MIN), sizing.bytes_max)
    return max(1, min(size, -(-total_bytes // min_splits)))


def even_bytes(range_bytes: int, size_bytes: int) -> int:
    """Return the piece size that cuts a range evenly into pieces of up to about ``size_bytes``.

    A piece may be a quarter larger, because one large piece is better than two halves.
    """
    pieces = max(1, -(-range_bytes // most_of(size_bytes)))
    return max(1, -(-range_bytes // pieces))


def most_of(size_bytes: int) -> int:
    """Return the largest size of a piece whose target is ``size_bytes``."""
    return size_bytes + size_bytes // 4


def located_bytes(located: Sequence[tuple[OffsetRange, Sequence[Extent]]]) -> int:
    """Return the size of located ranges in the log, in bytes."""
    return sum(total_bytes(extents) for _, extents in located)


def total_bytes(extents: Sequence[Extent]) -> int:
    """Return the size of extents in the log, in bytes."""
    return sum(extent.bytes for extent in extents)


def plan_splits(
    located: Sequence[tuple[OffsetRange, Sequence[Extent]]],
    sizes_bytes: Sequence[int],
    *,
    min_splits: int = 1,
    max_records: int | None = None,
) -> list[PlannedSplit]:
    """Group the extents of each range into splits of up to about its size, in order of partition and offset.

    ``max_records`` limits the offsets of a split. ``min_splits`` is the minimum number of splits, as far as there are
    records. If extents are too coarse for these options, they are cut by offsets, and several tasks read the bytes of
    the same extent.
    """
    splits = [
        PlannedSplit(wanted, tuple(run))
        for (wanted, extents), size_bytes in zip(located, sizes_bytes, strict=True)
        for run in _runs(_tiling(extents), even_bytes(total_bytes(extents), size_bytes), most_of(size_bytes))
    ]
    splits.sort(key=lambda split: (split.range.key, split.extents[0].start_offset))
    if max_records is not None:
        splits = [part for split in splits for part in _cut(split, -(-_records(split) // max_records))]
    if len(splits) < min_splits and (records := sum(_records(split) for split in splits)):
        splits = [part for split in splits for part in _cut(split, -(-_records(split) * min_splits // records))]
    return [
        replace(
            split, range=replace(split.range, start=split.extents[0].start_offset, end=split.extents[-1].end_offset)
        )
        for split in splits
    ]


def whole_partitions(splits: Sequence[PlannedSplit]) -> list[PlannedSplit]:
    """Join the splits of each partition. ``splits`` are in order of partition and offset."""
    runs = [list(run) for _, run in groupby(splits, key=lambda split: split.range.key)]
    return [
        PlannedSplit(
            replace(run[0].range, end=run[-1].range.end), tuple(extent for split in run for extent in split.extents)
        )
        for run in runs
    ]


def _records(split: PlannedSplit) -> int:
    return split.extents[-1].end_offset - split.extents[0].start_offset


def _tiling(extents: Sequence[Extent]) -> Sequence[Extent]:
    for before, after in pairwise(extents):
        assert before.end_offset <= after.start_offset, f"extents overlap: {before}, {after}"
    return [extent for extent in extents if extent.start_offset < extent.end_offset]


def _runs(extents: Sequence[Extent], size_bytes: int, most_bytes: int) -> list[list[Extent]]:
    """Group neighbours within the size plus an eighth, because the rest of a segment should not become a split."""
    over = min(size_bytes // 8, most_bytes - size_bytes)
    runs: list[list[Extent]] = []
    room = 0
    for extent in extents:
        if not runs or extent.bytes > room + over:
            runs.append([])
            room = size_bytes
        runs[-1].append(extent)
        room -= extent.bytes
    return runs


def _cut(split: PlannedSplit, parts: int) -> list[PlannedSplit]:
    """Cut a split into parts with equal numbers of offsets."""
    first, count = split.extents[0].start_offset, _records(split)
    parts = min(parts, count)
    edges = [first + count * part // parts for part in range(parts + 1)]
    return [
        replace(split, extents=run)
        for start, end in pairwise(edges)
        if (run := tuple(_clipped(split.extents, start, end)))
    ]


def _clipped(extents: Sequence[Extent], start: int, end: int) -> list[Extent]:
    return [
        replace(extent, start_offset=max(start, extent.start_offset), end_offset=min(end, extent.end_offset))
        for extent in extents
        if extent.start_offset < end and start < extent.end_offset
    ]
