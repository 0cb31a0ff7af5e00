"""Tests of reassignments that replace others in progress."""

from __future__ import annotations

import pytest

from millrace.errors import InvalidReplicationFactorError, MillraceError
from millrace_broker.decisions import IsrChange, ReplicaAssignment

from .world import World, tp

PARTITION = tp("t-0")


def alter_isr(world: World, *isr: int) -> None:
    """Have the leader of the partition set its ISR."""
    current = world.leadership[PARTITION]
    change = IsrChange(isr=isr, leader_epoch=current.leader_epoch, partition_epoch=current.partition_epoch)
    epoch = world.brokers[current.leader].epoch
    assert world.event("alter_isrs", current.leader, epoch, {PARTITION: change})[PARTITION].isr == isr
    world.settle()


def led_by_a_new_replica() -> World:
    """Return a partition on broker 1 that moves to 2 and 3, and that broker 2 leads meanwhile."""
    world = World(1, 2, 3, 4)
    world.elect(1)
    world.create("t", (1,))
    world.settle()
    world.event("reassign", {PARTITION: (2, 3)})
    world.settle()
    alter_isr(world, 1, 2)
    world.stop(1)
    world.start(1)
    world.settle()
    alter_isr(world, 2, 1)
    assert world.led("t-0")[0] == 2
    return world


def test_a_replaced_reassignment_whose_new_replica_leads_leaves_another_leader_in_sync() -> None:
    world = led_by_a_new_replica()
    assert world.event("reassign", {PARTITION: (4,)}) == {PARTITION: None}
    world.settle()
    leader, _, isr = world.led("t-0")
    assert (leader, isr) == (1, (1,))
    assert world.told[4][PARTITION].leadership.leader == 1
    alter_isr(world, 1, 4)
    assert world.assignments[PARTITION] == ReplicaAssignment((4,))
    assert world.has_files == {(4, PARTITION)}


@pytest.mark.parametrize("steps", range(16))
def test_a_new_controller_finds_a_leader_after_a_crash_at_any_step_of_a_replaced_reassignment(steps: int) -> None:
    world = led_by_a_new_replica()
    world.crash_after = steps
    world.event("reassign", {PARTITION: (4,)})
    world.crash_after = None
    world.elect(3)
    world.settle()
    assert world.led("t-0")[0] in (1, 2)
    world.event("reassign", {PARTITION: (4,)})
    world.settle()
    assert world.led("t-0")[0] == 1


def test_a_replaced_reassignment_keeps_the_number_of_replicas_of_the_target_in_progress() -> None:
    world = World(1, 2, 3, 4)
    world.elect(1)
    world.create("t", (1,))
    world.event("reassign", {PARTITION: (2, 3)})

    def reassign(*replicas: int) -> MillraceError | None:
        assert world.controller is not None
        answers = world.run(world.controller.reassign({PARTITION: replicas}, keeps_replication_factor=True))
        assert answers is not None
        return answers[PARTITION]

    assert isinstance(reassign(4), InvalidReplicationFactorError)
    assert reassign(2, 4) is None
