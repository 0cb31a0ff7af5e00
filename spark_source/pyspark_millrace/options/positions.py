"""Start and end positions of a read: edges, offsets, or timestamps.

The forms and the JSON are those of Spark's Kafka connector. In ``{"topic": {"0": 23, "1": -1}}``, -1 is the latest and
-2 the earliest offset of a partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from millrace.errors import UsageError
from pyspark_millrace.partition_key import PartitionKey


class OffsetSpec(IntEnum):
    """Earliest or latest offset of a partition. The numbers are those of the JSON forms and of ListOffsets."""

    LATEST = -1
    EARLIEST = -2


@dataclass(frozen=True, slots=True)
class ExactOffsets:
    """An offset for each partition that is read. A negative offset is an ``OffsetSpec``."""

    by_partition: Mapping[PartitionKey, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """First record of each partition at or after one timestamp.

    The timestamp is in ms since 1970.
    """

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """First record of each partition at or after the partition's own timestamp.

    The timestamps are in ms since 1970.
    """

    by_partition: Mapping[PartitionKey, int]


Position = OffsetSpec | ExactOffsets | AtTimestamp | AtTimestamps

NUMBER_MAX: Final = 2**63 - 1
"""Largest offset, and the largest time in ms."""

OFFSETS_FORM = 'JSON such as {"topic": {"0": 23, "1": -1}}, in which -1 is latest and -2 earliest'
TIMESTAMPS_FORM = 'JSON such as {"topic": {"0": 1700000000000}}, times in ms since 1970'
ASSIGN_FORM = 'JSON such as {"topic": [0, 1]}'


def parse_offsets(option: str, text: str, *, edges: tuple[OffsetSpec, ...]) -> Position:
    """Parse ``earliest``, ``latest`` or offsets per partition.

    ``edges`` are the values of ``OffsetSpec`` that this option accepts in this kind of query; a batch, for example,
    cannot start at the latest offset. Raises ``UsageError`` with option, value and accepted form.
    """
    word = text.strip().lower()
    named = {edge.name.lower(): edge for edge in edges}
    forms = ", ".join([*named, OFFSETS_FORM])
    if word in named:
        return named[word]
    if word in {edge.name.lower() for edge in OffsetSpec}:
        raise UsageError(f"{option}={text!r} is not possible in this kind of query: give one of: {forms}")
    offsets = _partition_numbers(option, text, f"one of: {forms}", lowest=OffsetSpec.EARLIEST)
    for key, offset in offsets.items():
        if offset < 0 and offset not in edges:
            raise UsageError(
                f"{option}: {OffsetSpec(offset).name.lower()} ({offset}) for {key} is not possible in this kind of "
                f"query: give one of: {forms}"
            )
    return ExactOffsets(offsets)


def parse_timestamps(option: str, text: str) -> AtTimestamps:
    """Parse timestamps per partition. Raises ``UsageError`` with option, value and accepted form."""
    return AtTimestamps(_partition_numbers(option, text, TIMESTAMPS_FORM, lowest=0))


def check_order(start: Position, end: Position, partitions: Iterable[PartitionKey]) -> None:
    """Raise ``UsageError`` if a partition starts at an offset after its ending one, or at a time after its ending one.

    An offset and a time, or an edge, have no order before they are looked up.
    """
    for key in partitions:
        for given, unit in ((_offset_given, ""), (_time_given, " ms")):
            first, last = given(start, key), given(end, key)
            if first is not None and last is not None and first > last:
                raise UsageError(
                    f"{key} starts at {first}{unit} and ends at {last}{unit}: the starting offset or time must not be "
                    "after the ending one"
                )


def _offset_given(position: Position, key: PartitionKey) -> int | None:
    offset = position.by_partition.get(key) if isinstance(position, ExactOffsets) else None
    return None if offset is None or offset < 0 else offset


def _time_given(position: Position, key: PartitionKey) -> int | None:
    if isinstance(position, AtTimestamp):
        return position.timestamp_ms
    return position.by_partition.get(key) if isinstance(position, AtTimestamps) else None


def parse_assignment(option: str, text: str) -> tuple[PartitionKey, ...]:
    """Parse ``{"topic": [0, 1]}`` into sorted partitions. Raises ``UsageError``."""
    problem = UsageError(f"{option}={text!r}: expected {ASSIGN_FORM}")
    topics = _json_object(text, problem)
    if not all(
        isinstance(numbers, list) and numbers and all(type(number) is int and number >= 0 for number in numbers)
        for numbers in topics.values()
    ):
        raise problem
    return tuple(sorted({PartitionKey(topic, number) for topic, numbers in topics.items() for number in numbers}))


def _partition_numbers(option: str, text: str, form: str, *, lowest: int) -> dict[PartitionKey, int]:
    problem = UsageError(f"{option}={text!r}: expected {form}")
    numbers: dict[PartitionKey, int] = {}
    for topic, by_partition in _json_object(text, problem).items():
        if not isinstance(by_partition, dict):
            raise problem
        for partition, number in by_partition.items():
            if not partition.isdecimal() or type(number) is not int or not lowest <= number <= NUMBER_MAX:
                raise problem
            numbers[PartitionKey(topic, int(partition))] = number
    return dict(sorted(numbers.items()))


def _json_object(text: str, problem: UsageError) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        raise problem from None
    if not isinstance(value, dict) or not value:
        raise problem
    return value
