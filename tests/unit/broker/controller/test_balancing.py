"""Tests of the choice of partitions for preferred leader election.

The leadership of the chosen partitions moves back to their preferred replicas.
"""

from __future__ import annotations

from millrace_broker.controller.balancing import partitions_to_rebalance

from .world import World, tp


def test_a_partition_that_lost_its_leader_for_its_deletion_is_not_balanced() -> None:
    world = World(1)
    world.elect()
    world.create("t", (1,))
    world.delete("t")
    assert world.controller is not None
    context = world.controller.context
    assert context.leadership[tp("t-0")].leader == -1
    assert partitions_to_rebalance(context, 0) == []
