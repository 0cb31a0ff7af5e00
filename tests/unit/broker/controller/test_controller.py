"""Tests of the controller's rules.

The tests cover creation, failures, elections, failover and requests to brokers.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidTopicError,
    NotControllerError,
    PreferredLeaderNotAvailableError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from millrace_broker.controller import Controller, ControllerMovedError, LiveBroker, Occasion
from millrace_broker.controller.balancing import partitions_to_rebalance
from millrace_broker.controller.effects import ReadBrokers, SendRequests, WriteLeadership
from millrace_broker.controller.model import (
    PARTITION_COMES_FROM,
    REPLICA_COMES_FROM,
    PartitionReplica,
    PartitionState,
    ReplicaState,
)
from millrace_broker.controller.partition_states import change_partitions
from millrace_broker.controller.replica_states import change_replicas
from millrace_broker.controller.statistics import statistics_of
from millrace_broker.decisions import Leadership, StopReplicaState

from .world import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest, World, tp


def started(*brokers: int) -> World:
    world = World(*(brokers or (1, 2, 3)))
    world.elect()
    world.sent.clear()
    return world


def controller_of(world: World) -> Controller:
    assert world.controller is not None
    return world.controller


def test_a_new_topic_is_led_by_its_first_replica_and_all_alive_are_in_sync() -> None:
    world = started(1, 2)
    world.create("t", (3, 1, 2), (2, 1))
    assert world.led("t-0") == (1, 0, (1, 2))
    assert world.led("t-1") == (2, 0, (2, 1))
    [first, *_] = world.requests_of(LeaderAndIsrRequest, 1)
    assert set(first.partitions) == {tp("t-0"), tp("t-1")}  # each broker gets one request for one change of state
    assert all(state.is_new for state in first.partitions.values())
    assert first.live_leaders == (1, 2)
    metadata = world.requests_of(UpdateMetadataRequest, 2)[-1]
    assert metadata.live_brokers == (1, 2)
    assert not any(state.is_new for state in metadata.partitions.values())


def test_brokers_are_told_the_new_address_of_a_broker_and_nothing_else_changes() -> None:
    world = started()
    world.create("t", (1, 2))
    leadership, effects = dict(world.leadership), len(world.effects)
    world.brokers[2] = replace(world.brokers[2], version=1)
    world.event("brokers_changed")
    (read, sent) = world.effects[effects:]
    assert isinstance(read, ReadBrokers)
    assert isinstance(sent, SendRequests)
    assert sent.requests.keys() == world.brokers.keys()
    requests = [request for each in sent.requests.values() for request in each]
    assert all(isinstance(request, UpdateMetadataRequest) and not request.partitions for request in requests)
    assert world.leadership == leadership
    world.event("brokers_changed")
    assert len(world.effects) == effects + 3, "the brokers were read again, and nobody was told"


def test_a_new_address_is_told_together_with_a_new_broker() -> None:
    world = started(1, 2)
    world.brokers[2] = replace(world.brokers[2], version=1)
    world.start(3)
    [told] = world.requests_of(UpdateMetadataRequest, 1)
    assert told.live_brokers == (1, 2, 3)


def test_brokers_with_failed_disks_are_asked_which_replicas_have_failed() -> None:
    world = started()
    world.create("t", (1, 2))
    world.sent.clear()
    world.event("disks_failed", [2, 9])
    led = {broker_id for broker_id, request in world.sent if isinstance(request, LeaderAndIsrRequest)}
    assert led == {2}


def test_a_topic_without_a_live_broker_waits_for_one() -> None:
    world = started(1)
    world.create("t", (3, 2))
    assert tp("t-0") not in world.leadership
    world.start(2)
    assert world.led("t-0") == (2, 0, (2,))


def test_more_partitions_leave_those_there_alone() -> None:
    world = started()
    world.create("t", (1, 2))
    world.create("t", (1, 2), (2, 3))
    assert world.led("t-0") == (1, 0, (1, 2))
    assert world.led("t-1") == (2, 0, (2, 3))


def test_partitions_of_a_stopped_broker_get_a_leader_in_sync_and_an_isr_without_it() -> None:
    world = started()
    world.create("t", (1, 2, 3), (2, 1, 3))
    world.sent.clear()
    world.stop(1)
    assert world.led("t-0") == (2, 1, (2, 3))
    assert world.led("t-1") == (2, 1, (2, 3))
    assert world.requests_of(LeaderAndIsrRequest, 1) == []
    told = [state for each in world.requests_of(LeaderAndIsrRequest, 3) for state in each.partitions.values()]
    assert told
    assert not any(state.is_new for state in told), "the replicas there have their records"
    assert world.requests_of(UpdateMetadataRequest, 3)[-1].live_brokers == (2, 3)


def test_the_last_replica_in_sync_stays_in_the_isr_and_leads_again_when_it_is_back() -> None:
    world = started(1, 2)
    world.create("t", (1, 2))
    world.stop(2)
    world.stop(1)
    assert world.led("t-0") == (-1, 2, (1,))
    world.start(2)
    assert world.led("t-0")[0] == -1  # alive, but not in sync
    world.start(1)
    assert world.led("t-0") == (1, 3, (1,))


def test_an_allowed_unclean_election_makes_a_replica_leader_and_the_only_one_in_the_isr() -> None:
    world = started(1, 2)
    world.unclean = {"t"}
    world.create("t", (1, 2))
    world.create("u", (1, 2))
    world.stop(2)
    world.stop(1)
    world.start(2)
    assert world.led("t-0") == (2, 3, (2,))
    assert world.led("u-0")[0] == -1
    assert world.event("elect_leaders", [tp("u-0")], Occasion.UNCLEAN) == {tp("u-0"): None}
    assert world.led("u-0")[0] == 2


def test_a_broker_that_was_away_too_briefly_to_be_missed_gets_all_state_again() -> None:
    world = started()
    world.create("t", (1, 2))
    world.sent.clear()
    world.start(1)
    assert world.led("t-0")[0] == 2
    [*_, last] = world.requests_of(LeaderAndIsrRequest, 1)
    assert last.partitions[tp("t-0")].leadership.leader == 2
    assert last.broker_epoch == world.brokers[1].epoch
    assert not last.partitions[tp("t-0")].is_new, "the broker has its replica"


def test_a_conflict_repeats_the_election_from_what_is_there() -> None:
    world = started()
    world.create("t", (1, 2, 3))
    world.conflicts = {tp("t-0")}
    world.stop(1)
    assert world.led("t-0")[0] == 2
    writes = [each for each in world.effects if isinstance(each, WriteLeadership)]
    assert len(writes) >= 2


def test_controlled_shutdown_moves_leaders_first_and_elects_the_broker_no_more() -> None:
    world = started()
    world.create("t", (1, 2), (2, 1), (1,))
    world.sent.clear()
    assert world.event("shut_down", 1, world.brokers[1].epoch) == []
    assert world.led("t-0") == (2, 1, (2,))
    assert world.led("t-1") == (2, 1, (2,))
    assert world.led("t-2") == (1, 0, (1,))  # no other broker has it
    told = world.requests_of(LeaderAndIsrRequest, 1)[0].partitions[tp("t-0")]
    assert told.leadership.leader == 2, "the broker follows the new leader until it stops"
    [stop] = world.requests_of(StopReplicaRequest, 1)
    assert stop.partitions == {tp("t-1"): StopReplicaState(leader_epoch=0, is_deleted=False)}
    world.create("v", (1, 3))
    assert world.led("v-0") == (3, 0, (3,))


def test_controlled_shutdown_returns_partitions_without_another_leader() -> None:
    world = started(1, 2)
    world.create("t", (1, 2))
    world.stop(2)
    assert world.event("shut_down", 1, world.brokers[1].epoch) == [tp("t-0")]


def test_a_request_of_an_earlier_broker_epoch_is_refused() -> None:
    world = started()
    with pytest.raises(StaleBrokerEpochError):
        world.event("shut_down", 1, world.brokers[1].epoch - 1)
    with pytest.raises(StaleBrokerEpochError):
        world.event("shut_down", 9, 1000)


def test_preferred_leaders_come_back() -> None:
    world = started()
    world.create("t", (1, 2))
    world.stop(1)
    world.start(1)
    world.settle()
    world.effects.clear()
    answers = world.event("elect_leaders", [tp("t-0"), tp("x-0")], Occasion.PREFERRED)
    assert not any(isinstance(each, WriteLeadership) for each in world.effects), "there is nothing to write"
    assert isinstance(answers[tp("t-0")], PreferredLeaderNotAvailableError)  # the replica is not in sync yet
    assert isinstance(answers[tp("x-0")], UnknownTopicOrPartitionError)
    world.catch_up("t-0")
    assert world.event("elect_leaders", [tp("t-0")], Occasion.PREFERRED) == {tp("t-0"): None}
    assert world.led("t-0")[0] == 1
    [answer] = world.event("elect_leaders", [tp("t-0")], Occasion.PREFERRED).values()
    assert isinstance(answer, ElectionNotNeededError)
    [answer] = world.event("elect_leaders", [tp("t-0")], Occasion.UNCLEAN).values()
    assert isinstance(answer, ElectionNotNeededError)


def test_elections_of_deleted_topics_or_without_a_live_replica_are_refused() -> None:
    world = started(1, 2)
    world.create("t", (1,))
    world.create("u", (1,))
    world.stop(1)
    world.delete("t")
    answers = world.event("elect_leaders", [tp("t-0"), tp("u-0")], Occasion.UNCLEAN)
    assert isinstance(answers[tp("t-0")], InvalidTopicError)
    assert isinstance(answers[tp("u-0")], EligibleLeadersNotAvailableError)


@pytest.mark.parametrize(("percentage", "leader"), [(49, 1), (50, 2)])
def test_leaders_are_balanced_beyond_the_allowed_share(percentage: int, leader: int) -> None:
    world = started(1, 2)
    world.create("t", (1, 2), (1, 2))
    world.stop(1)
    world.start(1)
    world.settle()
    for name in ("t-0", "t-1"):
        world.catch_up(name)
    world.event("elect_leaders", [tp("t-1")], Occasion.PREFERRED)
    assert (world.led("t-0")[0], world.led("t-1")[0]) == (2, 1)
    world.event("balance_leaders", percentage)
    assert world.led("t-0")[0] == leader


def test_balancing_waits_for_reassignments_and_for_replicas_in_sync() -> None:
    world = started()
    world.create("t", (1, 2), (1, 2))
    world.stop(1)
    world.start(1)
    world.event("balance_leaders", 0)
    assert world.led("t-0")[0] == 2
    assert partitions_to_rebalance(controller_of(world).context, 0) == []
    world.settle()
    world.catch_up("t-0")
    assert partitions_to_rebalance(controller_of(world).context, 0) == [tp("t-0")]
    world.event("reassign", {tp("t-1"): (2, 3)})
    assert partitions_to_rebalance(controller_of(world).context, 0) == []
    world.event("balance_leaders", 0)
    assert world.led("t-0")[0] == 2


def test_a_new_controller_finds_leaders_for_what_was_lost_meanwhile_and_tells_all() -> None:
    world = started()
    world.create("t", (1, 2, 3), (3, 2))
    world.controller = None
    world.stop(1)
    world.sent.clear()
    world.elect(2)
    assert world.led("t-0") == (2, 1, (2, 3))
    assert controller_of(world).context.epoch == 2
    first = world.requests_of(UpdateMetadataRequest, 3)[0]
    assert set(first.partitions) == {tp("t-0"), tp("t-1")}
    led = {p for request in world.requests_of(LeaderAndIsrRequest, 3) for p in request.partitions}
    assert led == {tp("t-0"), tp("t-1")}
    assert {request.controller_epoch for _, request in world.sent} == {2}


def test_topics_created_without_a_controller_are_led_by_the_next() -> None:
    world = started()
    world.controller = None
    world.create("t", (2, 3))
    world.elect(3)
    assert world.led("t-0") == (2, 0, (2, 3))


def test_a_topic_removed_by_hand_is_forgotten_and_one_created_again_is_another() -> None:
    world = started()
    world.create("t", (1, 2))
    for each in (world.assignments, world.leadership, world.topic_ids):
        each.clear()  # type: ignore[attr-defined]
    world.create("t", (3, 2), (2, 3))
    assert controller_of(world).context.topic_ids == world.topic_ids
    assert world.led("t-0") == (3, 0, (3, 2))
    last = world.requests_of(LeaderAndIsrRequest, 3)[-1]
    assert last.topic_ids == world.topic_ids


def test_a_failed_disk_of_a_topic_that_is_gone_does_not_concern_the_next_topic_of_its_name() -> None:
    world = started()
    world.create("t", (1, 2))
    world.event("replicas_failed", 2, [tp("t-0")])
    for each in (world.assignments, world.leadership, world.topic_ids):
        each.clear()  # type: ignore[attr-defined]
    world.event("topics_changed")
    assert controller_of(world).context.replica_state(PartitionReplica(tp("t-0"), 2)) is ReplicaState.NON_EXISTENT
    world.start(4)
    assert not any(request.partitions for request in world.requests_of(UpdateMetadataRequest, 4))
    world.create("t", (2, 1))
    assert world.led("t-0") == (2, 0, (2, 1))


def test_a_controller_that_was_replaced_writes_nothing() -> None:
    world = started()
    world.create("t", (1, 2))
    world.controller_epoch += 1
    before = dict(world.leadership)
    with pytest.raises(ControllerMovedError):
        world.stop(1)
    assert world.leadership == before
    controller = controller_of(world)
    controller.resign()
    world.deletions.add("t")
    world.effects.clear()
    deleted = StopReplicaRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=world.brokers[2].epoch,
        partitions={tp("t-0"): StopReplicaState(leader_epoch=0, is_deleted=True)},
    )
    for never_or_no_more in (controller, Controller(2)):
        world.controller = never_or_no_more
        for event, *arguments in (
            ("shut_down", 2, world.brokers[2].epoch),
            ("alter_isrs", 2, world.brokers[2].epoch, {}),
            ("reassign", {tp("t-0"): None}),
            ("elect_leaders", [tp("t-0")], Occasion.PREFERRED),
        ):
            with pytest.raises(NotControllerError):
                world.event(str(event), *arguments)
        for event, *arguments in (
            ("brokers_changed",),
            ("topics_changed",),
            ("deletions_changed",),
            ("unclean_allowed",),
            ("disks_failed", [2]),
            ("replicas_failed", 2, [tp("t-0")]),
            ("replicas_deleted", 2, deleted),
        ):
            assert world.event(str(event), *arguments) is None
    assert world.effects == [], "a broker that is not the controller reads and writes nothing"


def test_a_partition_that_a_newer_controller_has_decided_is_left_alone() -> None:
    world = started()
    world.create("t", (1, 2))
    world.leadership[tp("t-0")] = replace(world.leadership[tp("t-0")], controller_epoch=7, partition_epoch=3)
    world.stop(1)
    assert world.leadership[tp("t-0")].controller_epoch == 7


def test_a_first_leader_that_another_controller_wrote_stays() -> None:
    world = started()
    decided = Leadership(leader=2, leader_epoch=4, isr=(2,), partition_epoch=3, controller_epoch=9)
    world.leadership[tp("t-0")] = decided
    world.create("t", (1, 2), (1, 2))
    assert world.leadership[tp("t-0")] == decided
    assert world.led("t-1") == (1, 0, (1, 2))
    led = {partition for request in world.requests_of(LeaderAndIsrRequest, 1) for partition in request.partitions}
    assert led == {tp("t-1")}


def test_a_partition_whose_leader_was_never_written_has_no_election() -> None:
    world = started()
    world.create("t", (1, 2))
    del world.leadership[tp("t-0")]
    failures = world.run(change_partitions(controller_of(world).context, [tp("t-0")], PartitionState.ONLINE))
    assert failures is not None
    assert [type(each) for each in failures.values()] == [UnknownTopicOrPartitionError]


def test_a_leader_does_not_become_a_new_replica() -> None:
    world = started()
    world.create("t", (1, 2))
    context = controller_of(world).context
    replicas = [PartitionReplica(tp("t-0"), broker_id) for broker_id in (1, 2)]
    context.replica_states.clear()
    world.sent.clear()
    world.run(change_replicas(context, replicas, ReplicaState.NEW))
    assert [context.replica_state(each) for each in replicas] == [ReplicaState.NON_EXISTENT, ReplicaState.NEW]
    assert world.requests_of(LeaderAndIsrRequest, 1) == []


def test_an_election_that_another_controller_won_leaves_the_broker_inactive() -> None:
    controller = controller_of(started())
    assert controller.is_active
    steps = controller.elect()
    next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send(None)
    assert ended.value.value is False
    assert not controller.is_active
    assert started().event("elect") is True


@pytest.mark.parametrize("target", list(PartitionState))
@pytest.mark.parametrize("origin", list(PartitionState))
def test_partitions_move_only_as_allowed(origin: PartitionState, target: PartitionState) -> None:
    world = started()
    world.create("t", (1, 2))
    context = controller_of(world).context
    context.partition_states[tp("t-0")] = origin
    if origin is PartitionState.NEW:
        del world.leadership[tp("t-0")]
    world.run(change_partitions(context, [tp("t-0")], target))
    is_allowed = origin in PARTITION_COMES_FROM[target]
    assert context.partition_state(tp("t-0")) is (target if is_allowed else origin)


@pytest.mark.parametrize("target", list(ReplicaState))
@pytest.mark.parametrize("origin", list(ReplicaState))
def test_replicas_move_only_as_allowed(origin: ReplicaState, target: ReplicaState) -> None:
    world = started()
    world.create("t", (1, 2))
    context, replica = controller_of(world).context, PartitionReplica(tp("t-0"), 2)
    context.replica_states[replica] = origin
    world.run(change_replicas(context, [replica], target))
    is_allowed = origin in REPLICA_COMES_FROM[target]
    assert context.replica_state(replica) is (target if is_allowed else origin)


def test_requests_of_a_failover_are_few() -> None:
    world = World(1, 2, 3)
    world.elect()
    world.create("t", *[(1 + n % 3, 1 + (n + 1) % 3) for n in range(300)])
    world.controller = None
    world.stop(1)
    world.effects.clear()
    world.sent.clear()
    world.elect(2)
    # the number of round trips with ZooKeeper does not depend on the number of partitions
    assert len(world.effects) < 20
    assert len(world.sent) < 15
    assert sum(isinstance(each, SendRequests) for each in world.effects) < 8


def test_live_brokers_are_known_with_their_racks() -> None:
    world = started()
    world.brokers[4] = LiveBroker(999, "rack-a")
    world.event("brokers_changed")
    assert controller_of(world).context.brokers[4].rack == "rack-a"


def test_a_partition_whose_disk_has_failed_is_led_elsewhere_until_its_broker_is_back() -> None:
    world = started()
    world.create("t", (1, 2), (1, 2))
    world.event("replicas_failed", 1, [tp("t-0")])
    assert world.led("t-0") == (2, 1, (2,))
    assert world.led("t-1") == (1, 0, (1, 2))
    [answer] = world.event("elect_leaders", [tp("t-0")], Occasion.PREFERRED).values()
    assert isinstance(answer, PreferredLeaderNotAvailableError)
    world.stop(2)
    assert world.led("t-0")[0] == -1
    world.start(2)
    world.start(1)
    world.settle()
    world.catch_up("t-0")
    assert sorted(world.led("t-0")[2]) == [1, 2]


def test_the_controller_counts_brokers_topics_and_elections() -> None:
    world = started(1, 2, 3)
    world.create("t", (1, 2), (2, 3), (3, 1))
    counted = statistics_of(controller_of(world).context)
    assert (counted.brokers, counted.topics, counted.partitions) == (3, 1, 3)
    assert (counted.offline_partitions, counted.not_led_by_preferred, counted.elections) == (0, 0, 0)
    world.stop(2)  # t-1 is led by 3
    world.stop(3)  # t-1 now has no leader, and t-2 is led by 1
    counted = statistics_of(controller_of(world).context)
    assert (counted.offline_partitions, counted.not_led_by_preferred) == (1, 2)
    assert (counted.elections, counted.unclean_elections) == (2, 0)
    world.unclean = {"t"}
    world.start(2)
    counted = statistics_of(controller_of(world).context)
    assert (counted.offline_partitions, counted.elections, counted.unclean_elections) == (0, 3, 1)
    world.delete("t")
    counted = statistics_of(controller_of(world).context)
    assert (counted.topics_to_delete, counted.topics_ineligible_for_deletion) == (1, 1)
    world.event("elect")
    assert statistics_of(controller_of(world).context).elections == 3, "they count across controller epochs"
    world.elect(2)
    assert statistics_of(controller_of(world).context).elections == 0, "the requests are the other broker's"
