"""Addresses of brokers for Kafka clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millrace_broker.broker import Broker


class Node(NamedTuple):
    """A broker as Kafka clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None


def nodes(broker: Broker) -> Iterator[Node]:
    """Yield the live brokers, by id. Raises ``BrokerUnavailableError`` while they are unknown."""
    for live in broker.live_brokers():
        yield Node(live.broker_id, live.host, live.frame_port, live.rack or None)
