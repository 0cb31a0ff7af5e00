"""Topology whose checkpoint is part of the data of a release.

Do not change it, because its state would no longer fit.
"""

from __future__ import annotations

from millrace_streams import StreamsBuilder, Topology, count


def topology() -> Topology:
    """Count the orders of each city."""
    builder = StreamsBuilder()
    builder.stream("orders").group_by("city").aggregate(orders=count(), store="totals").to_delta("totals")
    return builder.build()
