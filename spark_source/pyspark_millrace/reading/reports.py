"""Read metrics of a task, sent to the driver in one datagram.

Spark accepts only its own metrics from a Python source. The driver, where ``monitor`` listens, sets its address in a
local property. Spark passes the property to every task of a query that this thread starts. A task sends one datagram
after its read. Sending never blocks and never fails the task; a lost datagram is missing only in the metrics. Each
attempt of a task sends its own report. So the sums count the records that were read, not the records that arrived.
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
"""Local property ``host:port:token`` with the address of the driver's monitor."""

_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(slots=True)
class ReadCounters:
    """Counters of one task.

    ``located_bytes`` counts the bytes that the task read, decoded or skipped. ``pruned_bytes`` counts bytes that
    planning excluded.
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
        """Bytes that were not decoded: markers, aborted batches, batches outside the requested offsets."""
        return max(0, self.located_bytes - self.decoded_bytes)

    def skip(self, header: BatchHeader) -> None:
        """Count a batch that a filter excluded."""
        self.skipped_batches += 1

    def count(self, decoded: DecodedBatch) -> None:
        """Count the log's batches in ``decoded``."""
        self.rows += decoded.num_rows
        self.batches += decoded.batch_count
        self.decoded_bytes += decoded.header.size_bytes


@dataclass(frozen=True, slots=True)
class ReadReport:
    """Report of one task; ``query_id`` is empty for a batch query."""

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
    """Yield the same batches. The time to produce them is added to ``counters``, the time to consume them is not."""
    while True:
        started = time.perf_counter()
        batch = next(batches, None)
        counters.seconds += time.perf_counter() - started
        if batch is None:
            return
        yield batch


def send_report(topic: str, counters: ReadCounters) -> None:
    """Send the counters to the driver's monitor, if there is one."""
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
    """Send a report to ``host:port:token``. A report that cannot be sent is dropped."""
    host, port, token = address.rsplit(":", 2)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(json.dumps({"token": token, **asdict(report)}).encode(), (host, int(port)))
    except OSError:
        return  # no route, a full buffer: the read itself went well


def read_datagram(data: bytes, token: str) -> ReadReport | None:
    """Parse a datagram; returns None for anything but a report with the right token."""
    try:
        fields = json.loads(data)
        if fields.pop("token") != token:
            return None
        return ReadReport(**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
