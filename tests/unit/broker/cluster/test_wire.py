"""Round trips of the messages between brokers and the controller."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from millrace.config.listeners import Listener
from millrace.errors import FencedLeaderEpochError, MillraceError, StorageError
from millrace_broker.cluster import wire
from millrace_broker.decisions import (
    IsrChange,
    LeaderAndIsrRequest,
    LeaderAndIsrState,
    Leadership,
    ReplicaAssignment,
    StopReplicaRequest,
    StopReplicaState,
    TopicPartition,
    UpdateMetadataRequest,
)
from millrace_broker.metadata import LiveBroker


def _endpoints(broker_id: int) -> dict[str, Listener]:
    return {name: Listener(f"h{broker_id}", 9000 + broker_id + at) for at, name in enumerate(("A", "B")[:broker_id])}


BROKERS = {n: LiveBroker(broker_id=n, rack="r" * n, endpoints=_endpoints(n)) for n in range(4)}

ids = st.integers(0, 3)
epochs = st.integers(0, 2**31 - 1)
brokers = st.lists(ids, unique=True).map(tuple)
partitions = st.builds(TopicPartition, st.sampled_from(["t", "ü.b"]), st.integers(0, 2**31 - 1))
leaderships = st.builds(
    Leadership,
    leader=st.integers(-2, 3),
    leader_epoch=epochs,
    isr=brokers,
    partition_epoch=epochs,
    controller_epoch=epochs,
)
states = st.builds(
    LeaderAndIsrState,
    leadership=leaderships,
    assignment=st.builds(ReplicaAssignment, brokers, brokers, brokers),
    is_new=st.booleans(),
    failed=brokers,
)
heads = st.fixed_dictionaries(
    {"controller_id": ids, "controller_epoch": epochs, "broker_epoch": st.integers(0, 2**63 - 1)}
)
TOPIC_IDS = {"t": uuid.uuid4(), "ü.b": uuid.uuid4()}


def _ids(told: dict[TopicPartition, LeaderAndIsrState]) -> dict[str, uuid.UUID]:
    return {name: TOPIC_IDS[name] for name in {each.topic for each in told}}


@given(heads, st.dictionaries(partitions, states), brokers)
def test_leader_and_isr_and_metadata_requests_survive_a_round_trip(
    head: dict[str, int], told: dict[TopicPartition, LeaderAndIsrState], named: tuple[int, ...]
) -> None:
    to_replicas = LeaderAndIsrRequest(topic_ids=_ids(told), partitions=told, live_leaders=named, **head)
    assert wire.read_leader_and_isr(wire.leader_and_isr_message(to_replicas, BROKERS)) == to_replicas
    to_clients = UpdateMetadataRequest(topic_ids=_ids(told), partitions=told, live_brokers=named, **head)
    message = wire.update_metadata_message(to_clients, BROKERS)
    assert wire.read_update_metadata(message) == to_clients
    assert wire.read_brokers(message.live_brokers) == tuple(BROKERS[each] for each in sorted(named))


@given(heads, st.dictionaries(partitions, st.builds(StopReplicaState, leader_epoch=epochs, is_deleted=st.booleans())))
def test_stop_replica_requests_survive_a_round_trip(
    head: dict[str, int], stopped: dict[TopicPartition, StopReplicaState]
) -> None:
    request = StopReplicaRequest(partitions=stopped, **head)
    assert wire.read_stop_replica(wire.stop_replica_message(request)) == request


@given(st.dictionaries(partitions, st.sampled_from([None, StorageError("s"), FencedLeaderEpochError("f")])))
def test_errors_of_partitions_survive_a_round_trip(answers: dict[TopicPartition, MillraceError | None]) -> None:
    read = wire.read_errors(wire.error_messages(answers))
    assert {each: _shown(answer) for each, answer in read.items()} == {
        each: _shown(answer) for each, answer in answers.items()
    }


def _shown(answer: object) -> object:
    return (type(answer), answer.message) if isinstance(answer, MillraceError) else answer


isr_changes = st.builds(
    IsrChange,
    isr=brokers,
    leader_epoch=epochs,
    partition_epoch=epochs,
    broker_epochs=st.dictionaries(epochs, st.integers(0, 2**63 - 1)),
)


@given(st.dictionaries(partitions, isr_changes))
def test_isr_changes_survive_a_round_trip(changes: dict[TopicPartition, IsrChange]) -> None:
    message = wire.alter_partition_message(2, 2**40, changes)
    assert (message.broker_id, message.broker_epoch) == (2, 2**40)
    assert wire.read_isr_changes(message) == changes


@given(st.dictionaries(partitions, leaderships | st.just(StorageError("s"))))
def test_answers_to_isr_changes_survive_a_round_trip(answers: dict[TopicPartition, Leadership | MillraceError]) -> None:
    read = wire.read_isr_answers(wire.isr_answers_message(answers))
    assert {each: _shown(answer) for each, answer in read.items()} == {
        each: _shown(answer) for each, answer in answers.items()
    }
