"""Requests between brokers and the controller, to and from protobuf messages. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from millrace.config.listeners import Listener
from millrace.errors import MillraceError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import error_in
from millrace_broker.decisions import (
    Answers,
    IsrChange,
    LeaderAndIsrRequest,
    LeaderAndIsrState,
    Leadership,
    ReplicaAssignment,
    StopReplicaRequest,
    StopReplicaState,
    TopicPartition,
    UpdateMetadataRequest,
    by_topic,
)
from millrace_broker.metadata import LiveBroker


def partitions_of(topics: Iterable[pb.TopicPartitions]) -> list[TopicPartition]:
    """Return the partitions that a message names."""
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


# --- brokers -------------------------------------------------------------------------------------------------


def broker_message(broker: LiveBroker) -> pb.BrokerNode:
    """Return the message of a broker and its addresses."""
    return pb.BrokerNode(
        node_id=broker.broker_id,
        rack=broker.rack,
        endpoints=[
            pb.Endpoint(listener=name, host=address.host, port=address.port)
            for name, address in broker.endpoints.items()
        ],
    )


def read_brokers(nodes: Iterable[pb.BrokerNode]) -> tuple[LiveBroker, ...]:
    """Read brokers, sorted by id."""
    found = [
        LiveBroker(
            broker_id=each.node_id,
            rack=each.rack,
            endpoints={found.listener: Listener(found.host, found.port) for found in each.endpoints},
        )
        for each in nodes
    ]
    return tuple(sorted(found, key=lambda each: each.broker_id))


# --- decisions -----------------------------------------------------------------------------------------------


def leader_and_isr_message(request: LeaderAndIsrRequest, brokers: Mapping[int, LiveBroker]) -> pb.LeaderAndIsrRequest:
    """Return the message of a LeaderAndIsr; ``brokers`` has the addresses of its leaders."""
    return pb.LeaderAndIsrRequest(
        head=_head_message(request),
        topics=_decision_messages(request.topic_ids, request.partitions),
        live_leaders=[broker_message(brokers[each]) for each in request.live_leaders if each in brokers],
    )


def read_leader_and_isr(message: pb.LeaderAndIsrRequest) -> LeaderAndIsrRequest:
    """Read a LeaderAndIsr."""
    ids, partitions = _read_decisions(message.topics)
    leaders = tuple(each.node_id for each in message.live_leaders)
    return LeaderAndIsrRequest(topic_ids=ids, partitions=partitions, live_leaders=leaders, **_read_head(message.head))


def update_metadata_message(
    request: UpdateMetadataRequest, brokers: Mapping[int, LiveBroker]
) -> pb.UpdateMetadataRequest:
    """Return the message of an UpdateMetadata; ``brokers`` has the addresses of its brokers."""
    return pb.UpdateMetadataRequest(
        head=_head_message(request),
        topics=_decision_messages(request.topic_ids, request.partitions),
        live_brokers=[broker_message(brokers[each]) for each in request.live_brokers if each in brokers],
    )


def read_update_metadata(message: pb.UpdateMetadataRequest) -> UpdateMetadataRequest:
    """Read an UpdateMetadata."""
    ids, partitions = _read_decisions(message.topics)
    brokers = tuple(each.node_id for each in message.live_brokers)
    return UpdateMetadataRequest(topic_ids=ids, partitions=partitions, live_brokers=brokers, **_read_head(message.head))


def stop_replica_message(request: StopReplicaRequest) -> pb.StopReplicaRequest:
    """Return the message of a StopReplica."""
    message = pb.StopReplicaRequest(head=_head_message(request))
    for name, states in by_topic(request.partitions).items():
        topic = message.topics.add(name=name)
        for number, state in states.items():
            topic.partitions.add(partition=number, leader_epoch=state.leader_epoch, is_deleted=state.is_deleted)
    return message


def read_stop_replica(message: pb.StopReplicaRequest) -> StopReplicaRequest:
    """Read a StopReplica."""
    partitions = {
        TopicPartition(topic.name, each.partition): StopReplicaState(
            leader_epoch=each.leader_epoch, is_deleted=each.is_deleted
        )
        for topic in message.topics
        for each in topic.partitions
    }
    return StopReplicaRequest(partitions=partitions, **_read_head(message.head))


def _head_message(request: Any) -> pb.ControllerHead:
    return pb.ControllerHead(
        controller_id=request.controller_id,
        controller_epoch=request.controller_epoch,
        broker_epoch=request.broker_epoch,
    )


def _read_head(head: pb.ControllerHead) -> dict[str, int]:
    return {
        "controller_id": head.controller_id,
        "controller_epoch": head.controller_epoch,
        "broker_epoch": head.broker_epoch,
    }


def _decision_messages(
    ids: Mapping[str, uuid.UUID], partitions: Mapping[TopicPartition, LeaderAndIsrState]
) -> list[pb.TopicDecisions]:
    return [
        pb.TopicDecisions(
            name=name,
            topic_id=ids[name].bytes if name in ids else b"",
            partitions=[_decision_message(number, state) for number, state in states.items()],
        )
        for name, states in by_topic(partitions).items()
    ]


def _decision_message(partition: int, state: LeaderAndIsrState) -> pb.PartitionDecision:
    leadership, assignment = state.leadership, state.assignment
    return pb.PartitionDecision(
        partition=partition,
        leader=leadership.leader,
        leader_epoch=leadership.leader_epoch,
        partition_epoch=leadership.partition_epoch,
        controller_epoch=leadership.controller_epoch,
        isr=leadership.isr,
        replicas=assignment.replicas,
        adding=assignment.adding,
        removing=assignment.removing,
        is_new=state.is_new,
        failed=state.failed,
    )


def _read_decisions(
    topics: Iterable[pb.TopicDecisions],
) -> tuple[dict[str, uuid.UUID], dict[TopicPartition, LeaderAndIsrState]]:
    ids: dict[str, uuid.UUID] = {}
    partitions: dict[TopicPartition, LeaderAndIsrState] = {}
    for topic in topics:
        if topic.topic_id:
            ids[topic.name] = uuid.UUID(bytes=topic.topic_id)
        for each in topic.partitions:
            partitions[TopicPartition(topic.name, each.partition)] = LeaderAndIsrState(
                leadership=_read_leadership(each),
                assignment=ReplicaAssignment(tuple(each.replicas), tuple(each.adding), tuple(each.removing)),
                is_new=each.is_new,
                failed=tuple(each.failed),
            )
    return ids, partitions


def _read_leadership(message: pb.PartitionDecision | pb.AlterPartitionResponse.PartitionState) -> Leadership:
    return Leadership(
        leader=message.leader,
        leader_epoch=message.leader_epoch,
        isr=tuple(message.isr),
        partition_epoch=message.partition_epoch,
        controller_epoch=message.controller_epoch,
    )


# --- answers -------------------------------------------------------------------------------------------------


def error_messages(answers: Mapping[TopicPartition, MillraceError | None]) -> list[pb.TopicErrors]:
    """Return the messages of each partition's result; code 0 means success."""
    messages = []
    for name, errors in by_topic(answers).items():
        message = pb.TopicErrors(name=name)
        for number, error in errors.items():
            each = message.partitions.add(partition=number)
            if error is not None:
                each.error.code, each.error.message = error.code, error.message
        messages.append(message)
    return messages


