"""Partition list of ``millrace topics describe``, without a topic or filtered by problem."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from millrace.clients import Admin, TopicDescription

MIN_ISR: Final = "min.insync.replicas"


class Trouble(StrEnum):
    """Filters for partitions, with the names of Kafka's tool."""

    UNDER_REPLICATED = "under-replicated"
    UNAVAILABLE = "unavailable"
    UNDER_MIN_ISR = "under-min-isr"
    AT_MIN_ISR = "at-min-isr"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """Partition in a list.

    During a reassignment, ``replicas`` are all current ones; ``adding`` and ``removing`` are some of them.
    """

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


def is_in(view: PartitionView, trouble: Trouble, alive: Collection[int], min_isr: int) -> bool:
    """Return whether a partition has this problem. A replica that is being added does not count as missing."""
    match trouble:
        case Trouble.UNDER_REPLICATED:
            return len(view.isr) < len(view.replicas) - len(view.adding)
        case Trouble.UNAVAILABLE:
            return view.leader not in alive
        case Trouble.UNDER_MIN_ISR:
            return len(view.isr) < min_isr
        case Trouble.AT_MIN_ISR:
            return len(view.isr) == min_isr


def views(admin: Admin, topics: Collection[TopicDescription], trouble: Trouble | None) -> list[PartitionView]:
    """Return the partitions of topics, or those of them with a problem."""
    from millrace.clients import TopicPartition

    cluster = admin.describe_cluster()
    alive = {each.node_id for each in cluster.brokers}
    # Only the controller knows reassignments. Without a controller the other columns are still shown.
    moving = admin.list_partition_reassignments() if cluster.controller_id in alive else {}
    found = []
    for topic in topics:
        of_isr = trouble in (Trouble.UNDER_MIN_ISR, Trouble.AT_MIN_ISR)
        min_isr = int(admin.describe_configs(topic.name)[MIN_ISR].value) if of_isr else 0
        for each in topic.partitions:
            move = moving.get(TopicPartition(topic.name, each.partition))
            view = PartitionView(
                topic=topic.name,
                partition=each.partition,
                leader=each.leader,
                replicas=each.replicas,
                isr=each.isr,
                adding=() if move is None else move.adding,
                removing=() if move is None else move.removing,
            )
            if trouble is None or is_in(view, trouble, alive, min_isr):
                found.append(view)
    return found


def overrides(admin: Admin, topics: Collection[TopicDescription]) -> dict[str, dict[str, str]]:
    """Return the topics' own options, without topics that have none."""
    found = {}
    for topic in topics:
        options = {
            option: value.value
            for option, value in admin.describe_configs(topic.name).items()
            if value.source == "DYNAMIC_TOPIC_CONFIG"
        }
        if options:
            found[topic.name] = options
    return found


def print_views(found: Collection[PartitionView], *, as_json: bool) -> None:
    """Print partitions."""
    _print(
        ["topic", "partition", "leader", "replicas", "isr", "adding", "removing"],
        [
            (each.topic, each.partition, each.leader, each.replicas, each.isr, each.adding, each.removing)
            for each in found
        ],
        lambda cell: ",".join(map(str, cell)) if isinstance(cell, tuple) else cell,
        as_json=as_json,
    )


def print_overrides(found: Mapping[str, Mapping[str, str]], *, as_json: bool) -> None:
    """Print the topics' own options."""
    _print(
        ["topic", "configs"],
        list(found.items()),
        lambda cell: cell if isinstance(cell, str) else ", ".join(f"{name}={text}" for name, text in cell.items()),
        as_json=as_json,
    )


def _print(names: list[str], rows: list[Any], text: Callable[[Any], Any], *, as_json: bool) -> None:
    from millrace.cli.output import print_json, print_table

    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table([name.upper() for name in names], [tuple(map(text, row)) for row in rows])
