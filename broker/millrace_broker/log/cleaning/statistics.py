"""Figures of a cleaning, for the log and for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CleaningCounts:
    """Counts during a cleaning. ``mapped`` counts belong to the first pass, which fills the offset map."""

    records_mapped: int = 0
    bytes_mapped: int = 0
    records_read: int = 0
    bytes_read: int = 0
    records_written: int = 0
    bytes_written: int = 0
    records_without_key: int = 0
    segments_read: int = 0
    segments_written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningStatistics:
    """The figures of one cleaning of one partition. Seconds are wall-clock time, including waits for the I/O limit."""

    partition: str
    start_offset: int
    end_offset: int
    keys: int
    map_utilization: float
    records_mapped: int
    bytes_mapped: int
    records_read: int
    bytes_read: int
    records_written: int
    bytes_written: int
    records_without_key: int
    segments_read: int
    segments_written: int
    map_seconds: float
    copy_seconds: float

    @property
    def seconds(self) -> float:
        """The duration of the cleaning."""
        return self.map_seconds + self.copy_seconds

    @property
    def megabytes_per_second(self) -> float:
        """The read megabytes per second."""
        return self.bytes_read / 1e6 / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"cleaned {self.partition} up to offset {self.end_offset} (dirty from {self.start_offset}): "
            f"read {self.segments_read} segments with {self.bytes_read} bytes and {self.records_read} records, "
            f"wrote {self.segments_written} segments with {self.bytes_written} bytes and {self.records_written} "
            f"records; {self.keys} keys, which fill {self.map_utilization:.1%} of the offset map; "
            f"{self.records_without_key} records had no key; {self.map_seconds:.1f} s for the offset map, "
            f"{self.copy_seconds:.1f} s for copying, {self.megabytes_per_second:.1f} MB/s"
        )
