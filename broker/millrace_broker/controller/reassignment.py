"""The reassignment of partitions to other brokers.

The controller adds replicas, waits until they are in sync, elects a leader among them, and removes the old replicas.
The progress of a reassignment follows from the ISR and the assignment in ZooKeeper, with its adding and removing
replicas. So any controller can continue it. The controller checks it again after an ISR change, a broker's return, and
its own election.

Source: Kafka's ``KafkaController.onPartitionReassignment``; KIP-455.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    MillraceError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.controller.context import ControllerContext
from millrace_broker.controller.deletion import make_eligible
from millrace_broker.controller.effects import ReadLeadership, SendRequests, Steps, WriteAssignment
from millrace_broker.controller.elections import Occasion
from millrace_broker.controller.model import PartitionReplica, PartitionState, ReplicaState
from millrace_broker.controller.partition_states import change_partitions, raise_leader_epoch
from millrace_broker.controller.replica_states import change_replicas
from millrace_broker.controller.requests import RequestBatch
from millrace_broker.decisions import NO_LEADER, ReplicaAssignment, TopicPartition


def check_reassignment(
    context: ControllerContext,
    partition: TopicPartition,
    target: tuple[int, ...] | None,
    *,
    keeps_replication_factor: bool = False,
) -> ReplicaAssignment:
    """Return the assignment during the move to ``target``, or back to the original replicas if ``target`` is None.

    Raises ``UnknownTopicOrPartitionError``, ``NoReassignmentInProgressError``, ``InvalidReplicaAssignmentError``, and
    with ``keeps_replication_factor`` ``InvalidReplicationFactorError`` for another number of replicas than the
    partition has, or will have after its present reassignment.
    """
    current = context.assignments.get(partition)
    is_going = context.is_to_be_deleted(partition.topic)
    # A deletion waits for a reassignment that has begun, so that one may be cancelled.
    if current is None or (is_going and (target is not None or not current.is_being_reassigned)):
        raise UnknownTopicOrPartitionError(f"{partition} does not exist, or is being deleted")
    if target is None:
        if not current.is_being_reassigned:
            raise NoReassignmentInProgressError(f"{partition} is not being reassigned: there is nothing to cancel")
        return _keep_in_sync(context, partition, current.reassigned_to(current.origin))
    if not target or len(set(target)) != len(target):
        raise InvalidReplicaAssignmentError(f"{partition} on {list(target)}: name each broker once")
    if keeps_replication_factor and len(target) != len(current.target):
        raise InvalidReplicationFactorError(
            f"{partition} on {list(target)}: it has {len(current.target)} replicas, or gets so many, and the request "
            "does not allow another number: name as many brokers, or set AllowReplicationFactorChange"
        )
    wanted = current.reassigned_to(target)
    if unknown := sorted(set(wanted.adding) - context.live):
        raise InvalidReplicaAssignmentError(f"{partition}: brokers {unknown} are unknown or not alive")
    return _keep_in_sync(context, partition, wanted)


def _keep_in_sync(
    context: ControllerContext, partition: TopicPartition, wanted: ReplicaAssignment
) -> ReplicaAssignment:
    """Refuse an assignment that drops all replicas in sync at once; in Kafka with ZooKeeper that loses records."""
    leadership = context.leadership.get(partition)
    if leadership is not None and not set(leadership.isr) & set(wanted.replicas):
        raise InvalidReplicaAssignmentError(
            f"{partition}: none of the brokers {list(wanted.replicas)} is in the ISR {list(leadership.isr)}: wait "
            "until one is in sync"
        )
    return wanted


def reassign(
    context: ControllerContext,
    targets: dict[TopicPartition, tuple[int, ...] | None],
    *,
    keeps_replication_factor: bool = False,
) -> Steps[dict[TopicPartition, MillraceError | None]]:
    """Begin, change or (None) cancel reassignments. Returns an error or None for each partition."""
    answers: dict[TopicPartition, MillraceError | None] = {}
    for partition, target in targets.items():
        try:
            wanted = check_reassignment(context, partition, target, keeps_replication_factor=keeps_replication_factor)
        except MillraceError as error:
            answers[partition] = error
            continue
        answers[partition] = None
        yield from advance(context, partition, wanted)
    return answers


def resume_reassignments(context: ControllerContext, brokers: Iterable[int] | None = None) -> Steps[None]:
    """Continue reassignments; with ``brokers``, only those whose target has one of these brokers."""
    wanted = None if brokers is None else set(brokers)
    for partition in sorted(context.reassigning):
        assignment = context.assignments[partition]
        if wanted is None or wanted & set(assignment.target):
            yield from advance(context, partition, assignment)


def advance(context: ControllerContext, partition: TopicPartition, wanted: ReplicaAssignment) -> Steps[None]:
    """Bring a partition as far towards its target as its ISR allows."""
    yield from _write_target(context, partition, wanted)
    is_reached = not wanted.is_being_reassigned
    if not is_reached:
        leadership = (yield ReadLeadership((partition,))).get(partition)
        is_reached = leadership is not None and set(wanted.target) <= set(leadership.isr)
    if is_reached:
        yield from _finish(context, partition, wanted)
    else:
        yield from raise_leader_epoch(context, partition)
        added = [PartitionReplica(partition, each) for each in wanted.adding]
        yield from change_replicas(context, added, ReplicaState.NEW)


def _write_target(context: ControllerContext, partition: TopicPartition, wanted: ReplicaAssignment) -> Steps[None]:
    current = context.assignments[partition]
    if current != wanted:
        # Remove the replicas of the abandoned target from the ISR before the assignment changes. Otherwise a controller
        # that takes over in between finds a broker in the ISR that has no replica.
        unneeded = [PartitionReplica(partition, each) for each in current.replicas if each not in wanted.replicas]
        yield from change_replicas(context, unneeded, ReplicaState.OFFLINE)
        yield _assignment_with(context, partition, wanted)
        context.assignments[partition] = wanted
        yield from _elect_for_unneeded(context, partition)
        yield from _delete(context, unneeded)
    context.reassigning.add(partition)


def _elect_for_unneeded(context: ControllerContext, partition: TopicPartition) -> Steps[None]:
    """Elect another leader in sync, because the last one was a replica of the abandoned target only.

    Kafka with ZooKeeper leaves such a partition without a leader.
    """
    leadership = context.leadership.get(partition)
    if leadership is not None and leadership.leader == NO_LEADER:
        yield from change_partitions(context, [partition], PartitionState.OFFLINE)
        yield from change_partitions(context, [partition], PartitionState.ONLINE)


def _finish(context: ControllerContext, partition: TopicPartition, wanted: ReplicaAssignment) -> Steps[None]:
    added = [PartitionReplica(partition, each) for each in wanted.adding]
    yield from change_replicas(context, added, ReplicaState.ONLINE)
    done = ReplicaAssignment(wanted.target)
    context.assignments[partition] = done
    leadership = context.leadership.get(partition)
    if leadership is not None and leadership.leader in done.replicas and leadership.leader in context.online(partition):
        yield from raise_leader_epoch(context, partition)
    else:
        failures = yield from change_partitions(context, [partition], PartitionState.ONLINE, Occasion.REASSIGNMENT)
        if failures:
            context.assignments[partition] = wanted  # its replicas are offline again; retry when they are back
            return
    removed = [PartitionReplica(partition, each) for each in wanted.removing]
    yield from change_replicas(context, removed, ReplicaState.OFFLINE)
    yield from _delete(context, removed)
    yield _assignment_with(context, partition, done)
    context.reassigning.discard(partition)
    batch = RequestBatch(context)
    batch.add_update_metadata(context.brokers, [partition])
    yield SendRequests(batch.requests())
    if not any(each.topic == partition.topic for each in context.reassigning):
        yield from make_eligible(context, [partition.topic])


def _delete(context: ControllerContext, replicas: Iterable[PartitionReplica]) -> Steps[None]:
    for state in (ReplicaState.DELETION_STARTED, ReplicaState.DELETION_SUCCESSFUL, ReplicaState.NON_EXISTENT):
        yield from change_replicas(context, replicas, state)


def _assignment_with(
    context: ControllerContext, partition: TopicPartition, wanted: ReplicaAssignment
) -> WriteAssignment:
    assignments = {each.partition: context.assignments[each] for each in context.partitions_of([partition.topic])}
    return WriteAssignment(
        partition.topic, context.topic_ids[partition.topic], assignments | {partition.partition: wanted}
    )
