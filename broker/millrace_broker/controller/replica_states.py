"""State changes of replicas, Kafka's ``ZkReplicaStateMachine``.

The controller makes replicas follow, stops them, removes them from the ISR, and deletes them.

Source: Kafka's ``ZkReplicaStateMachine``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from millrace_broker.controller.context import ControllerContext
from millrace_broker.controller.effects import ReadLeadership, SendRequests, Steps, WriteLeadership
from millrace_broker.controller.model import REPLICA_COMES_FROM, PartitionReplica, ReplicaState
from millrace_broker.controller.requests import RequestBatch
from millrace_broker.decisions import NO_LEADER, Leadership, TopicPartition


def change_replicas(
    context: ControllerContext, replicas: Iterable[PartitionReplica], target: ReplicaState
) -> Steps[None]:
    """Bring replicas into a state; a replica whose present state does not allow the change keeps it."""
    by_broker: dict[int, list[TopicPartition]] = defaultdict(list)
    for replica in replicas:
        if context.replica_state(replica) in REPLICA_COMES_FROM[target]:
            by_broker[replica.broker_id].append(replica.partition)
    batch = RequestBatch(context)
    for broker_id, partitions in sorted(by_broker.items()):
        if target is ReplicaState.OFFLINE:
            yield from _stop(context, batch, broker_id, partitions)
        else:
            _change(context, batch, broker_id, partitions, target)
    if requests := batch.requests():
        yield SendRequests(requests)


def _change(
    context: ControllerContext,
    batch: RequestBatch,
    broker_id: int,
    partitions: Iterable[TopicPartition],
    target: ReplicaState,
) -> None:
    for partition in partitions:
        replica = PartitionReplica(partition, broker_id)
        leadership = context.leadership.get(partition)
        match target:
            case ReplicaState.NEW:
                if leadership is not None and leadership.leader == broker_id:
                    continue  # a leader is not new
                batch.add_leader_and_isr([broker_id], partition, is_new=True)
            case ReplicaState.ONLINE if context.replica_state(replica) is not ReplicaState.NEW:
                batch.add_leader_and_isr([broker_id], partition, is_new=False)
            case ReplicaState.DELETION_STARTED:
                batch.add_stop_replica([broker_id], partition, is_deleted=True)
            case ReplicaState.NON_EXISTENT:
                context.replica_states.pop(replica, None)
                context.failed.discard(replica)
                continue
            case _:
                pass
        context.replica_states[replica] = target


def _stop(
    context: ControllerContext, batch: RequestBatch, broker_id: int, partitions: Iterable[TopicPartition]
) -> Steps[None]:
    stopped = list(partitions)
    for partition in stopped:
        batch.add_stop_replica([broker_id], partition, is_deleted=False)
    led = [each for each in stopped if each in context.leadership]
    changed = yield from _leave_isr(context, broker_id, led)
    for partition in changed:
        if not context.is_to_be_deleted(partition.topic):
            others = [each for each in context.assignments[partition].replicas if each != broker_id]
            batch.add_leader_and_isr(others, partition, is_new=False)
    batch.add_update_metadata(context.brokers, [each for each in stopped if each not in context.leadership])
    for partition in stopped:
        context.replica_states[PartitionReplica(partition, broker_id)] = ReplicaState.OFFLINE


def _leave_isr(
    context: ControllerContext, broker_id: int, partitions: Iterable[TopicPartition]
) -> Steps[list[TopicPartition]]:
    """Remove a broker from ISRs, unless it is the last replica there; partitions that it led have no leader then.

    Returns the partitions whose leadership must be sent to brokers.
    """
    told: list[TopicPartition] = []
    remaining = list(partitions)
    while remaining:
        known: dict[TopicPartition, Leadership] = yield ReadLeadership(tuple(remaining))
        leaving: dict[TopicPartition, Leadership] = {}
        for partition, current in known.items():
            if current.controller_epoch > context.epoch:
                continue  # a newer controller decides
            if broker_id not in current.isr:
                context.leadership[partition] = current
                told.append(partition)
                continue
            isr = tuple(each for each in current.isr if each != broker_id) or current.isr
            leader = NO_LEADER if current.leader == broker_id else current.leader
            leaving[partition] = current.decided_anew(context.epoch, leader=leader, isr=isr)
        written = (yield WriteLeadership(leaving)) if leaving else {}
        for partition, version in written.items():
            context.leadership[partition] = replace(leaving[partition], partition_epoch=version)
            told.append(partition)
        remaining = [each for each in leaving if each not in written]
    return told
