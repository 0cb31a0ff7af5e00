"""Target offsets of group resets, as pure functions.

The rules are those of Kafka's tool. Offsets stay within the partition. A target before its start becomes the start, and
a target after its end becomes the end.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from millrace.clients.model import TopicPartition
from millrace.config.iso8601 import iso_duration, iso_time
from millrace.errors import UsageError


class Target(StrEnum):
    """Kinds of targets, named like the command's options."""

    EARLIEST = "to-earliest"
    LATEST = "to-latest"
    CURRENT = "to-current"
    OFFSET = "to-offset"
    TIME = "to-datetime"
    SHIFT = "shift-by"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Offset bounds of a partition, and the group's committed offset.

    ``at_time`` is the offset for a requested time, or ``None`` if no record is that new.
    """

    start: int
    end: int
    committed: int | None = None
    at_time: int | None = None


def decide(target: Target, bounds: Mapping[TopicPartition, Bounds], number: int = 0) -> dict[TopicPartition, int]:
    """Return the new offset of each partition; ``number`` is that of ``to-offset`` and ``shift-by``.

    Without a committed offset ``to-current`` is the end, as in Kafka's tool, and ``shift-by`` omits the partition.
    """
    decided = {}
    for partition, bound in sorted(bounds.items()):
        wanted = _wanted(target, bound, number)
        if wanted is not None:
            decided[partition] = min(max(wanted, bound.start), bound.end)
    return decided


def _wanted(target: Target, bound: Bounds, number: int) -> int | None:
    match target:
        case Target.EARLIEST:
            return bound.start
        case Target.LATEST:
            return bound.end
        case Target.CURRENT:
            return bound.end if bound.committed is None else bound.committed
        case Target.OFFSET:
            return number
        case Target.TIME:
            return bound.end if bound.at_time is None else bound.at_time
        case Target.SHIFT:
            return None if bound.committed is None else bound.committed + number


def parse_duration(text: str) -> timedelta:
    """Parse a duration in ISO 8601, for example ``P7DT12H`` or ``PT30M``; raises ``UsageError``."""
    duration = iso_duration(text)
    if duration is None:
        raise UsageError(f"duration {text!r}: expected ISO 8601, like PT30M, PT12H or P7D")
    return duration


def parse_time(text: str) -> datetime:
    """Parse a time in ISO 8601, in UTC unless it has a zone; raises ``UsageError``."""
    when = iso_time(text)
    if when is None:
        raise UsageError(f"time {text!r}: expected ISO 8601, like 2026-05-01T12:00:00.000")
    return when


Plans = dict[str, dict[TopicPartition, int]]
"""New offsets by group."""


def write_plans(plans: Mapping[str, Mapping[TopicPartition, int]]) -> str:
    """Write plans as CSV like Kafka's tool: ``topic,partition,offset``, with ``group,...`` first for several groups."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, offsets in sorted(plans.items()):
        first = [group] if len(plans) > 1 else []
        writer.writerows([*first, key.topic, key.partition, offset] for key, offset in sorted(offsets.items()))
    return out.getvalue()


def read_plans(text: str, groups: Iterable[str], source: str) -> Plans:
    """Read CSV in the format of ``write_plans``. Lines without a group are for the only group.

    Raises ``UsageError`` naming the line of ``source``.
    """
    wanted = list(groups)
    plans: Plans = {group: {} for group in wanted}
    for number, line in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not line:
            continue
        group = line[0] if len(line) == 4 else wanted[0] if len(wanted) == 1 else None
        try:
            topic, partition, offset = line[-3:]
            key, place = TopicPartition(topic, int(partition)), int(offset)
        except ValueError:
            raise UsageError(f"{source}:{number}: expected topic,partition,offset (or group,topic,...)") from None
        if len(line) not in (3, 4) or group is None:
            raise UsageError(
                f"{source}:{number}: expected group,topic,partition,offset, because there are several groups"
            )
        if group in plans:
            plans[group][key] = place
    return plans
