"""How much of each partition goes into the next micro-batch when its records or bytes are limited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark_millrace.partitions import PartitionKey
from pyspark_millrace.planning.splits import Extent

CutExtent = Callable[[PartitionKey, Extent, int], Sequence[Extent]]
"""Cuts an extent into pieces of which some fit into so many bytes, in order and from its start."""


def admit(backlog: Mapping[PartitionKey, int], limit: int, *, turn: int = 0) -> dict[PartitionKey, int]:
    """Share ``limit`` records among partitions in proportion to their backlog.

    Never more than ``limit`` together, never more than a partition's backlog, and all of ``limit`` while the backlog
    is as large. Every partition with a backlog gets at least one record, so that a small partition is not starved by
    large ones; when ``limit`` is below their number they take turns, ``turn`` (any number that grows) saying whose
    it is.
    """
    waiting = {key: count for key, count in sorted(backlog.items()) if count > 0}
    if sum(waiting.values()) <= limit:
        return waiting
    if limit < len(waiting):
        keys = list(waiting)
        first = turn % len(keys)
        return dict.fromkeys(sorted((keys + keys)[first : first + limit]), 1)
    total, left = sum(waiting.values()), limit
    shares: dict[PartitionKey, int] = {}
    # From the smallest backlog up, each share is computed of what is left: so rounding never adds up to more than
    # the limit, and what a small partition leaves goes to the larger ones.
    for position, (key, count) in enumerate(sorted(waiting.items(), key=lambda item: item[1])):
        others = len(waiting) - position - 1
        shares[key] = min(count, max(1, left * count // total), left - others)
        total, left = total - count, left - shares[key]
    return dict(sorted(shares.items()))


def first_bytes(extents: Sequence[Extent], room_bytes: int) -> tuple[Sequence[Extent], Extent | None]:
    """The extents from the start that fit into ``room_bytes`` together, and the one that does not any more."""
    left = room_bytes
    for number, extent in enumerate(extents):
        if extent.bytes > left:
            return extents[:number], extent
        left -= extent.bytes
    return extents, None


def admit_bytes(
    wanted: Mapping[PartitionKey, int],
    located: Mapping[PartitionKey, Sequence[Extent]],
    limit_bytes: int,
    cut: CutExtent,
    *,
    turn: int = 0,
) -> dict[PartitionKey, int]:
    """The offset up to which each partition is read, to read about ``limit_bytes`` together; shared as ``admit`` does.

    ``wanted`` is how far partitions would be read without the limit, ``located`` the extents that lie before. Extents
    are taken whole while they fit. The one that does not fit is cut by ``cut`` (at positions of the index), and the
    pieces that fit are taken; of a partition where nothing fits it is one piece, so that no partition stands still:
    these pieces are all that may go beyond the limit. A partition whose turn it is not is left out.
    """
    sizes = {key: sum(extent.bytes for extent in extents) for key, extents in located.items()}
    if sum(sizes.values()) <= limit_bytes:
        return dict(wanted)
    # Where there is nothing, lost or compacted away, there is nothing to limit.
    ends = {key: end for key, end in wanted.items() if not sizes.get(key)}
    for key, share in admit(sizes, limit_bytes, turn=turn).items():
        taken, crossing = first_bytes(located[key], share)
        if crossing is None:
            ends[key] = wanted[key]
            continue
        room = share - sum(extent.bytes for extent in taken)
        pieces = cut(key, crossing, room)
        fitting, _ = first_bytes(pieces, room)
        ends[key] = [*taken, *(fitting or ([] if taken else pieces[:1]))][-1].end_offset
    return ends
