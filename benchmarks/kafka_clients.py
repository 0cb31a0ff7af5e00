"""Benchmarks of both brokers with the same Kafka client.

Only the broker differs between the sides.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from benchmarks import ours
from benchmarks.harness import Benchmark, Context, Durability, Measure, Side
from benchmarks.ours import MillraceBroker
from benchmarks.peers import kafka
from benchmarks.peers.kafka import KafkaBroker

Broker = MillraceBroker | KafkaBroker


def benchmark(
    name: str,
    *,
    title: str,
    client: str,
    settings: str,
    target_ratio: float,
    open_on: Callable[[Context, Broker], AbstractContextManager[Measure]],
    unit: str = "records/s",
    higher_is_better: bool = True,
    durability: Durability = Durability.NOT_SYNCED,
) -> Benchmark:
    """Make a benchmark that opens the same client on either broker. ``settings`` are the client's."""
    return Benchmark(
        name=name,
        title=title,
        unit=unit,
        higher_is_better=higher_is_better,
        target_ratio=target_ratio,
        durability=durability,
        ours=Side(
            what=client,
            settings=f"{ours.SETTINGS}; {settings}",
            open=lambda context: open_on(context, context.millrace),
        ),
        peer=Side(
            what=client,
            settings=f"{kafka.SETTINGS}; {settings}",
            open=lambda context: open_on(context, context.kafka),
        ),
    )
