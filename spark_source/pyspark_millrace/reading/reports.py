"""What a task says about its reading: rows, batches, bytes and time, in one datagram to the driver.

Spark takes metrics of its own making from a Python source and no others. The driver, where ``monitor`` listens, names
its address in a local property, which Spark hands on to every task of a query started by that thread. A task sends one
datagram when it has read; it never waits, and never fails for it: what gets lost is missing in the metrics and nowhere
else. Each attempt of a task reports by itself, so these are sums of what was read, not of what arrived.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.records import BatchHeader, DecodedBatch

ADDRESS_PROPERTY: Final = "millrace.monitor.address"
"""Local property: ``host:port:token`` of the driver's monitor."""

_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(slots=True)
class ReadCounters:
    """What one task has read so far.

    ``located_bytes`` is what was in its hands, decoded or passed over; ``pruned_bytes`` what no task was given.
    """

    rows: int = 0
    batches: int = 0
    decoded_bytes: int = 0
    located_bytes: int = 0
    seconds: float = 0.0
    skipped_batches: int = 0
    pruned_bytes: int = 0

    @property
    def skipped_bytes(self) -> int:
        """Batches that were not decoded: markers, aborted ones, those outside of what was asked for."""
        return max(0, self.located_bytes - self.decoded_bytes)

    def skip(self, header: BatchHeader) -> None:
        """Take a batch into account that a filter ruled out."""
        self.skipped_batches += 1

    def count(self, decoded: DecodedBatch) -> None:
        """Take a batch of the log into account."""
        self.rows += decoded.num_rows
        self.batches += 1
        self.decoded_bytes += decoded.header.size_bytes


@dataclass(frozen=True, slots=True)
class ReadReport:
    """One task's reading; ``query_id`` is empty for what is not a stream."""

    query_id: str
    topic: str
    rows: int
    batches: int
    read_bytes: int
    skipped_bytes: int
    seconds: float
    skipped_batches: int = 0
    pruned_bytes: int = 0


def timed(batches: Iterator[pa.RecordBatch], counters: ReadCounters) -> Iterator[pa.RecordBatch]:
    """The same batches; the time to make them goes into ``counters``, that to use them does not."""
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        counters.seconds += time.perf_counter() - started
        if batch is None:
            return
        yield batch


def send_report(topic: str, counters: ReadCounters) -> None:
    """Tell the driver's monitor, if there is one."""
    from pyspark import TaskContext

    task = TaskContext.get()
    address = task.getLocalProperty(ADDRESS_PROPERTY) if task is not None else None
    if task is None or not address:
        return
    report = ReadReport(
        query_id=task.getLocalProperty(_QUERY_ID) or "",
        topic=topic,
        rows=counters.rows,
        batches=counters.batches,
        read_bytes=counters.decoded_bytes,
        skipped_bytes=counters.skipped_bytes,
        seconds=counters.seconds,
        skipped_batches=counters.skipped_batches,
        pruned_bytes=counters.pruned_bytes,
    )
    send_datagram(address, report)


def send_datagram(address: str, report: ReadReport) -> None:
    """Send a report to ``host:port:token``; what cannot be sent is dropped."""
    host, port, token = address.rsplit(":", 2)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(json.dumps({"token": token, **asdict(report)}).encode(), (host, int(port)))
    except OSError:
        return  # no route, a full buffer: the read itself went well


def read_datagram(data: bytes, token: str) -> ReadReport | None:
    """The report in a datagram; None for one that is not a report, or is of somebody who does not know the token."""
    try:
        fields = json.loads(data)
        if fields.pop("token") != token:
            return None
        return ReadReport(**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