def read_errors(topics: Iterable[pb.TopicErrors]) -> Answers:
    """Read each partition's result."""
    return {
        TopicPartition(topic.name, each.partition): error_in(each.error)
        for topic in topics
        for each in topic.partitions
    }


# --- ISR changes ---------------------------------------------------------------------------------------------


def alter_partition_message(
    broker_id: int, broker_epoch: int, changes: Mapping[TopicPartition, IsrChange]
) -> pb.AlterPartitionRequest:
    """Return the message of a leader's ISR changes."""
    message = pb.AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch)
    for name, partitions in by_topic(changes).items():
        topic = message.topics.add(name=name)
        for number, change in partitions.items():
            topic.partitions.add(
                partition=number,
                leader_epoch=change.leader_epoch,
                partition_epoch=change.partition_epoch,
                isr=change.isr,
                broker_epochs=change.broker_epochs,
            )
    return message


def read_isr_changes(message: pb.AlterPartitionRequest) -> dict[TopicPartition, IsrChange]:
    """Read ISR changes."""
    return {
        TopicPartition(topic.name, each.partition): IsrChange(
            isr=tuple(each.isr),
            leader_epoch=each.leader_epoch,
            partition_epoch=each.partition_epoch,
            broker_epochs=dict(each.broker_epochs),
        )
        for topic in message.topics
        for each in topic.partitions
    }


def isr_answers_message(answers: Mapping[TopicPartition, Leadership | MillraceError]) -> pb.AlterPartitionResponse:
    """Return the message of the answers to ISR changes, with the new leadership or the error."""
    message = pb.AlterPartitionResponse()
    for name, partitions in by_topic(answers).items():
        topic = message.topics.add(name=name)
        for number, answer in partitions.items():
            each = topic.partitions.add(partition=number)
            if isinstance(answer, MillraceError):
                each.error.code, each.error.message = answer.code, answer.message
            else:
                each.leader, each.leader_epoch = answer.leader, answer.leader_epoch
                each.partition_epoch, each.controller_epoch = answer.partition_epoch, answer.controller_epoch
                each.isr.extend(answer.isr)
    return message


def read_isr_answers(message: pb.AlterPartitionResponse) -> dict[TopicPartition, Leadership | MillraceError]:
    """Read the answers to ISR changes."""
    return {
        TopicPartition(topic.name, each.partition): (error_in(each.error) or _read_leadership(each))
        for topic in message.topics
        for each in topic.partitions
    }
