"""Start and end of ``millrace consume``: offsets, times, partition ends, or a count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from millrace.cli.options import is_number
from millrace.config.iso8601 import iso_time
from millrace.errors import OffsetOutOfRangeError, UsageError

if TYPE_CHECKING:
    from millrace.clients import Consumer, ConsumerRecord, TopicPartition


def choose_partitions(available: list[TopicPartition], wanted: str | None) -> list[TopicPartition]:
    """Return the partitions of ``0,2,5-7``; raises ``UsageError``."""
    if wanted is None:
        return available
    numbers: list[int] = []
    try:
        for part in wanted.split(","):
            first, dash, last = part.partition("-")
            found = range(int(first), int(last) + 1) if dash else [int(first)]
            if not found:
                raise UsageError(f"--partitions {wanted}: the range {part} is empty: give the lower number first")
            numbers += found
    except ValueError:
        raise UsageError(f"--partitions {wanted}: expected numbers and ranges like 0,2,5-7") from None
    topic = available[0]
    return [topic._replace(partition=number) for number in dict.fromkeys(numbers)]


def seek(consumer: Consumer, start: str) -> None:
    """Seek to ``beginning``, ``end``, an offset or a time. Raises ``UsageError``, ``OffsetOutOfRangeError``."""
    if start == "beginning":
        consumer.seek_to_beginning()
    elif start == "end":
        consumer.seek_to_end()
        for partition in consumer.assignment():
            consumer.position(partition)
    elif is_number(start):
        _seek_to_offset(consumer, int(start))
    else:
        consumer.seek_to_time(_time("--from", start))


def _time(option: str, text: str) -> datetime:
    when = iso_time(text)
    if when is None:
        names = "beginning, end, an offset" if option == "--from" else "end, an offset"
        raise UsageError(f"{option} {text}: expected {names}, or a time in ISO 8601")
    return when


def _seek_to_offset(consumer: Consumer, offset: int) -> None:
    """Seek to ``offset`` in every partition. Raises ``OffsetOutOfRangeError`` if a partition lacks it."""
    assigned = consumer.assignment()
    first, end = consumer.beginning_offsets(assigned), consumer.end_offsets(assigned)
    for partition in assigned:
        if not first[partition] <= offset <= end[partition]:
            raise OffsetOutOfRangeError(
                f"{partition.topic}-{partition.partition} has offsets {first[partition]} to {end[partition]} (the end),"
                f" not {offset}: start at another offset, or choose partitions that have it with --partitions"
            )
        consumer.seek(partition, offset)


def find_ends(consumer: Consumer, partitions: Sequence[TopicPartition], end: str) -> dict[TopicPartition, int]:
    """Return the end offsets, exclusive: the current ends, an offset, or the first record since a time."""
    ends = consumer.end_offsets(partitions)
    if end == "end":
        return ends
    if is_number(end):
        return {partition: min(int(end), last) for partition, last in ends.items()}
    found = consumer.offsets_for_times(dict.fromkeys(partitions, _time("--to", end)))
    return {
        partition: ends[partition] if place is None else min(place.offset, ends[partition])
        for partition, place in found.items()
    }


@dataclass(frozen=True, slots=True)
class Reading:
    """Consumer with the end of its reading.

    ``ends`` are the end offsets by partition, exclusive; ``None`` means no end. ``max_messages`` is the maximum number
    of records.
    """

    consumer: Consumer
    ends: dict[TopicPartition, int] | None
    max_messages: int | None
    columns: list[str] | None
    in_group: bool = False

    def polls(self, poll_ms: int, most: int) -> Iterator[list[ConsumerRecord]]:
        """Yield the records of each poll before the end, until all are read.

        A group member commits the yielded records, and no others, when the next are requested.
        """
        from millrace.clients import TopicPartition

        left = self.max_messages
        while not self.is_done(left):
            wanted = most if left is None else min(left, most)
            records = [record for record in self.consumer.poll(poll_ms, max_records=wanted) if self.is_in(record)]
            yield records
            if self.in_group and records:
                self.consumer.commit({TopicPartition(each.topic, each.partition): each.offset + 1 for each in records})
            left = None if left is None else left - len(records)

    def is_in(self, record: ConsumerRecord) -> bool:
        """Return whether a record is before the end."""
        from millrace.clients import TopicPartition

        partition = TopicPartition(record.topic, record.partition)
        return self.ends is None or record.offset < self.ends.get(partition, 0)

    def is_done(self, left: int | None) -> bool:
        """Return whether all requested records are read; a group member reads only its assigned partitions."""
        if left is not None and left <= 0:
            return True
        if self.ends is None:
            return False
        if not self.in_group:
            return all(self.consumer.position(partition) >= end for partition, end in self.ends.items())
        assigned = self.consumer.assignment()
        return bool(assigned) and all(
            self.consumer.position(partition) >= self.ends.get(partition, 0) for partition in assigned
        )
