"""Typed topics of the auction house's events: one for each kind, keyed as the queries join and group."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from benchmarks.nexmark import generator
from benchmarks.nexmark.generator import Events, Generator
from millrace.clients import Admin, Producer

# Events are kept however long ago their times are.
_CONFIGS = {"retention.ms": "-1"}


@dataclass(frozen=True, slots=True)
class Topics:
    """The names of the topics."""

    person: str = "person"
    auction: str = "auction"
    bid: str = "bid"

    @classmethod
    def with_prefix(cls, prefix: str) -> Topics:
        """Names that begin alike, so that a broker can hold several sets."""
        return cls(*(f"{prefix}-{name}" for name in ("person", "auction", "bid")))


SCHEMAS = {"person": generator.PERSON, "auction": generator.AUCTION, "bid": generator.BID}
KEYS = {"person": "id", "auction": "id", "bid": "auction"}
"""A bid lies in the partition of its auction."""


def create(admin: Admin, topics: Topics, partitions: int) -> None:
    """Make the topics, which must not be there yet."""
    for name, schema in SCHEMAS.items():
        topic = getattr(topics, name)
        admin.create_topic(topic, partitions=partitions, configs=_CONFIGS, schema=schema, key_columns=[KEYS[name]])


def fill(producer: Producer, topics: Topics, source: Generator, count: int, chunk_events: int = 500_000) -> None:
    """Send the first events; records have the events' times. Returns when the last one is acknowledged."""
    for events in source.chunks(count, chunk_events):
        send(producer, topics, events)
    producer.flush()


def send(producer: Producer, topics: Topics, events: Events) -> None:
    """Send these events, without waiting for acknowledgements."""
    for name in SCHEMAS:
        table: pa.Table = getattr(events, name)
        times_ms = table["dateTime"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).combine_chunks()
        producer.send_table(getattr(topics, name), table, timestamps=times_ms)
