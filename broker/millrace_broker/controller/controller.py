"""The controller's events and their handlers, Kafka's ``KafkaController``.

Events arrive one at a time. Each handler runs to its end by the steps that it yields. ``ControllerMovedError`` thrown
into a handler ends it. The broker then is not the controller until it wins an election again.

Source: Kafka's ``KafkaController`` (3.9, with ZooKeeper).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from millrace.errors import (
    ElectionNotNeededError,
    InvalidTopicError,
    MillraceError,
    NotControllerError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.controller.alter_partition import IsrAnswers, alter_isrs, check_broker_epoch
from millrace_broker.controller.balancing import partitions_to_rebalance
from millrace_broker.controller.context import ControllerContext, ElectionCounts
from millrace_broker.controller.deletion import (
    make_eligible,
    make_ineligible,
    replicas_deleted,
    replicas_not_deleted,
    resume_deletions,
)
from millrace_broker.controller.effects import (
    BecomeController,
    DropDeletions,
    ReadBrokers,
    ReadDeletions,
    ReadLeadership,
    ReadTopics,
    SendRequests,
    Steps,
    TopicsFound,
)
from millrace_broker.controller.elections import Occasion
from millrace_broker.controller.model import LiveBroker, PartitionReplica, PartitionState, ReplicaState
from millrace_broker.controller.partition_states import Failures, bring_online, change_partitions
from millrace_broker.controller.reassignment import reassign, resume_reassignments
from millrace_broker.controller.replica_states import change_replicas
from millrace_broker.controller.requests import RequestBatch
from millrace_broker.decisions import NO_LEADER, IsrChange, StopReplicaRequest, TopicPartition


class Controller:
    """The controller of one broker. Each method is an event; run its steps to the end."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self._elections = ElectionCounts()
        self.context = ControllerContext(broker_id, self._elections)
        self.is_active = False

    def resign(self) -> None:
        """Discard the state, because another broker is the controller or the ZooKeeper session has ended."""
        self.context = ControllerContext(self.broker_id, self._elections)
        self.is_active = False

    def check_active(self) -> None:
        """Raise ``NotControllerError`` unless this broker is the controller."""
        if not self.is_active:
            raise NotControllerError(
                f"broker {self.broker_id} is not the controller: fetch the metadata, and ask the controller that it "
                "names"
            )

    def elect(self) -> Steps[bool]:
        """Try to become the controller. Returns whether this broker is; it has then loaded the whole cluster state."""
        self.resign()
        epoch = yield BecomeController()
        if epoch is None:
            return False
        self.context.epoch = epoch
        yield from self._read_everything()
        self.is_active = True
        yield from self._send_update_metadata(self.context.brokers, sorted(self.context.leadership))
        yield from self._start_states()
        yield from resume_reassignments(self.context)
        yield from resume_deletions(self.context)
        return True

    def brokers_changed(self) -> Steps[None]:
        """Handle brokers that joined or left, or changed their addresses.

        A broker may restart so fast that only its broker epoch changes. Kafka's classes are ``BrokerChange`` and
        ``BrokerModifications``.
        """
        if not self.is_active:
            return
        context = self.context
        registered: dict[int, LiveBroker] = yield ReadBrokers()
        back = {
            each
            for each in registered
            if each in context.brokers and registered[each].epoch > context.brokers[each].epoch
        }
        gone = (set(context.brokers) - set(registered)) | back
        come = (set(registered) - set(context.brokers)) | back
        moved = any(
            registered[each].version != context.brokers[each].version
            for each in registered.keys() & context.brokers.keys()
        )
        if gone:
            replicas = context.replicas_on(gone)
            for broker_id in gone:
                del context.brokers[broker_id]
                context.shutting_down.discard(broker_id)
            context.failed -= set(replicas)  # a broker that returns reports its failed disks again
            yield from self._replicas_gone(replicas)
        if come:
            context.brokers.update({each: registered[each] for each in come})
            yield from self._brokers_come(come)
        context.brokers.update(registered)
        if moved and not gone | come:  # otherwise all brokers have an UpdateMetadata already
            yield from self._send_update_metadata(context.brokers)

    def topics_changed(self) -> Steps[None]:
        """Handle created topics and partitions, and topics that were removed manually."""
        if not self.is_active:
            return
        context = self.context
        found: TopicsFound = yield ReadTopics()
        for topic, topic_id in list(context.topic_ids.items()):
            if found.ids.get(topic) != topic_id:  # removed manually, and perhaps created again
                context.forget_topic(topic)
        new = sorted(each for each in found.assignments if each not in context.assignments)
        allowed = [each for each in new if not context.is_to_be_deleted(each.topic)]
        context.topic_ids.update(found.ids)
        context.assignments.update({each: found.assignments[each] for each in allowed})
        if allowed:
            yield from self._create(allowed)

    def deletions_changed(self) -> Steps[None]:
        """Handle topics that were marked for deletion."""
        if not self.is_active:
            return
        context = self.context
        marked: set[str] = set((yield ReadDeletions()))
        if marked - context.topics:  # a topic may have been created and marked since the topics were read
            yield from self.topics_changed()
        if unknown := sorted(marked - context.topics):
            yield DropDeletions(tuple(unknown))
        new = (marked & context.topics) - context.to_be_deleted
        if new:
            context.to_be_deleted |= new
            make_ineligible(context, {each.topic for each in context.reassigning} & new)
            yield from resume_deletions(context)

    def replicas_deleted(
        self, broker_id: int, request: StopReplicaRequest, refused: Collection[TopicPartition] = ()
    ) -> Steps[None]:
        """Handle a broker's answer that it deleted all replicas of ``request`` except the ``refused`` ones.

        Ignore an answer to the request of an older controller, or from an earlier broker epoch. A later request may
        have assigned the replica to the broker again.
        """
        broker = self.context.brokers.get(broker_id)
        is_current = broker is not None and request.broker_epoch == broker.epoch
        if not self.is_active or not is_current or request.controller_epoch != self.context.epoch:
            return
        deleted = [
            PartitionReplica(each, broker_id)
            for each, state in request.partitions.items()
            if state.is_deleted and each in self.context.assignments
        ]
        yield from replicas_not_deleted(self.context, [each for each in deleted if each.partition in refused])
        yield from replicas_deleted(self.context, [each for each in deleted if each.partition not in refused])

    def unclean_allowed(self) -> Steps[None]:
        """Elect unclean leaders for waiting partitions, because a topic now allows replicas that are not in sync."""
        if self.is_active:
            yield from bring_online(self.context)

    def disks_failed(self, brokers: Iterable[int]) -> Steps[None]:
        """Send LeaderAndIsr again to brokers with failed disks; their answers name the replicas that have failed.

        As in Kafka, a broker reports only that a disk has failed, by a node in ZooKeeper.
        """
        if self.is_active:
            there = set(brokers) & set(self.context.brokers)
            yield from change_replicas(self.context, self.context.replicas_on(there), ReplicaState.ONLINE)

    def replicas_failed(self, broker_id: int, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Handle a failed disk, because of which a broker could not apply a LeaderAndIsr for these partitions."""
        if not self.is_active:
            return
        replicas = {PartitionReplica(each, broker_id) for each in partitions if each in self.context.assignments}
        new = sorted(replicas - self.context.failed)
        if broker_id in self.context.brokers and new:
            self.context.failed |= set(new)
            yield from self._replicas_gone(new)

    def alter_isrs(
        self, broker_id: int, broker_epoch: int, changes: Mapping[TopicPartition, IsrChange]
    ) -> Steps[IsrAnswers]:
        """Handle an AlterPartition of a leader. Raises ``StaleBrokerEpochError``, ``NotControllerError``."""
        self.check_active()
        return (yield from alter_isrs(self.context, broker_id, broker_epoch, changes))

    def reassign(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None], *, keeps_replication_factor: bool = False
    ) -> Steps[dict[TopicPartition, MillraceError | None]]:
        """Reassign partitions to other brokers; None cancels. Returns an error or None for each.

        With ``keeps_replication_factor``, targets with another number of replicas are refused (KIP-860).

        Raises ``NotControllerError``.
        """
        self.check_active()
        return (yield from reassign(self.context, dict(targets), keeps_replication_factor=keeps_replication_factor))

    def elect_leaders(
        self, partitions: Iterable[TopicPartition], occasion: Occasion
    ) -> Steps[dict[TopicPartition, MillraceError | None]]:
        """Elect preferred leaders, or unclean ones where there is no leader. Returns an error or None for each
        partition.

        Raises ``NotControllerError``.
        """
        self.check_active()
        answers: dict[TopicPartition, MillraceError | None] = {}
        wanted = []
        for partition in partitions:
            answers[partition] = self._why_no_election(partition, occasion)
            if answers[partition] is None:
                wanted.append(partition)
        failures: Failures = yield from change_partitions(self.context, wanted, PartitionState.ONLINE, occasion)
        return answers | failures

    def balance_leaders(self, imbalance_percentage: int) -> Steps[None]:
        """Elect preferred leaders for brokers that lead too few of the partitions that prefer them."""
        partitions = partitions_to_rebalance(self.context, imbalance_percentage)
        if partitions:
            yield from change_partitions(self.context, partitions, PartitionState.ONLINE, Occasion.PREFERRED)

    def shut_down(self, broker_id: int, broker_epoch: int) -> Steps[list[TopicPartition]]:
        """Move the leaders from a broker that is about to stop. Returns the partitions without another possible
        leader.

        Raises ``StaleBrokerEpochError``, ``NotControllerError``.
        """
        self.check_active()
        context = self.context
        check_broker_epoch(context, broker_id, broker_epoch)
        context.shutting_down.add(broker_id)
        concerned = [
            each.partition
            for each in context.replicas_on([broker_id])
            if len(context.assignments[each.partition].replicas) > 1
            and each.partition in context.leadership
            and not context.is_to_be_deleted(each.partition.topic)
        ]
        led = [each for each in concerned if context.leadership[each].leader == broker_id]
        yield from change_partitions(context, led, PartitionState.ONLINE, Occasion.CONTROLLED_SHUTDOWN)
        followed = [PartitionReplica(each, broker_id) for each in concerned if each not in set(led)]
        yield from change_replicas(context, followed, ReplicaState.OFFLINE)
        return [each for each in led if context.leadership[each].leader == broker_id]

    # --- steps of several events ---------------------------------------------------------------------------------

    def _read_everything(self) -> Steps[None]:
        context = self.context
        context.brokers = dict((yield ReadBrokers()))
        found: TopicsFound = yield ReadTopics()
        context.topic_ids, context.assignments = dict(found.ids), dict(found.assignments)
        context.leadership = dict((yield ReadLeadership(tuple(sorted(context.assignments)))))
        context.reassigning = {each for each, value in context.assignments.items() if value.is_being_reassigned}
        context.to_be_deleted = set((yield ReadDeletions()))
        away = {each.partition.topic for each in self._all_replicas() if each.broker_id not in context.brokers}
        make_ineligible(context, away | {each.topic for each in context.reassigning})

    def _start_states(self) -> Steps[None]:
        context = self.context
        online = [each for each in self._all_replicas() if each.broker_id in context.live]
        offline = [each for each in self._all_replicas() if each.broker_id not in context.live]
        context.replica_states = dict.fromkeys(online, ReplicaState.ONLINE)
        # A deleted topic's replica on a dead broker may or may not be deleted. The controller asks again when the
        # broker is back.
        context.replica_states.update(dict.fromkeys(offline, ReplicaState.DELETION_INELIGIBLE))
        for partition in context.assignments:
            leadership = context.leadership.get(partition)
            if leadership is None:
                state = PartitionState.NEW
            elif leadership.leader in context.online(partition):
                state = PartitionState.ONLINE
            else:
                state = PartitionState.OFFLINE
            context.partition_states[partition] = state
        yield from change_replicas(context, online, ReplicaState.ONLINE)
        yield from bring_online(context)
        yield from change_replicas(
            context,
            [each for each in offline if not context.is_to_be_deleted(each.partition.topic)],
            ReplicaState.OFFLINE,
        )

    def _all_replicas(self) -> list[PartitionReplica]:
        return self.context.replicas_of(sorted(self.context.assignments))

    def _create(self, partitions: list[TopicPartition]) -> Steps[None]:
        context = self.context
        yield from change_partitions(context, partitions, PartitionState.NEW)
        yield from change_replicas(context, context.replicas_of(partitions), ReplicaState.NEW)
        yield from change_partitions(context, partitions, PartitionState.ONLINE)
        yield from change_replicas(context, context.replicas_of(partitions), ReplicaState.ONLINE)

    def _replicas_gone(self, replicas: list[PartitionReplica]) -> Steps[None]:
        context = self.context
        leaderless = list(context.without_online_leader())
        yield from change_partitions(context, leaderless, PartitionState.OFFLINE)
        yield from bring_online(context)
        to_delete = [each for each in replicas if context.is_to_be_deleted(each.partition.topic)]
        others = [each for each in replicas if not context.is_to_be_deleted(each.partition.topic)]
        yield from change_replicas(context, others, ReplicaState.OFFLINE)
        yield from replicas_not_deleted(context, to_delete)
        yield from self._send_update_metadata(context.brokers)

    def _brokers_come(self, brokers: set[int]) -> Steps[None]:
        context = self.context
        yield from self._send_update_metadata(set(context.brokers) - brokers)
        yield from self._send_update_metadata(brokers, sorted(context.leadership))
        replicas = context.replicas_on(brokers)
        yield from change_replicas(context, replicas, ReplicaState.ONLINE)
        yield from bring_online(context)
        yield from resume_reassignments(context, brokers)
        reassigned = {each.topic for each in context.reassigning}
        yield from make_eligible(context, {each.partition.topic for each in replicas} - reassigned)

    def _send_update_metadata(self, brokers: Iterable[int], partitions: Iterable[TopicPartition] = ()) -> Steps[None]:
        batch = RequestBatch(self.context)
        batch.add_update_metadata(brokers, partitions)
        if requests := batch.requests():
            yield SendRequests(requests)

    def _why_no_election(self, partition: TopicPartition, occasion: Occasion) -> MillraceError | None:
        context = self.context
        if partition not in context.assignments:
            return UnknownTopicOrPartitionError(f"{partition} does not exist")
        if context.is_to_be_deleted(partition.topic):
            return InvalidTopicError(f"{partition.topic} is being deleted")
        leadership = context.leadership.get(partition)
        leader = NO_LEADER if leadership is None else leadership.leader
        is_needed = (
            leader != context.assignments[partition].replicas[0]
            if occasion is Occasion.PREFERRED
            else leader not in context.online(partition)
        )
        return None if is_needed else ElectionNotNeededError(f"{partition} already has broker {leader} as its leader")
