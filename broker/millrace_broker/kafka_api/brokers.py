"""Addresses of brokers for Kafka clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millrace_broker.cluster.member import Member


class Node(NamedTuple):
    """A broker as Kafka clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None


def nodes(member: Member, listener: str) -> Iterator[Node]:
    """Yield the live brokers that have a listener, by id. Raises ``BrokerUnavailableError`` while they are unknown."""
    for live in member.live_brokers():
        if listener in live.endpoints:
            yield Node(live.broker_id, *live.endpoints[listener], live.rack or None)
