"""Tests of leader elections, and of what brokers are told after one."""

from __future__ import annotations

from dataclasses import replace

from millrace_broker.controller import Occasion

from .world import LeaderAndIsrRequest, UpdateMetadataRequest, World, tp


def with_topic(*replicas: int) -> World:
    world = World(1, 2, 3)
    world.elect()
    world.create("t", replicas)
    world.sent.clear()
    return world


def test_an_unclean_election_prefers_the_first_replica_that_is_alive() -> None:
    world = with_topic(1, 2, 3)
    world.stop(2, 3)
    world.stop(1)
    world.start(3)
    world.start(2)
    assert world.led("t-0")[0] == -1
    assert world.event("elect_leaders", [tp("t-0")], Occasion.UNCLEAN) == {tp("t-0"): None}
    leader, _, isr = world.led("t-0")
    assert (leader, isr) == (2, (2,))
    for broker_id in (2, 3):
        told = world.requests_of(LeaderAndIsrRequest, broker_id)[-1].partitions[tp("t-0")]
        assert told.leadership == world.leadership[tp("t-0")]


def test_replicas_are_told_that_another_one_has_left_the_isr() -> None:
    world = with_topic(1, 2, 3)
    world.stop(3)
    for broker_id in (1, 2):
        told = world.requests_of(LeaderAndIsrRequest, broker_id)[-1].partitions[tp("t-0")]
        assert (told.leadership.leader, told.leadership.isr, told.is_new) == (1, (1, 2), False)


def test_the_leader_is_told_the_present_state_when_a_replica_out_of_the_isr_goes() -> None:
    world = with_topic(1, 2)
    world.leadership[tp("t-0")] = replace(world.leadership[tp("t-0")], isr=(1,), partition_epoch=5)
    world.stop(2)
    told = world.requests_of(LeaderAndIsrRequest, 1)[-1].partitions[tp("t-0")]
    assert told.leadership == world.leadership[tp("t-0")]
    assert (told.leadership.isr, told.leadership.partition_epoch) == ((1,), 5)


def test_a_controller_that_is_elected_again_knows_only_what_is_in_zookeeper() -> None:
    world = with_topic(1, 2)
    world.event("shut_down", 2, world.brokers[2].epoch)
    world.event("replicas_failed", 3, [tp("t-0")])
    world.event("elect")
    world.create("v", (2, 3))
    assert world.led("v-0") == (2, 0, (2, 3))


def test_a_failed_disk_is_handled_once_and_only_of_a_live_broker() -> None:
    world = with_topic(1, 2)
    for broker_id, is_handled in ((2, True), (2, False), (9, False)):
        world.effects.clear()
        world.event("replicas_failed", broker_id, [tp("t-0"), tp("x-0")])
        assert bool(world.effects) is is_handled


def test_a_topic_that_is_removed_by_hand_is_reassigned_no_more() -> None:
    world = with_topic(1, 2)
    world.event("reassign", {tp("t-0"): (1, 3)})
    for each in (world.assignments, world.leadership, world.topic_ids):
        each.clear()  # type: ignore[attr-defined]
    world.event("topics_changed")
    world.start(3)
    assert world.controller is not None
    assert world.controller.context.reassigning == set()
    assert world.assignments == {}


def test_a_topic_that_never_had_a_leader_is_deleted() -> None:
    world = with_topic(1)
    world.create("u", (9,))
    world.delete("u")
    assert world.deletions == {"u"}
    assert not any(tp("u-0") in request.partitions for request in world.requests_of(UpdateMetadataRequest, 1))
    world.start(9)
    world.settle()
    assert world.deletions == set()
