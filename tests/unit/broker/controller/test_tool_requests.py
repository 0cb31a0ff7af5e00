"""Tests of requests that tools write into ZooKeeper for the controller.

They are carried out also when the controller fails meanwhile.
"""

from __future__ import annotations

import asyncio

import pytest

from millrace.coordination import paths
from millrace.coordination.nodes import TopicNode
from millrace.coordination.notices import PreferredElectionNode, ReassignmentNode
from millrace_broker.decisions import TopicPartition

from ....integration.waiting import eventually_async
from .controllers import Cluster

PARTITION = TopicPartition("t", 0)


def assignment(cluster: Cluster) -> TopicNode:
    return TopicNode.decode(cluster.outside.get(paths.topic_path("t"))[0])


def asked(cluster: Cluster) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the content of the reassignment node, or nothing if the node is gone."""
    if cluster.outside.exists(paths.REASSIGN_PARTITIONS) is None:
        return {}
    return ReassignmentNode.decode(cluster.outside.get(paths.REASSIGN_PARTITIONS)[0]).replicas


def ask(cluster: Cluster, replicas: dict[tuple[str, int], tuple[int, ...]]) -> None:
    cluster.outside.create(paths.REASSIGN_PARTITIONS, ReassignmentNode(replicas).encode())


def is_moving(cluster: Cluster, *adding: int) -> bool:
    return assignment(cluster).adding == {0: adding}


async def settled(cluster: Cluster) -> None:
    """Tell whether there is one controller and partition 0 of ``t`` has a leader."""
    await eventually_async(lambda: len(cluster.active) == 1 and cluster.state("t") is not None)


def test_partitions_are_moved_and_taken_out_of_the_node_one_by_one() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            cluster.create("t", (0, 1))
            cluster.create("u", (0, 1))
            await settled(cluster)
            ask(cluster, {("t", 0): (0, 2), ("u", 0): (1, 2), ("v", 0): (1,), ("t", 7): (1,)})
            # the other reassignments are impossible
            await eventually_async(lambda: asked(cluster).keys() == {("t", 0), ("u", 0)})
            assert is_moving(cluster, 2)
            await cluster.bring_in_sync("t", (0, 1, 2))
            await eventually_async(lambda: asked(cluster) == {("u", 0): (1, 2)})
            assert assignment(cluster).assignment == {0: (0, 2)}
            await cluster.bring_in_sync("u", (0, 1, 2))
            await eventually_async(lambda: cluster.outside.exists(paths.REASSIGN_PARTITIONS) is None)
            ask(cluster, {("t", 0): (1, 2)})  # the controller sees the next request too
            await eventually_async(lambda: is_moving(cluster, 1))

    asyncio.run(scenario())


def test_the_next_controller_continues_with_a_move() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            cluster.create("t", (0, 1))
            await settled(cluster)
            ask(cluster, {("t", 0): (0, 2)})
            await eventually_async(lambda: is_moving(cluster, 2))
            epoch = cluster.nodes[cluster.active[0]].controlling.epoch
            cluster.outside.delete(paths.CONTROLLER)
            await eventually_async(
                lambda: bool(cluster.active) and cluster.nodes[cluster.active[0]].controlling.epoch > epoch
            )
            await cluster.bring_in_sync("t", (0, 1, 2))
            await eventually_async(lambda: cluster.outside.exists(paths.REASSIGN_PARTITIONS) is None)
            assert assignment(cluster).assignment == {0: (0, 2)}

    asyncio.run(scenario())


def test_a_cancelled_reassignment_is_removed_from_the_reassignment_node() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1, 2) as cluster:
            cluster.create("t", (0, 1))
            await settled(cluster)
            ask(cluster, {("t", 0): (0, 2)})
            await eventually_async(lambda: is_moving(cluster, 2))
            active = cluster.nodes[cluster.active[0]].controlling
            assert await active.ask("cancel", lambda each: each.reassign({PARTITION: None})) == {PARTITION: None}
            await eventually_async(lambda: cluster.outside.exists(paths.REASSIGN_PARTITIONS) is None)
            assert assignment(cluster).assignment == {0: (0, 1)}

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["before", "after", "lost before", "lost after"])
@pytest.mark.parametrize("step", range(1, 12))
def test_a_move_survives_the_end_of_the_controllers_session_at_any_step(step: int, how: str) -> None:
    async def scenario() -> None:
        async with Cluster(0, 1) as cluster:
            cluster.create("t", (0, 1))
            await settled(cluster)
            node = cluster.nodes[cluster.active[0]]
            node.calls, node.dies_at, node.how = 0, step, how
            ask(cluster, {("t", 0): (1, 0)})
            await eventually_async(lambda: cluster.outside.exists(paths.REASSIGN_PARTITIONS) is None)
            assert assignment(cluster).assignment == {0: (1, 0)}

    asyncio.run(scenario())


def test_preferred_leaders_are_elected_and_the_node_goes() -> None:
    async def scenario() -> None:
        async with Cluster(0, 1) as cluster:
            cluster.create("t", (0, 1))
            await settled(cluster)
            active = cluster.nodes[cluster.active[0]].controlling
            await active.ask("move", lambda each: each.reassign({PARTITION: (1, 0)}))
            assert cluster.leads("t", 0)
            for _ in range(2):  # the second attempt needs no failure
                node = PreferredElectionNode((PARTITION, ("no such topic", 3)))
                cluster.outside.create(paths.PREFERRED_ELECTION, node.encode())
                await eventually_async(lambda: cluster.outside.exists(paths.PREFERRED_ELECTION) is None)
                assert cluster.leads("t", 1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"partitions":[{"topic":"t","partition":0,"replicas":["x"]}]}', b'{"partitions":[{}]}']
)
def test_an_unreadable_node_is_named_and_the_controller_continues(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Cluster(0, 1) as cluster:
            cluster.outside.create(paths.REASSIGN_PARTITIONS, data)
            cluster.create("t", (0, 1))
            await settled(cluster)
            await eventually_async(lambda: f"delete {paths.REASSIGN_PARTITIONS} and write it again" in caplog.text)
            cluster.outside.delete(paths.REASSIGN_PARTITIONS)
            ask(cluster, {("t", 0): (1, 0)})
            await eventually_async(lambda: assignment(cluster).assignment == {0: (1, 0)})

    asyncio.run(scenario())


def test_marks_of_deletions_are_removed_where_topics_may_not_be_deleted() -> None:
    async def scenario() -> None:
        async with Cluster(0, options={"delete.topic.enable": "false"}) as cluster:
            cluster.create("t", (0,))
            await settled(cluster)
            cluster.delete("t")
            await eventually_async(lambda: cluster.outside.exists(paths.delete_topic_path("t")) is None)
            assert cluster.state("t") is not None

    asyncio.run(scenario())
