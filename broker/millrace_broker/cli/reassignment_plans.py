"""Reassignment plans in the JSON of Kafka's ``ReassignPartitionsCommand``.

The module is pure. It proposes, reads and writes plans, and compares them with the current assignment.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.cli.tool_files import json_object, list_of, number_of, partition_of, text_of
from millrace.clients.cluster_operations import Reassignment
from millrace.clients.model import TopicPartition
from millrace.errors import UsageError
from millrace_broker.metadata.assignment import BrokerRack, assign_replicas

Plan = dict[TopicPartition, tuple[int, ...]]
"""Replicas of each partition, the preferred leader first."""

LEADER_THROTTLED: Final = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLED: Final = "follower.replication.throttled.replicas"


def read_plan(text: str) -> Plan:
    """Parse a plan's JSON. Raises ``UsageError``, which names the defect."""
    value = json_object(text)
    try:
        entries = list_of(value["partitions"])
        plan = {partition_of(entry): tuple(map(number_of, list_of(entry["replicas"]))) for entry in entries}
        directories = {text_of(each) for entry in entries for each in list_of(entry.get("log_dirs", []))}
    except (KeyError, TypeError) as error:
        raise UsageError(
            f'invalid plan ({error!r}): expected {{"version": 1, "partitions": '
            '[{"topic": ..., "partition": ..., "replicas": [...]}]}'
        ) from None
    if directories - {"any"}:
        raise UsageError(
            f'the plan has log_dirs {sorted(directories)}, but each broker chooses the directory itself: use "any"'
        )
    if not plan:
        raise UsageError("the plan has no partitions")
    if len(plan) < len(entries):
        raise UsageError("the plan names a partition twice")
    for partition, replicas in plan.items():
        if not replicas or len(set(replicas)) < len(replicas):
            raise UsageError(
                f"{partition.topic}-{partition.partition} has the replicas {list(replicas)}: name each broker once"
            )
    return plan


def read_topics(text: str) -> list[str]:
    """Parse the list of topics to move, in the JSON of Kafka's tool. Raises ``UsageError``."""
    try:
        return [text_of(each["topic"]) for each in list_of(json_object(text)["topics"])]
    except (KeyError, TypeError) as error:
        raise UsageError(f'invalid list of topics ({error!r}): expected {{"topics": [{{"topic": ...}}]}}') from None


def plan_json(plan: Mapping[TopicPartition, Sequence[int]]) -> str:
    """Format a plan as JSON on one line."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": list(replicas), "log_dirs": ["any"] * len(replicas)}
        for (topic, number), replicas in sorted(plan.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"))


def propose(
    present: Mapping[TopicPartition, Sequence[int]], brokers: Sequence[BrokerRack], *, start_index: int | None = None
) -> Plan:
    """Spread topics over ``brokers``. A topic's replication factor stays that of its first partition.

    Raises ``InvalidReplicationFactorError`` if there are too few brokers, and the errors of ``assign_replicas``.
    """
    by_topic: dict[str, dict[int, Sequence[int]]] = defaultdict(dict)
    for (topic, number), replicas in present.items():
        by_topic[topic][number] = replicas
    proposed: Plan = {}
    for topic, partitions in sorted(by_topic.items()):
        factor = len(partitions[min(partitions)])
        assigned = assign_replicas(brokers, len(partitions), factor, start_index=start_index)
        proposed |= {TopicPartition(topic, number): replicas for number, replicas in assigned.items()}
    return proposed


@dataclass(frozen=True, slots=True)
class Standing:
    """Progress of one partition of a plan.

    The state is ``complete``, ``in progress``, ``elsewhere`` (neither complete nor moving), or ``gone`` (no such
    partition).
    """

    partition: TopicPartition
    state: str
    replicas: tuple[int, ...]


def standing(
    plan: Plan, present: Mapping[TopicPartition, Sequence[int]], moving: Iterable[TopicPartition]
) -> list[Standing]:
    """Return the progress of each partition of a plan."""
    on_the_way = set(moving)
    found = []
    for partition, wanted in sorted(plan.items()):
        replicas = tuple(present.get(partition, ()))
        if partition in on_the_way:
            state = "in progress"
        elif not replicas:
            state = "gone"
        else:
            state = "complete" if replicas == wanted else "elsewhere"
        found.append(Standing(partition, state, replicas))
    return found


@dataclass(frozen=True, slots=True)
class Move:
    """Brokers that have a partition, and brokers that receive it."""

    senders: tuple[int, ...]
    receivers: tuple[int, ...]


def moves(
    plan: Plan, present: Mapping[TopicPartition, Sequence[int]], moving: Mapping[TopicPartition, Reassignment]
) -> dict[TopicPartition, Move]:
    """Return the moves after the start of ``plan``: those of its partitions and those already in ``moving``."""
    found = {}
    for partition in sorted(plan.keys() | moving.keys()):
        under_way = moving.get(partition)
        has = tuple(present.get(partition, ()))
        if under_way is not None:
            has = tuple(each for each in under_way.replicas if each not in under_way.adding)
        wanted = plan.get(partition) or (() if under_way is None else under_way.adding)
        coming = tuple(each for each in wanted if each not in has)
        if coming:
            found[partition] = Move(has, coming)
    return found


def throttled_replicas(moves: Mapping[TopicPartition, Move]) -> dict[str, dict[str, str]]:
    """Return the topic options that throttle the leaders and followers of the moves."""
    senders: dict[str, list[str]] = defaultdict(list)
    receivers: dict[str, list[str]] = defaultdict(list)
    for (topic, number), move in sorted(moves.items()):
        senders[topic] += [f"{number}:{each}" for each in move.senders]
        receivers[topic] += [f"{number}:{each}" for each in move.receivers]
    return {
        topic: {LEADER_THROTTLED: ",".join(senders[topic]), FOLLOWER_THROTTLED: ",".join(receivers[topic])}
        for topic in senders
    }
