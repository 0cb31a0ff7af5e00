"""Shares of partitions in a micro-batch whose records or bytes are limited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.splits import Extent

CutExtent = Callable[[PartitionKey, Extent, int], Sequence[Extent]]
"""Cuts an extent into consecutive pieces, some of which fit into a number of bytes, from its start."""


def admit(backlog: Mapping[PartitionKey, int], limit: int, *, turn: int = 0) -> dict[PartitionKey, int]:
    """Share ``limit`` records among partitions in proportion to their backlog.

    The shares never exceed ``limit`` in total, nor the backlog of a partition. They use all of ``limit`` if the backlog
    is as large. Every partition with a backlog gets at least one record, so that large partitions do not starve small
    ones. If ``limit`` is below the number of partitions, they take turns; ``turn``, any growing number, selects them.
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
    # Compute each share from the remainder, smallest backlog first. So rounding never exceeds the limit, and larger
    # partitions get the records that small ones leave. ``left`` stays at least the number of partitions without a share
    # and at most ``total``. So no share exceeds its backlog, or takes the one record that another partition must get.
    for key, count in sorted(waiting.items(), key=lambda item: item[1]):
        shares[key] = max(1, left * count // total)
        total, left = total - count, left - shares[key]
    return dict(sorted(shares.items()))


def first_bytes(extents: Sequence[Extent], room_bytes: int) -> tuple[Sequence[Extent], Extent | None]:
    """Return the leading extents that fit into ``room_bytes`` together, and the first one that does not fit."""
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
    """Return the end offset of each partition for a read of about ``limit_bytes``, shared as in ``admit``.

    ``wanted`` are the end offsets without the limit, ``located`` the extents before them. Whole extents are taken while
    they fit. ``cut`` cuts the first extent that does not fit at index positions, and its fitting pieces are taken. If
    nothing of a partition fits, one piece is taken, so that every partition advances; only these pieces can exceed the
    limit. A partition without a turn is absent from the result.
    """
    sizes = {key: sum(extent.bytes for extent in extents) for key, extents in located.items()}
    if sum(sizes.values()) <= limit_bytes:
        return dict(wanted)
    # Ranges without data (lost or compacted away) need no limit.
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
