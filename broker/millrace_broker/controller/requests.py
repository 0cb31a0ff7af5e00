"""The controller's requests to brokers, Kafka's ``ControllerBrokerRequestBatch``.

They are merged per broker, in the order LeaderAndIsr, UpdateMetadata, StopReplica. One change of state sends each
broker at most one request of each kind, with the last state of each partition.

Source: Kafka's ``ControllerBrokerRequestBatch``.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from millrace_broker.controller.context import ControllerContext
from millrace_broker.controller.model import PartitionReplica
from millrace_broker.decisions import (
    LEADER_DURING_DELETE,
    BrokerRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrState,
    ReplicaAssignment,
    StopReplicaRequest,
    StopReplicaState,
    TopicPartition,
    UpdateMetadataRequest,
)

NO_EPOCH: Final = -1
EPOCH_DURING_DELETE: Final = -2


class RequestBatch:
    """The collected requests of one change of state."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._leader_and_isr: dict[int, dict[TopicPartition, LeaderAndIsrState]] = defaultdict(dict)
        self._stop: dict[int, dict[TopicPartition, StopReplicaState]] = defaultdict(dict)
        self._metadata: dict[int, dict[TopicPartition, LeaderAndIsrState]] = defaultdict(dict)

    def add_leader_and_isr(self, brokers: Iterable[int], partition: TopicPartition, *, is_new: bool) -> None:
        """Add a LeaderAndIsr for replicas, and an UpdateMetadata for all brokers."""
        state = self._state(partition, is_new=is_new)
        if state is None:
            return
        for broker_id in brokers:
            known = self._leader_and_isr[broker_id].get(partition)
            was_new = known is not None and known.is_new
            self._leader_and_isr[broker_id][partition] = replace(state, is_new=is_new or was_new)
        self.add_update_metadata(self._context.brokers, [partition])

    def add_stop_replica(self, brokers: Iterable[int], partition: TopicPartition, *, is_deleted: bool) -> None:
        """Add a StopReplica for brokers."""
        leadership = self._context.leadership.get(partition)
        epoch = NO_EPOCH if leadership is None else leadership.leader_epoch
        if self._context.is_to_be_deleted(partition.topic):
            epoch = EPOCH_DURING_DELETE
        for broker_id in brokers:
            known = self._stop[broker_id].get(partition)
            self._stop[broker_id][partition] = StopReplicaState(
                leader_epoch=epoch, is_deleted=is_deleted or (known is not None and known.is_deleted)
            )

    def add_update_metadata(self, brokers: Iterable[int], partitions: Iterable[TopicPartition] = ()) -> None:
        """Add an UpdateMetadata for brokers, with the live brokers and the leadership of ``partitions``.

        Partitions of a topic marked for deletion get ``LEADER_DURING_DELETE``, so that clients do not find the topic.
        """
        states: dict[TopicPartition, LeaderAndIsrState] = {}
        for partition in partitions:
            state = self._state(partition, is_new=False)
            if state is None:
                continue
            if self._context.is_to_be_deleted(partition.topic):
                state = replace(state, leadership=replace(state.leadership, leader=LEADER_DURING_DELETE))
            states[partition] = state
        for broker_id in brokers:
            self._metadata[broker_id].update(states)

    def requests(self) -> dict[int, list[BrokerRequest]]:
        """Return the collected requests for brokers that are alive or shutting down."""
        context = self._context
        collected = {broker_id: list(self._collected(broker_id)) for broker_id in sorted(context.brokers)}
        return {broker_id: requests for broker_id, requests in collected.items() if requests}

    def _collected(self, broker_id: int) -> Iterable[BrokerRequest]:
        """Yield the requests for a broker in the order in which it gets them."""
        context = self._context
        head = {
            "controller_id": context.broker_id,
            "controller_epoch": context.epoch,
            "broker_epoch": context.brokers[broker_id].epoch,
        }
        if led := self._leader_and_isr.get(broker_id):
            leaders = {each.leadership.leader for each in led.values()} & set(context.brokers)
            yield LeaderAndIsrRequest(
                topic_ids=self._topic_ids(led),
                partitions=dict(led),
                live_leaders=tuple(sorted(leaders)),
                **head,
            )
        if (known := self._metadata.get(broker_id)) is not None:
            yield UpdateMetadataRequest(
                topic_ids=self._topic_ids(known),
                partitions=dict(known),
                live_brokers=tuple(sorted(context.brokers)),
                **head,
            )
        if stopped := self._stop.get(broker_id):
            yield StopReplicaRequest(partitions=dict(stopped), **head)

    def _topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, uuid.UUID]:
        ids = self._context.topic_ids
        return {topic: ids[topic] for topic in {each.topic for each in partitions} if topic in ids}

    def _state(self, partition: TopicPartition, *, is_new: bool) -> LeaderAndIsrState | None:
        leadership = self._context.leadership.get(partition)
        if leadership is None:
            return None
        assignment = self._context.assignments.get(partition, ReplicaAssignment(()))
        failed = self._context.failed
        return LeaderAndIsrState(
            leadership=leadership,
            assignment=assignment,
            is_new=is_new,
            failed=tuple(each for each in assignment.replicas if PartitionReplica(partition, each) in failed),
        )
