"""Replica assignment by Kafka's rule, with and without racks. Pure.

Leaders are assigned round robin over the brokers. The followers of a partition start at a shift after its leader. The
shift grows with every round, so that one broker's partitions are spread over all others. With racks, the brokers are
ordered so that racks alternate. A rack gets a second replica only when every rack has one.

Source: Kafka's ``AdminUtils.assignReplicasToBrokers`` and ``AdminZkClient.createPartitions``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from millrace.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
)

Assignment = dict[int, tuple[int, ...]]
"""Replicas of each partition, the preferred leader first."""


@dataclass(frozen=True, slots=True)
class BrokerRack:
    """Live broker and its rack; None without a rack."""

    broker_id: int
    rack: str | None = None


def assign_replicas(
    brokers: Sequence[BrokerRack],
    partitions: int,
    replication_factor: int,
    *,
    start_index: int | None = None,
    first_partition: int = 0,
    chance: random.Random | None = None,
) -> Assignment:
    """Assign ``partitions`` new partitions, numbered from ``first_partition``, to ``brokers`` in the given order.

    ``start_index`` is the position of the broker that leads partition 0, and the first shift of its followers. None
    draws both from ``chance``. Raises ``InvalidPartitionsError``, ``InvalidReplicationFactorError``, and
    ``InvalidReplicaAssignmentError`` if only some of the brokers have a rack.
    """
    _check_counts(brokers, partitions, replication_factor)
    racks = {each.broker_id: each.rack for each in brokers if each.rack is not None}
    if racks and len(racks) < len(brokers):
        without = [each.broker_id for each in brokers if each.rack is None]
        raise InvalidReplicaAssignmentError(
            f"brokers {without} have no rack, but others have one: set broker.rack on all of them or on none"
        )
    order = rack_alternated(racks) if racks else [each.broker_id for each in brokers]
    if start_index is None:
        chance = chance or random.Random()
        start_index, shift = chance.randrange(len(order)), chance.randrange(len(order))
    else:
        shift = start_index
    assigned: Assignment = {}
    for partition in range(max(first_partition, 0), max(first_partition, 0) + partitions):
        if partition > 0 and partition % len(order) == 0:
            shift += 1
        leader = (partition + start_index) % len(order)
        if racks:
            assigned[partition] = _in_different_racks(order, racks, leader, shift, replication_factor)
        else:
            followers = (order[_follower(leader, shift, n, len(order))] for n in range(replication_factor - 1))
            assigned[partition] = (order[leader], *followers)
    return assigned


def _check_counts(brokers: Collection[BrokerRack], partitions: int, replication_factor: int) -> None:
    if partitions < 1:
        raise InvalidPartitionsError(f"{partitions} partitions: a topic has at least 1")
    if not 1 <= replication_factor <= len(brokers):
        raise InvalidReplicationFactorError(
            f"replication factor {replication_factor}: expected between 1 and {len(brokers)}, the number of live "
            "brokers"
        )


def _follower(leader: int, shift: int, number: int, brokers: int) -> int:
    return (leader + 1 + (shift + number) % (brokers - 1)) % brokers


def _in_different_racks(
    order: Sequence[int], racks: Mapping[int, str], leader: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    rack_count = len(set(racks.values()))
    replicas = [order[leader]]
    used = {racks[order[leader]]}
    number = 0
    while len(replicas) < replication_factor:
        broker = order[_follower(leader, shift * rack_count, number, len(order))]
        number += 1
        if broker not in replicas and (racks[broker] not in used or len(used) == rack_count):
            replicas.append(broker)
            used.add(racks[broker])
    return tuple(replicas)


def rack_alternated(racks: Mapping[int, str]) -> list[int]:
    """Return the brokers in an order in which racks alternate: racks by name, brokers of a rack by id."""
    by_rack: dict[str, list[int]] = defaultdict(list)
    for broker_id in sorted(racks):
        by_rack[racks[broker_id]].append(broker_id)
    turns = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker_id for turn in turns for broker_id in turn if broker_id is not None]


def assign_more_partitions(
    brokers: Collection[BrokerRack], existing: Mapping[int, Sequence[int]], count: int
) -> Assignment:
    """Assign the new partitions of a topic that grows to ``count`` partitions. Existing ones stay.

    The assignment starts at the leader of partition 0 and uses its number of replicas. Raises the errors of
    ``assign_replicas``, and ``InvalidPartitionsError`` unless the count grows.
    """
    if count <= len(existing):
        raise InvalidPartitionsError(f"{count} partitions: the topic has {len(existing)}, and the number can only grow")
    if 0 not in existing:
        raise InvalidReplicaAssignmentError(f"partition 0 is missing among {sorted(existing)}: create the topic again")
    by_id = sorted(brokers, key=lambda each: each.broker_id)
    first = existing[0]
    start_index = next((n for n, each in enumerate(by_id) if each.broker_id >= first[0]), 0)
    added = count - len(existing)
    return assign_replicas(by_id, added, len(first), start_index=start_index, first_partition=len(existing))


def check_assignment(
    assignment: Mapping[int, Sequence[int]],
    brokers: Collection[int],
    *,
    first_partition: int = 0,
    replication_factor: int | None = None,
) -> None:
    """Raise ``InvalidReplicaAssignmentError`` unless a manual assignment is possible.

    Partitions must be consecutive from ``first_partition``. All must have the same number of replicas
    (``replication_factor`` if given), on different live ``brokers``.
    """
    wanted = list(range(first_partition, first_partition + len(assignment)))
    if sorted(assignment) != wanted:
        raise InvalidReplicaAssignmentError(f"partitions {sorted(assignment)} are assigned: expected {wanted}")
    for partition, replicas in sorted(assignment.items()):
        factor = replication_factor if replication_factor is not None else len(assignment[first_partition])
        if not replicas or len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignmentError(f"partition {partition} on {list(replicas)}: name each broker once")
        if unknown := sorted(set(replicas) - set(brokers)):
            raise InvalidReplicaAssignmentError(f"partition {partition}: brokers {unknown} are unknown or not alive")
        if len(replicas) != factor:
            raise InvalidReplicaAssignmentError(
                f"partition {partition} has {len(replicas)} replicas and others have {factor}: give all the same number"
            )
