"""Tests of followers that restart while they join the ISR (KIP-903)."""

from __future__ import annotations

from millrace.errors import IneligibleReplicaError
from millrace_broker.decisions import IsrChange, Leadership, PartitionDecision
from millrace_broker.replication.core import AlterIsr, Leader, ReplicationSettings

from .world import World, tp

PARTITION = tp("t-0")


def ask(world: World, asked: AlterIsr | None) -> Leadership | IneligibleReplicaError:
    assert asked is not None
    change = IsrChange(
        isr=asked.isr,
        leader_epoch=asked.leader_epoch,
        partition_epoch=asked.partition_epoch,
        broker_epochs=asked.broker_epochs,
    )
    answer: Leadership | IneligibleReplicaError = world.event(
        "alter_isrs", 1, world.brokers[1].epoch, {PARTITION: change}
    )[PARTITION]
    return answer


def test_a_follower_that_restarts_after_its_leader_asked_joins_the_isr_by_its_next_fetch_only() -> None:
    world = World(1, 2, 3)
    world.elect(3)
    world.create("t", (1, 2))
    world.stop(2)
    world.start(2)
    world.settle()
    held = world.leadership[PARTITION]
    assert held.isr == (1,)
    leader = Leader("t-0", 1, ReplicationSettings(), 0)
    decision = PartitionDecision(
        controller_epoch=1,
        leader=1,
        leader_epoch=held.leader_epoch,
        partition_epoch=held.partition_epoch,
        isr=held.isr,
        replicas=(1, 2),
    )
    leader.decided(decision, 0, 0)
    leader.appended(100, 1)
    asked = leader.fetched(2, 100, 0, 2, world.brokers[2].epoch).alter_isr
    world.stop(2)  # it loses its log before the controller gets the request
    world.start(2)
    refused = ask(world, asked)
    assert isinstance(refused, IneligibleReplicaError)
    assert "[2] cannot join the ISR" in refused.message
    assert world.leadership[PARTITION] == held
    assert asked is not None
    leader.isr_refused(asked, refused, 3)
    assert leader.fetched(2, 0, 0, 4, world.brokers[2].epoch).alter_isr is None
    accepted = ask(world, leader.fetched(2, 100, 0, 5, world.brokers[2].epoch).alter_isr)
    assert isinstance(accepted, Leadership)
    assert accepted.isr == (1, 2)


def test_a_follower_of_an_earlier_version_without_a_broker_epoch_joins_the_isr() -> None:
    world = World(1, 2)
    world.elect(1)
    world.create("t", (1, 2))
    world.stop(2)
    world.start(2)
    held = world.leadership[PARTITION]
    accepted = ask(world, AlterIsr(isr=(1, 2), leader_epoch=held.leader_epoch, partition_epoch=held.partition_epoch))
    assert isinstance(accepted, Leadership)
