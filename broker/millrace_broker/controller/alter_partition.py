"""Check, write and answer of leaders' ISR changes (AlterPartition, KIP-497).

Source: Kafka's ``KafkaController.tryProcessAlterPartition``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from millrace.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    MillraceError,
    NotControllerError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.controller.context import ControllerContext
from millrace_broker.controller.effects import SendRequests, Steps, WriteLeadership
from millrace_broker.controller.partition_states import raise_leader_epoch
from millrace_broker.controller.reassignment import advance
from millrace_broker.controller.requests import RequestBatch
from millrace_broker.decisions import IsrChange, Leadership, TopicPartition

IsrAnswers = dict[TopicPartition, Leadership | MillraceError]


def check_broker_epoch(context: ControllerContext, broker_id: int, broker_epoch: int) -> None:
    """Raise ``StaleBrokerEpochError`` for a broker that is not registered, or for a broker epoch before the present
    one.
    """
    known = context.brokers.get(broker_id)
    if known is None or broker_epoch < known.epoch:
        raise StaleBrokerEpochError(
            f"broker {broker_id} is not registered with broker epoch {broker_epoch}: its broker epoch is "
            f"{known and known.epoch}"
        )


def alter_isrs(
    context: ControllerContext, broker_id: int, broker_epoch: int, changes: Mapping[TopicPartition, IsrChange]
) -> Steps[IsrAnswers]:
    """Apply a broker's ISR changes. Returns the new leadership of each partition, or the error.

    Raises ``StaleBrokerEpochError``.
    """
    check_broker_epoch(context, broker_id, broker_epoch)
    answers: IsrAnswers = {}
    accepted: dict[TopicPartition, Leadership] = {}
    for partition, change in changes.items():
        try:
            current = _check(context, broker_id, partition, change)
        except MillraceError as error:
            answers[partition] = error
            continue
        if set(change.isr) == set(current.isr):
            answers[partition] = current  # a retry, because the answer was lost
        else:
            accepted[partition] = replace(current, isr=change.isr, controller_epoch=context.epoch)
    written = (yield WriteLeadership(accepted)) if accepted else {}
    for partition, leadership in accepted.items():
        if partition in written:
            context.leadership[partition] = replace(leadership, partition_epoch=written[partition])
            answers[partition] = context.leadership[partition]
        else:
            answers[partition] = InvalidUpdateVersionError(f"{partition} has changed in ZooKeeper meanwhile")
            # The leader now waits for a decision of the controller, so the controller has to send one.
            yield from raise_leader_epoch(context, partition)
    if written:
        batch = RequestBatch(context)
        batch.add_update_metadata(context.brokers, sorted(written))
        yield SendRequests(batch.requests())
    for partition in sorted(set(written) & context.reassigning):
        yield from advance(context, partition, context.assignments[partition])
    return answers


def _check(context: ControllerContext, broker_id: int, partition: TopicPartition, change: IsrChange) -> Leadership:
    current = context.leadership.get(partition)
    if current is None or partition not in context.assignments:
        raise UnknownTopicOrPartitionError(f"{partition} does not exist")
    if change.leader_epoch > current.leader_epoch or change.partition_epoch > current.partition_epoch:
        raise NotControllerError(
            f"{partition}: the leader was chosen by a newer controller than the one of epoch {context.epoch}"
        )
    if change.leader_epoch < current.leader_epoch:
        raise FencedLeaderEpochError(
            f"{partition}: the request has leader epoch {change.leader_epoch}, but the current leader epoch is "
            f"{current.leader_epoch}"
        )
    if current.leader != broker_id:  # only the leader knows which followers have caught up
        raise InvalidRequestError(f"{partition} is led by broker {current.leader}, not by broker {broker_id}")
    if set(change.isr) == set(current.isr):
        return current
    if change.partition_epoch < current.partition_epoch:
        raise InvalidUpdateVersionError(
            f"{partition}: the request has partition epoch {change.partition_epoch}, but the current partition epoch "
            f"is {current.partition_epoch}"
        )
    strangers = set(change.isr) - set(context.assignments[partition].replicas)
    if current.leader not in change.isr or strangers:
        raise InvalidRequestError(
            f"{partition}: the ISR {list(change.isr)} lacks the leader, or has a broker that is not a replica"
        )
    joining = set(change.isr) - set(current.isr)
    if away := sorted(joining - context.online(partition)):
        raise IneligibleReplicaError(
            f"{partition}: brokers {away} cannot join the ISR, because they are shutting down, not alive, or have "
            "lost the disk"
        )
    known = {each: context.brokers[each].epoch for each in joining}
    if restarted := sorted(each for each in joining if change.broker_epochs.get(each, known[each]) != known[each]):
        raise IneligibleReplicaError(  # they may have lost records that the leader counts on (KIP-903)
            f"{partition}: brokers {restarted} cannot join the ISR, because they have registered again since they had "
            "caught up"
        )
    return current
