"""The deletion of topics, Kafka's ``TopicDeletionManager``.

The controller stops all replicas, then deletes their files, then removes the topic's nodes. The deletion of a topic is
suspended while the topic is *ineligible*. A topic is ineligible while a broker with one of its replicas is offline or
has refused the deletion. It is also ineligible while the topic is being reassigned. Deletion can resume at any step. A
new controller repeats steps of which it does not know the result. A broker without the replica answers that the replica
is deleted.

Source: Kafka's ``TopicDeletionManager``.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace_broker.controller.context import ControllerContext
from millrace_broker.controller.effects import ForgetTopic, SendRequests, Steps
from millrace_broker.controller.model import PartitionReplica, PartitionState, ReplicaState
from millrace_broker.controller.partition_states import change_partitions
from millrace_broker.controller.replica_states import change_replicas
from millrace_broker.controller.requests import RequestBatch


def make_ineligible(context: ControllerContext, topics: Iterable[str]) -> None:
    """Suspend the deletion of those topics that are marked for deletion."""
    context.ineligible_for_deletion |= set(topics) & context.to_be_deleted


def make_eligible(context: ControllerContext, topics: Iterable[str]) -> Steps[None]:
    """Resume the deletion of topics, because the reason for its suspension may no longer exist."""
    again = set(topics) & context.to_be_deleted
    if again:
        context.ineligible_for_deletion -= again
        yield from resume_deletions(context)


def replicas_deleted(context: ControllerContext, replicas: Iterable[PartitionReplica]) -> Steps[None]:
    """Handle replicas that a broker has deleted."""
    ours = [each for each in replicas if context.is_to_be_deleted(each.partition.topic)]
    yield from change_replicas(context, ours, ReplicaState.DELETION_SUCCESSFUL)
    yield from resume_deletions(context)


def replicas_not_deleted(context: ControllerContext, replicas: Iterable[PartitionReplica]) -> Steps[None]:
    """Handle replicas that a broker has refused to delete, or whose broker is offline."""
    ours = [each for each in replicas if context.is_to_be_deleted(each.partition.topic)]
    if ours:
        yield from change_replicas(context, ours, ReplicaState.DELETION_INELIGIBLE)
        make_ineligible(context, {each.partition.topic for each in ours})
        yield from resume_deletions(context)


def resume_deletions(context: ControllerContext) -> Steps[None]:
    """Continue the deletion of every topic marked for deletion, as far as possible."""
    eligible = []
    for topic in sorted(context.to_be_deleted):
        replicas = context.replicas_of(context.partitions_of([topic]))
        if all(context.replica_state(each) is ReplicaState.DELETION_SUCCESSFUL for each in replicas):
            yield from change_replicas(context, replicas, ReplicaState.NON_EXISTENT)
            yield ForgetTopic(topic)
            context.forget_topic(topic)
        elif topic not in context.ineligible_for_deletion and not any(
            context.replica_state(each) is ReplicaState.DELETION_STARTED for each in replicas
        ):
            eligible.append(topic)
    for topic in eligible:
        yield from _begin(context, topic)


def _begin(context: ControllerContext, topic: str) -> Steps[None]:
    partitions = context.partitions_of([topic])
    if topic not in context.deletion_begun:
        yield from change_partitions(context, partitions, PartitionState.OFFLINE)
        yield from change_partitions(context, partitions, PartitionState.NON_EXISTENT)
        context.deletion_begun.add(topic)
    batch = RequestBatch(context)
    batch.add_update_metadata(context.brokers, partitions)
    yield SendRequests(batch.requests())
    replicas = [
        each
        for each in context.replicas_of(partitions)
        if context.replica_state(each) is not ReplicaState.DELETION_SUCCESSFUL
    ]
    away = [each for each in replicas if each.broker_id not in context.brokers or each in context.failed]
    there = [each for each in replicas if each not in away]
    yield from change_replicas(context, away, ReplicaState.OFFLINE)
    yield from change_replicas(context, away, ReplicaState.DELETION_INELIGIBLE)
    yield from change_replicas(context, there, ReplicaState.OFFLINE)
    if away:
        make_ineligible(context, [topic])
    yield from change_replicas(context, there, ReplicaState.DELETION_STARTED)
