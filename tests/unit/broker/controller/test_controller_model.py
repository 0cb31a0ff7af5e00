"""Model test of the controller.

Brokers and topics come and go, partitions move and controllers fail at any step. The invariants must hold after each
step.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace_broker.controller import Occasion
from millrace_broker.controller.model import PartitionState, ReplicaState
from millrace_broker.decisions import ReplicaAssignment, TopicPartition

from .world import World

BROKERS = (1, 2, 3, 4)
TOPICS = ("a", "b", "c")


def check(world: World, epochs: dict[TopicPartition, tuple[int, int]]) -> None:
    """Check the invariants.

    Leaders are in sync and assigned, epochs only grow, and the context equals ZooKeeper's content.
    """
    for partition, value in world.leadership.items():
        replicas = world.assignments[partition].replicas
        assert value.isr, partition
        assert value.leader in (*value.isr, -1), partition
        if partition.topic not in world.deletions:
            assert set(value.isr) <= set(replicas), partition
        leader_epoch, partition_epoch = epochs.get(partition, (-1, -1))
        assert value.leader_epoch >= leader_epoch
        assert value.partition_epoch >= partition_epoch
        epochs[partition] = (value.leader_epoch, value.partition_epoch)
    for partition in [each for each in epochs if each not in world.leadership]:
        del epochs[partition]  # the topic was deleted, so a new topic of that name begins with new epochs
        world.leaders_told = {key: leader for key, leader in world.leaders_told.items() if key[0] != partition}
    if world.controller is not None and world.controller.is_active:
        context = world.controller.context
        assert context.brokers == world.brokers
        assert context.assignments == world.assignments
        assert context.topic_ids == world.topic_ids
        assert context.leadership == world.leadership


def finish(world: World, *, has_failover: bool) -> None:
    """Restart all brokers, also those that are shutting down, and complete all operations."""
    world.crash_after = None
    world.conflicts.clear()
    world.refuses_to_delete.clear()
    if world.controller is None or not world.controller.is_active:
        has_failover = True
    if has_failover:
        world.elect()
    for broker_id in BROKERS:
        world.start(broker_id)
    for _ in range(6):
        world.settle()
        for partition in sorted(world.leadership):
            if partition in world.leadership:
                world.catch_up(partition)
    world.settle()


def check_finished(world: World) -> None:
    """Check that deletions and reassignments have ended and that each partition has a leader known to all its replicas.

    Brokers that were away when a replica was removed may keep its files. They drop files that the controller does not
    name.
    """
    assert world.controller is not None
    context = world.controller.context
    assert world.deletions == set()
    for partition, assignment in world.assignments.items():
        assert assignment == ReplicaAssignment(assignment.replicas), f"{partition} is still being reassigned"
        value = world.leadership[partition]
        assert value.leader in assignment.replicas
        assert sorted(value.isr) == sorted(assignment.replicas)
        assert context.partition_state(partition) is PartitionState.ONLINE
        for broker_id in assignment.replicas:
            assert world.told[broker_id][partition].leadership.leader == value.leader
    assert set(context.replica_states.values()) <= {ReplicaState.ONLINE}


def act(world: World, chance: random.Random) -> None:
    """Do one random action. Most actions deliver requests or let replicas catch up."""
    draw, led = chance.random(), sorted(world.leadership)
    if draw < 0.35:
        world.deliver(chance.choice(BROKERS))
    elif draw < 0.5 and led:
        world.catch_up(chance.choice(led))
    elif draw < 0.65:
        something_breaks(world, chance)
    else:
        somebody_asks(world, chance)


def something_breaks(world: World, chance: random.Random) -> None:
    draw, broker_id = chance.random(), chance.choice(BROKERS)
    if draw < 0.4:
        if broker_id in world.brokers:
            world.stop(broker_id)
        else:
            world.start(broker_id)
    elif draw < 0.55 and broker_id in world.brokers:
        world.start(broker_id)  # so fast that only the broker epoch shows the restart
    elif draw < 0.7:
        world.crash_after = chance.randrange(8)
    elif draw < 0.85 or world.controller is None:
        world.elect(broker_id)
    elif draw < 0.95 and world.assignments:
        world.conflicts.add(chance.choice(sorted(world.assignments)))
    elif draw < 0.97 and world.assignments:
        world.event("replicas_failed", broker_id, chance.sample(sorted(world.assignments), 1))
    else:
        world.refuses_to_delete ^= {broker_id}


def somebody_asks(world: World, chance: random.Random) -> None:
    draw, topic, partitions = chance.random(), chance.choice(TOPICS), sorted(world.assignments)
    replicas = tuple(chance.sample(BROKERS, chance.randrange(1, 4)))
    there = sum(each.topic == topic for each in partitions)
    if draw < 0.3 and topic not in world.deletions and there < 5:
        world.create(topic, *[(1,)] * there, replicas)
    elif draw < 0.4 and there:
        world.delete(topic)
    elif world.controller is None or not world.controller.is_active:
        world.elect()
    elif draw < 0.7 and partitions:
        world.event("reassign", {chance.choice(partitions): chance.choice([replicas, replicas, None])})
    elif draw < 0.8:
        world.event("elect_leaders", partitions, chance.choice([Occasion.PREFERRED, Occasion.UNCLEAN]))
    elif draw < 0.9:
        world.event("balance_leaders", 10)
    elif broker_id := next(iter(sorted(world.controller.context.brokers)), 0):
        world.event("shut_down", broker_id, world.brokers[broker_id].epoch)


@pytest.mark.parametrize("run", range(60))
def test_invariants_hold_in_long_random_runs(run: int, seed: int) -> None:
    chance, world = random.Random(seed), World(*BROKERS)
    world.unclean = {"c"}
    epochs: dict[TopicPartition, tuple[int, int]] = {}
    world.elect()
    for _ in range(250):
        act(world, chance)
        check(world, epochs)
    finish(world, has_failover=run % 2 == 0)
    check(world, epochs)
    check_finished(world)


class Cluster(RuleBasedStateMachine):
    """The same model for hypothesis, which finds the shortest sequence that fails."""

    @initialize()
    def begin(self) -> None:
        self.world = World(*BROKERS)
        self.epochs: dict[TopicPartition, tuple[int, int]] = {}
        self.world.elect()

    @rule(chance=st.randoms(use_true_random=False))
    def something_happens(self, chance: random.Random) -> None:
        act(self.world, chance)

    @rule()
    def requests_arrive(self) -> None:
        self.world.settle()

    @invariant()
    def holds(self) -> None:
        check(self.world, self.epochs)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            finish(self.world, has_failover=False)
            check_finished(self.world)


Cluster.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
TestCluster = Cluster.TestCase
