"""Conversion of the options of ``millrace groups reset-offsets`` to new offsets, and their output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from millrace.cli.output import print_json, print_table
from millrace.cli.tool_files import file_text
from millrace.clients.groups.resets import (
    Bounds,
    Plans,
    Target,
    decide,
    parse_duration,
    parse_time,
    read_plans,
)
from millrace.clients.model import TopicPartition
from millrace.config.client import Isolation
from millrace.errors import GroupIdNotFoundError, UnknownTopicOrPartitionError, UsageError

if TYPE_CHECKING:
    from millrace.clients import Admin


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Requested reset: a target, with its number or time, or a file."""

    target: Target | None
    number: int = 0
    when: datetime | None = None
    file: Path | None = None

    @classmethod
    def of(cls, **options: Any) -> Wish:
        """Create it from the options of the command; raises ``UsageError`` unless exactly one is given."""
        given = {name.replace("_", "-"): value for name, value in options.items() if value not in (None, False)}
        if len(given) != 1:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
            raise UsageError(f"name the target by one of {names}")
        ((name, value),) = given.items()
        if name == "from-file":
            return cls(target=None, file=value)
        if name == "by-duration":
            return cls(target=Target.TIME, when=_before_now(parse_duration(value), value))
        target = Target(name)
        if target is Target.TIME:
            return cls(target=target, when=parse_time(value))
        return cls(target=target, number=value if target in (Target.OFFSET, Target.SHIFT) else 0)


def _before_now(duration: timedelta, text: str) -> datetime:
    try:
        return datetime.now(UTC) - duration
    except OverflowError:
        raise UsageError(f"--by-duration {text}: it is before the year 1") from None


def plan_resets(admin: Admin, names: list[str], wish: Wish, topics: list[str], *, all_topics: bool) -> Plans:
    """Return the new offsets of each group. Raises ``UsageError``, ``UnknownTopicOrPartitionError``."""
    if wish.file is not None:
        return _plans_of_file(admin, names, wish.file)
    if bool(topics) == all_topics:
        raise UsageError("name the topics: --topic TOPIC[:0,1,2], or --all-topics")
    chosen = chosen_partitions(admin, topics) if topics else None
    assert wish.target is not None
    plans = {}
    for name in names:
        committed = _committed(admin, name)
        partitions = sorted(committed) if chosen is None else chosen
        plans[name] = decide(wish.target, bounds_of(admin, partitions, committed, wish.when), wish.number)
    return plans


def _committed(admin: Admin, name: str) -> dict[TopicPartition, int]:
    if is_shared(admin, name):
        return {partition: place.start_offset for partition, place in admin.list_share_group_offsets(name).items()}
    return {partition: place.offset for partition, place in admin.list_group_offsets(name).items()}


def is_shared(admin: Admin, name: str) -> bool:
    """Return whether a group is a share group; false for a missing group, which its first offsets create."""
    try:
        return admin.describe_group(name).is_shared
    except GroupIdNotFoundError:
        return False


def execute(admin: Admin, plans: Plans) -> None:
    """Set the new offsets."""
    for name, offsets in plans.items():
        if not offsets:
            continue
        if is_shared(admin, name):
            admin.alter_share_group_offsets(name, offsets)
        else:
            admin.alter_group_offsets(name, offsets)


def _plans_of_file(admin: Admin, names: list[str], file: Path) -> Plans:
    plans = read_plans(file_text(file), names, str(file))
    for name, offsets in plans.items():
        bounds = bounds_of(admin, sorted(offsets), {}, None)
        plans[name] = {
            partition: decide(Target.OFFSET, {partition: bounds[partition]}, offset)[partition]
            for partition, offset in offsets.items()
        }
    return plans


def bounds_of(
    admin: Admin,
    partitions: list[TopicPartition],
    committed: Mapping[TopicPartition, int],
    when: datetime | None,
    *,
    isolation_level: str = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, Bounds]:
    """Return the offset bounds of partitions. With read_committed they end before the first open transaction."""
    starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation_level=isolation_level)
    at_time = (
        {} if when is None else admin.list_offsets(dict.fromkeys(partitions, when), isolation_level=isolation_level)
    )
    return {
        partition: Bounds(
            start=starts[partition].offset,
            end=ends[partition].offset,
            committed=committed.get(partition),
            at_time=at_time[partition].offset if partition in at_time and at_time[partition].offset >= 0 else None,
        )
        for partition in partitions
    }


def chosen_partitions(admin: Admin, topics: list[str]) -> list[TopicPartition]:
    """Return the partitions of ``TOPIC[:0,1,2]``; raises ``UnknownTopicOrPartitionError``, ``UsageError``."""
    chosen = []
    for text in topics:
        name, colon, numbers = text.partition(":")
        count = admin.describe_topic(name).num_partitions
        try:
            wanted = [int(number) for number in numbers.split(",")] if colon else list(range(count))
        except ValueError:
            raise UsageError(f"--topic {text}: expected TOPIC or TOPIC:0,1,2") from None
        for number in wanted:
            if not 0 <= number < count:
                raise UnknownTopicOrPartitionError(f"topic {name} has partitions 0 to {count - 1}, not {number}")
        chosen += [TopicPartition(name, number) for number in wanted]
    return chosen


def show_plans(plans: Plans, *, as_json: bool, was_executed: bool) -> None:
    """Print the new offsets, and whether they are set."""
    rows = [(name, *partition, offset) for name, offsets in plans.items() for partition, offset in offsets.items()]
    if as_json:
        print_json(
            [
                {"group": group, "topic": topic, "partition": partition, "new_offset": offset}
                for group, topic, partition, offset in rows
            ]
        )
        return
    print_table(["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], rows)
    if not was_executed:
        typer.echo("nothing was changed: --execute makes the change", err=True)
