"""The progress of clients at work, and their final records."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from millrace.clients import Admin, Consumer, TopicPartition
from millrace.errors import MillraceError

from ..integration.waiting import eventually
from .clients import PARTITIONS, TRANSFORMERS, reads_of
from .history import Read


class Working(Protocol):
    """A client process and its successors."""

    record: Path
    """The file to which the present process writes."""

    @property
    def slot(self) -> str:
        """The name of the client."""
        ...

    @property
    def size_bytes(self) -> int:
        """The size of the record."""
        ...

    @property
    def has_ended(self) -> bool:
        """True if the process has ended by itself."""
        ...

    def start(self) -> None:
        """Start a successor."""
        ...

    def end(self, number: signal.Signals) -> int:
        """Kill the process, or let it end. Return its exit status."""
        ...


def end_all(clients: Sequence[Working]) -> None:
    """Tell clients to end, and wait for them."""
    for client in clients:
        client.end(signal.SIGTERM)


def values(reads: Sequence[Read], topic: str) -> list[str]:
    """Return a topic's values."""
    return [read.value for read in reads if read.place.topic == topic]


def let_work(clients: Sequence[Working]) -> None:
    """Wait until every client has made progress."""
    sizes = {client.slot: (client.record, client.size_bytes) for client in clients}

    def got_on() -> bool:
        return all(
            client.size_bytes > 0 and (client.record, client.size_bytes) != sizes[client.slot] for client in clients
        )

    replacing(clients, "all clients to get on", got_on)


def replacing(
    clients: Sequence[Working],
    what: str,
    condition: Callable[[], bool],
    progress: Callable[[], object] | None = None,
) -> None:
    """Wait for a condition, and meanwhile replace clients that cannot continue."""

    def holds() -> bool:
        for client in clients:
            if client.has_ended:
                client.start()
        return condition()

    eventually(holds, what, progress=progress)


def committed_by(address: str, group: str) -> int | None:
    """Return the sum of a group's committed offsets, or None if it is not known now."""
    with Admin(address) as admin:
        try:
            return sum(found.offset for found in admin.list_group_offsets(group).values())
        except MillraceError:
            return None


def is_processed(address: str, ends: Mapping[TopicPartition, int]) -> bool:
    """Tell whether the transformers' group has committed that much."""
    with Admin(address) as admin:
        try:
            committed = admin.list_group_offsets(TRANSFORMERS)
        except MillraceError:
            return False
    return all(place in committed and committed[place].offset >= end for place, end in ends.items())


def everything(address: str, *topics: str) -> list[Read]:
    """Return all committed records in the order of offsets, once no transaction is open."""
    options = {"bootstrap.servers": address, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    places = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
    reads: list[Read] = []
    with (
        Consumer({**options, "isolation.level": "read_committed"}) as consumer,
        Consumer({**options, "isolation.level": "read_uncommitted"}) as other,
    ):
        eventually(lambda: consumer.end_offsets(places) == other.end_offsets(places), "open transactions to end")
        ends = consumer.end_offsets(places)
        consumer.assign(places)
        while any(consumer.position(place) < ends[place] for place in places):
            reads += reads_of(consumer.poll(1000, max_records=10_000))
    return sorted(reads, key=lambda read: (read.place, read.offset))
