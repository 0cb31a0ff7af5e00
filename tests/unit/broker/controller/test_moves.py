"""Tests of topic deletion and reassignment in steps.

Both resume after an interruption at any step.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    MillraceError,
    NoReassignmentInProgressError,
    NotControllerError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.controller.requests import EPOCH_DURING_DELETE
from millrace_broker.decisions import LEADER_DURING_DELETE, IsrChange, ReplicaAssignment

from .world import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest, World, tp


def with_topic(*replicas: tuple[int, ...], brokers: tuple[int, ...] = (1, 2, 3)) -> World:
    world = World(*brokers)
    world.elect()
    world.create("t", *(replicas or ((1, 2),)))
    world.settle()
    world.sent.clear()
    return world


# Deletion.


def test_a_topic_is_stopped_then_deleted_then_forgotten() -> None:
    world = with_topic((1, 2), (2, 1))
    world.delete("t")
    stops = [list(each.partitions.values()) for each in world.requests_of(StopReplicaRequest, 2)]
    assert [[state.is_deleted for state in states] for states in stops] == [[False, False], [True, True]]
    assert {state.leader_epoch for states in stops for state in states} == {EPOCH_DURING_DELETE}
    told = world.requests_of(UpdateMetadataRequest, 3)[0]
    assert {state.leadership.leader for state in told.partitions.values()} == {LEADER_DURING_DELETE}
    assert world.deletions == {"t"}
    world.settle()
    assert (world.deletions, world.assignments, world.has_files) == (set(), {}, set())
    world.create("t", (3,))
    assert world.led("t-0") == (3, 0, (3,))


def test_a_mark_on_a_topic_that_is_not_there_is_removed() -> None:
    world = with_topic()
    world.delete("nothing")
    assert world.deletions == set()


def test_a_deletion_waits_for_a_stopped_broker() -> None:
    world = with_topic((1, 2))
    world.stop(2)
    world.delete("t")
    world.settle()
    assert world.deletions == {"t"}
    assert (1, tp("t-0")) not in world.has_files  # the topics that can be deleted are deleted
    world.start(2)
    world.settle()
    assert (world.deletions, world.has_files) == (set(), set())


def test_deletion_continues_when_a_broker_fails_meanwhile() -> None:
    world = with_topic((1, 2))
    world.delete("t")
    world.stop(2)
    world.settle()
    assert world.deletions == {"t"}
    world.start(2)
    world.settle()
    assert world.deletions == set()


def test_a_broker_that_has_not_answered_yet_is_not_asked_again() -> None:
    world = with_topic((1, 2))
    world.delete("t")
    world.sent.clear()
    while world.queues[1]:
        world.deliver(1)
    assert (1, tp("t-0")) not in world.has_files
    assert world.sent == []


def test_a_late_answer_to_an_earlier_request_to_delete_is_ignored() -> None:
    world = with_topic((2,))
    world.delete("t")
    request = world.requests_of(StopReplicaRequest, 2)[-1]
    for stale in (
        replace(request, controller_epoch=request.controller_epoch - 1),
        replace(request, broker_epoch=request.broker_epoch - 1),
    ):
        world.event("replicas_deleted", 2, stale)
    world.event("replicas_deleted", 9, request)
    assert world.deletions == {"t"}
    world.event("replicas_deleted", 2, request)
    assert world.deletions == set()


def test_a_refused_deletion_is_retried_when_the_broker_restarts() -> None:
    world = with_topic((1, 2))
    world.refuses_to_delete = {2}
    world.delete("t")
    world.settle()
    assert world.deletions == {"t"}
    world.refuses_to_delete = set()
    world.start(2)
    world.settle()
    assert world.deletions == set()


@pytest.mark.parametrize("steps", range(12))
def test_a_new_controller_continues_with_a_deletion_from_any_step(steps: int) -> None:
    world = with_topic((1, 2), (2, 3))
    world.crash_after = steps
    world.delete("t")
    world.settle()
    world.crash_after = None
    world.elect(3)
    world.settle()
    assert (world.deletions, world.assignments, world.has_files) == (set(), {}, set())


def test_deletion_waits_for_a_reassignment() -> None:
    world = with_topic((1, 2))
    world.event("reassign", {tp("t-0"): (1, 3)})
    world.delete("t")
    world.settle()
    assert world.deletions == {"t"}
    world.catch_up("t-0")
    world.settle()
    assert (world.deletions, world.has_files) == (set(), set())


def test_a_reassignment_that_a_deletion_waits_for_can_be_cancelled_but_not_changed() -> None:
    world = with_topic((1, 2))
    world.event("reassign", {tp("t-0"): (1, 3)})
    world.delete("t")
    world.settle()
    assert isinstance(world.event("reassign", {tp("t-0"): (2, 3)})[tp("t-0")], UnknownTopicOrPartitionError)
    assert world.event("reassign", {tp("t-0"): None}) == {tp("t-0"): None}
    world.settle()
    assert (world.deletions, world.has_files) == (set(), set())


def test_deletion_waits_for_the_reassignments_of_all_partitions() -> None:
    world = with_topic((1, 2), (1, 2))
    world.create("u", (1, 2))
    world.event("reassign", {tp(name): (1, 3) for name in ("t-0", "t-1", "u-0")})
    world.delete("t")
    world.settle()
    for name, deletions in (("t-0", {"t"}), ("t-1", set())):
        world.catch_up(name)
        world.settle()
        assert world.deletions == deletions
    assert world.assignments[tp("u-0")].is_being_reassigned, "the reassignment of another topic goes on"


def test_deletion_waits_for_a_reassignment_after_a_controller_election_too() -> None:
    world = with_topic((1, 2))
    world.event("reassign", {tp("t-0"): (1, 3)})
    world.delete("t")
    world.elect(2)
    world.settle()
    assert (world.deletions, world.has_files) == ({"t"}, {(each, tp("t-0")) for each in (1, 2, 3)})
    world.catch_up("t-0")
    world.settle()
    assert (world.deletions, world.has_files) == (set(), set())


# Reassignment.


def test_a_partition_expands_waits_and_shrinks() -> None:
    world = with_topic((3, 1))
    assert world.event("reassign", {tp("t-0"): (2, 3)}) == {tp("t-0"): None}
    assert world.assignments[tp("t-0")] == ReplicaAssignment((2, 3, 1), (2,), (1,))
    [new] = world.requests_of(LeaderAndIsrRequest, 2)[-1].partitions.values()
    assert new.is_new
    assert new.assignment.adding == (2,)
    world.settle()
    assert world.led("t-0") == (3, 1, (3, 1))
    world.catch_up("t-0")
    world.settle()
    assert world.assignments[tp("t-0")] == ReplicaAssignment((2, 3))
    leader, _, isr = world.led("t-0")
    assert (leader, sorted(isr)) == (3, [2, 3])  # the replica is in the new set too, so it stays
    assert world.has_files == {(2, tp("t-0")), (3, tp("t-0"))}


def test_the_leader_moves_into_the_new_set() -> None:
    world = with_topic((1, 2), brokers=(1, 2, 3, 4))
    world.event("reassign", {tp("t-0"): (3, 4)})
    world.settle()
    world.catch_up("t-0")
    world.settle()
    leader, _, isr = world.led("t-0")
    assert (leader, sorted(isr)) == (3, [3, 4])
    assert world.has_files == {(3, tp("t-0")), (4, tp("t-0"))}


def test_a_reassignment_to_the_same_brokers_in_another_order_ends_at_once() -> None:
    world = with_topic((1, 2))
    world.event("reassign", {tp("t-0"): (2, 1)})
    assert world.assignments[tp("t-0")] == ReplicaAssignment((2, 1))
    assert world.led("t-0")[0] == 1  # until a preferred election


def test_fewer_replicas_are_done_at_once() -> None:
    world = with_topic((1, 2, 3))
    world.event("reassign", {tp("t-0"): (2, 3)})
    world.settle()
    assert world.assignments[tp("t-0")] == ReplicaAssignment((2, 3))
    assert world.led("t-0")[0] == 2
    assert (1, tp("t-0")) not in world.has_files


def test_a_cancelled_reassignment_goes_back() -> None:
    world = with_topic((1, 2))
    world.event("reassign", {tp("t-0"): (3, 2)})
    world.settle()
    assert world.event("reassign", {tp("t-0"): None}) == {tp("t-0"): None}
    world.settle()
    assert world.assignments[tp("t-0")] == ReplicaAssignment((2, 1))  # the order of the replicas is lost, as in Kafka
    assert world.led("t-0")[0] == 1
    assert (3, tp("t-0")) not in world.has_files


def test_a_cancelled_reassignment_removes_former_replicas_from_the_isr() -> None:
    world = with_topic((1, 2), brokers=(1, 2, 3, 4))
    world.event("reassign", {tp("t-0"): (3, 4)})
    world.settle()
    world.stop(4)
    world.catch_up("t-0")
    assert world.led("t-0")[2] == (3, 1, 2)
    assert world.event("reassign", {tp("t-0"): None}) == {tp("t-0"): None}
    world.settle()
    assert (set(world.assignments[tp("t-0")].replicas), set(world.led("t-0")[2])) == ({1, 2}, {1, 2})
    assert (3, tp("t-0")) not in world.has_files


def test_a_second_reassignment_replaces_the_target_of_the_first() -> None:
    world = with_topic((1, 2), brokers=(1, 2, 3, 4))
    world.event("reassign", {tp("t-0"): (3, 2)})
    world.settle()
    world.event("reassign", {tp("t-0"): (4, 2)})
    assert world.assignments[tp("t-0")] == ReplicaAssignment((4, 2, 1), (4,), (1,))
    world.settle()
    assert (3, tp("t-0")) not in world.has_files
    world.catch_up("t-0")
    assert world.assignments[tp("t-0")] == ReplicaAssignment((4, 2))


def test_a_repeated_reassignment_to_the_same_target_changes_nothing() -> None:
    world = with_topic((1, 2))
    for _ in range(2):
        world.event("reassign", {tp("t-0"): (3, 2)})
    world.settle()
    world.catch_up("t-0")
    assert world.assignments[tp("t-0")] == ReplicaAssignment((3, 2))


@pytest.mark.parametrize(
    ("name", "target", "error"),
    [
        ("x-0", (1,), UnknownTopicOrPartitionError),
        ("t-0", None, NoReassignmentInProgressError),
        ("t-0", (), InvalidReplicaAssignmentError),
        ("t-0", (3, 3), InvalidReplicaAssignmentError),
        ("t-0", (-1, 2), InvalidReplicaAssignmentError),
        ("t-0", (1, 9), InvalidReplicaAssignmentError),
    ],
)
def test_an_impossible_reassignment_is_refused_without_effect(
    name: str, target: tuple[int, ...] | None, error: type[Exception]
) -> None:
    world = with_topic((1, 2))
    before = dict(world.assignments)
    [answer] = world.event("reassign", {tp(name): target}).values()
    assert isinstance(answer, error)
    assert world.assignments == before


def test_the_only_replica_in_sync_cannot_be_taken_away() -> None:
    world = with_topic((1, 2))
    world.stop(2)
    world.event("reassign", {tp("t-0"): (3,)})
    world.settle()
    world.catch_up("t-0")  # done: only 3 is left
    world.start(2)
    world.event("reassign", {tp("t-0"): (2,)})
    [answer] = world.event("reassign", {tp("t-0"): (1,)}).values()
    assert answer is None  # 3 stays in the ISR until 1 is in sync
    world.settle()
    world.stop(3)
    world.event("reassign", {tp("t-0"): None})
    assert set(world.led("t-0")[2]) <= set(world.assignments[tp("t-0")].replicas)


@pytest.mark.parametrize("is_in_sync", [False, True])
@pytest.mark.parametrize("steps", range(14))
def test_a_new_controller_continues_with_a_reassignment_from_any_step(steps: int, is_in_sync: bool) -> None:
    world = with_topic((1, 2), brokers=(1, 2, 3, 4))
    if is_in_sync:
        world.event("reassign", {tp("t-0"): (3, 4)})
        world.settle()
        world.crash_after = steps
        world.catch_up("t-0")
    else:
        world.crash_after = steps
        world.event("reassign", {tp("t-0"): (3, 4)})
    world.settle()
    world.crash_after = None
    world.elect(3)
    # retried because the tool does not know how far the first attempt came
    world.event("reassign", {tp("t-0"): (3, 4)})
    world.settle()
    world.catch_up("t-0")
    world.settle()
    assert world.assignments[tp("t-0")] == ReplicaAssignment((3, 4))
    assert world.led("t-0")[0] == 3
    assert sorted(world.led("t-0")[2]) == [3, 4]


@pytest.mark.parametrize(("broker", "more_epochs"), [(3, 1), (4, 0)])
def test_a_reassignment_goes_on_when_one_of_its_new_brokers_is_back(broker: int, more_epochs: int) -> None:
    world = with_topic((1, 2), brokers=(1, 2, 3, 4))
    world.event("reassign", {tp("t-0"): (1, 3)})
    world.stop(broker)
    leader, epoch, isr = world.led("t-0")
    world.start(broker)
    assert world.led("t-0") == (leader, epoch + more_epochs, isr)


def test_a_reassignment_whose_new_replicas_are_all_away_ends_when_they_are_back() -> None:
    world = with_topic((1,))
    world.event("reassign", {tp("t-0"): (3,)})
    world.settle()
    world.crash_after = 1  # after the ISR is written
    world.catch_up("t-0")
    assert world.led("t-0")[2] == (3, 1)
    world.stop(1, 3)
    world.elect(2)
    assert world.led("t-0")[0] == -1
    [answer] = world.event("reassign", {tp("t-0"): None}).values()
    assert isinstance(answer, InvalidReplicaAssignmentError), "only the new replica has all records"
    world.start(1)
    world.settle()
    assert world.assignments[tp("t-0")].is_being_reassigned
    world.start(3)
    world.settle()
    assert world.assignments[tp("t-0")] == ReplicaAssignment((3,))
    assert world.led("t-0")[0] == 3
    assert world.has_files == {(3, tp("t-0"))}


@pytest.mark.parametrize("target", [(1,), (1, 2, 3)])
def test_a_target_of_another_size_is_refused_where_the_replication_factor_is_kept(target: tuple[int, ...]) -> None:
    world = with_topic((1, 2))
    before = world.assignments[tp("t-0")]

    def reassign(replicas: tuple[int, ...] | None) -> MillraceError | None:
        assert world.controller is not None
        answers = world.run(world.controller.reassign({tp("t-0"): replicas}, keeps_replication_factor=True))
        assert answers is not None
        return answers[tp("t-0")]

    assert isinstance(reassign(target), InvalidReplicationFactorError)
    assert world.assignments[tp("t-0")] == before
    assert reassign((1, 3)) is None
    assert world.assignments[tp("t-0")].is_being_reassigned
    assert isinstance(reassign(target), InvalidReplicationFactorError), "the target counts"
    assert reassign(None) is None


def test_a_reassignment_leaves_the_leader_epoch_of_a_newer_controller_alone() -> None:
    world = with_topic()
    decided = world.leadership[tp("t-0")] = replace(world.leadership[tp("t-0")], controller_epoch=7)
    world.event("reassign", {tp("t-0"): (1, 3)})
    assert world.leadership[tp("t-0")] == decided


def test_a_partition_that_never_had_a_leader_is_reassigned_too() -> None:
    world = with_topic()
    world.create("u", (9,))
    assert world.event("reassign", {tp("u-0"): (1,)}) == {tp("u-0"): None}
    assert world.assignments[tp("u-0")] == ReplicaAssignment((1, 9), (1,), (9,))


def test_a_reassignment_waits_for_its_brokers() -> None:
    world = with_topic((1, 2))
    world.event("reassign", {tp("t-0"): (1, 3)})
    world.stop(3)
    world.settle()
    assert world.assignments[tp("t-0")].is_being_reassigned
    world.start(3)
    world.settle()
    world.catch_up("t-0")
    assert world.assignments[tp("t-0")] == ReplicaAssignment((1, 3))


# Changes of the ISR.


def change(world: World, name: str = "t-0", by: int = 1, **changes: object) -> object:
    current = world.leadership[tp(name)]
    asked = IsrChange(isr=current.isr, leader_epoch=current.leader_epoch, partition_epoch=current.partition_epoch)
    asked = replace(asked, **changes)  # type: ignore[arg-type]
    [answer] = world.event("alter_isrs", by, world.brokers[by].epoch, {tp(name): asked}).values()
    return answer


def test_a_leader_shrinks_and_grows_its_isr() -> None:
    world = with_topic((1, 2))
    answer = change(world, isr=(1,))
    assert answer == world.leadership[tp("t-0")]
    assert world.led("t-0") == (1, 0, (1,))  # the leader epoch stays
    assert world.requests_of(UpdateMetadataRequest, 3)[-1].partitions[tp("t-0")].leadership.isr == (1,)
    change(world, isr=(1, 2))
    assert world.led("t-0") == (1, 0, (1, 2))


def test_a_repeated_isr_change_gets_the_same_answer() -> None:
    world = with_topic((1, 2))
    change(world, isr=(1,))
    held = world.leadership[tp("t-0")]
    assert change(world, isr=(1,), partition_epoch=held.partition_epoch - 1) == held
    assert world.leadership[tp("t-0")] == held


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"isr": (1,), "leader_epoch": -1}, FencedLeaderEpochError),
        ({"isr": (1,), "leader_epoch": 9}, NotControllerError),
        ({"isr": (1,), "partition_epoch": 9}, NotControllerError),
        ({"isr": (1,), "partition_epoch": -1}, InvalidUpdateVersionError),
        ({"isr": (2,)}, InvalidRequestError),
        ({"isr": (1, 3)}, InvalidRequestError),
    ],
)
def test_isr_changes_that_contradict_the_present_state_are_refused(
    changes: dict[str, object], error: type[Exception]
) -> None:
    world = with_topic((1, 2))
    held = world.leadership[tp("t-0")]
    assert isinstance(change(world, **changes), error)
    assert world.leadership[tp("t-0")] == held


def test_a_partition_without_a_leader_has_no_isr_to_change() -> None:
    world = with_topic((1, 2))
    world.create("u", (9,))
    asked = IsrChange(isr=(1,), leader_epoch=0, partition_epoch=0)
    answers = world.event("alter_isrs", 1, world.brokers[1].epoch, {tp("u-0"): asked, tp("x-0"): asked})
    assert [type(each) for each in answers.values()] == [UnknownTopicOrPartitionError] * 2


def test_only_the_leader_changes_the_isr() -> None:
    world = with_topic((1, 2, 3))
    held = world.leadership[tp("t-0")]
    refused = change(world, isr=(1, 2), by=2)
    assert isinstance(refused, InvalidRequestError)
    assert "is led by broker 1, not by broker 2" in refused.message
    assert world.leadership[tp("t-0")] == held


def test_a_broker_that_is_shutting_down_or_dead_does_not_join_the_isr() -> None:
    world = with_topic((1, 2, 3))
    change(world, isr=(1,))
    world.event("shut_down", 2, world.brokers[2].epoch)
    world.stop(3)
    for isr in ((1, 2), (1, 3)):
        assert isinstance(change(world, isr=isr), IneligibleReplicaError)


def test_a_conflict_is_reported_with_the_present_state() -> None:
    world = with_topic((1, 2))
    world.conflicts = {tp("t-0")}
    assert isinstance(change(world, isr=(1,)), InvalidUpdateVersionError)
    assert world.led("t-0") == (1, 1, (1, 2))
    assert world.requests_of(LeaderAndIsrRequest, 1)[-1].partitions[tp("t-0")].leadership.leader_epoch == 1


def test_a_leader_of_an_earlier_broker_epoch_is_refused() -> None:
    world = with_topic((1, 2))
    with pytest.raises(StaleBrokerEpochError):
        world.event("alter_isrs", 1, world.brokers[1].epoch - 1, {})
