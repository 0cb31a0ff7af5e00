"""State changes of partitions, Kafka's ``ZkPartitionStateMachine``.

The controller chooses the first leader or elects one, writes it, and notifies brokers. A write may conflict with an ISR
change of the leader. It is then repeated on the new state, until it succeeds or a newer controller has decided.

Source: Kafka's ``ZkPartitionStateMachine``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from millrace.errors import (
    EligibleLeadersNotAvailableError,
    MillraceError,
    NotControllerError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.controller.context import ControllerContext
from millrace_broker.controller.effects import (
    CreateLeadership,
    ReadLeadership,
    ReadUncleanTopics,
    SendRequests,
    Steps,
    WriteLeadership,
)
from millrace_broker.controller.elections import Elected, Occasion, elect
from millrace_broker.controller.model import PARTITION_COMES_FROM, PartitionState
from millrace_broker.controller.requests import RequestBatch
from millrace_broker.decisions import Leadership, TopicPartition

Failures = dict[TopicPartition, MillraceError]


def change_partitions(
    context: ControllerContext,
    partitions: Iterable[TopicPartition],
    target: PartitionState,
    occasion: Occasion = Occasion.OFFLINE,
) -> Steps[Failures]:
    """Bring partitions into a state; for the state online, elect leaders by the rule of the occasion.

    A partition whose present state does not allow the change keeps it. Returns the partitions without a leader, with
    the errors.
    """
    movable = [each for each in partitions if context.partition_state(each) in PARTITION_COMES_FROM[target]]
    if target is not PartitionState.ONLINE:
        context.partition_states.update(dict.fromkeys(movable, target))
        return {}
    batch = RequestBatch(context)
    new = [each for each in movable if context.partition_state(each) is PartitionState.NEW]
    failures = yield from _lead_first(context, batch, new)
    led = [each for each in movable if each not in set(new)]
    failures |= yield from _elect(context, batch, led, occasion)
    context.partition_states.update({each: PartitionState.ONLINE for each in movable if each not in failures})
    yield SendRequests(batch.requests())
    return failures


def bring_online(context: ControllerContext) -> Steps[Failures]:
    """Elect leaders for all partitions that have none and need one."""
    waiting = [
        each
        for each, state in sorted(context.partition_states.items())
        if state in (PartitionState.NEW, PartitionState.OFFLINE) and context.is_to_be_led(each)
    ]
    return (yield from change_partitions(context, waiting, PartitionState.ONLINE))


def raise_leader_epoch(context: ControllerContext, partition: TopicPartition) -> Steps[None]:
    """Notify all replicas of a changed assignment, with the same leader in a new leader epoch."""
    batch = RequestBatch(context)
    while True:
        current = (yield ReadLeadership((partition,))).get(partition)
        if current is None or current.controller_epoch > context.epoch:
            return
        raised = current.decided_anew(context.epoch, leader=current.leader, isr=current.isr)
        written = yield WriteLeadership({partition: raised})
        if partition in written:
            context.leadership[partition] = replace(raised, partition_epoch=written[partition])
            batch.add_leader_and_isr(context.assignments[partition].replicas, partition, is_new=False)
            yield SendRequests(batch.requests())
            return


def _lead_first(
    context: ControllerContext, batch: RequestBatch, partitions: Iterable[TopicPartition]
) -> Steps[Failures]:
    failures: Failures = {}
    chosen: dict[TopicPartition, Leadership] = {}
    for partition in partitions:
        live = context.online_replicas(partition, context.assignments[partition].replicas)
        if live:
            chosen[partition] = Leadership(
                leader=live[0], leader_epoch=0, isr=live, partition_epoch=0, controller_epoch=context.epoch
            )
        else:
            failures[partition] = EligibleLeadersNotAvailableError(f"no replica of {partition} is on a live broker")
    if not chosen:
        return failures
    created = yield CreateLeadership(chosen)
    for partition, leadership in chosen.items():
        if partition not in created:
            failures[partition] = NotControllerError(
                f"{partition} already has a leader: another controller has written it"
            )
            continue
        context.leadership[partition] = replace(leadership, partition_epoch=created[partition])
        batch.add_leader_and_isr(leadership.isr, partition, is_new=True)
    return failures


def _elect(
    context: ControllerContext, batch: RequestBatch, partitions: Iterable[TopicPartition], occasion: Occasion
) -> Steps[Failures]:
    failures: Failures = {}
    remaining = list(partitions)
    while remaining:
        known = yield ReadLeadership(tuple(remaining))
        unclean = yield from _unclean_topics(context, known, occasion)
        chosen: dict[TopicPartition, tuple[Elected, Leadership]] = {}
        for partition in remaining:
            rule = Occasion.UNCLEAN if partition.topic in unclean else occasion
            result = _election(context, partition, known.get(partition), rule)
            if isinstance(result, MillraceError):
                failures[partition] = result
            else:
                chosen[partition] = result
        if not chosen:
            break
        written = yield WriteLeadership({each: leadership for each, (_, leadership) in chosen.items()})
        for partition, version in written.items():
            elected, leadership = chosen[partition]
            context.leadership[partition] = replace(leadership, partition_epoch=version)
            context.elections.held += 1
            context.elections.unclean += elected.leader not in known[partition].isr
            batch.add_leader_and_isr(elected.receivers, partition, is_new=False)
        remaining = [each for each in chosen if each not in written]
    return failures


def _election(
    context: ControllerContext, partition: TopicPartition, current: Leadership | None, occasion: Occasion
) -> tuple[Elected, Leadership] | MillraceError:
    if current is None:
        return UnknownTopicOrPartitionError(f"{partition} has never had a leader")
    if current.controller_epoch > context.epoch:
        return NotControllerError(
            f"{partition} was changed in controller epoch {current.controller_epoch}, but this controller has epoch "
            f"{context.epoch}"
        )
    elected = elect(context, partition, current, occasion)
    if elected is None:
        kind = PreferredLeaderNotAvailableError if occasion is Occasion.PREFERRED else EligibleLeadersNotAvailableError
        return kind(
            f"{partition}: no replica can become leader ({occasion.value} election): the ISR is {list(current.isr)}, "
            f"the replicas are {list(context.assignments[partition].replicas)}, and "
            f"{sorted(context.online(partition))} are online"
        )
    return elected, current.decided_anew(context.epoch, leader=elected.leader, isr=elected.isr)


def _unclean_topics(
    context: ControllerContext, known: dict[TopicPartition, Leadership], occasion: Occasion
) -> Steps[frozenset[str]]:
    """Return the topics with partitions that have no live replica in sync but allow unclean election."""
    if occasion is not Occasion.OFFLINE:
        return frozenset()
    stuck = {each.topic for each, current in known.items() if not context.online_replicas(each, current.isr)}
    return frozenset((yield ReadUncleanTopics(tuple(sorted(stuck))))) if stuck else frozenset()
