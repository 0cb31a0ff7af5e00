"""The content of a log, read with checksum verification.

The expected transaction state is derived from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.records import BatchHeader, ControlType, read_end_marker, read_rows, scan_headers, verify_crc
from millrace_broker.log import PartitionLog

TRANSACTIONAL: Final = 9
"""The producer whose batches are in transactions."""


def latest_epoch(log: PartitionLog) -> int:
    return log.epochs.entries[-1][0] if log.epochs.entries else 0


def last_sequence(log: PartitionLog, producer_id: int) -> int:
    return next((entry.last_sequence for entry in log.producers if entry.producer_id == producer_id), -1)


def verify_transactions(log: PartitionLog) -> None:
    """Check that the last stable offset and the aborted transactions are those of the batches."""
    began: int | None = None
    aborted = []
    for data, position, header in batches(log):
        if header.producer_id == TRANSACTIONAL and not header.is_control and began is None:
            began = header.base_offset
        elif header.is_control:
            (record,) = read_rows(data, position, header)
            if began is not None and read_end_marker(record).type is ControlType.ABORT:
                aborted.append((began, header.base_offset))
            began = None
    stable_offset = log.log_end_offset if began is None else began
    assert log.last_stable_offset == stable_offset, f"{log.last_stable_offset} is not {stable_offset}"
    found = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    listed = [(each.first_offset, each.last_offset) for each in found]
    assert listed == aborted, f"{listed} are not {aborted}"


def read_all(log: PartitionLog) -> list[tuple[int, tuple[bytes, bytes | None, int]]]:
    """Return all records of a log with verified checksums, as (offset, (key, value, time))."""
    return [
        (record.offset, (record.key or b"", record.value, record.timestamp_ms))
        for data, position, header in batches(log)
        if not header.is_control
        for record in read_rows(data, position, header)
        if record.offset >= log.log_start_offset
    ]


def batches(log: PartitionLog) -> Iterator[tuple[bytes, int, BatchHeader]]:
    at = log.log_start_offset
    while at < log.log_end_offset and (data := log.read(at, 1000)):
        for position, header in scan_headers(data):
            verify_crc(data, position, header)
            at = header.next_offset
            yield data, position, header
