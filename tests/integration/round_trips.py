"""Round trip of records through millrace's clients, for tests of listeners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millrace.clients import Admin, Consumer, Producer

from .waiting import STALL_S


def round_trip(options: Mapping[str, Any], topic: str, values: Sequence[bytes] = (b"value",)) -> None:
    """Create a topic, send values to it and read them, with three clients of the same options."""
    with Admin(options) as admin:
        admin.create_topic(topic)
    with Producer(options) as producer:
        for value in values:
            producer.send(topic, value).result(STALL_S)
    found: list[Any] = []
    with Consumer({**options, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        while len(found) < len(values):
            records = consumer.poll(STALL_S * 1000)
            assert records, f"{topic} has {len(found)} records"
            found += [record.value for record in records]
    assert found == list(values)
