"""Tests of brokers whose processes ended, as refused connections show.

The controller removes the registration from ZooKeeper, or keeps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace.config.listeners import Listener
from millrace.coordination import paths
from millrace.errors import StaleBrokerEpochError
from millrace_broker.decisions import IsrChange, TopicPartition

from ....integration.waiting import eventually_async
from .controllers import Cluster, registration_epoch


async def refused(broker_id: int) -> bool:
    return True


async def accepted(broker_id: int) -> bool:
    return False


async def lose(
    cluster: Cluster,
    witness: int,
    lost: int,
    is_refused: Callable[[int], Awaitable[bool]] = refused,
    *,
    port: int | None = None,
) -> None:
    """Let a broker observe that its connection to another broker broke."""
    address = Listener("h", 9000 + lost if port is None else port)
    await cluster.nodes[witness].controlling.process_lost(lost, cluster.active[0], address, is_refused)


def is_registered(cluster: Cluster, broker_id: int) -> bool:
    return cluster.outside.exists(paths.broker_path(broker_id)) is not None


async def led(cluster: Cluster) -> tuple[int, int]:
    """Create a topic led by a broker that is not the controller, and return the controller and the leader."""
    await eventually_async(lambda: len(cluster.active) == 1)
    controller = cluster.active[0]
    leader, follower = (each for each in cluster.nodes if each != controller)
    cluster.create("t", (leader, follower))
    await eventually_async(lambda: cluster.leads("t", leader))
    return controller, leader


def test_the_controller_removes_a_registration_and_fences_the_leader_while_its_session_lives() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            controller, leader = await led(cluster)
            before, epoch = cluster.state("t"), registration_epoch(cluster, leader)
            assert before is not None
            await lose(cluster, controller, leader)
            after = cluster.state("t")
            assert after is not None
            assert (after.leader, after.leader_epoch) == (before.isr[1], before.leader_epoch + 1)
            assert leader not in after.isr
            change = IsrChange(isr=(leader,), leader_epoch=before.leader_epoch, partition_epoch=0)
            with pytest.raises(StaleBrokerEpochError):
                await cluster.nodes[controller].controlling.ask(
                    "isr", lambda each: each.alter_isrs(leader, epoch, {TopicPartition("t", 0): change})
                )
            cluster.nodes[leader].session.get(paths.TOPICS)  # the session is still valid

    asyncio.run(scenario())


def test_a_broker_that_accepts_connections_keeps_its_registration_and_what_it_leads() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            controller, leader = await led(cluster)
            await lose(cluster, controller, leader, accepted)
            assert is_registered(cluster, leader)
            assert cluster.leads("t", leader)
            await lose(cluster, next(iter({0, 1, 2} - {controller, leader})), controller, accepted)
            assert cluster.active == [controller]

    asyncio.run(scenario())


def test_a_broker_that_is_not_the_controller_removes_no_registration() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            controller, leader = await led(cluster)
            await lose(cluster, next(iter({0, 1, 2} - {controller, leader})), leader)
            assert is_registered(cluster, leader)

    asyncio.run(scenario())


def test_a_broker_that_registers_again_during_the_proof_keeps_its_new_registration() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            controller, leader = await led(cluster)

            async def come_back(broker_id: int) -> bool:
                before = registration_epoch(cluster, leader)
                cluster.nodes[leader].expire()
                await eventually_async(lambda: is_registered(cluster, leader))
                assert registration_epoch(cluster, leader) > before
                return True

            await lose(cluster, controller, leader, come_back)
            assert is_registered(cluster, leader)

    asyncio.run(scenario())


def test_any_broker_removes_the_node_of_a_dead_controller_and_another_one_is_elected() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            controller, _ = await led(cluster)
            epoch = cluster.nodes[controller].controlling.epoch
            owner = cluster.outside.get(paths.CONTROLLER)[1].ephemeral_owner
            witness = next(each for each in cluster.nodes if each != controller)
            await lose(cluster, witness, controller)
            await eventually_async(
                lambda: len(cluster.active) == 1 and cluster.nodes[cluster.active[0]].controlling.epoch > epoch
            )
            assert cluster.outside.get(paths.CONTROLLER)[1].ephemeral_owner != owner
            assert is_registered(cluster, controller), "the new controller has to find this out"

    asyncio.run(scenario())


def test_a_controller_that_was_elected_during_the_proof_stays() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            controller, _ = await led(cluster)
            witness = next(each for each in cluster.nodes if each != controller)

            async def be_replaced(broker_id: int) -> bool:
                epoch = cluster.nodes[controller].controlling.epoch
                cluster.outside.delete(paths.CONTROLLER)
                await eventually_async(
                    lambda: len(cluster.active) == 1 and cluster.nodes[cluster.active[0]].controlling.epoch > epoch
                )
                elected.append(cluster.outside.get(paths.CONTROLLER)[1].created_id)
                return True

            elected: list[int] = []
            await lose(cluster, witness, controller, be_replaced)
            assert [cluster.outside.get(paths.CONTROLLER)[1].created_id] == elected

    asyncio.run(scenario())


def test_a_controller_that_is_registered_elsewhere_than_where_connections_are_refused_stays() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            controller, _ = await led(cluster)
            witness = next(each for each in cluster.nodes if each != controller)
            await lose(cluster, witness, controller, port=1)
            assert cluster.active == [controller]

    asyncio.run(scenario())
