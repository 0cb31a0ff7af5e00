"""How many records of each partition go into the next micro-batch when their number is limited."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_millrace.positions import PartitionKey


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
