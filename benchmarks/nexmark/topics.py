"""Typed topics of the events, one for each kind.

Their keys are those of the queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from benchmarks.nexmark import generator
from benchmarks.nexmark.generator import Events, Generator
from millrace.clients import Admin, Producer

# Events are kept however old their timestamps are.
_CONFIGS = {"retention.ms": "-1"}


@dataclass(frozen=True, slots=True)
class Topics:
    """The names of the topics."""

    person: str = "person"
    auction: str = "auction"
    bid: str = "bid"

    @classmethod
    def with_prefix(cls, prefix: str) -> Topics:
        """Return names with a common prefix, so that a broker can hold several sets."""
        return cls(*(f"{prefix}-{name}" for name in ("person", "auction", "bid")))


SCHEMAS = {"person": generator.PERSON, "auction": generator.AUCTION, "bid": generator.BID}
KEYS = {"person": "id", "auction": "id", "bid": "auction"}
"""A bid is in the partition of its auction."""


def create(admin: Admin, topics: Topics, partitions: int) -> None:
    """Create the topics, which must not exist yet."""
    for name, schema in SCHEMAS.items():
        topic = getattr(topics, name)
        admin.create_topic(topic, partitions=partitions, configs=_CONFIGS, schema=schema, key_columns=[KEYS[name]])


def fill(producer: Producer, topics: Topics, source: Generator, count: int, chunk_events: int = 500_000) -> None:
    """Send the first events, with their own times as timestamps. Return when the last one is acknowledged."""
    for events in source.chunks(count, chunk_events):
        send(producer, topics, events)
    producer.flush()


def send(producer: Producer, topics: Topics, events: Events) -> None:
    """Send these events, without waiting for acknowledgements."""
    for name in SCHEMAS:
        table: pa.Table = getattr(events, name)
        times_ms = table["dateTime"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).combine_chunks()
        producer.send_table(getattr(topics, name), table, timestamps=times_ms)
